"""A detector's voxeliser: the rows of each voxel side by side, in arrays of a fixed shape.

The method is that of Zhou and Tuzel, "VoxelNet", CVPR 2018, and of the voxel generators that detectors use:
a range, a voxel size, and caps on the rows of a voxel and on the voxels. There the first rows and voxels win,
so what is kept depends on the order of the rows and, on a GPU, of the threads; here a hash decides.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numba import njit
from numpy.typing import NDArray

from ..errors import UsageError
from . import draw
from .curve import radix_order
from .gate import as_array, as_given, checked, room, whole
from .scratch import take

log = logging.getLogger(__name__)

_TOLERANCE = 1e-9
"""Of a cell: a range that is a multiple of the size but for rounding has no further, empty cell."""

_LARGEST = float(np.finfo(np.float32).max)

_GOLDEN = draw.CONSTANTS[0]


@dataclass(frozen=True)
class Dropped:
    """What is in no voxel. These rows and those of ``Voxelised.counts`` are all rows there were."""

    non_finite: int
    """Rows with a non-finite coordinate."""
    outside: int
    """Other rows outside the bounds."""
    full: int
    """Rows beyond ``max_points`` in voxels that are kept."""
    left_out: int
    """Rows of voxels beyond ``max_voxels``."""
    voxels: int
    """Those voxels."""


@dataclass(frozen=True, eq=False)
class Voxelised:
    """m voxels, sorted by cell, z first. All arrays own their memory and are of the kind that was given."""

    voxels: Any
    """float32 (m, max_points, 3 + c): x, y, z and the fields of each row, in row order; zero beyond them."""
    coordinates: Any
    """int32 (m, 3): each voxel's cell along **z, y, x**, the order of a dense grid (batch, z, y, x)."""
    counts: Any
    """int32 (m,): how many rows each voxel has."""
    index: Any
    """int64 (m, max_points): which row of the input each is; -1 beyond them."""
    grid: tuple[int, int, int]
    """How many cells the range has along z, y, x; the last of an axis may be a part of one."""
    dropped: Dropped


