"""Figures of every column over a split, in one pass, and percentiles from a bounded share of the rows."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numba import njit
from numpy.typing import NDArray

from .manifest import Figures
from .records import Field

KEPT = 1 << 17
"""Rows that percentiles are taken from: all of them up to here, else every second, third, ... row."""

_TOGETHER = 1 << 14
"""Rows of small samples that are merged at once."""


_unheld = np.errstate(over="ignore", invalid="ignore")
"""Figures that float64 cannot hold become null, without a warning."""


class Moments:
    """Mean, spread and range of one column, merged piece by piece (Chan, Golub and LeVeque 1979).

    ``rows`` is the number that will come, so that the rows kept for percentiles can be spread evenly.
    """

    def __init__(self, field: Field, rows: int) -> None:
        self.count = np.zeros(field.width)
        self.mean = np.zeros(field.width)
        self.squares = np.zeros(field.width)
        self.low = np.full(field.width, math.inf)
        self.high = np.full(field.width, -math.inf)
        self._step = max(-(-rows // KEPT), 1)
        self._seen = 0
        self._kept: list[NDArray[np.float64]] = []
        self._waiting: list[NDArray[Any]] = []

    def add(self, column: NDArray[Any]) -> None:
        """Count the rows of one sample; values that are not finite are left out."""
        self._waiting.append(column)
        if sum(map(len, self._waiting)) >= _TOGETHER:
            self._merge()

    @_unheld
    def _merge(self) -> None:
        rows = np.concatenate(self._waiting) if self._waiting else np.empty(0)
        self._waiting = []
        values = rows.reshape(len(rows), len(self.mean)).astype(np.float64)
        # A copy: a view would keep all rows in memory.
        self._kept.append(values[-self._seen % self._step :: self._step].copy())
        self._seen += len(values)
        count, mean, squares, low, high = _moments(np.ascontiguousarray(values))
        total = np.maximum(self.count + count, 1)
        delta = mean - self.mean
        self.mean += delta * count / total
        self.squares += squares + np.square(delta) * self.count * count / total
        self.count += count
        self.low, self.high = np.minimum(self.low, low), np.maximum(self.high, high)

    @_unheld
    def figures(self) -> Figures:
        """The figures, null where no finite value came."""
        self._merge()
        spread = np.sqrt(self.squares / np.maximum(self.count, 1))
        kept = np.concatenate(self._kept) if self._kept else np.empty((0, len(self.mean)))
        bounds = [_percentiles(kept[:, i]) for i in range(len(self.mean))]
        low, high = np.array(bounds).T
        columns = (self.mean, spread, self.low, self.high, low, high)
        names = ("mean", "std", "min", "max", "p01", "p99")
        return Figures(**{name: self._known(values) for name, values in zip(names, columns, strict=True)})

    def _known(self, values: NDArray[np.float64]) -> list[float | None]:
        pairs = zip(values.tolist(), self.count.tolist(), strict=True)
        return [value if count and math.isfinite(value) else None for value, count in pairs]


def _percentiles(values: NDArray[np.float64]) -> tuple[float, float]:
    finite = values[np.isfinite(values)]
    if not len(finite):
        return math.nan, math.nan
    low, high = np.percentile(finite, (1, 99))
    return float(low), float(high)


@njit(cache=True, nogil=True, error_model="numpy")
def _moments(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """Of each column how many values are finite, their mean, squares about it, least, most: (5, columns)."""
    found = np.zeros((5, values.shape[1]))
    for column in range(values.shape[1]):
        count, total, low, high = 0, 0.0, np.inf, -np.inf
        for i in range(len(values)):
            value = values[i, column]
            if np.isfinite(value):
                count += 1
                total += value
                low, high = min(low, value), max(high, value)
        mean, squares = total / max(count, 1), 0.0
        for i in range(len(values)):
            if np.isfinite(values[i, column]):
                squares += (values[i, column] - mean) ** 2
        found[0, column], found[1, column], found[2, column] = count, mean, squares
        found[3, column], found[4, column] = low, high
    return found
