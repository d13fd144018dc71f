"""Data parallel: every rank has the whole model and a share of each global batch."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TypeVar, cast

import torch
import torch.distributed as dist
from torch import Tensor, nn

from ...errors import TamisError, UsageError

T = TypeVar("T")


@dataclass(frozen=True)
class Ranks:
    """The ranks of a run, seen from one of them. With one rank nothing is sent and nothing is wrapped."""

    rank: int
    world: int
    device: torch.device

    def wrap(self, model: nn.Module) -> nn.Module:
        """The model whose backward pass leaves the same gradients on every rank, see `share`."""
        if self.world == 1:
            return model
        devices = [self.device] if self.device.type == "cuda" else None
        return nn.parallel.DistributedDataParallel(model, device_ids=devices)

    def share(self, loss: Tensor, count: float) -> Tensor:
        """What to differentiate, of a loss summed over this rank's points; ``count``: points of all ranks.

        The wrapped model averages gradients over ranks; the factor turns that into the sum, so that the
        gradient is that of sum / count over the global batch, whatever share of the points a rank had.
        """
        return loss * (self.world / count)

    def sum(self, values: Tensor) -> Tensor:
        """Add up over ranks, in place."""
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


@contextmanager
def data_parallel(size: int) -> Iterator[Ranks]:
    """Join the ranks that torchrun started (its environment variables say who is who), or be the only one.

    gloo between processors, NCCL between GPUs, one a rank. Raises UsageError where the number of ranks is
    not ``size``, or a rank has no GPU of its own while others have.
    """
    rank, world, local = (
        int(os.environ.get(k, d)) for k, d in (("RANK", "0"), ("WORLD_SIZE", "1"), ("LOCAL_RANK", "0"))
    )
    if world != size:
        raise UsageError(f"layout.dp = {size}", f"but {world} ranks were started", "make them equal")
    device = _device(local)
    if world == 1:
        yield Ranks(0, 1, device)
        return
    backend = "nccl" if device.type == "cuda" else "gloo"
    dist.init_process_group(
        backend, rank=rank, world_size=world, device_id=device if backend == "nccl" else None
    )
    try:
        yield Ranks(rank, world, device)
        dist.barrier()  # a rank that leaves early would break the connections of those still busy
    finally:
        dist.destroy_process_group()


def _device(local_rank: int) -> torch.device:
    if not torch.cuda.is_available():
        return torch.device("cpu")
    if local_rank >= torch.cuda.device_count():
        raise UsageError(
            "layout.dp",
            f"local rank {local_rank} has no GPU: this machine has {torch.cuda.device_count()}",
            "start no more ranks than GPUs, or hide them with CUDA_VISIBLE_DEVICES=",
        )
    device = torch.device("cuda", local_rank)
    torch.cuda.set_device(device)
    return device
