"""Figures of columns: mean, spread and range in one pass, percentiles from a bounded share of the rows.

What is counted apart, as by several processes, is merged (Chan, Golub and LeVeque 1979); merged in the same
order it gives the same figures.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from numba import njit
from numpy.typing import NDArray
from pydantic import ConfigDict

from ..config import Model
from .manifest import Figures
from .records import SPLITS, Field

KEPT = 1 << 17
"""Rows that percentiles are taken from: all of them up to here, else every second, third, ... row."""

_BLOCK = 1 << 14
"""Rows that are counted at once, so that they stay in the cache for their second pass."""

_unheld = np.errstate(over="ignore", invalid="ignore")
"""Figures that float64 cannot hold become null, without a warning."""


class Spread(Model):
    """`Moments` as they are recorded, one number for each element of a row; infinite where there is none."""

    model_config = ConfigDict(allow_inf_nan=True, ser_json_inf_nan="constants")

    count: list[float]
    mean: list[float]
    squares: list[float]
    low: list[float]
    high: list[float]


class Moments:
    """Number, mean, squares about it, least and most of the finite values of one column of ``width``."""

    def __init__(self, width: int) -> None:
        self._table = np.zeros((5, width))
        self._table[3], self._table[4] = math.inf, -math.inf

    @staticmethod
    def of(spread: Spread) -> Moments:
        """What was recorded."""
        moments = Moments(len(spread.count))
        moments._table[:] = [*vars(spread).values()]
        return moments

    def recorded(self) -> Spread:
        """What is to be recorded."""
        return Spread(**dict(zip(Spread.model_fields, self._table.tolist(), strict=True)))

    def add(self, column: NDArray[Any], starts: Sequence[int] = (0,)) -> None:
        """Count the rows (n,) or (n, w) of samples, which begin at ``starts``.

        Values that are not finite are left out. The figures are those of one sample after the other, however
        many come at once.
        """
        rows = column.reshape(len(column), self._table.shape[1])
        room = np.empty((min(_BLOCK, len(rows)), rows.shape[1]))
        for begin, end, within in _blocks([*starts, len(rows)]):
            block = room[: end - begin]
            block[:] = rows[begin:end]
            _add(block, np.array(within, np.int64), self._table)

    def merge(self, other: Moments) -> None:
        """Count what another has counted."""
        _merge(self._table, other._table)

    @_unheld
    def figures(self, kept: NDArray[Any]) -> Figures:
        """The figures, null where no finite value came; percentiles are those of the rows ``kept``."""
        count, mean, squares, least, most = self._table
        spread = np.sqrt(squares / np.maximum(count, 1))
        values = kept.reshape(len(kept), len(count)).astype(np.float64)
        low, high = np.array([_percentiles(column) for column in values.T]).T
        columns = (mean, spread, least, most, low, high)
        names = ("mean", "std", "min", "max", "p01", "p99")
        return Figures(**{name: self._known(values) for name, values in zip(names, columns, strict=True)})

    def _known(self, values: NDArray[np.float64]) -> list[float | None]:
        pairs = zip(values.tolist(), self._table[0].tolist(), strict=True)
        return [value if count and math.isfinite(value) else None for value, count in pairs]


def moments_of(fields: Mapping[str, Field]) -> dict[str, Moments]:
    """Moments that have counted nothing yet, of each column."""
    return {name: Moments(field.width) for name, field in fields.items()}


def described_splits(found: Iterable[str]) -> list[str]:
    """The splits that are described: what is learnt from may be described by what is learnt from only."""
    there = {*found}
    return ["train"] if "train" in there else [split for split in SPLITS if split in there]


def step_of(rows: int) -> int:
    """Of so many rows, the first of how many is kept for percentiles."""
    return max(-(-rows // KEPT), 1)


def every(
    data: NDArray[np.uint8],
    positions: NDArray[np.int64],
    rows: NDArray[np.int64],
    first: NDArray[np.int64],
    step: int,
    field: Field,
) -> NDArray[Any]:
    """Of samples whose column lies at ``positions`` in ``data`` rows ``first``, ``first + step``, ...

    All int64 (n,). Returns the rows of all samples, one behind the other.
    """
    count = np.maximum(-(-(rows - first) // step), 0)
    found = np.empty((int(count.sum()), field.row_bytes), np.uint8)
    _every(data, positions + first * field.row_bytes, count, step * field.row_bytes, found)
    return found.view(field.dtype).reshape(field.shape(len(found)))


def _percentiles(values: NDArray[np.float64]) -> tuple[float, float]:
    finite = values[np.isfinite(values)]
    if not len(finite):
        return math.nan, math.nan
    low, high = np.percentile(finite, (1, 99))
    return float(low), float(high)


def _blocks(starts: Sequence[int]) -> Iterator[tuple[int, int, list[int]]]:
    """Rows [begin, end) that are counted together, and where in them samples, or pieces of one, begin.

    ``starts``: of samples, the end of the last one behind them. A piece has `_BLOCK` rows, but for the last.
    """
    begin, within = 0, [0]
    for first, stop in itertools.pairwise(starts):
        for at in range(first, stop, _BLOCK):
            end = min(at + _BLOCK, stop)
            if end - begin > _BLOCK:
                yield begin, at, within
                begin, within = at, [0]
            within.append(end - begin)
    if len(within) > 1:
        yield begin, starts[-1], within


@njit(cache=True, nogil=True, error_model="numpy")
def _add(values: NDArray[np.float64], starts: NDArray[np.int64], table: NDArray[np.float64]) -> None:
    """Count pieces of rows, one after the other."""
    for i in range(len(starts) - 1):
        _merge(table, _moments(values[starts[i] : starts[i + 1]]))


@njit(cache=True, nogil=True, error_model="numpy")
def _merge(table: NDArray[np.float64], other: NDArray[np.float64]) -> None:
    """Add the figures of other rows, (5, columns), to ``table``."""
    for column in range(table.shape[1]):
        count, mean, squares = other[0, column], other[1, column], other[2, column]
        total = max(table[0, column] + count, 1.0)
        delta = mean - table[1, column]
        table[1, column] += delta * count / total
        table[2, column] += squares + delta * delta * table[0, column] * count / total
        table[0, column] += count
        table[3, column] = min(table[3, column], other[3, column])
        table[4, column] = max(table[4, column], other[4, column])


@njit(cache=True, nogil=True, error_model="numpy")
def _moments(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """Of each column how many values are finite, their mean, squares about it, least, most: (5, columns).

    Sums run in four lanes, which a processor adds at once; they are the same on every processor.
    """
    rows, columns = values.shape
    whole = rows // 4 * 4
    found = np.zeros((5, columns))
    for column in range(columns):
        a, b, c, d = 0.0, 0.0, 0.0, 0.0
        low, high = np.inf, -np.inf
        for i in range(0, whole, 4):
            a += values[i, column]
            b += values[i + 1, column]
            c += values[i + 2, column]
            d += values[i + 3, column]
        for i in range(whole, rows):
            a += values[i, column]
        total, count = (a + b) + (c + d), rows
        finite = np.isfinite(total)
        if not finite:
            total, count = 0.0, 0
            for i in range(rows):
                if np.isfinite(values[i, column]):
                    total += values[i, column]
                    count += 1
        mean = total / max(count, 1)
        a, b, c, d = 0.0, 0.0, 0.0, 0.0
        if finite:
            lows, highs = (low, low, low, low), (high, high, high, high)
            for i in range(0, whole, 4):
                p, q, r, s = (
                    values[i, column],
                    values[i + 1, column],
                    values[i + 2, column],
                    values[i + 3, column],
                )
                a, b, c, d = (
                    a + (p - mean) ** 2,
                    b + (q - mean) ** 2,
                    c + (r - mean) ** 2,
                    d + (s - mean) ** 2,
                )
                lows = (
                    p if p < lows[0] else lows[0],
                    q if q < lows[1] else lows[1],
                    r if r < lows[2] else lows[2],
                    s if s < lows[3] else lows[3],
                )
                highs = (
                    p if p > highs[0] else highs[0],
                    q if q > highs[1] else highs[1],
                    r if r > highs[2] else highs[2],
                    s if s > highs[3] else highs[3],
                )
            low, high = min(lows), max(highs)
            for i in range(whole, rows):
                a += (values[i, column] - mean) ** 2
                low, high = min(low, values[i, column]), max(high, values[i, column])
        else:
            for i in range(rows):
                if np.isfinite(values[i, column]):
                    a += (values[i, column] - mean) ** 2
                    low, high = min(low, values[i, column]), max(high, values[i, column])
        found[0, column], found[1, column], found[2, column] = count, mean, (a + b) + (c + d)
        found[3, column], found[4, column] = low, high
    return found


@njit(cache=True, nogil=True)
def _every(
    data: NDArray[np.uint8],
    positions: NDArray[np.int64],
    count: NDArray[np.int64],
    stride: int,
    found: NDArray[np.uint8],
) -> None:
    """Copy rows that lie ``stride`` bytes apart, ``count`` of each sample."""
    row = 0
    for i in range(len(positions)):
        for k in range(count[i]):
            at = positions[i] + k * stride
            for byte in range(found.shape[1]):
                found[row, byte] = data[at + byte]
            row += 1
