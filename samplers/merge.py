"""Merging the rows of each cell: one function a reduction.

Each takes values (n, w) of the rows in cell order, and the runs of those rows, and gives (m, w).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numba import njit
from numpy.typing import NDArray

from ..errors import UsageError
from .fields import Reduction


@dataclass(frozen=True)
class Runs:
    """Rows grouped by cell; rows of one group keep their own order.

    ``order``: int64, the rows. ``starts``: int64 (m + 1,), where in it each group begins, and the end. ``n``:
    how many rows there were, those of no group among them.
    """

    order: NDArray[np.int64]
    starts: NDArray[np.int64]
    n: int

    @property
    def first(self) -> NDArray[np.int64]:
        """int64 (m,): the first row of each group."""
        return self.order[self.starts[:-1]]


def merge(values: NDArray[Any], runs: Runs, how: Reduction) -> NDArray[Any]:
    """Values (n, ...) to one row a group, (m, ...), of the same dtype."""
    if how == "first" or not len(runs.order):
        return values[runs.first]
    native = values.dtype.newbyteorder("=")
    rows = values[runs.order].reshape(len(runs.order), -1).astype(native, copy=False)
    merged = _REDUCERS[how](rows, runs.starts).astype(values.dtype)
    return merged.reshape(-1, *values.shape[1:])


def _mean(rows: NDArray[Any], starts: NDArray[np.int64]) -> NDArray[Any]:
    if rows.dtype.kind in "iu":
        return _whole_mean(rows, starts)
    return _exact_sums(rows.astype(np.float64), starts) / np.diff(starts)[:, None]


def _rounded(rows: NDArray[Any], starts: NDArray[np.int64]) -> NDArray[Any]:
    mean = _mean(rows, starts)
    return np.floor(mean + 0.5) if mean.dtype.kind == "f" else mean


def _whole_mean(rows: NDArray[Any], starts: NDArray[np.int64]) -> NDArray[np.int64]:
    """Mean of whole numbers, a half rounded up, in whole numbers."""
    count = np.diff(starts)[:, None]
    if (
        rows.dtype.itemsize == 8
        and float(np.abs(rows.astype(np.float64)).max()) * int(count.max()) >= 2.0**61
    ):
        raise UsageError(
            "voxel", f"{rows.dtype} values are too large to average exactly", "reduce them by 'first'"
        )
    total: NDArray[np.int64] = np.add.reduceat(rows.astype(np.int64), starts[:-1], axis=0)
    mean: NDArray[np.int64] = (2 * total + count) // (2 * count)
    return mean


def _unit(rows: NDArray[Any], starts: NDArray[np.int64]) -> NDArray[Any]:
    """Sum brought to length 1; where the rows cancel out, the first row."""
    total = _exact_sums(rows.astype(np.float64), starts)
    length = np.sqrt(np.square(total).sum(axis=1, keepdims=True))
    cancelled = ~(length > 1e-12)
    return np.where(cancelled, rows[starts[:-1]], total / np.where(cancelled, 1.0, length))


@njit(cache=True, nogil=True, error_model="numpy")
def _exact_sums(rows: NDArray[np.float64], starts: NDArray[np.int64]) -> NDArray[np.float64]:
    """Sums that carry their rounding errors along (Neumaier, 1974): the order of rows hardly matters."""
    sums = np.empty((len(starts) - 1, rows.shape[1]))
    for m in range(len(sums)):
        for c in range(rows.shape[1]):
            total, lost = 0.0, 0.0
            for i in range(starts[m], starts[m + 1]):
                value = rows[i, c]
                new = total + value
                lost += (total - new) + value if abs(total) >= abs(value) else (value - new) + total
                total = new
            sums[m, c] = total + lost if np.isfinite(total) else total
    return sums


def _majority(rows: NDArray[Any], starts: NDArray[np.int64]) -> NDArray[Any]:
    if rows.dtype != np.uint64:  # int64 and float64 hold all the others, and two kernels will do
        rows = rows.astype(np.float64 if rows.dtype.kind == "f" else np.int64)
    winners: NDArray[Any] = _vote(rows, starts)
    return winners


@njit(cache=True, nogil=True, error_model="numpy")
def _vote(rows: NDArray[Any], starts: NDArray[np.int64]) -> NDArray[Any]:
    """Most frequent value; -1 counts only where there is nothing else; the lowest value wins a tie."""
    out = np.empty((len(starts) - 1, rows.shape[1]), rows.dtype)
    for m in range(len(out)):
        for c in range(rows.shape[1]):
            votes = np.sort(rows[starts[m] : starts[m + 1], c])
            best, most, same = votes[0], 0, 0
            for i in range(votes.size):
                same = same + 1 if i and votes[i] == votes[i - 1] else 1
                if same > most and votes[i] != -1:
                    best, most = votes[i], same
            out[m, c] = best
    return out


_REDUCERS: dict[Reduction, Callable[[NDArray[Any], NDArray[np.int64]], NDArray[Any]]] = {
    "mean": _mean,
    "majority": _majority,
    "rounded": _rounded,
    "unit": _unit,
}
