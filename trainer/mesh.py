"""The grid of ranks: which of them hold which part of the model, and which share of each batch.

Its axes are, from the outermost to the innermost:

- ``pp``: pipeline ranks, each with some of the blocks;
- ``dp_replicate`` x ``dp_shard``: replicas, each with a share of every batch. Those along ``dp_shard`` split
  parameters among them, those along ``dp_replicate`` have equal copies;
- ``tp``: ranks that split every matrix, and the rows between the matrices.

The innermost ranks talk most, so they are neighbours, as in Megatron-LM (Narayanan et al. 2021).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import TypeVar, cast

import torch
import torch.distributed as dist
from torch import Tensor
from torch._C._distributed_c10d import PrefixStore
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

from ..errors import LostError, TamisError, UsageError
from .faults.hangs import Watch, broken
from .faults.meeting import met
from .faults.place import place_in
from .memory import keep_freed_memory
from .settings import LayoutSettings

T = TypeVar("T")

AXES = ("pp", "dp_replicate", "dp_shard", "tp")


@dataclass(frozen=True)
class Mesh:
    """The ranks of a run, seen from one of them. With one rank nothing is sent.

    ``sizes`` and ``place``: for each axis of `AXES`, how many ranks there are and which one this is.
    ``devices``: torch's mesh over the axes longer than 1, None with one rank.
    """

    rank: int
    device: torch.device
    sizes: tuple[int, int, int, int] = (1, 1, 1, 1)
    place: tuple[int, int, int, int] = (0, 0, 0, 0)
    devices: DeviceMesh | None = None

    @property
    def world(self) -> int:
        """All ranks."""
        pp, copies, shards, tp = self.sizes
        return pp * copies * shards * tp

    def size(self, axis: str) -> int:
        """Ranks along an axis of `AXES`."""
        return self.sizes[AXES.index(axis)]

    def index(self, axis: str) -> int:
        """Which of them this rank is."""
        return self.place[AXES.index(axis)]

    def group(self, axis: str) -> dist.ProcessGroup | None:
        """The ranks that differ from this one along an axis alone; None where it has one rank."""
        return self.devices.get_group(axis) if self.devices is not None and self.size(axis) > 1 else None

    @property
    def replicas(self) -> int:
        """How many shares there are of each batch."""
        return self.size("dp_replicate") * self.size("dp_shard")

    @property
    def replica(self) -> int:
        """Which share this rank needs. Ranks that differ along ``pp`` or ``tp`` alone need the same."""
        return self.index("dp_replicate") * self.size("dp_shard") + self.index("dp_shard")

    @property
    def leads(self) -> bool:
        """Whether this rank speaks for its replica, where each replica counts once."""
        return self.index("pp") == 0 and self.index("tp") == 0

    def sum(self, values: Tensor) -> Tensor:
        """Add up over all ranks, in place: what several ranks know alike, one gives, and the others 0."""
        if self.world > 1:
            dist.all_reduce(values)
        return values

    def gather(self, value: T) -> list[T]:
        """The values of all ranks, on every rank (picklable, small)."""
        if self.world == 1:
            return [value]
        values: list[T] = [value] * self.world
        dist.all_gather_object(values, value)
        return values

    def first(self, work: Callable[[], T]) -> T:
        """What ``work`` gives on rank 0, which alone does it; all ranks raise the TamisError it raised."""
        outcome: T | TamisError | None = None
        if self.rank == 0:
            try:
                outcome = work()
            except TamisError as error:
                outcome = error
        told = self.gather(outcome)[0]
        if isinstance(told, TamisError):
            raise told
        return cast(T, told)

    def barrier(self) -> None:
        """Wait for all ranks."""
        if self.world > 1:
            dist.barrier()


def alone(device: torch.device | None = None) -> Mesh:
    """The mesh of one rank."""
    return Mesh(0, device or torch.device("cpu"))


def mesh_of(layout: LayoutSettings, rank: int, device: torch.device) -> Mesh:
    """This rank's place in the grid; every rank of an initialised process group calls this."""
    sizes = layout.sizes
    place, rest = [0, 0, 0, 0], rank
    for axis in reversed(range(len(AXES))):
        rest, place[axis] = divmod(rest, sizes[axis])
    long = [(size, name) for size, name in zip(sizes, AXES, strict=True) if size > 1]
    shape, names = zip(*long, strict=True) if long else ((1,), ("pp",))
    devices = init_device_mesh(device.type, shape, mesh_dim_names=names)
    return Mesh(rank, device, sizes, (place[0], place[1], place[2], place[3]), devices)


@contextmanager
def joined(layout: LayoutSettings) -> Iterator[Mesh]:
    """Join the ranks that torchrun started (its environment variables say who is who), or be the only one.

    gloo between processors, NCCL between GPUs, one a rank. Raises UsageError where the number of ranks is
    not that of the layout, or a rank has no GPU of its own while others have; LostError, in place of torch's
    own, where another rank does not come, ends, or does not answer within ``layout.timeout_s``.
    """
    rank, world, local = place_in(layout)
    device = _device(local)
    if device.type == "cpu":
        keep_freed_memory()
    if world == 1:
        yield alone(device)
        return
    store, name = met(rank, world, layout.timeout_s)
    watch = Watch(name, rank, world)
    backend = "nccl" if device.type == "cuda" else "gloo"
    try:
        dist.init_process_group(
            backend,
            store=PrefixStore(name, store),
            rank=rank,
            world_size=world,
            timeout=timedelta(seconds=layout.timeout_s),
            device_id=device if backend == "nccl" else None,
        )
        yield mesh_of(layout, rank, device)
        dist.barrier()  # a rank that leaves early would break the connections of those still busy
    except RuntimeError as error:  # the group is left with the process: others must not see its end first
        if isinstance(error, getattr(torch, "AcceleratorError", ())):
            fix = "see the driver's log; the same command goes on"
            raise LostError(f"rank {rank}", f"its GPU failed ({error})", fix) from error
        raise (watch.explained(error) if broken(error) else error) from error
    watch.end()
    dist.destroy_process_group()


def _device(local_rank: int) -> torch.device:
    if not torch.cuda.is_available():
        return torch.device("cpu")
    if local_rank >= torch.cuda.device_count():
        raise UsageError(
            "layout",
            f"local rank {local_rank} has no GPU: this machine has {torch.cuda.device_count()}",
            "start no more ranks than GPUs, or hide them with CUDA_VISIBLE_DEVICES=",
        )
    device = torch.device("cuda", local_rank)
    torch.cuda.set_device(device)
    return device
