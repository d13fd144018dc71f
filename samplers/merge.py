"""Merging the rows of each cell, field by field.

Sums of values that float32 holds exactly ride along: such fields are lanes of the records that the
kernels write and add up. The rows of other fields are gathered in the order of cells.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
from numba import njit
from numpy.typing import NDArray

from ..errors import UsageError
from . import scratch
from .fields import Reduction
from .group import Groups

Chosen = Mapping[str, tuple[NDArray[Any], Reduction]]
"""Fields (n, ...) and how their rows merge."""

_NO_LANES = np.empty((0, 0), np.float32)

LARGEST_SUM = 2.0**61
"""Of whole numbers: the mean takes twice a sum, and that must fit an int64."""


def rides(values: NDArray[Any], how: Reduction) -> bool:
    """Whether the field's sums can be taken from lanes."""
    exact = (values.dtype.kind in "iu" and values.itemsize <= 2) or (
        values.dtype.kind == "f" and values.itemsize <= 4
    )
    return exact and how in ("mean", "rounded", "unit")


def lanes_of(fields: Chosen, rows: NDArray[np.int64] | None, n: int) -> NDArray[np.float32]:
    """The columns of the fields that ride, of ``rows``, or of all ``n`` where it is None: float32 (w, n).

    They are filled up to a multiple of four, which the kernels add up side by side.
    """
    if not fields:
        return _NO_LANES
    columns = [
        values.reshape(len(values), -1).T
        for values, how in fields.values()
        if values.size and rides(values, how)
    ]
    width, at = sum(map(len, columns)), 0
    lanes = scratch.take((-(-width // 4) * 4, n), np.float32)
    lanes[width:] = 0
    for field in columns:
        for column in field:
            lanes[at] = column if rows is None else column[rows]
            at += 1
    return lanes


def merge(fields: Chosen, groups: Groups) -> dict[str, NDArray[Any]]:
    """Each field with one row a cell, (m, ...), and its own dtype."""
    merged, at, lanes = {}, 0, groups.lanes
    for name, (values, how) in fields.items():
        width = values[:1].size
        if how == "first" or not len(groups) or not width:
            merged[name] = values[groups.index]
            continue
        if rides(values, how):
            total = lanes[:, at : at + width]
            at += width
        else:
            rows = rows_by_cell(values, groups)
            total = _winners(rows, groups.starts) if how == "majority" else totals(name, rows, groups.starts)
        if how == "unit":
            total = unit_of(total, values[groups.index].reshape(-1, width))
        elif how != "majority":
            total = mean_of(total, groups.count[:, None], values.dtype.kind in "iu", how)
        merged[name] = total.astype(values.dtype).reshape(-1, *values.shape[1:])
    return merged


def rows_by_cell(values: NDArray[Any], groups: Groups) -> NDArray[Any]:
    """A field's rows in the order of cells, flat, (n, w), and in native byte order."""
    rows = values[groups.order]
    rows = rows.reshape(len(rows), math.prod(rows.shape[1:]))
    return rows.astype(rows.dtype.newbyteorder("="), copy=False)


def _winners(rows: NDArray[Any], starts: NDArray[np.int64]) -> NDArray[Any]:
    """The most frequent value of sorted rows (n, w) by cell."""
    if rows.dtype != np.uint64:  # int64 and float64 hold all the others, and two kernels will do
        rows = rows.astype(np.float64 if rows.dtype.kind == "f" else np.int64)
    winners: NDArray[Any] = _vote(rows, starts)
    return winners


def totals(name: str, rows: NDArray[Any], starts: NDArray[np.int64]) -> NDArray[Any]:
    """Sums of sorted rows (n, w) by cell, exact for whole numbers; UsageError for too large ones."""
    if rows.dtype.kind == "f":
        sums: NDArray[Any] = _exact_sums(rows.astype(np.float64), starts)
        return sums
    most = int(np.diff(starts).max())
    if rows.dtype.itemsize == 8 and float(np.abs(rows.astype(np.float64)).max()) * most >= LARGEST_SUM:
        raise too_large(name, rows.dtype)
    whole: NDArray[np.int64] = np.add.reduceat(rows.astype(np.int64), starts[:-1], axis=0)
    return whole


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
