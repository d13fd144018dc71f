"""Voxel grid: one point for each occupied cell of a grid that is fixed in the world."""

from __future__ import annotations

import difflib
import logging
import math
from collections.abc import Mapping
from dataclasses import dataclass
from numbers import Real
from typing import Any

import numpy as np

from ..errors import UsageError
from ..lazy import lazy
from .fields import Reduction, reduction_of
from .gate import Cloud, as_array, as_given, checked, is_tensor, whole
from .grid import Grid
from .group import PICKS, Groups, Pick, group
from .merge import Chosen, merge
from .tables import Triple
from .threads import threads_for

log = logging.getLogger(__name__)

_SMALLEST = float(np.finfo(np.float64).tiny)  # the reciprocals of those below may be infinite

_ROWS_A_THREAD = 100_000
"""With fewer a thread costs more than it saves."""


@dataclass(frozen=True, eq=False)
class Voxels:
    """The occupied cells, sorted by (x, y, z) cell number: m of them, from n rows.

    ``xyz`` float32 (m, 3), relative to the same origin as the input, and ``fields``, each with its dtype and
    m rows, are there at once; the rest is computed when first asked for, from the records of rows, which are
    kept as long as this is. All own their memory, and are of the kind, numpy or torch, that was given.
    """

    xyz: Any
    fields: dict[str, Any]
    _groups: Groups
    _tensor: bool

    @lazy
    def index(self) -> Any:
        """int64 (m,): a row of each cell: the one picked, or the first for "centroid" and "center"."""
        return as_given(self._groups.index, self._tensor)

    @lazy
    def count(self) -> Any:
        """int64 (m,): how many rows each cell has."""
        return as_given(self._groups.count, self._tensor)

    @lazy
    def cell(self) -> Any:
        """int64 (m, 3): floor((xyz + origin - grid_origin) / size)."""
        return as_given(self._groups.cell, self._tensor)

    @lazy
    def inverse(self) -> Any:
        """int64 (n,): the cell of each row, as an index into the others; -1 for rows that are not finite."""
        return as_given(self._groups.inverse, self._tensor)


def voxel(
    xyz: Any,
    size: float,
    *,
    pick: Pick = "centroid",
    fields: Mapping[str, Any] | None = None,
    reduce: Mapping[str, Reduction] | None = None,
    origin: Any = None,
    grid_origin: Any = None,
    seed: int = 0,
    threads: int | None = None,
) -> Voxels:
    """One point for each occupied cell of edge ``size``, in the unit of ``xyz``, sorted by cell.

    A row's cell is floor((xyz + origin - grid_origin) / size) in float64: half-open, and floored for negative
    coordinates too. The grid is fixed in the world, whatever the cloud, so neighbouring tiles share it.

    ``xyz``: (n, 3) real numbers, numpy or a torch CPU tensor, relative to ``origin`` (3,), zero by default.
    ``grid_origin`` (3,): a corner of the grid, by default -size / 1024 on each axis: scans lie on decimal
    lattices, and rows on a boundary would change cell with the rounding of their origin.
    ``pick``, which concerns ``xyz`` and ``index``: "centroid", the mean of a cell's rows, right to
    size * 2^-22 in any order of rows and then rounded to float32; "first", the first row as it is; "nearest",
    the row nearest to the cell's centre, told apart by size * 2^-21; "random", the row with the least hash
    of ``seed`` and row; "center", the middle of the cell. The lowest row wins a tie.
    ``fields``: name -> array of n rows, merged by kind (`fields.kind_of`): class by majority (-1 votes only
    where nothing else does, the lowest wins a tie), colour by mean (rounded for whole numbers), vector by
    mean of length 1, floats of no known kind by mean, the rest by the row that ``index`` names.
    ``reduce``: name -> reduction overrides that ("first" is the row that ``index`` names).
    ``threads``: at most so many; by default the CPUs that this process may use, where they help. The
    result is the same.

    Rows with a non-finite coordinate are left out and counted in a warning. Raises UsageError for a pick,
    reduction, shape or dtype it cannot serve, and for cells numbered beyond 2^53.
    """
    grid, cloud = grid_of(size, pick, origin, grid_origin), checked(xyz)
    given = chosen(fields or {}, reduce or {}, len(cloud.xyz))
    groups = grouped(cloud, grid, pick, whole(seed, "seed"), threads, tell=bool(given))
    if pick == "centroid":
        out = groups.mean
    elif pick == "center":
        out = grid.points(groups.cell + 0.5)
    else:
        out = cloud.xyz[groups.index].astype(np.float32)
    _report(grid.size, len(cloud.xyz if cloud.rows is None else cloud.rows), len(out))
    merged = merge(given, groups)
    named = {name: as_given(merged[name], is_tensor(values)) for name, values in (fields or {}).items()}
    return Voxels(as_given(out, cloud.tensor), named, groups, cloud.tensor)


