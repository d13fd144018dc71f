"""Kernels of the farthest row: points along a curve, the tree of boxes over them, and the search.

They are called as one: a thread that comes back to Python between them waits there for the others.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit
from numpy.typing import NDArray

from .bounds import bounds

_BLOCK = 64
WAYS = 16  # blocks of a group, groups of a region
_NONE = np.int32(2**31 - 1)  # after every row
GROUP = WAYS * _BLOCK  # rows of a group; the last is filled up: loops of constant length vectorise
_BITS = np.array([1 << j for j in range(WAYS)], np.int32)

BLOCK = np.dtype(
    [(name, np.float32, (_BLOCK,)) for name in ("x", "y", "z", "d")] + [("row", np.int32, (_BLOCK,))]
)
"""64 points: x, y, z, d (the squared distance to the nearest pick) and row, each in a line of its own."""

BOXES = np.dtype(
    [(name, np.float32, (WAYS,)) for name in ("x0", "x1", "y0", "y1", "z0", "z1", "most")]
    + [("lowest", np.int32, (WAYS,))]
)
"""The sixteen parts of a group or region. x0 to z1: the box around each part's points. most: its largest d.
lowest: the lowest row that has this d, or -1 while unknown; on a lattice very many rows tie for long."""

BLOCK_BYTES, BOXES_BYTES = BLOCK.itemsize, BOXES.itemsize  # multiples of a cache line

_CELL_BITS = 12
"""Most bits of a cell's number in `along_curve`: its counters and the lines written stay in the cache."""

_CROWDED = 512
"""Fewest rows of a cell that are worth a curve of their own."""

_LEVELS = 4
"""How often a crowded cell is cut again: 48 bits tell any two places of a cloud apart that matter."""

_POINT = 1e-30
"""An extent below it is no longer cut: its reciprocal would be no float32."""


