"""Voxel grid: one point for each cell of a grid that is fixed in the world.

Rows are sorted by cell with a stable radix sort, one axis after the other, and each run of rows that share a
cell becomes one point. Three cell numbers are never packed into one, so nothing can overflow.
"""

from __future__ import annotations

import difflib
import logging
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

import numpy as np
from numba import njit
from numpy.typing import NDArray

from ..errors import UsageError
from .curve import radix_order
from .fields import Reduction, reduction_of
from .gate import as_array, as_given, checked, is_tensor
from .merge import Runs, merge

log = logging.getLogger(__name__)

Pick = Literal["centroid", "first", "nearest", "random", "center"]

_PICKS = ("centroid", "first")
_MOST_CELLS = 2.0**53
"""Above it float64 no longer tells neighbouring cells apart."""

_ONE = 2.0**30
"""Steps to a cell's edge in the fixed-point sums: those of 2^33 rows fit an int64."""


@dataclass(frozen=True, eq=False)
class Voxels:
    """The occupied cells, sorted by (x, y, z) cell number: m of them, from n rows.

    ``xyz`` float32 (m, 3) is there at once, relative to the same origin as the input; the rest is computed
    when first asked for. All own their memory, and are of the kind, numpy or torch, that was given.
    """

    xyz: Any
    _runs: Runs
    _cells: NDArray[np.int64]
    _given: Mapping[str, tuple[NDArray[Any], bool, Reduction]]
    _tensor: bool

    @cached_property
    def index(self) -> Any:
        """int64 (m,): the first row of each cell."""
        return as_given(self._runs.first.copy(), self._tensor)

    @cached_property
    def count(self) -> Any:
        """int64 (m,): how many rows each cell has."""
        return as_given(np.diff(self._runs.starts), self._tensor)

    @cached_property
    def cell(self) -> Any:
        """int64 (m, 3): floor((xyz + origin - grid_origin) / size)."""
        return as_given(self._cells, self._tensor)

    @cached_property
    def inverse(self) -> Any:
        """int64 (n,): the cell of each row, as an index into the others; -1 for rows that are not finite."""
        inverse = np.full(self._runs.n, -1, np.int64)
        inverse[self._runs.order] = np.repeat(np.arange(len(self._cells)), np.diff(self._runs.starts))
        return as_given(inverse, self._tensor)

    @cached_property
    def fields(self) -> dict[str, Any]:
        """The fields given, each with its dtype and m rows, merged by its reduction."""
        return {
            name: as_given(merge(values, self._runs, how), tensor)
            for name, (values, tensor, how) in self._given.items()
        }