def voxelise(
    xyz: Any,
    bounds: Any,
    size: Any,
    *,
    max_points: int,
    max_voxels: int,
    fields: Mapping[str, Any] | None = None,
    seed: int = 0,
    id: int = 0,
) -> Voxelised:
    """Put the rows inside ``bounds`` into at most ``max_voxels`` voxels of at most ``max_points`` rows.

    ``xyz``: (n, 3) real numbers, numpy or a torch CPU tensor, taken as float32. ``bounds``: (x0, y0, z0, x1,
    y1, z1). ``size``: edges of a voxel along x, y, z, in the same unit. ``fields``: name -> real numbers (n,)
    or (n, w), which follow x, y, z in their order, as float32.

    A row is inside where low <= p < high on each axis, all three as float32. There are
    ceil((high - low) / size - 1e-9) cells on an axis, and a row's cell is floor((p - low) / size) in float64,
    moved into the first or last cell where rounding puts it beside: no row inside vanishes, and the last cell
    may be a part of one. Caps are served by a seeded rule: a full voxel keeps its rows with the smallest
    hashes of (seed, id, row), in row order, and the voxels kept are those with the smallest hashes of (seed,
    id, cell). The same on every machine; a voxel's rows do not depend on the rows of others.

    Unlike spconv, whose generator keeps the first rows and voxels to come and, on a GPU, those whose thread
    came first, and which decides in the arithmetic of the range's dtype.

    Rows with a non-finite coordinate are counted in a warning. Raises UsageError for bounds, sizes, caps,
    fields, shapes and dtypes that do not fit, for a grid of 2^31 cells on an axis or 2^63 in all, and for a
    result larger than the memory.
    """
    low, high, edges = _box(bounds, size)
    seed, id = whole(seed, "seed"), whole(id, "id")
    points, most = whole(max_points, "max_points"), whole(max_voxels, "max_voxels")
    for name, cap in (("max_points", points), ("max_voxels", most)):
        if cap < 1:
            raise UsageError(name, f"is {cap}", "give 1 or more")
    shape = np.maximum(np.ceil((high - low) / edges - _TOLERANCE), 1)
    if not (shape < 2**31).all() or not np.prod(shape) < 2**63:
        raise UsageError("size", f"divides the range into {shape.tolist()} cells", "choose larger voxels")
    cloud, grid = checked(xyz), shape.astype(np.int64)
    features = _features(fields or {}, len(cloud.xyz))

    low32, high32 = low.astype(np.float32), high.astype(np.float32)
    with np.errstate(over="ignore"):  # what is beyond float32 is infinite, and outside
        given = cloud.xyz.astype(np.float32, copy=False)
    n = len(given)
    finite = n if cloud.rows is None else len(cloud.rows)
    keys, rows = take(n, np.uint32 if grid.prod() <= 2**32 else np.uint64), take(n, np.int64)
    inside = _inside(given, low32, high32, low, edges, grid, keys, rows)
    ordered, starts, cells = take(inside, np.int64), take(inside + 1, np.int64), take(inside, np.int64)
    m = _runs(keys, rows, radix_order(keys[:inside], np.arange(inside)), ordered, starts, cells)
    cell = cells[:m]
    kept = _kept_voxels(cell, draw.key("voxels", seed, id), most)
    width = 3 + sum(values.shape[1] for values in features)
    room(len(kept) * points * (8 + 4 * width), "voxelise", "lower max_points or max_voxels")
    index, counts = np.full((len(kept), points), -1), np.empty(len(kept), np.int32)
    held = _slots(ordered, starts, kept, np.uint64(draw.key("rows", seed, id)), index, counts)

    voxels = np.zeros((len(kept), points, width), np.float32)
    at = 0
    for values in (given, *features):
        _fill(values, index, voxels, at)
        at += values.shape[1]
    dropped = Dropped(
        non_finite=n - finite,
        outside=finite - inside,
        full=held - int(counts.sum()),
        left_out=inside - held,
        voxels=len(cell) - len(kept),
    )
    log.info("voxelise: %d -> %d rows in %d voxels; %s", n, counts.sum(), len(kept), dropped)
    coordinates = np.stack(np.unravel_index(cell[kept], tuple(grid[::-1])), axis=1).astype(np.int32)
    x, y, z = grid.tolist()
    return Voxelised(
        as_given(voxels, cloud.tensor),
        as_given(coordinates, cloud.tensor),
        as_given(counts, cloud.tensor),
        as_given(index, cloud.tensor),
        (z, y, x),
        dropped,
    )


def _box(bounds: Any, size: Any) -> tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.float64]]:
    """Low and high corner and edges, float64 (3,) each."""
    box, edges = as_array(bounds, "bounds"), as_array(size, "size")
    for name, value, shape in (("bounds", box, (6,)), ("size", edges, (3,))):
        if value.shape != shape or value.dtype.kind not in "iuf" or not (np.abs(value) <= _LARGEST).all():
            raise UsageError(name, f"is {value.tolist()!r}", f"give {shape[0]} numbers that float32 holds")
    box, edges = box.astype(np.float64), edges.astype(np.float64)
    if not (box[:3].astype(np.float32) < box[3:].astype(np.float32)).all():
        raise UsageError(
            "bounds", f"is {box.tolist()}", "give x0, y0, z0, x1, y1, z1, each low below its high"
        )
    if not (edges > 0).all():
        raise UsageError("size", f"is {edges.tolist()}", "give three lengths above 0")
    return box[:3], box[3:], edges


def _features(fields: Mapping[str, Any], n: int) -> list[NDArray[np.float32]]:
    """The fields as float32 (n, w) each."""
    features = []
    for name, values in fields.items():
        array = as_array(values, name)
        if array.ndim not in (1, 2) or len(array) != n:
            raise UsageError(f"field {name}", f"has shape {array.shape}", f"give ({n},) or ({n}, w)")
        if array.dtype.kind not in "iufb":
            raise UsageError(f"field {name}", f"has dtype {array.dtype}", "give real numbers")
        with np.errstate(over="ignore"):
            features.append(np.ascontiguousarray(array, np.float32).reshape(n, *array.shape[1:] or (1,)))
    return features