def grouped(cloud: Cloud, grid: Grid, pick: Pick, seed: int, threads: int | None, **more: Any) -> Groups:
    """The cells of a cloud; ``more``: what else `group` takes."""
    points, rows = cloud.finite, cloud.rows
    workers = threads_for(threads, len(points) // _ROWS_A_THREAD)
    box = grid.box(cloud.low, cloud.high)
    return group(points, box, len(cloud.xyz), rows, pick=pick, seed=seed, threads=workers, **more)


def grid_of(size: Any, pick: Any, origin: Any, grid_origin: Any) -> Grid:
    """The grid that the arguments of `voxel` describe; UsageError where they cannot."""
    if pick not in PICKS:
        raise UsageError("voxel", f"pick is {pick!r}", f"choose one of {', '.join(PICKS)}")
    known = type(size) is float or (isinstance(size, Real) and not isinstance(size, bool))  # `Real` is slow
    if not (known and _SMALLEST <= float(size) < math.inf):
        raise UsageError("voxel", f"size is {size!r}", "give a length above 0, in the unit of xyz")
    edge = float(size)
    return Grid(edge, _corner(origin, 0.0, "origin"), _corner(grid_origin, -edge / 1024, "grid_origin"))


def _corner(value: Any, default: float, name: str) -> Triple:
    if value is None:
        return default, default, default
    if isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value):
        return float(value), float(value), float(value)
    corner = as_array(value, name)
    if corner.shape not in ((), (3,)) or corner.dtype.kind not in "iuf" or not np.isfinite(corner).all():
        raise UsageError("voxel", f"{name} is {value!r}", "give three finite numbers")
    x, y, z = np.broadcast_to(corner, 3).astype(np.float64).tolist()
    return x, y, z


def chosen(fields: Mapping[str, Any], reduce: Mapping[str, Reduction], n: int) -> Chosen:
    """Each field as an array, and its reduction."""
    if not fields and not reduce:
        return {}
    for name, given in (("fields", fields), ("reduce", reduce)):
        if not isinstance(given, Mapping) or not all(isinstance(key, str) for key in given):
            raise UsageError("voxel", f"{name} is {type(given).__name__}", "give a mapping from names")
    for name in reduce.keys() - fields.keys():
        near = difflib.get_close_matches(name, fields, 1)
        cause = f"reduce names {name!r}, which is no field"
        raise UsageError("voxel", cause, f"did you mean {near[0]!r}?" if near else "check the name")
    found = {}
    for name, values in fields.items():
        array = as_array(values, name)
        if array.ndim < 1 or len(array) != n:
            raise UsageError(f"field {name}", f"has shape {array.shape}", f"give {n} rows, as xyz has")
        found[name] = array, reduction_of(name, array.dtype, reduce.get(name))
    return found


def _report(size: float, n: int, m: int) -> None:
    log.info("voxel %g: %d -> %d points", size, n, m)
    if n >= 1000 and (m == n or m < n / 1000):
        removed = "no point" if m == n else f"{1 - m / n:.2%} of the points"
        log.warning("voxel %g removed %s of %d: is the size in the unit of the cloud?", size, removed, n)
