"""Rows by cell: where each row lies, the order that brings rows of a cell together, and their means.

Rows are sorted by cell with a stable radix sort, one axis after the other, and each run of rows that share a
cell becomes one point. Three cell numbers are never packed into one, so nothing can overflow.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit
from numpy.typing import NDArray

from .curve import radix_order

_ONE = 2.0**30
"""Steps to a cell's edge in the fixed-point sums: those of 2^33 rows fit an int64."""


@njit(cache=True, nogil=True, error_model="numpy")
def locate(
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


def sorted_rows(cells: NDArray[np.int64]) -> NDArray[np.int64]:
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
def run_starts(cells: NDArray[np.int64], order: NDArray[np.int64]) -> NDArray[np.int64]:
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
def centroids(
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