def voxel(
    xyz: Any,
    size: float,
    *,
    pick: Pick = "centroid",
    fields: Mapping[str, Any] | None = None,
    reduce: Mapping[str, Reduction] | None = None,
    origin: Any = None,
    grid_origin: Any = None,
    seed: int = 0,  # noqa: ARG001 (part of the signature; neither pick draws)
) -> Voxels:
    """One point for each occupied cell of edge ``size``, in the unit of ``xyz``, sorted by cell.

    A row's cell is floor((xyz + origin - grid_origin) / size) in float64: half-open, and floored for negative
    coordinates too. The grid is fixed in the world, whatever the cloud, so neighbouring tiles share it.

    ``xyz``: (n, 3) real numbers, numpy or a torch CPU tensor, relative to ``origin`` (3,), zero by default.
    ``grid_origin`` (3,): a corner of the grid, by default -size / 1024 on each axis: scans lie on decimal
    lattices, and rows on a boundary would change cell with the rounding of their origin.
    ``pick``: "centroid", the mean of a cell's rows, right to size * 2^-22 in any order of the rows and then
    rounded to float32; "first", the first row as it is (float32). It concerns ``xyz`` alone.
    ``fields``: name -> array of n rows, merged by kind (`fields.kind_of`): class by majority (-1 votes only
    where nothing else does, the lowest wins a tie), colour by mean (rounded for whole numbers), vector by
    mean of length 1, floats of no known kind by mean, the rest by their first row. ``reduce``: name ->
    reduction overrides that.

    Rows with a non-finite coordinate are left out and counted in a warning. Raises UsageError for a pick,
    reduction, shape or dtype it cannot serve, and for cells numbered beyond 2^53.
    """
    if pick not in _PICKS:
        raise UsageError("voxel", f"pick is {pick!r}", f"choose {' or '.join(map(repr, _PICKS))}")
    if not (np.ndim(size) == 0 and np.isfinite(size) and size > 0):
        raise UsageError("voxel", f"size is {size!r}", "give a length above 0, in the unit of xyz")
    cloud, size = checked(xyz), float(size)
    world = _corner(0.0 if origin is None else origin, "origin")
    corner = _corner(-size / 1024 if grid_origin is None else grid_origin, "grid_origin")
    given = _chosen(fields or {}, reduce or {}, len(cloud.xyz))

    points = cloud.finite
    cells, inside = _located(points, world, corner, size)
    order = _sorted_rows(cells)
    starts = _starts(cells, order)
    if pick == "centroid":
        out = _centroids(cells, inside, order, starts, world, corner, size)
    else:
        out = points[order[starts[:-1]]].astype(np.float32)
    _report(size, len(points), len(out))
    runs = Runs(order if cloud.rows is None else cloud.rows[order], starts, len(cloud.xyz))
    return Voxels(as_given(out, cloud.tensor), runs, cells[order[starts[:-1]]], given, cloud.tensor)


def _corner(value: Any, name: str) -> NDArray[np.float64]:
    corner = as_array(value, name)
    if corner.shape not in ((), (3,)) or corner.dtype.kind not in "iuf" or not np.isfinite(corner).all():
        raise UsageError("voxel", f"{name} is {value!r}", "give three finite numbers")
    return np.broadcast_to(corner, 3).astype(np.float64)


def _chosen(
    fields: Mapping[str, Any], reduce: Mapping[str, Reduction], n: int
) -> dict[str, tuple[NDArray[Any], bool, Reduction]]:
    """Of each field a copy, as callers reuse their buffers, whether it is a tensor, and its reduction."""
    for name in reduce.keys() - fields.keys():
        near = difflib.get_close_matches(name, fields, 1)
        raise UsageError(
            "voxel", f"reduce names no field: {name!r}", f"did you mean {near[0]!r}?" if near else ""
        )
    chosen: dict[str, tuple[NDArray[Any], bool, Reduction]] = {}
    for name, values in fields.items():
        array = as_array(values, name)
        if array.ndim < 1 or len(array) != n:
            raise UsageError(f"field {name}", f"has shape {array.shape}", f"give {n} rows, as xyz has")
        how = reduction_of(name, array.dtype, reduce.get(name))
        chosen[name] = np.array(array, order="C"), is_tensor(values), how
    return chosen


def _located(
    points: NDArray[Any], world: NDArray[np.float64], corner: NDArray[np.float64], size: float
) -> tuple[NDArray[np.int64], NDArray[np.int32]]:
    reach = max(-float(points.min()), float(points.max())) if len(points) else 0.0
    if reach > float(np.finfo(np.float32).max):
        raise UsageError(
            "voxel", f"coordinates reach {reach}, beyond float32", "subtract an origin or scale them"
        )
    if np.spacing(np.float32(reach)) > size / 16:
        step = np.spacing(np.float32(reach))
        log.warning("voxel %g: float32 has steps of %g at %g; subtract an origin before", size, step, reach)
    cells, inside = np.empty(points.shape, np.int64), np.empty(points.shape, np.int32)
    if not _locate(points, world, corner, size, cells, inside) < _MOST_CELLS:
        cause = f"size {size} numbers cells beyond 2^53 for coordinates up to {reach}"
        raise UsageError("voxel", cause, "choose a larger size or an origin nearer to the cloud")
    return cells, inside


