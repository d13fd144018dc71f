"""The box around a cloud."""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit
from numpy.typing import NDArray


@njit(cache=True, nogil=True, error_model="numpy")
def bounds(points: NDArray[Any]) -> tuple[NDArray[Any], NDArray[Any], bool]:
    """Lowest and highest x, y and z of points (m, 3 or more), at least one, of their dtype.

    The third is whether all numbers are finite: the others hold only if they are. 16 points are looked at
    side by side, and four such rows at once: a loop over numbers that lie end to end vectorises. What comes
    out must never change: numba would not notice in the kernels of other files that call it.
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
