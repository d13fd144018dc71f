"""What ranks send one another: calls and bytes of every collective, by axis of the mesh."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.distributed_c10d import _resolve_process_group  # type: ignore[attr-defined]
from torch.distributed.tensor import DTensor
from torch.utils._python_dispatch import TorchDispatchMode

from ..mesh import AXES, Mesh

WORLD = "world"
"""What groups that belong to no axis are counted as."""

# torch's operator -> (what it does, which argument holds the data, whether that is one rank's part of it).
_OPERATORS: dict[str, tuple[str, int, bool]] = {
    "c10d::allreduce_": ("all_reduce", 0, False),
    "c10d::allreduce_coalesced_": ("all_reduce", 0, False),
    "c10d::allgather_": ("all_gather", 0, False),
    "c10d::allgather_coalesced_": ("all_gather", 0, False),
    "c10d::allgather_into_tensor_coalesced_": ("all_gather", 0, False),
    "c10d::_allgather_base_": ("all_gather", 0, False),
    "c10d::reduce_scatter_": ("reduce_scatter", 1, False),
    "c10d::reduce_scatter_tensor_coalesced_": ("reduce_scatter", 1, False),
    "c10d::_reduce_scatter_base_": ("reduce_scatter", 1, False),
    "c10d::alltoall_": ("all_to_all", 1, False),
    "c10d::alltoall_base_": ("all_to_all", 1, False),
    "c10d::broadcast_": ("broadcast", 0, False),
    "c10d::reduce_": ("reduce", 0, False),
    "c10d::gather_": ("gather", 1, True),
    "c10d::gather_into_tensor_": ("gather", 1, True),
    "c10d::scatter_": ("scatter", 0, True),
    "c10d::send": ("send", 0, False),
    "_c10d_functional::all_reduce": ("all_reduce", 0, False),
    "_c10d_functional::all_reduce_": ("all_reduce", 0, False),
    "_c10d_functional::all_reduce_coalesced": ("all_reduce", 0, False),
    "_c10d_functional::all_reduce_coalesced_": ("all_reduce", 0, False),
    "_c10d_functional::all_gather_into_tensor": ("all_gather", 0, True),
    "_c10d_functional::all_gather_into_tensor_out": ("all_gather", 0, True),
    "_c10d_functional::all_gather_into_tensor_coalesced": ("all_gather", 0, True),
    "_c10d_functional::reduce_scatter_tensor": ("reduce_scatter", 0, False),
    "_c10d_functional::reduce_scatter_tensor_out": ("reduce_scatter", 0, False),
    "_c10d_functional::reduce_scatter_tensor_coalesced": ("reduce_scatter", 0, False),
    "_c10d_functional::all_to_all_single": ("all_to_all", 0, False),
    "_c10d_functional::broadcast": ("broadcast", 0, False),
    "_c10d_functional::broadcast_": ("broadcast", 0, False),
    "_c10d_functional::isend": ("send", 0, False),
    "_dtensor::shard_dim_alltoall": ("all_to_all", 0, False),
}


@dataclass
class Traffic:
    """Some calls: how many, bytes of the data, bytes that this rank sends, and seconds it was held up.

    ``payload_bytes`` counts the whole of what is gathered, scattered or reduced, not a rank's part of it.
    ``wait_s``: in blocking calls, until the slowest rank had come; what goes on in the background counts 0.
    """

    calls: int = 0
    payload_bytes: int = 0
    wire_bytes: float = 0.0
    wait_s: float = 0.0

    def add(self, other: Traffic) -> None:
        """Count the other's calls too."""
        self.calls += other.calls
        self.payload_bytes += other.payload_bytes
        self.wire_bytes += other.wire_bytes
        self.wait_s += other.wait_s


def sent(operation: str, payload_bytes: float, ranks: int) -> float:
    """Bytes that each of so many ranks sends, on average, of ring algorithms (Patarasu and Yuan 2009).

    gloo sends twice that for a reduce-scatter, which it makes of an all-reduce.
    """
    if operation == "send":
        return payload_bytes
    rounds = {"all_reduce": 2.0, "gather": 1 / ranks, "scatter": 1 / ranks}.get(operation, 1.0)
    return rounds * (ranks - 1) / ranks * payload_bytes


class Wire(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """While active, counts what this rank's process groups do, forward and backward, however they are called.

    ``axes``: names of process groups and the axis of each, see `axes_of`. ``traffic``: by (axis, operation).
    Point to point is counted where it is sent. Meant for a step now and then: every operator of torch comes
    by, which costs microseconds apiece.
    """

    def __init__(self, axes: Mapping[str, str]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.axes = axes
        self.traffic: dict[tuple[str, str], Traffic] = {}

    def by_axis(self) -> dict[str, Traffic]:
        """The traffic of each axis on which there was any."""
        sums: dict[str, Traffic] = {}
        for (axis, _), traffic in self.traffic.items():
            sums.setdefault(axis, Traffic()).add(traffic)
        return sums

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        """Run an operator, and count it if it is one that sends."""
        if any(issubclass(kind, DTensor) for kind in types):
            return NotImplemented  # it comes again as operators over local tensors, collectives among them
        start = time.perf_counter()
        out = func(*args, **(kwargs or {}))
        known = _OPERATORS.get(func._schema.name)
        if known is not None:
            operation, place, part = known
            named = dict(zip((a.name for a in func._schema.arguments), args, strict=False))
            group = _group(named)
            blocking = named.get("async_op") is False
            if blocking:  # the caller waits next; here it is seen for how long
                dist.Work.unbox(out[-1] if isinstance(out, tuple | list) else out).wait()
            payload = sum(t.nbytes for t in _tensors(args[place])) * (group.size() if part else 1)
            wait_s = time.perf_counter() - start if blocking else 0.0
            one = Traffic(1, payload, sent(operation, payload, group.size()), wait_s)
            self.traffic.setdefault((self.axes.get(group.group_name, WORLD), operation), Traffic()).add(one)
        return out


def axes_of(mesh: Mesh) -> dict[str, str]:
    """The names of a mesh's process groups, and the axis of each.

    Where a mesh has one axis alone, its group is that of all ranks.
    """
    groups = {axis: mesh.group(axis) for axis in AXES}
    return {group.group_name: axis for axis, group in groups.items() if group is not None}


def _group(named: Mapping[str, Any]) -> dist.ProcessGroup:
    group = named.get("process_group", named.get("group_name"))
    if isinstance(group, torch.ScriptObject):
        return dist.ProcessGroup.unbox(group)
    return group if isinstance(group, dist.ProcessGroup) else _resolve_process_group(group)


def _tensors(values: Any) -> Iterator[Tensor]:
    if isinstance(values, Tensor):
        yield values
    else:
        for value in values:
            yield from _tensors(value)
