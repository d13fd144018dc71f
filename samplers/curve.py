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
