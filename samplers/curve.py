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


def morton_order(points: NDArray[np.float32]) -> NDArray[Any]:
    """Rows along a 3-D Morton curve whose cells are nearly cubes: int32 (n,), or int64 from 2^31 rows on.

    ``points``: float32 (n, 3) in C order, n > 0, finite. The cells are about 30 times as many as the rows.
    """
    bits = min(max((len(points) - 1).bit_length() + 5, 12), 26)
    rows = np.arange(len(points), dtype=np.int32 if len(points) < 2**31 else np.int64)
    ordered: NDArray[Any] = radix_order(_space_keys(points, bits), rows)
    return ordered


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
def _space_keys(points: NDArray[np.float32], bits: int) -> NDArray[np.uint32]:
    """Morton keys of ``bits`` bits over three axes; the longer an axis, the more of the bits are its own."""
    low, extent = _bounds(points)
    axis_of, axis_bits = _halvings(extent, bits)
    table = _interleaved(axis_of, axis_bits)
    scale, last = np.zeros(3, np.float32), np.zeros(3, np.int32)
    for a in range(3):
        last[a] = (1 << axis_bits[a]) - 1
        if extent[a] > 1e-30:  # else 1 / extent is no float32; such an axis stays one cell
            scale[a] = (1 << axis_bits[a]) / extent[a]
    keys = np.empty(len(points), np.uint32)
    for i in range(len(points)):
        x = min(np.int32((points[i, 0] - low[0]) * scale[0]), last[0])
        y = min(np.int32((points[i, 1] - low[1]) * scale[1]), last[1])
        z = min(np.int32((points[i, 2] - low[2]) * scale[2]), last[2])
        keys[i] = table[0, x] | table[1, y] | table[2, z]
    return keys


@njit(cache=True, nogil=True, error_model="numpy")
def _bounds(points: NDArray[np.float32]) -> tuple[NDArray[np.float32], NDArray[np.float64]]:
    x0, y0, z0 = points[0]
    x1, y1, z1 = points[0]
    for i in range(len(points)):
        x, y, z = points[i, 0], points[i, 1], points[i, 2]
        x0, y0, z0 = min(x0, x), min(y0, y), min(z0, z)
        x1, y1, z1 = max(x1, x), max(y1, y), max(z1, z)
    low, high = np.array([x0, y0, z0]), np.array([x1, y1, z1])
    return low, high.astype(np.float64) - low


@njit(cache=True, nogil=True, error_model="numpy")
def _halvings(extent: NDArray[np.float64], bits: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Which axis each key bit halves, highest bit first (-1: none), and how many bits each axis has."""
    edge, axis_of, axis_bits = extent.copy(), np.full(bits, -1), np.zeros(3, np.int64)
    for t in range(bits):
        longest = np.argmax(edge)
        if edge[longest] == 0:
            break
        axis_of[t] = longest
        axis_bits[longest] += 1
        edge[longest] = edge[longest] * 0.5 if axis_bits[longest] < _DIGIT else 0.0
    return axis_of, axis_bits


@njit(cache=True, nogil=True, error_model="numpy")
def _interleaved(axis_of: NDArray[np.int64], axis_bits: NDArray[np.int64]) -> NDArray[np.uint32]:
    """Table (3, cells): the key bits of each axis and cell number, at the places its halvings have."""
    table = np.zeros((3, 1 << _DIGIT), np.uint32)
    for a in range(3):
        for cell in range(1 << axis_bits[a]):
            bit = axis_bits[a]
            for t in range(axis_of.size):
                if axis_of[t] == a:
                    bit -= 1
                    table[a, cell] |= np.uint32(((cell >> bit) & 1) << (axis_of.size - 1 - t))
    return table
