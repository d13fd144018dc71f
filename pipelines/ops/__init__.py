"""The operators of a graph: their settings, and one table (name, back end) -> function."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from . import function, geometry, on_device, rows
from .annotated import carried
from .call import Call, Columns
from .graph import Graph, Operator, resolve
from .settings import (
    FarthestSettings,
    FlipSettings,
    FunctionSettings,
    JitterSettings,
    NormaliseSettings,
    OperatorSettings,
    RandomSettings,
    RotateSettings,
    ScaleSettings,
    SerialiseSettings,
    VoxelSettings,
)

TABLE: dict[tuple[str, str], Callable[..., Any]] = {
    ("voxel", "threads"): rows.merge_cells,
    ("random", "threads"): rows.choose_random,
    ("farthest", "threads"): rows.choose_farthest,
    ("rotate", "threads"): geometry.rotate,
    ("flip", "threads"): geometry.flip,
    ("scale", "threads"): geometry.scale,
    ("jitter", "threads"): geometry.jitter,
    ("normalise", "threads"): geometry.normalise,
    ("function", "threads"): function.call_function,
    ("random", "device"): on_device.choose_random,
    ("farthest", "device"): on_device.choose_farthest,
    ("rotate", "device"): on_device.rotate,
    ("flip", "device"): on_device.multiply,
    ("scale", "device"): on_device.multiply,
    ("jitter", "device"): on_device.jitter,
    ("normalise", "device"): on_device.normalise,
}
"""Threads: ``function(columns, call) -> columns``. Device: ``function(clouds, calls) -> clouds``, for a whole
batch of torch tensors. None changes an array in place."""

__all__ = [
    "TABLE",
    "Call",
    "Columns",
    "FarthestSettings",
    "FlipSettings",
    "FunctionSettings",
    "Graph",
    "JitterSettings",
    "NormaliseSettings",
    "Operator",
    "OperatorSettings",
    "RandomSettings",
    "RotateSettings",
    "ScaleSettings",
    "SerialiseSettings",
    "VoxelSettings",
    "carried",
    "resolve",
]
