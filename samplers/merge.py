"""Merging the rows of each cell, field by field.

Sums are taken column by column in the order of rows, which reads a field from start to end, while the sums of
one column mostly fit the cache. Only votes are taken of rows gathered in the order of cells.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
from numba import njit
from numpy.typing import NDArray

from ..errors import UsageError
from .fields import Reduction
from .group import Groups
from .threads import each

Chosen = Mapping[str, tuple[NDArray[Any], Reduction]]
"""Fields (n, ...) and how their rows merge."""

LARGEST_SUM = 2.0**61
"""Of whole numbers: the mean takes twice a sum, and that must fit an int64."""


def merge(fields: Chosen, groups: Groups) -> dict[str, NDArray[Any]]:
    """Each field with one row a cell, (m, ...), and its own dtype, on the threads that the cells took."""
    if not fields:
        return {}
    names, threads = list(fields), len(groups.tables)
    shares = [(names[t::threads],) for t in range(min(threads, len(names)))]
    if len(shares) > 1:
        _ = groups.owner, groups.count, groups.index  # else every thread would compute them
    found = each(lambda share: {name: _merged(name, *fields[name], groups) for name in share}, shares)
    merged = {name: values for part in found for name, values in part.items()}
    return {name: merged[name] for name in names}


def _merged(name: str, values: NDArray[Any], how: Reduction, groups: Groups) -> NDArray[Any]:
    if how == "first" or not len(groups) or not values[:1].size:
        return values[groups.index]
    if how == "majority":
        merged = _winners(rows_by_cell(values, groups), groups.starts)
    else:
        sums = totals(name, values, groups)
        if how == "unit":
            merged = unit_of(sums, values[groups.index].reshape(sums.shape))
        else:
            merged = mean_of(sums, groups.count[:, None], values.dtype.kind in "iu", how)
    return merged.astype(values.dtype).reshape(-1, *values.shape[1:])


def rows_by_cell(values: NDArray[Any], groups: Groups) -> NDArray[Any]:
    """A field's rows in the order of cells, flat, (n, w), and in native byte order."""
    return _flat(values[groups.order])


def _flat(rows: NDArray[Any]) -> NDArray[Any]:
    """Rows (n, w) in native byte order."""
    rows = rows.reshape(len(rows), math.prod(rows.shape[1:]))
    return rows.astype(rows.dtype.newbyteorder("="), copy=False)


def _winners(rows: NDArray[Any], starts: NDArray[np.int64]) -> NDArray[Any]:
    """The most frequent value of sorted rows (n, w) by cell."""
    if rows.dtype != np.uint64:  # int64 and float64 hold all the others, and two kernels will do
        rows = rows.astype(np.float64 if rows.dtype.kind == "f" else np.int64)
    winners: NDArray[Any] = _vote(rows, starts)
    return winners


def totals(name: str, values: NDArray[Any], groups: Groups) -> NDArray[Any]:
    """Sums of a field's rows by cell, (m, w): int64 of whole numbers, else float64.

    Whole numbers are added exactly; UsageError where they are too large for that. Those of up to 32 bits
    that are not whole are added in float64, larger ones with their rounding errors apart.
    """
    rows = np.ascontiguousarray(_flat(values if groups.rows is None else values[groups.rows]))
    dtype, columns, m, owner = rows.dtype, range(rows.shape[1]), len(groups), groups.owner
    if dtype.kind in "iu":
        most = groups.count.max(initial=0)
        if dtype.itemsize == 8 and np.abs(rows.astype(np.float64)).max(initial=0) * most >= LARGEST_SUM:
            raise too_large(name, dtype)
        whole = np.zeros((len(columns), m), np.int64)
        for column in columns:
            _add_whole(rows, column, owner, whole[column])
        return whole.T
    if dtype.itemsize < 8:
        rows, sums = rows.astype(np.float32, copy=False), np.zeros((len(columns), m))  # half floats too
        for column in columns:
            _add(rows, column, owner, sums[column])
        return sums.T
    rows, (sums, lost) = rows.astype(np.float64, copy=False), np.zeros((2, len(columns), m))
    for column in columns:
        _add_exactly(rows, column, owner, sums[column], lost[column])
    return np.where(np.isfinite(sums), sums + lost, sums).T


def too_large(name: str, dtype: np.dtype[Any]) -> UsageError:
    """The error of whole numbers whose sums may reach `LARGEST_SUM`."""
    cause = f"{dtype} values are too large to average exactly"
    return UsageError(f"field {name}", cause, "reduce them by 'first'")


def unit_of(total: NDArray[Any], first: NDArray[Any]) -> NDArray[Any]:
    """Sums brought to length 1; where the rows cancel out, the row that stands for them."""
    length = np.sqrt(np.square(total).sum(axis=1, keepdims=True))
    cancelled = ~(length > 1e-12)
    with np.errstate(invalid="ignore"):  # an infinite component has no direction: NaN
        return np.where(cancelled, first, total / np.where(cancelled, 1.0, length))


def mean_of(total: NDArray[Any], count: NDArray[np.int64], whole: bool, how: Reduction) -> NDArray[Any]:
    """Means from sums; of whole numbers in whole numbers, a half rounded up."""
    if whole:
        rounded: NDArray[Any] = (2 * total.astype(np.int64) + count) // (2 * count)
        return rounded
    mean = total / count
    return np.floor(mean + 0.5) if how == "rounded" else mean


@njit(cache=True, nogil=True, error_model="numpy")
def _add(
    rows: NDArray[np.float32], column: int, owner: NDArray[np.uint32], sums: NDArray[np.float64]
) -> None:
    """Add a column of rows to the sums of their cells."""
    for i in range(len(owner)):
        sums[owner[i]] += np.float64(rows[i, column])


@njit(cache=True, nogil=True, error_model="numpy")
def _add_whole(rows: NDArray[Any], column: int, owner: NDArray[np.uint32], sums: NDArray[np.int64]) -> None:
    """The same of whole numbers."""
    for i in range(len(owner)):
        sums[owner[i]] += np.int64(rows[i, column])


@njit(cache=True, nogil=True, error_model="numpy")
def _add_exactly(
    rows: NDArray[np.float64],
    column: int,
    owner: NDArray[np.uint32],
    sums: NDArray[np.float64],
    lost: NDArray[np.float64],
) -> None:
    """The same with rounding errors apart (Neumaier, 1974): the order of rows hardly matters."""
    for i in range(len(owner)):
        value, total = rows[i, column], sums[owner[i]]
        new = total + value
        lost[owner[i]] += (total - new) + value if abs(total) >= abs(value) else (value - new) + total
        sums[owner[i]] = new


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
