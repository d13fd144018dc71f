"""Space-filling order: Morton curves and the radix sort behind them.

A Morton curve (G. M. Morton, "A computer oriented geodetic data base", 1966) interleaves the bits of the cell
numbers, so that rows near each other along it are near each other in space.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit
from numpy.typing import NDArray

from ..errors import UsageError

_SHIFT = 37
"""Cells by which the second curve is shifted, so that its windows have other borders."""

_DIGIT = 13
"""Widest digit of the radix sort, in bits: its counters stay in the first-level cache."""

_CELLS = 2.0**31

_CELL_BITS = 12
"""Most bits of a cell's number in `along_curve`: its counters and the lines written stay in the cache."""

_CROWDED = 512
"""Fewest rows of a cell that are worth a curve of their own."""

_LEVELS = 4
"""How often a crowded cell is cut again: 48 bits tell any two places of a cloud apart that matter."""

_POINT = 1e-30
"""An extent below it is no longer cut: its reciprocal would be no float32."""


def serialise(xyz: NDArray[np.float32], cell: float) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Order rows along two 2-D Morton curves over x and y, with cells of edge ``cell``.

    ``xyz``: float32 (n, 3), finite; cells count from the cloud's minimum. Returns (order, transposed), each
    int64 (n,): ``order`` sorts the rows along the first curve; ``transposed`` sorts the rows that are already
    in ``order`` along the second one (``xyz[order][transposed]``), which swaps x and y and is shifted by 37
    cells. Rows of one cell keep their order. Windows of serialised points are those of Wang, "OctFormer",
    2023, and Wu et al., "Point Transformer V3", 2024. Raises UsageError for a wrong shape or value.
    """
    points = np.ascontiguousarray(xyz, np.float32)
    if points.ndim != 2 or points.shape[1] != 3:
        raise UsageError("serialise", f"xyz has shape {points.shape}", "give (n, 3)")
    if not (np.isfinite(cell) and cell > 0):
        raise UsageError("serialise", f"cell is {cell}", "give a length above 0")
    low = points[:, :2].min(axis=0, initial=np.inf).astype(np.float64)
    high = points[:, :2].max(axis=0, initial=-np.inf).astype(np.float64)
    if len(points) and not ((high - low) / cell < _CELLS).all():
        cause = f"xyz spans {low.tolist()} to {high.tolist()}"
        raise UsageError("serialise", cause, f"give finite coordinates within 2^31 cells of {cell}")
    order = radix_order(
        _plane_keys(points, np.arange(len(points)), low, cell, 0, 1, 0), np.arange(len(points))
    )
    second = _plane_keys(points, order, low, cell, 1, 0, _SHIFT)
    return order, radix_order(second, np.arange(len(points)))


@njit(cache=True, nogil=True, error_model="numpy")
def radix_order(keys: NDArray[Any], rows: NDArray[Any]) -> NDArray[Any]:
    """``rows`` sorted by their ``keys``, unsigned (n,), and stable; least significant digit first, O(n)."""
    n = keys.size
    top = keys.dtype.type(0)
    for i in range(n):
        top = max(top, keys[i])
    bits = 0
    while bits < 64 and (np.uint64(top) >> np.uint64(bits)) != np.uint64(0):
        bits += 1
    passes = max((bits + _DIGIT - 1) // _DIGIT, 1)
    digit = (bits + passes - 1) // passes
    place = np.empty(1 << digit, np.int64)
    mask = keys.dtype.type((1 << digit) - 1)
    for p in range(passes):
        shift = keys.dtype.type(p * digit)
        place[:] = 0
        for i in range(n):
            place[(keys[i] >> shift) & mask] += 1
        before = 0
        for d in range(place.size):
            before, place[d] = before + place[d], before
        sorted_keys, sorted_rows = np.empty_like(keys), np.empty_like(rows)
        for i in range(n):
            d = (keys[i] >> shift) & mask
            at = place[d]
            place[d] = at + 1
            sorted_keys[at], sorted_rows[at] = keys[i], rows[i]
        keys, rows = sorted_keys, sorted_rows
    return rows


@njit(cache=True, nogil=True, error_model="numpy")
def _spread(value: np.uint64) -> np.uint64:
    """The low 32 bits, each followed by a zero bit."""
    value = (value | (value << np.uint64(16))) & np.uint64(0x0000FFFF0000FFFF)
    value = (value | (value << np.uint64(8))) & np.uint64(0x00FF00FF00FF00FF)
    value = (value | (value << np.uint64(4))) & np.uint64(0x0F0F0F0F0F0F0F0F)
    value = (value | (value << np.uint64(2))) & np.uint64(0x3333333333333333)
    return (value | (value << np.uint64(1))) & np.uint64(0x5555555555555555)


@njit(cache=True, nogil=True, error_model="numpy")
def _plane_keys(
    points: NDArray[np.float32],
    rows: NDArray[np.int64],
    low: NDArray[np.float64],
    cell: float,
    a: int,
    b: int,
    shift: int,
) -> NDArray[np.uint64]:
    """Morton keys of ``rows`` over the axes ``a`` (the low bit) and ``b``."""
    keys = np.empty(rows.size, np.uint64)
    for i in range(rows.size):
        u = np.floor((np.float64(points[rows[i], a]) - low[a]) / cell)
        v = np.floor((np.float64(points[rows[i], b]) - low[b]) / cell)
        keys[i] = _spread(np.uint64(u) + np.uint64(shift)) | (
            _spread(np.uint64(v) + np.uint64(shift)) << np.uint64(1)
        )
    return keys


@njit(cache=True, nogil=True, error_model="numpy")
def along_curve(
    points: NDArray[np.float32], records: NDArray[np.float32], scratch: NDArray[np.uint8], crowded: int
) -> None:
    """Fill ``records``, float32 (n or more, 4), with x, y, z and row, an int32's bits, of points on a curve.

    ``points``: float32 (n, 3) in C order, 0 < n < 2^31, finite. ``scratch``: 18 n bytes or more, aligned. The
    curve is a 3-D Morton curve through cells that are nearly cubes, about one for every three rows and 4,096
    at most. Where more than ``crowded`` rows, at least 512, share a cell, they follow a curve of their own:
    neither dense places nor far outliers leave many rows unsorted.
    """
    n = len(points)
    rows = records.view(np.int32)
    spare, cells = scratch[: 16 * n].view(np.float32).reshape(n, 4), scratch[16 * n : 18 * n].view(np.uint16)
    spare_rows = spare.view(np.int32)
    crowded = max(crowded, _CROWDED)
    ends, table = np.empty(1 << _CELL_BITS, np.int32), np.empty((3, 1 << _CELL_BITS), np.uint16)
    queue = np.empty((_LEVELS * (n // crowded + 1), 3), np.int32)  # start, end and level of crowded cells
    found = _sort(points, spare_rows, False, records, rows, cells, ends, table)
    waiting = _push(queue, 0, ends[:found], crowded, 0, 1)
    done = 0
    while done < waiting:
        start, end, level = queue[done]
        done += 1
        m = end - start
        spare[:m] = records[start:end]
        found = _sort(spare[:m], spare_rows, True, records[start:end], rows[start:end], cells, ends, table)
        if level < _LEVELS:
            waiting = _push(queue, waiting, ends[:found], crowded, start, level + 1)


@njit(cache=True, nogil=True, error_model="numpy")
def _push(
    queue: NDArray[np.int32], waiting: int, ends: NDArray[np.int32], crowded: int, start: int, level: int
) -> int:
    """Append the crowded cells; their ``ends`` count from ``start``. Returns how many wait now."""
    before = np.int32(0)
    for c in range(ends.size):
        if ends[c] - before > crowded:
            queue[waiting, 0], queue[waiting, 1] = start + before, start + ends[c]
            queue[waiting, 2] = level
            waiting += 1
        before = ends[c]
    return waiting


@njit(cache=True, nogil=True, error_model="numpy")
def _sort(
    source: NDArray[np.float32],
    source_rows: NDArray[np.int32],
    numbered: bool,
    target: NDArray[np.float32],
    target_rows: NDArray[np.int32],
    cells: NDArray[np.uint16],
    ends: NDArray[np.int32],
    table: NDArray[np.uint16],
) -> int:
    """Sort points by cell, stably, and fill in where each cell ends; returns how many cells there are.

    A point's row is in ``source_rows`` where they are ``numbered``, else it is the point's place. Points
    that are all the same have no cell.
    """
    m = len(source)
    bits = 0
    while bits < _CELL_BITS and m >> (bits + 2):
        bits += 1
    low, high, _ = bounds(source)
    scale = _halve(high.astype(np.float64) - low, bits, table)
    x0, y0, z0, sx, sy, sz = low[0], low[1], low[2], scale[0], scale[1], scale[2]
    ends[: 1 << bits] = 0
    for i in range(m):
        x = np.uint32((source[i, 0] - x0) * sx)
        y = np.uint32((source[i, 1] - y0) * sy)
        z = np.uint32((source[i, 2] - z0) * sz)
        cell = table[0, x] | table[1, y] | table[2, z]
        cells[i] = cell
        ends[cell] += 1
    before = np.int32(0)
    for c in range(1 << bits):
        before, ends[c] = before + ends[c], before
    for i in range(m):
        at = ends[cells[i]]
        ends[cells[i]] = at + 1
        target[at, 0], target[at, 1], target[at, 2] = source[i, 0], source[i, 1], source[i, 2]
        target_rows[at, 3] = source_rows[i, 3] if numbered else i
    return 1 << bits if scale.any() else 0


@njit(cache=True, nogil=True, error_model="numpy")
def bounds(points: NDArray[Any]) -> tuple[NDArray[Any], NDArray[Any], bool]:
    """Lowest and highest x, y and z of points (m, 3 or more), at least one, of their dtype.

    The third is whether all numbers are finite: the others hold only if they are. 16 points are looked at
    side by side, and four such rows at once: a loop over numbers that lie end to end vectorises.
    """
    row = 16 * points.shape[1]
    whole = len(points) // 64 * 64
    flat = points[:whole].reshape(-1)
    low, high = np.full(row, np.inf, points.dtype), np.full(row, -np.inf, points.dtype)
    nought = np.zeros(row, points.dtype)
    for start in range(0, flat.size, 4 * row):
        some = flat[start : start + 4 * row]
        for i in range(row):
            a, b, c, d = some[i], some[i + row], some[i + 2 * row], some[i + 3 * row]
            ab, cd = b if b < a else a, d if d < c else c
            abcd = cd if cd < ab else ab
            low[i] = abcd if abcd < low[i] else low[i]
            ab, cd = b if b > a else a, d if d > c else c
            abcd = cd if cd > ab else ab
            high[i] = abcd if abcd > high[i] else high[i]
            nought[i] += (a * 0 + b * 0) + (c * 0 + d * 0)  # NaN of what is not finite, and so it stays
    lowest, highest, finite = points[0, :3].copy(), points[0, :3].copy(), True
    for i in range(row):
        finite = finite and nought[i] == 0
    for i in range(whole, len(points)):
        for axis in range(points.shape[1]):
            finite = finite and points[i, axis] * 0 == 0
    for axis in range(3):
        for i in range(axis, row, points.shape[1]):
            lowest[axis], highest[axis] = min(lowest[axis], low[i]), max(highest[axis], high[i])
        for i in range(whole, len(points)):
            lowest[axis] = min(lowest[axis], points[i, axis])
            highest[axis] = max(highest[axis], points[i, axis])
    return lowest, highest, finite


@njit(cache=True, nogil=True, error_model="numpy")
def _halve(extent: NDArray[np.float64], bits: int, table: NDArray[np.uint16]) -> NDArray[np.float32]:
    """Halve the longest axis ``bits`` times. Returns the cells along each axis per unit of length.

    ``table`` (3, cells): of each axis and cell number, the bits of the key, at the places of the halvings.
    """
    edge, axis_bits, place = extent.copy(), np.zeros(3, np.int64), np.zeros((3, _CELL_BITS), np.int64)
    for t in range(bits):
        longest = np.argmax(edge)
        if edge[longest] < _POINT:
            break
        place[longest, axis_bits[longest]] = bits - 1 - t
        axis_bits[longest] += 1
        edge[longest] *= 0.5
    scale = np.zeros(3, np.float32)
    for a in range(3):
        table[a, 0] = 0
        for b in range(axis_bits[a]):
            step = 1 << b  # the lowest bit of a cell's number is its axis' last halving
            bit = np.uint16(1 << place[a, axis_bits[a] - 1 - b])
            for c in range(step):
                table[a, step + c] = table[a, c] | bit
        if axis_bits[a]:
            scale[a] = (1 << axis_bits[a]) * (1 - 2.0**-20) / extent[a]  # so the highest is in the last cell
    return scale