def _kept_voxels(cell: NDArray[np.int64], key: int, most: int) -> NDArray[np.int64]:
    """Which voxels are kept, rising: those whose cells have the smallest hashes. No two are equal."""
    if len(cell) <= most:
        return np.arange(len(cell))
    hashes = np.empty(len(cell), np.uint64)
    _hash(cell, np.uint64(key), hashes)
    return np.sort(np.argpartition(hashes, most)[:most])


@njit(cache=True, nogil=True, error_model="numpy")
def _hash(cell: NDArray[np.int64], key: np.uint64, out: NDArray[np.uint64]) -> None:
    for i in range(len(cell)):
        out[i] = draw.mix(key + (np.uint64(cell[i]) + np.uint64(1)) * np.uint64(_GOLDEN))


@njit(cache=True, nogil=True, error_model="numpy")
def _inside(
    points: NDArray[np.float32],
    low32: NDArray[np.float32],
    high32: NDArray[np.float32],
    low: NDArray[np.float64],
    edges: NDArray[np.float64],
    grid: NDArray[np.int64],
    keys: NDArray[Any],
    rows: NDArray[np.int64],
) -> int:
    """Fill in cells, counted along x, then y, then z, and rows of the points inside; returns how many.

    NaN is not inside.
    """
    m = 0
    for i in range(len(points)):
        inside, cell = True, np.int64(0)
        for axis in (2, 1, 0):
            inside &= low32[axis] <= points[i, axis] and points[i, axis] < high32[axis]
            place = np.floor((np.float64(points[i, axis]) - low[axis]) / edges[axis])
            cell = cell * grid[axis] + np.int64(min(max(place, 0.0), grid[axis] - 1.0))
        if inside:
            keys[m], rows[m] = cell, i
            m += 1
    return m


@njit(cache=True, nogil=True, error_model="numpy")
def _runs(
    keys: NDArray[Any],
    rows: NDArray[np.int64],
    order: NDArray[np.int64],
    ordered: NDArray[np.int64],
    starts: NDArray[np.int64],
    cells: NDArray[np.int64],
) -> int:
    """Fill in the rows sorted by cell, where those of each cell start, and end, and the cells; how many."""
    m = 0
    for i in range(len(order)):
        cell = np.int64(keys[order[i]])
        ordered[i] = rows[order[i]]
        if m == 0 or cells[m - 1] != cell:
            starts[m], cells[m] = i, cell
            m += 1
    starts[m] = len(order)
    return m


@njit(cache=True, nogil=True, error_model="numpy")
def _slots(
    rows: NDArray[np.int64],
    starts: NDArray[np.int64],
    kept: NDArray[np.int64],
    key: np.uint64,
    index: NDArray[np.int64],
    counts: NDArray[np.int32],
) -> int:
    """Fill in the rows of each kept voxel, as many as ``index`` has room for; returns how many there were."""
    held, most = 0, index.shape[1]
    for v in range(len(kept)):
        run = rows[starts[kept[v]] : starts[kept[v] + 1]]
        held += len(run)
        counts[v] = min(len(run), most)
        if len(run) <= most:
            index[v, : len(run)] = run
            continue
        hashes = np.empty(len(run), np.uint64)
        for i in range(len(run)):
            hashes[i] = draw.mix(key + (np.uint64(run[i]) + np.uint64(1)) * np.uint64(_GOLDEN))
        last = np.partition(hashes, most - 1)[most - 1]
        m = 0
        for i in range(len(run)):
            if hashes[i] <= last:
                index[v, m] = run[i]
                m += 1
    return held


@njit(cache=True, nogil=True, error_model="numpy")
def _fill(values: NDArray[np.float32], index: NDArray[np.int64], out: NDArray[np.float32], at: int) -> None:
    """Put the values of the rows into their slots, from feature ``at`` on."""
    for v in range(len(index)):
        for p in range(index.shape[1]):
            if index[v, p] < 0:
                break
            for c in range(values.shape[1]):
                out[v, p, at + c] = values[index[v, p], c]
