"""Counting what ranks send: exact counts of known traffic, and formulas against a network's own counters."""

from __future__ import annotations

import ctypes
import os
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.pipelining import PipelineStage, Schedule1F1B
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

from tamis.trainer.mesh import Mesh
from tamis.trainer.parallel.rows import Rows
from tamis.trainer.parallel.wire import WORLD, Wire, axes_of
from tamis.trainer.settings import LayoutSettings

Found = dict[tuple[str, str], tuple[int, int, float]]
FLOAT = 4  # bytes


def found(wire: Wire) -> Found:
    return {key: (t.calls, t.payload_bytes, t.wire_bytes) for key, t in wire.traffic.items()}


def everyone() -> str:
    """The name of the group of all ranks."""
    assert dist.group.WORLD is not None
    return dist.group.WORLD.group_name


def collectives(_: Any, n: int) -> tuple[Found, bool]:
    """Every collective once, over all ranks, of tensors of n elements."""
    world = dist.get_world_size()
    x, whole = torch.ones(n), torch.ones(world * n)
    with Wire({}) as wire:
        dist.all_reduce(x)
        dist.all_gather_into_tensor(whole, x)
        dist.all_gather([torch.empty(n) for _ in range(world)], x)
        dist.reduce_scatter_tensor(x, whole)
        dist.broadcast(x, 0)
        dist.reduce(x, 0)
        dist.all_to_all_single(torch.empty(world * n), whole)
        dist.gather(x, [torch.empty(n) for _ in range(world)] if dist.get_rank() == 0 else None)
        dist.scatter(x, list(whole.view(world, n)) if dist.get_rank() == 0 else None)
        dist.barrier()
    waited = all(t.wait_s > 0 for (_, operation), t in wire.traffic.items())
    dist.all_reduce(x)  # no longer counted
    return found(wire), waited


@pytest.mark.parametrize("world", [2, 3])
def test_every_collective(run_ranks: Callable[..., list[Any]], world: int) -> None:
    n = 1000
    one, part = FLOAT * n, (world - 1) / world
    for counts, waited in run_ranks(world, collectives, n):
        assert counts == {
            (WORLD, "all_reduce"): (1, one, 2 * part * one),
            (WORLD, "all_gather"): (2, 2 * world * one, 2 * part * world * one),
            (WORLD, "reduce_scatter"): (1, world * one, part * world * one),
            (WORLD, "broadcast"): (1, one, part * one),
            (WORLD, "reduce"): (1, one, part * one),
            (WORLD, "all_to_all"): (1, world * one, part * world * one),
            (WORLD, "gather"): (1, world * one, pytest.approx(part * one)),
            (WORLD, "scatter"): (1, world * one, pytest.approx(part * one)),
        }
        assert waited


def data_parallel(_: Any, microbatches: int) -> list[Found]:
    """Steps of DistributedDataParallel; the first two agree on buckets and are not counted."""
    model = nn.parallel.DistributedDataParallel(nn.Sequential(nn.Linear(10, 10), nn.Linear(10, 3)))
    counts = []
    for _ in range(4):
        with Wire({everyone(): "dp_replicate"}) as wire:
            with model.no_sync():
                for _ in range(microbatches - 1):
                    model(torch.ones(2, 10)).sum().backward()
            model(torch.ones(2, 10)).sum().backward()
        counts.append(found(wire))
    return counts[2:]


def test_data_parallel_sends_each_gradient_once(run_ranks: Callable[..., list[Any]]) -> None:
    gradients = FLOAT * (10 * 10 + 10 + 10 * 3 + 3)
    for microbatches in (1, 4):
        for counts in run_ranks(2, data_parallel, microbatches):
            assert counts == [{("dp_replicate", "all_reduce"): (1, gradients, gradients)}] * 2


def sharded(_: Any, reshard: bool) -> Found:
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp_replicate", "dp_shard"))
    model = nn.Sequential(nn.Linear(10, 10), nn.Linear(10, 10))
    for layer in model:
        fully_shard(layer, mesh=mesh, reshard_after_forward=reshard)
    fully_shard(model, mesh=mesh, reshard_after_forward=reshard)
    names: dict[str, str] = {mesh.get_group(axis).group_name: axis for axis in ("dp_replicate", "dp_shard")}
    model(torch.ones(2, 10)).sum().backward()
    with Wire(names) as wire:
        model(torch.ones(2, 10)).sum().backward()
    return found(wire)


@pytest.mark.parametrize("reshard", [True, False])
def test_sharded_parameters(run_ranks: Callable[..., list[Any]], reshard: bool) -> None:
    layer = FLOAT * (10 * 10 + 10)
    gathers = 4 if reshard else 2  # of two layers, forward and backward
    for counts in run_ranks(4, sharded, reshard):
        assert counts == {
            ("dp_shard", "all_gather"): (gathers, gathers * layer, gathers * layer / 2),
            ("dp_shard", "reduce_scatter"): (2, 2 * layer, layer),
            ("dp_replicate", "all_reduce"): (2, layer, layer),  # each of its half
        }


