"""Fields of cells that come in parts: what each reduction keeps of a part, and how parts merge."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
from numba import njit
from numpy.typing import NDArray

from .fields import Reduction
from .grid import starts_of
from .group import Groups
from .merge import LARGEST_SUM, Chosen, mean_of, rows_by_cell, too_large, totals, unit_of

Column: TypeAlias = tuple[NDArray[np.int64], NDArray[Any], NDArray[np.int64]]
"""Cells, values and how often each occurs there."""


@dataclass(frozen=True)
class Merging:
    """How the cells of parts, laid end to end, merge."""

    number: NDArray[np.int64]
    """The merged cell of each."""
    order: NDArray[np.int64]
    """Sorts them by cell."""
    starts: NDArray[np.int64]
    """Where in that order each merged cell's begin, and the end."""
    best: NDArray[np.int64]
    """The one that stands for each merged cell."""


@dataclass(frozen=True)
class Kept:
    """The value of the row that stands for each cell: (m, ...)."""

    kept: NDArray[Any]

    def merged(self, parts: Sequence[Any], how: Merging) -> Kept:
        """Those of merged cells."""
        return Kept(np.concatenate([part.kept for part in parts])[how.best])

    def values(self, count: NDArray[np.int64]) -> NDArray[Any]:  # noqa: ARG002 (as the others)
        """The field of the cells."""
        return self.kept.copy()


@dataclass(frozen=True)
class Sums:
    """Sums of a field's rows, (m, w): int64, or float64 and ``lost``, their rounding errors.

    ``kept``: the value of the row that stands for each cell.
    """

    name: str
    how: Reduction
    sums: NDArray[Any]
    lost: NDArray[np.float64]
    kept: NDArray[Any]

    def merged(self, parts: Sequence[Any], how: Merging) -> Sums:
        """Those of merged cells; UsageError where whole numbers no longer fit."""
        order, starts, best = how.order, how.starts, how.best
        sums = np.concatenate([part.sums for part in parts])[order]
        lost = np.concatenate([part.lost for part in parts])[order]
        kept = np.concatenate([part.kept for part in parts])[best]
        if sums.dtype == np.int64:
            most = np.add.reduceat(np.abs(sums.astype(np.float64)), starts[:-1]).max(initial=0)
            if most > LARGEST_SUM:
                raise too_large(self.name, kept.dtype)
            return Sums(self.name, self.how, np.add.reduceat(sums, starts[:-1]), lost[: len(best)], kept)
        more, errors = np.empty((len(best), sums.shape[1])), np.empty((len(best), sums.shape[1]))
        _add_up(sums, lost, starts, more, errors)
        return Sums(self.name, self.how, more, errors, kept)

    def values(self, count: NDArray[np.int64]) -> NDArray[Any]:
        """The field of the cells."""
        sums, whole = self.sums, self.kept.dtype.kind in "iu"
        if sums.dtype != np.int64:
            sums = np.where(np.isfinite(sums), sums + self.lost, sums)
        if not len(count):
            return self.kept.copy()
        flat = self.kept.reshape(len(count), -1)
        found = unit_of(sums, flat) if self.how == "unit" else mean_of(sums, count[:, None], whole, self.how)
        return found.astype(self.kept.dtype).reshape(self.kept.shape)


@dataclass(frozen=True)
class Votes:
    """How often each value occurs in each cell: for each column cells, values and counts, sorted by both.

    ``like``: the value of the row that stands for each cell, of the field's dtype and shape.
    """

    columns: list[Column]
    like: NDArray[Any]

    def merged(self, parts: Sequence[Any], how: Merging) -> Votes:
        """Those of merged cells."""
        before = np.cumsum([0, *(len(part.like) for part in parts)])
        columns = []
        for w in range(len(self.columns)):
            cells, values, counts = zip(*(part.columns[w] for part in parts), strict=True)
            moved = [its + at for its, at in zip(cells, before, strict=False)]
            merged = how.number[np.concatenate(moved)]
            columns.append(_counted(merged, np.concatenate(values), np.concatenate(counts)))
        return Votes(columns, np.concatenate([part.like for part in parts])[how.best])

    def values(self, count: NDArray[np.int64]) -> NDArray[Any]:
        """The most frequent value; -1 only where there is nothing else; the lowest of a tie."""
        winners = np.empty((len(count), len(self.columns)), self.like.dtype)
        for w, (cells, values, counts) in enumerate(self.columns):
            order = np.lexsort((values, -counts, values == -1, cells))
            winners[:, w] = values[order[starts_of(cells[order, None])[:-1]]]
        return winners.reshape(self.like.shape)


Part = Kept | Sums | Votes


def part_of(fields: Chosen, groups: Groups) -> Iterator[tuple[str, Any]]:
    """What a chunk's rows add to each field, by its name."""
    for name, (values, how) in fields.items():
        width = int(np.prod(values.shape[1:]))
        kept = values[groups.index]
        kept = kept.astype(kept.dtype.newbyteorder("="), copy=False)
        if how == "first" or not width:
            yield name, Kept(kept)
        elif how == "majority":
            rows = rows_by_cell(values, groups)
            cells, ones = np.repeat(np.arange(len(groups)), groups.count), np.ones(len(rows), np.int64)
            yield name, Votes([_counted(cells, rows[:, w], ones) for w in range(width)], kept)
        else:
            sums = totals(name, values, groups)
            yield name, Sums(name, how, sums, np.zeros(sums.shape), kept)


def _counted(cells: NDArray[np.int64], values: NDArray[Any], counts: NDArray[np.int64]) -> Column:
    """Each cell and value once, sorted, with the sum of its counts."""
    order = np.lexsort((values, cells))
    cells, values, counts = cells[order], values[order], counts[order]
    new = np.ones(len(cells), np.bool)
    new[1:] = (cells[1:] != cells[:-1]) | (values[1:] != values[:-1])
    starts = np.flatnonzero(new)
    return cells[starts], values[starts], np.add.reduceat(counts, starts) if len(starts) else counts


@njit(cache=True, nogil=True, error_model="numpy")
def _add_up(
    sums: NDArray[np.float64],
    lost: NDArray[np.float64],
    starts: NDArray[np.int64],
    more: NDArray[np.float64],
    errors: NDArray[np.float64],
) -> None:
    """Add the rows of each run; rounding errors are kept apart (Knuth's two-sum)."""
    for m in range(len(starts) - 1):
        for c in range(sums.shape[1]):
            all_sum, error = 0.0, 0.0
            for i in range(starts[m], starts[m + 1]):
                old, value = all_sum, sums[i, c]
                all_sum = old + value
                part = all_sum - old
                error += lost[i, c] + ((old - (all_sum - part)) + (value - part))
            more[m, c], errors[m, c] = all_sum, error
