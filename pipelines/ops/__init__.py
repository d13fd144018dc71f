"""The operators of a graph: their settings, and one table (name, back end) -> function."""

from __future__ import annotations

from collections.abc import Callable

from . import geometry, rows
from .call import Call, Columns
from .graph import Graph, Operator, resolve
from .settings import (
    FarthestSettings,
    FlipSettings,
    OperatorSettings,
    RandomSettings,
    RotateSettings,
    ScaleSettings,
    SerialiseSettings,
    VoxelSettings,
)

TABLE: dict[tuple[str, str], Callable[..., Columns]] = {
    ("voxel", "threads"): rows.merge_cells,
    ("random", "threads"): rows.choose_random,
    ("farthest", "threads"): rows.choose_farthest,
    ("rotate", "threads"): geometry.rotate,
    ("flip", "threads"): geometry.flip,
    ("scale", "threads"): geometry.scale,
}
"""``function(columns, call) -> columns``; it changes no array in place."""

__all__ = [
    "TABLE",
    "Call",
    "Columns",
    "FarthestSettings",
    "FlipSettings",
    "Graph",
    "Operator",
    "OperatorSettings",
    "RandomSettings",
    "RotateSettings",
    "ScaleSettings",
    "SerialiseSettings",
    "VoxelSettings",
    "resolve",
]