def tensor_parallel(mesh: Mesh) -> tuple[Found, Found, Found]:
    """torch's own tensor parallelism, what an operator over shares does by itself, and ours."""
    assert mesh.devices is not None
    axes = axes_of(mesh)
    layers = nn.Sequential(nn.Linear(10, 20), nn.Linear(20, 10))
    model = parallelize_module(layers, mesh.devices["tp"], {"0": ColwiseParallel(), "1": RowwiseParallel()})
    with Wire(axes) as torchs:
        model(torch.ones(3, 10, requires_grad=True)).sum().backward()

    shared = distribute_tensor(torch.ones(4, 6), mesh.devices["tp"], [Shard(0)])
    with Wire(axes) as operator:
        total = torch.cumsum(shared, 0)
        assert isinstance(total, DTensor)
        total.redistribute(placements=[Replicate()]).to_local()

    rows = Rows(mesh.group("tp"), 2, mesh.index("tp"))
    x = torch.ones(2, 4, 5, requires_grad=True)  # this rank's 4 of 8 rows
    with Wire(axes) as ours:
        torch.autograd.backward(rows.scattered(rows.gathered(x)).sum())
    return found(torchs), found(operator), found(ours)


def test_tensor_parallel(run_ranks: Callable[..., list[Any]]) -> None:
    activations, rows = FLOAT * 3 * 10, FLOAT * 2 * 8 * 5
    for torchs, operator, ours in run_ranks(LayoutSettings(dp=2, tp=2), tensor_parallel):
        assert torchs == {("tp", "all_reduce"): (2, 2 * activations, 2 * activations)}
        assert {axis for axis, _ in operator} == {"tp"}
        assert sum(calls for calls, _, _ in operator.values()) >= 1
        assert ours == {
            ("tp", "all_gather"): (2, 2 * rows, rows),
            ("tp", "reduce_scatter"): (2, 2 * rows, rows),
        }


def pipeline(_: Any, microbatches: int) -> dict[str, tuple[int, int, float]]:
    rank, world = dist.get_rank(), dist.get_world_size()
    stage = PipelineStage(nn.Linear(10, 10), rank, world, torch.device("cpu"))

    def loss(output: Tensor, target: Tensor) -> Tensor:
        return (output - target).square().sum()

    schedule: Any = Schedule1F1B(stage, microbatches, loss, scale_grads=False)
    x = torch.ones(2 * microbatches, 10)

    def step() -> None:
        schedule.step(*((x,) if rank == 0 else ()), **({"target": x} if rank == world - 1 else {}))

    step()  # agrees on shapes
    with Wire({everyone(): "pp"}) as wire:
        step()
    return {axis: (t.calls, t.payload_bytes, t.wire_bytes) for axis, t in wire.by_axis().items()}


def test_pipeline(run_ranks: Callable[..., list[Any]]) -> None:
    microbatches, rows = 4, FLOAT * 2 * 10
    answers = run_ranks(3, pipeline, microbatches)
    for rank, counts in enumerate(answers):
        sends = microbatches * (2 if rank == 1 else 1)  # activations on, gradients back
        assert counts == {"pp": (sends, sends * rows, sends * rows)}


CLONE_NEWNET = 0x40000000
N = 1 << 20


def own_network(_: Any, store: str) -> dict[str, tuple[float, float]] | str:
    """(bytes on the wire, bytes counted) of all ranks by operation, in a network of their own; or why not."""
    rank, world = dist.get_rank(), dist.get_world_size()
    libc = ctypes.CDLL(None, use_errno=True)
    failed = rank == 0 and libc.unshare(CLONE_NEWNET) != 0
    if rank == 0 and not failed:
        subprocess.run(["ip", "link", "set", "lo", "up"], check=True)
    told: list[Any] = [None if failed else os.getpid()]
    dist.broadcast_object_list(told, 0)
    if told[0] is None:
        return f"no network namespace: {os.strerror(ctypes.get_errno())}"
    dist.barrier()
    dist.destroy_process_group()
    if rank > 0:
        with Path(f"/proc/{told[0]}/ns/net").open() as namespace:
            assert libc.setns(namespace.fileno(), CLONE_NEWNET) == 0
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=world)
    x, whole = torch.ones(N), torch.ones(world * N)
    operations: dict[str, Callable[[], Any]] = {
        "all_reduce": lambda: dist.all_reduce(whole),
        "all_gather": lambda: dist.all_gather_into_tensor(whole, x),
        "reduce_scatter": lambda: dist.reduce_scatter_tensor(x, whole),
        "broadcast": lambda: dist.broadcast(x, 0),
        "send": lambda: dist.send(x, rank + 1) if rank % 2 == 0 else dist.recv(x, rank - 1),
    }
    answers = {}
    for name, operation in operations.items():
        operation()  # connects
        dist.barrier()
        time.sleep(0.1)
        before = loopback_bytes()
        dist.barrier()
        with Wire({}) as wire:
            operation()
        dist.barrier()
        time.sleep(0.1)
        counted = torch.tensor([t.wire_bytes for t in wire.by_axis().values()]).sum()
        carried = loopback_bytes() - before
        dist.all_reduce(counted)
        answers[name] = (float(carried), float(counted))
    return answers


def loopback_bytes() -> int:
    lines = Path("/proc/thread-self/net/dev").read_text().splitlines()
    return next(int(line.split()[9]) for line in lines if line.strip().startswith("lo:"))


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may open a network namespace")
@pytest.mark.parametrize("world", [2, 4])
def test_as_many_bytes_as_the_network_counts(
    run_ranks: Callable[..., list[Any]], tmp_path: Path, world: int
) -> None:
    answer = run_ranks(world, own_network, str(tmp_path / "inside"))[0]
    if isinstance(answer, str):
        pytest.skip(answer)
    for name, (carried, counted) in answer.items():
        factor = 2 if name == "reduce_scatter" else 1  # which gloo makes of an all-reduce
        assert carried == pytest.approx(factor * counted, rel=0.05), name
