"""Voxel grid: one point for each occupied cell of a grid that is fixed in the world."""

from __future__ import annotations

import difflib
import logging
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from numbers import Real
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from ..errors import UsageError
from .cells import centroids, locate, run_starts, sorted_rows
from .fields import Reduction, reduction_of
from .gate import as_array, as_given, checked, is_tensor
from .merge import Runs, merge

log = logging.getLogger(__name__)

Pick = Literal["centroid", "first", "nearest", "random", "center"]

_PICKS = ("centroid", "first")
_MOST_CELLS = 2.0**53
"""Above it float64 no longer tells neighbouring cells apart."""


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
    if isinstance(size, bool) or not (isinstance(size, Real) and 0 < size < np.inf):
        raise UsageError("voxel", f"size is {size!r}", "give a length above 0, in the unit of xyz")
    cloud, size = checked(xyz), float(size)
    world = _corner(0.0 if origin is None else origin, "origin")
    corner = _corner(-size / 1024 if grid_origin is None else grid_origin, "grid_origin")
    given = _chosen(fields or {}, reduce or {}, len(cloud.xyz))

    points = cloud.finite
    cells, inside = _located(points, max(-cloud.low, cloud.high), world, corner, size)
    order = sorted_rows(cells)
    starts = run_starts(cells, order)
    if pick == "centroid":
        out = centroids(cells, inside, order, starts, world, corner, size)
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
        cause = f"reduce names {name!r}, which is no field"
        raise UsageError("voxel", cause, f"did you mean {near[0]!r}?" if near else "check the name")
    chosen: dict[str, tuple[NDArray[Any], bool, Reduction]] = {}
    for name, values in fields.items():
        array = as_array(values, name)
        if array.ndim < 1 or len(array) != n:
            raise UsageError(f"field {name}", f"has shape {array.shape}", f"give {n} rows, as xyz has")
        how = reduction_of(name, array.dtype, reduce.get(name))
        chosen[name] = np.array(array, order="C"), is_tensor(values), how
    return chosen


def _located(
    points: NDArray[Any], reach: float, world: NDArray[np.float64], corner: NDArray[np.float64], size: float
) -> tuple[NDArray[np.int64], NDArray[np.int32]]:
    """Cells of the points and places inside them; refused or told where floats are too coarse for them."""
    if reach > float(np.finfo(np.float32).max):
        cause = f"coordinates reach {reach}, beyond float32"
        raise UsageError("voxel", cause, "subtract an origin or scale them")
    if np.spacing(np.float32(reach)) > size / 16:
        step = np.spacing(np.float32(reach))
        log.warning("voxel %g: float32 has steps of %g at %g; subtract an origin before", size, step, reach)
    cells, inside = np.empty(points.shape, np.int64), np.empty(points.shape, np.int32)
    if not locate(points, world, corner, size, cells, inside) < _MOST_CELLS:
        cause = f"size {size} numbers cells beyond 2^53 for coordinates up to {reach}"
        raise UsageError("voxel", cause, "choose a larger size or an origin nearer to the cloud")
    return cells, inside


def _report(size: float, n: int, m: int) -> None:
    log.info("voxel %g: %d -> %d points", size, n, m)
    if n >= 1000 and (m == n or m < n / 1000):
        removed = "no point" if m == n else f"{1 - m / n:.2%} of the points"
        log.warning("voxel %g removed %s of %d: is the size in the unit of the cloud?", size, removed, n)