@njit(cache=True, nogil=True, error_model="numpy")
def _build(
    points: NDArray[np.float32],
    records: NDArray[np.float32],
    first: int,
    blocks: NDArray[Any],
    groups: NDArray[Any],
    regions: NDArray[Any],
) -> None:
    """Fill blocks, groups and regions from the sorted records, each d the distance from row ``first``."""
    n, rows = len(points), records.view(np.int32)
    x, y, z = points[first, 0], points[first, 1], points[first, 2]
    for i in range(n, len(records)):  # copies of the last row do no harm: they name the same row
        records[i] = records[n - 1]
    for b in range(blocks.size):
        block, group, part = blocks[b], groups[b // WAYS], b % WAYS
        for lane in range(_BLOCK):
            i = b * _BLOCK + lane
            block.x[lane], block.y[lane], block.z[lane] = records[i, 0], records[i, 1], records[i, 2]
            block.row[lane] = rows[i, 3]
            block.d[lane] = np.inf
        most = _lower(block, x, y, z)
        group.most[part] = _as_float(most if b * _BLOCK < n else 0)  # nothing but copies: never looked at
        group.lowest[part] = -1
        group.x0[part], group.x1[part] = _range(block.x)
        group.y0[part], group.y1[part] = _range(block.y)
        group.z0[part], group.z1[part] = _range(block.z)
    for r in range(regions.size):
        regions[r].most[:] = 0
        regions[r].lowest[:] = -1
    for g in range(groups.size):
        group, region, part = groups[g], regions[g // WAYS], g % WAYS
        region.most[part] = group.most.max()
        region.x0[part], region.x1[part] = group.x0.min(), group.x1.max()
        region.y0[part], region.y1[part] = group.y0.min(), group.y1.max()
        region.z0[part], region.z1[part] = group.z0.min(), group.z1.max()


@njit(cache=True, nogil=True, error_model="numpy")
def search_tree(
    points: NDArray[np.float32],
    records: NDArray[np.float32],
    tree: NDArray[np.uint8],
    crowded: int,
    first: int,
    index: NDArray[np.int64],
) -> int:
    """Fill ``index`` with rows from ``first`` on, until all d are 0; returns how many there are.

    ``records``, ``tree``: memory, for whole groups of points along a curve and for all the rest. ``crowded``:
    with more rows than these a cell of the curve gets a curve of its own.
    """
    along_curve(points, records, tree, crowded)
    count = len(records) // GROUP
    middle = count * WAYS * BLOCK_BYTES
    end = middle + count * BOXES_BYTES
    blocks, groups = tree[:middle].view(BLOCK), tree[middle:end].view(BOXES)
    regions = tree[end : end + (count + WAYS - 1) // WAYS * BOXES_BYTES].view(BOXES)
    tops = np.empty(regions.size, np.int32)  # the largest d of each region
    _build(points, records, first, blocks, groups, regions)
    index[0] = first
    top = np.int32(0)
    for r in range(regions.size):
        tops[r] = _bits(regions[r].most.max())
        top = max(top, tops[r])
    for i in range(1, index.size):
        if top == 0:
            return i
        row = _NONE
        for r in range(regions.size):
            if tops[r] == top:
                row = min(row, _lowest_of_region(blocks, groups, regions[r], r, top))
        index[i] = row
        x, y, z = points[row, 0], points[row, 1], points[row, 2]
        top = np.int32(0)
        for r in range(regions.size):
            near, most = _reached(regions[r], x, y, z)
            if near:
                most = _lower_region(blocks, groups, regions[r], r, near, most, x, y, z)
                tops[r] = most
            top = max(top, most)
    return index.size


@njit(cache=True, nogil=True, error_model="numpy", inline="always")
def _lower_region(blocks, groups, region, r, near, most, x, y, z):  # type: ignore[no-untyped-def]
    """Lower the d in the ``near`` groups of region ``r``; returns its largest, ``most`` the others'."""
    while near:
        part = _first_bit(near)
        near &= near - 1
        g = r * WAYS + part
        group = groups[g]
        near_blocks, high = _reached(group, x, y, z)
        while near_blocks:
            b = _first_bit(near_blocks)
            near_blocks &= near_blocks - 1
            left = _lower(blocks[g * WAYS + b], x, y, z)
            group.most[b] = _as_float(left)
            group.lowest[b] = -1
            high = max(high, left)
        region.most[part] = _as_float(high)
        region.lowest[part] = -1
        most = max(most, high)
    return most


@njit(cache=True, nogil=True, error_model="numpy", inline="always")
def _reached(boxes, x, y, z):  # type: ignore[no-untyped-def]
    """Which of sixteen boxes a point reaches, a bit each, and the largest d of the others."""
    near, most = np.int32(0), np.int32(0)
    for part in range(WAYS):
        dx = _outside(boxes.x0[part], boxes.x1[part], x)
        dy = _outside(boxes.y0[part], boxes.y1[part], y)
        dz = _outside(boxes.z0[part], boxes.z1[part], z)
        high = boxes.most[part]
        inside = dx * dx + dy * dy + dz * dz < high
        near = np.int32(near | (_BITS[part] if inside else np.int32(0)))
        most = max(most, np.int32(0) if inside else _bits(high))
    return np.int32(near), np.int32(most)


@njit(cache=True, nogil=True, error_model="numpy", inline="always")
def _outside(low, high, value):  # type: ignore[no-untyped-def]
    """How far ``value`` lies outside [low, high]: 0 within."""
    below, above = low - value, value - high
    most = below if below > above else above
    return most if most > np.float32(0) else np.float32(0)


@njit(cache=True, nogil=True, error_model="numpy", inline="always")
def _lower(block, x, y, z):  # type: ignore[no-untyped-def]
    """Lower the d of each point to its distance from a picked one; returns the bits of the largest."""
    most = np.int32(0)
    for lane in range(_BLOCK):
        dx = block.x[lane] - x
        dy = block.y[lane] - y
        dz = block.z[lane] - z
        d = dx * dx + dy * dy + dz * dz
        d = d if d < block.d[lane] else block.d[lane]
        block.d[lane] = d
        most = max(most, _bits(d))
    return np.int32(most)


@njit(cache=True, nogil=True, error_model="numpy", inline="always")
def _lowest_of_region(blocks, groups, region, r, top):  # type: ignore[no-untyped-def]
    """Lowest row of region ``r`` whose d is its largest, ``top``."""
    lowest, parts = _NONE, _holders(region, top)
    while parts:
        part = _first_bit(parts)
        parts &= parts - 1
        if region.lowest[part] < 0:
            g = r * WAYS + part
            region.lowest[part] = _lowest_of_group(blocks, groups[g], g, top)
        lowest = min(lowest, region.lowest[part])
    return lowest


@njit(cache=True, nogil=True, error_model="numpy", inline="always")
def _lowest_of_group(blocks, group, g, top):  # type: ignore[no-untyped-def]
    """Lowest row of group ``g`` whose d is its largest, ``top``."""
    lowest, parts = _NONE, _holders(group, top)
    while parts:
        part = _first_bit(parts)
        parts &= parts - 1
        if group.lowest[part] < 0:
            block, row = blocks[g * WAYS + part], _NONE
            for lane in range(_BLOCK):
                row = min(row, block.row[lane] if _bits(block.d[lane]) == top else _NONE)
            group.lowest[part] = row
        lowest = min(lowest, group.lowest[part])
    return lowest


@njit(cache=True, nogil=True, error_model="numpy", inline="always")
def _holders(boxes, top):  # type: ignore[no-untyped-def]
    """Of sixteen parts, those whose largest d is ``top``, a bit each."""
    parts = np.int32(0)
    for part in range(WAYS):
        parts = np.int32(parts | (_BITS[part] if _bits(boxes.most[part]) == top else np.int32(0)))
    return parts


@njit(cache=True, nogil=True, error_model="numpy", inline="always")
def _first_bit(bits):  # type: ignore[no-untyped-def]
    """Place of the lowest bit set, of sixteen: a float's exponent tells it at once."""
    return ((np.float32(bits & -bits).view(np.int32) >> 23) + 1) & 15


@njit(cache=True, nogil=True, error_model="numpy", inline="always")
def _bits(d):  # type: ignore[no-untyped-def]
    """The bits of a squared distance as an int32: they order alike, and maxima of ints vectorise."""
    return np.float32(d).view(np.int32)


@njit(cache=True, nogil=True, error_model="numpy", inline="always")
def _as_float(bits):  # type: ignore[no-untyped-def]
    return np.int32(bits).view(np.float32)


@njit(cache=True, nogil=True, error_model="numpy", inline="always")
def _range(line):  # type: ignore[no-untyped-def]
    """Least and largest value of a block's line, found as whole numbers that order alike: those vectorise."""
    low, high = np.int32(2**31 - 1), np.int32(-(2**31))
    for lane in range(_BLOCK):
        bits = _bits(line[lane])
        bits = bits if bits >= 0 else np.int32(bits ^ np.int32(2**31 - 1))
        low, high = min(low, bits), max(high, bits)
    low = low if low >= 0 else np.int32(low ^ np.int32(2**31 - 1))
    high = high if high >= 0 else np.int32(high ^ np.int32(2**31 - 1))
    return _as_float(low), _as_float(high)


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
