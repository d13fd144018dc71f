"""Exact search for the farthest row, again and again, that skips what a pick cannot change.

Each row keeps d, the squared distance to the nearest picked row, and a pick lowers the d of rows around it
only. So the rows are sorted along a Morton curve into blocks of 64, sixteen blocks make a group, sixteen
groups a region, and each of them knows the box around its points and the largest d among them. A pick
descends only where a box is nearer to it than the largest d inside (bucket search: Han et al., "QuickFPS",
2023). The next pick is found from the top as well: along the largest d.

It is exact, not nearly so:

- A box's distance is computed by the same float32 operations in the same order as a point's, from parts that
  are no larger, and rounding never swaps the order of two numbers. So every point of a box is at least as
  far, as computed, as its box: where that is no less than the largest d inside, no minimum changes.
- Minima and maxima are of the same numbers in whatever order, and nothing else is computed. The compiler may
  neither reassociate nor contract, as the kernels are not compiled with fastmath.
- Of all rows with the largest d the lowest is picked: every block that holds one is asked for its lowest.
- d is 0 for picked rows. Once it is 0 for all, the rest are copies, and follow in the order of their rows.

The order of the rows, and so the boxes, have a say in the time alone. That of n rows and k picks is O(n) for
the sorting and then mostly k times the rows around a pick, which are n / k times a constant, so O(n log k) in
all, and for each pick one look at every region of 16,384 rows. A million rows and 16,384 picks take about a
tenth of a second, ten million rows and a thousand picks about one. Memory: 40 bytes a row while it runs.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit
from numpy.typing import NDArray

from .curve import along_curve
from .scratch import take

_BLOCK = 64
_WAYS = 16  # blocks of a group, groups of a region
_NONE = np.int32(2**31 - 1)  # after every row
_GROUP = _WAYS * _BLOCK  # rows of a group; the last is filled up: loops of constant length vectorise
_WORTH = 64  # picks' even share of the rows: where more than it share a cell, sorting them further pays
_BITS = np.array([1 << j for j in range(_WAYS)], np.int32)

BLOCK = np.dtype(
    [(name, np.float32, (_BLOCK,)) for name in ("x", "y", "z", "d")] + [("row", np.int32, (_BLOCK,))]
)
"""64 points: x, y, z, d (the squared distance to the nearest pick) and row, each in a line of its own."""

BOXES = np.dtype(
    [(name, np.float32, (_WAYS,)) for name in ("x0", "x1", "y0", "y1", "z0", "z1", "most")]
    + [("lowest", np.int32, (_WAYS,))]
)
"""The sixteen parts of a group or region. x0 to z1: the box around each part's points. most: its largest d.
lowest: the lowest row that has this d, or -1 while unknown; on a lattice very many rows tie for long."""

_BLOCK_BYTES, _BOXES_BYTES = BLOCK.itemsize, BOXES.itemsize  # multiples of a cache line


def search(points: NDArray[np.float32], k: int, first: int) -> NDArray[np.int64]:
    """``k`` rows of ``points``, float32 (n, 3) in C order, from row ``first`` on: int64 (k,).

    The points must be finite, their squared distances too, and 0 < k <= n < 2^31.
    """
    n = len(points)
    groups = -(-n // _GROUP)
    regions = -(-groups // _WAYS)
    lines = groups * _GROUP * 16  # bytes of the sorted records
    size = lines + groups * (_WAYS * _BLOCK_BYTES + _BOXES_BYTES) + regions * _BOXES_BYTES
    room = take(size + 64, np.uint8)
    room = room[-room.ctypes.data % 64 :]  # from a cache line on: no vector lies across two
    records, tree = room[:lines].view(np.float32).reshape(-1, 4), room[lines:]
    along_curve(points, records, tree, _WORTH * n // k)
    index = np.empty(k, np.int64)
    found = _search(points, records, tree, first, index)
    if found < k:  # only copies of picked rows are left
        left = take(n, np.bool)
        left[:] = True
        left[index[:found]] = False
        index[found:] = np.flatnonzero(left)[: k - found]
    return index


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
        block, group, part = blocks[b], groups[b // _WAYS], b % _WAYS
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
        group, region, part = groups[g], regions[g // _WAYS], g % _WAYS
        region.most[part] = group.most.max()
        region.x0[part], region.x1[part] = group.x0.min(), group.x1.max()
        region.y0[part], region.y1[part] = group.y0.min(), group.y1.max()
        region.z0[part], region.z1[part] = group.z0.min(), group.z1.max()


@njit(cache=True, nogil=True, error_model="numpy")
def _search(
    points: NDArray[np.float32],
    records: NDArray[np.float32],
    tree: NDArray[np.uint8],
    first: int,
    index: NDArray[np.int64],
) -> int:
    """Fill ``index`` with rows from ``first`` on, until all d are 0; returns how many there are.

    ``records``: the points along a curve, whole groups of them. ``tree``: memory for all the rest.
    """
    count = len(records) // _GROUP
    middle = count * _WAYS * _BLOCK_BYTES
    end = middle + count * _BOXES_BYTES
    blocks, groups = tree[:middle].view(BLOCK), tree[middle:end].view(BOXES)
    regions = tree[end : end + (count + _WAYS - 1) // _WAYS * _BOXES_BYTES].view(BOXES)
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
        g = r * _WAYS + part
        group = groups[g]
        near_blocks, high = _reached(group, x, y, z)
        while near_blocks:
            b = _first_bit(near_blocks)
            near_blocks &= near_blocks - 1
            left = _lower(blocks[g * _WAYS + b], x, y, z)
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
    for part in range(_WAYS):
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
            g = r * _WAYS + part
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
            block, row = blocks[g * _WAYS + part], _NONE
            for lane in range(_BLOCK):
                row = min(row, block.row[lane] if _bits(block.d[lane]) == top else _NONE)
            group.lowest[part] = row
        lowest = min(lowest, group.lowest[part])
    return lowest


@njit(cache=True, nogil=True, error_model="numpy", inline="always")
def _holders(boxes, top):  # type: ignore[no-untyped-def]
    """Of sixteen parts, those whose largest d is ``top``, a bit each."""
    parts = np.int32(0)
    for part in range(_WAYS):
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