@njit(cache=True, nogil=True, error_model="numpy")
def _locate(
    points: NDArray[Any],
    world: NDArray[np.float64],
    corner: NDArray[np.float64],
    size: float,
    cells: NDArray[np.int64],
    inside: NDArray[np.int32],
) -> float:
    """Fill in each point's cell, and its place inside it in steps of 2^-30; returns the largest number."""
    most = 0.0
    for i in range(len(points)):
        for axis in range(3):
            place = (points[i, axis] + world[axis] - corner[axis]) / size
            cell = np.floor(place)
            most = max(most, abs(cell))
            cells[i, axis] = np.int64(cell)
            inside[i, axis] = np.int32((place - cell) * _ONE)
    return most


def _sorted_rows(cells: NDArray[np.int64]) -> NDArray[np.int64]:
    """Rows sorted by cell, x first; rows of a cell in their own order."""
    order = np.arange(len(cells))
    for axis in (2, 1, 0):
        order = radix_order(_axis_keys(cells, order, axis), order)
    return order


@njit(cache=True, nogil=True, error_model="numpy")
def _axis_keys(cells: NDArray[np.int64], order: NDArray[np.int64], axis: int) -> NDArray[np.uint64]:
    """Cell numbers of the rows in ``order`` along one axis, counted from the lowest."""
    low = np.int64(2**62)
    for i in range(len(cells)):
        low = min(low, cells[i, axis])
    keys = np.empty(len(order), np.uint64)
    for i in range(len(order)):
        keys[i] = cells[order[i], axis] - low
    return keys


@njit(cache=True, nogil=True, error_model="numpy")
def _starts(cells: NDArray[np.int64], order: NDArray[np.int64]) -> NDArray[np.int64]:
    """Where in ``order`` each run of one cell starts, and the end: int64 (m + 1,)."""
    starts = np.empty(len(order) + 1, np.int64)
    m = 0
    for i in range(len(order)):
        a, b = order[i], order[max(i - 1, 0)]
        if i == 0 or cells[a, 0] != cells[b, 0] or cells[a, 1] != cells[b, 1] or cells[a, 2] != cells[b, 2]:
            starts[m] = i
            m += 1
    starts[m] = len(order)
    return starts[: m + 1].copy()


@njit(cache=True, nogil=True, error_model="numpy")
def _centroids(
    cells: NDArray[np.int64],
    inside: NDArray[np.int32],
    order: NDArray[np.int64],
    starts: NDArray[np.int64],
    world: NDArray[np.float64],
    corner: NDArray[np.float64],
    size: float,
) -> NDArray[np.float32]:
    """Mean of each run, relative to ``world``: float32 (m, 3).

    The sums are of whole numbers, so no order of the rows changes them.
    """
    out = np.empty((len(starts) - 1, 3), np.float32)
    for m in range(len(out)):
        count = starts[m + 1] - starts[m]
        x, y, z = np.int64(0), np.int64(0), np.int64(0)
        for i in range(starts[m], starts[m + 1]):
            x += inside[order[i], 0]
            y += inside[order[i], 1]
            z += inside[order[i], 2]
        sums = (x, y, z)
        for axis in range(3):
            # the half step makes up for the steps' being rounded down
            mean = cells[order[starts[m]], axis] + (sums[axis] / count + 0.5) / _ONE
            out[m, axis] = mean * size + corner[axis] - world[axis]
    return out


def _report(size: float, n: int, m: int) -> None:
    log.info("voxel %g: %d -> %d points", size, n, m)
    if n >= 1000 and (m == n or m < n / 1000):
        removed = "no point" if m == n else f"{1 - m / n:.2%} of the points"
        log.warning("voxel %g removed %s of %d: is the size in the unit of the cloud?", size, removed, n)
