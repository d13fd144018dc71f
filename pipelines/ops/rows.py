"""Operators that choose or merge a cloud's rows."""

from __future__ import annotations

from ...samplers.farthest import farthest
from ...samplers.fields import Reduction, reduction
from ...samplers.random import random
from ...samplers.voxel import voxel
from .call import Call, Columns
from .settings import FarthestSettings, RandomSettings, VoxelSettings


def merge_cells(columns: Columns, call: Call[VoxelSettings]) -> Columns:
    """One row a voxel; the other columns are merged as their kinds demand (see `samplers.fields`)."""
    fields = {name: values for name, values in columns.items() if name != "xyz"}
    reduce: dict[str, Reduction] = {
        name: reduction(call.kinds[name], values.dtype) for name, values in fields.items()
    }
    size, pick = call.settings.size, call.settings.pick
    # the executors have a thread a sample: no more are wanted inside
    merged = voxel(columns["xyz"], size, pick=pick, fields=fields, reduce=reduce, seed=call.key, threads=1)
    return {name: merged.xyz if name == "xyz" else merged.fields[name] for name in columns}


def choose_random(columns: Columns, call: Call[RandomSettings]) -> Columns:
    """At most k rows at random."""
    n = count(columns)
    index = random(n, n if call.k is None else min(call.k, n), seed=call.key)
    return {name: values[index] for name, values in columns.items()}


def choose_farthest(columns: Columns, call: Call[FarthestSettings]) -> Columns:
    """At most k rows by farthest-point sampling from row 0: what a stored farthest order begins with."""
    n = count(columns)
    index = farthest(columns["xyz"], n if call.k is None else min(call.k, n))
    return {name: values[index] for name, values in columns.items()}


def count(columns: Columns) -> int:
    """Rows of a sample: every column has as many."""
    return len(next(iter(columns.values())))
