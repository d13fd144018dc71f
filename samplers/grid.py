"""The grid: which cell a point lies in, and the box of cells that a cloud touches."""

from __future__ import annotations

import logging
import math
from typing import Any, NamedTuple

import numpy as np
from numba import njit
from numpy.typing import NDArray

from ..errors import UsageError
from .curve import radix_order
from .tables import Triple

log = logging.getLogger(__name__)

_MOST_CELLS = 2.0**53
"""Above it float64 no longer tells neighbouring cells apart."""

_FINE = 2.0**18
"""So many edges from the origin float32 still has 16 steps to an edge."""

_MOST_FLOAT = float(np.finfo(np.float32).max)


class Grid(NamedTuple):
    """Cells of edge ``size`` with a corner at ``corner``; points are relative to ``origin``."""

    size: float
    origin: Triple
    corner: Triple

    def place(self, points: NDArray[Any]) -> NDArray[np.float64]:
        """Positions in cells: the whole part, floored, is the cell, the rest the place inside it."""
        return (points.astype(np.float64) + self.origin - self.corner) / self.size

    def points(self, places: NDArray[np.floating[Any]]) -> NDArray[np.float32]:
        """The reverse, float32 (m, 3), relative to the origin."""
        return np.asarray(places * self.size + self.corner - self.origin, np.float32)

    def box(self, low: Triple, high: Triple) -> Box:
        """The cells from the lowest to the highest that points taken reach on each axis, of finite points.

        A warning tells where float32 is too coarse for the cells. Raises UsageError for coordinates beyond
        float32 and for cells numbered beyond 2^53.
        """
        reach = max(-min(low), max(high))
        if reach + self.size > _MOST_FLOAT:  # a cell may begin at the furthest coordinate
            cause = f"coordinates reach {reach}, cells {self.size} further: that is beyond float32"
            raise UsageError("voxel", cause, "subtract an origin, scale them, or choose a smaller size")
        if reach > self.size * _FINE:
            step = float(np.spacing(np.float32(reach)))
            if step > self.size / 16:
                why = "voxel %g: float32, which means come in, has steps of %g at %g; subtract an origin"
                log.warning(why, self.size, step, reach)
        x, y, z = self._place(low)  # floats keep their order, so the lowest coordinate is in the lowest cell
        a, b, c = self._place(high)
        furthest = max(-min(x, y, z), max(a, b, c))
        if not furthest < _MOST_CELLS:
            cause = f"size {self.size} numbers cells beyond 2^53 for coordinates up to {reach}"
            raise UsageError("voxel", cause, "choose a larger size or an origin nearer to the cloud")
        i, j, k = math.floor(x), math.floor(y), math.floor(z)
        shape = math.floor(a) - i + 1, math.floor(b) - j + 1, math.floor(c) - k + 1
        # The product with an edge's reciprocal differs from the quotient by less than 2^-51 of what they are.
        near = 0.5 - (furthest + 1) * 2.0**-50
        return Box(self, (float(i), float(j), float(k)), shape, near)

    def _place(self, point: Triple) -> Triple:
        (x, y, z), (ox, oy, oz), (cx, cy, cz), size = point, self.origin, self.corner, self.size
        return (x + ox - cx) / size, (y + oy - cy) / size, (z + oz - cz) / size


class Box(NamedTuple):
    """Cells of a grid: ``low``, the lowest cell numbers; ``shape``, how many on each axis.

    ``near``: up to there from a cell's middle, in edges, a product with an edge's reciprocal tells the cell.
    """

    grid: Grid
    low: Triple
    shape: tuple[int, int, int]
    near: float

    @property
    def cells(self) -> int:
        """How many."""
        return math.prod(self.shape)

    def cell_of(self, keys: NDArray[np.int64]) -> NDArray[np.int64]:
        """Cell numbers int64 (m, 3) of places in the box, counted with z fastest and x slowest."""
        x, y, z = np.unravel_index(keys, self.shape)
        return np.stack([x, y, z], axis=1) + np.array(self.low, np.int64)


def sorted_rows(cells: NDArray[np.int64]) -> NDArray[np.int64]:
    """Rows sorted by cell, int64 (n, 3), x first; rows of a cell in their own order.

    One stable radix sort an axis: cell numbers are never packed into one, so nothing can overflow.
    """
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


def numbered(cells: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
    """Cells int64 (n, 3) numbered in their order, equal ones alike.

    Returns the number of each, int64 (n,), the order that sorts them, and where in it those of each number
    begin, and the end.
    """
    order = sorted_rows(cells)
    starts = starts_of(cells[order])
    number = np.empty(len(cells), np.int64)
    number[order] = np.repeat(np.arange(len(starts) - 1), np.diff(starts))
    return number, order, starts


def starts_of(cells: NDArray[np.int64]) -> NDArray[np.int64]:
    """Where each run of equal rows starts in sorted ``cells``, and the end: int64 (m + 1,)."""
    new = (cells[1:] != cells[:-1]).any(axis=1)
    return (
        np.concatenate([[0], np.flatnonzero(new) + 1, [len(cells)]]) if len(cells) else np.zeros(1, np.int64)
    )
