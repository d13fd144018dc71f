"""Rows grouped by the cell they lie in, with the sums of each cell."""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal, get_args

import numpy as np
from numba import njit
from numpy.typing import NDArray

from ..lazy import lazy
from . import draw, scratch
from .cells import group_chains, invert, slot_bits
from .grid import Box, Grid, numbered
from .records import scatter
from .tables import (
    BLOCK,
    COUNT,
    FIRST,
    KEY,
    NEAREST,
    RANDOM,
    ROW,
    WEIGHT,
    WORDS,
    Chains,
    Picking,
    Sums,
    Table,
    Where,
    X,
    Z,
)
from .threads import each

Pick = Literal["centroid", "first", "nearest", "random", "center"]
"""What stands for a cell: the mean of its rows; its first row; the row nearest to its centre; the row
with the least hash; its middle."""

PICKS: tuple[Pick, ...] = get_args(Pick)

Span = tuple[int, int, int]
"""Partitions, the first and the one after the last, and how many records they have."""

_DIRECT = 1 << 16  # rows; so many cells and their slots still fit the second-level cache
_MOST_PARTITIONS, _MOST_WIDE = 10, 7  # bits; of each a line is being written, which must stay in the cache
_ROWS_A_PARTITION = 2048
_KEY_BITS = 51  # more do not fit a float with a half
_WORD_BITS = 63  # of a key within its partition, beside a row

_MODES = {"nearest": NEAREST, "random": RANDOM}
_WORD, _INDEX, _SLOT, _SUM, _MEAN = map(np.dtype, ("i8", "i4", "u4", "f8", "f4"))
_NONE, _NO_CELLS = np.empty(0, np.int64), np.empty((0, 3), np.int64)
_FIRST = Picking(FIRST, np.uint64(0), _NONE)


@dataclass(frozen=True)
class Groups:
    """The cells taken, m of them, sorted, and what their rows add up to.

    ``n``, ``rows``: how many rows there are, and which of them were grouped, int64, or None for all.
    ``tables``: one for each thread; ``spans``: which partitions they are of, and how many records.
    ``most``: the most records of a partition. ``shift``: bits of a key within its partition.
    """

    n: int
    rows: NDArray[np.int64] | None
    box: Box
    where: Where
    chains: Chains
    shift: int
    tables: list[Table]
    spans: list[Span]
    most: int

    def __len__(self) -> int:
        return sum(len(table.lines) for table in self.tables)

    def lines(self, first: int, last: int | None = None) -> NDArray[np.int64]:
        """A column of the tables' lines, (m,), or those from the first to the last, (m, columns)."""
        columns = first if last is None else slice(first, last + 1)
        return np.concatenate([table.lines[:, columns] for table in self.tables])

    @property
    def mean(self) -> NDArray[np.float32]:
        """float32 (m, 3): means of the rows, for the pick "centroid"."""
        return np.concatenate([table.mean for table in self.tables])

    @property
    def lanes(self) -> NDArray[np.float64]:
        """float64 (m, w): sums of the lanes, not in memory of their own."""
        parts = [table.lanes for table in self.tables]
        return parts[0] if len(parts) == 1 else np.concatenate(parts)

    @property
    def weight(self) -> NDArray[np.int64]:
        """int64 (m,): the weight of the row that stands for each cell, where ``steps`` were asked for."""
        return self.lines(WEIGHT)

    @property
    def steps(self) -> NDArray[np.int64]:
        """int64 (m, 3): sums of places inside the cells, where they were asked for."""
        return self.lines(X, Z)

    @lazy
    def cell(self) -> NDArray[np.int64]:
        """int64 (m, 3): cell numbers."""
        key, taken = self.lines(KEY), self.where.taken
        return taken[key] if len(taken) else self.box.cell_of(key)

    @lazy
    def count(self) -> NDArray[np.int64]:
        """int64 (m,): rows of each cell."""
        return self.lines(COUNT)

    @lazy
    def picked(self) -> NDArray[np.int64]:
        """int64 (m,): the row that stands for each cell, of those that were grouped."""
        return self.lines(ROW)

    @lazy
    def index(self) -> NDArray[np.int64]:
        """int64 (m,): the same, of all rows."""
        return self.picked if self.rows is None else self.rows[self.picked]

    @lazy
    def inverse(self) -> NDArray[np.int64]:
        """int64 (n,): the cell of each row, an index into the others; -1 for rows that were not grouped."""
        grouped = np.empty(self.n if self.rows is None else len(self.rows), np.int64)
        before, calls = 0, []
        for table, (a, b, _) in zip(self.tables, self.spans, strict=True):
            slots = scratch.take(1 << slot_bits(self.most), np.uint32)
            calls.append((a, b, table.lines[:, KEY], before, slots, grouped))
            before += len(table.lines)
        each(partial(invert, self.chains, self.shift, self.where.row_bits), calls)
        if self.rows is None:
            return grouped
        every = np.full(self.n, -1, np.int64)
        every[self.rows] = grouped
        return every

    @lazy
    def starts(self) -> NDArray[np.int64]:
        """int64 (m + 1,): where in ``order`` each cell's rows begin, and the end."""
        return np.concatenate([[0], np.cumsum(self.count)])

    @lazy
    def order(self) -> NDArray[np.int64]:
        """The rows in the order of cells; rows of one cell in their own."""
        order = np.empty(int(self.starts[-1]), np.int64)
        _by_cell(self.inverse, self.starts[:-1].copy(), order)
        return order


def group(
    points: NDArray[Any],
    box: Box,
    lanes: NDArray[np.float32],
    n: int,
    rows: NDArray[np.int64] | None = None,
    *,
    pick: Pick,
    seed: int = 0,
    start: int = 0,
    steps: bool = False,
    threads: int = 1,
) -> Groups:
    """Group points in a box, float32 or float64 (n, 3) in C order, with ``lanes`` (w, n), w a multiple of 4.

    ``n``, ``rows``: how many rows there are, and which of them the points are, or None for all. ``seed``: for
    the pick "random", whose hash is one of the seed and the row, counted from ``start``. ``steps``: whether
    to keep sums of places.
    """
    where, bits, apart = _where(points, box, threads, len(lanes))
    shift = bits - apart
    chains = _chains(len(points), 1 << apart, threads, len(lanes))
    cuts = [len(points) * t // threads for t in range(threads + 1)]
    blocks = len(chains.following) // threads
    each(
        partial(scatter, points, where, lanes, shift, chains),
        [(a, b, t, t * blocks) for t, (a, b) in enumerate(itertools.pairwise(cuts))],
    )

    names = _NONE
    if pick == "random" and (rows is not None or start):
        names = start + (np.arange(n) if rows is None else rows)
    key = draw.key("voxel", seed) if pick == "random" else 0
    picking = Picking(_MODES[pick], np.uint64(key), names) if pick in _MODES else _FIRST
    most, spans = _shares(chains.rows, threads)
    columns = (Z if steps else ROW) + 1
    calls = [  # memory is taken on this thread, which lasts
        (a, b, _sums(most, len(lanes)), _table(records, columns, pick == "centroid", len(lanes)))
        for a, b, records in spans
    ]
    found = each(partial(group_chains, chains, where, shift, picking), calls)
    tables = [_cut(table, m) for (*_, table), m in zip(calls, found, strict=True)]
    return Groups(n, rows, box, where, chains, shift, tables, spans, most)


def _where(points: NDArray[Any], box: Box, threads: int, lanes: int) -> tuple[Where, int, int]:
    """What kernels are told of the grid, the bits of a key, and how many of them tell partitions apart."""
    row_bits, bits, apart = max(len(points) - 1, 1).bit_length(), (box.cells - 1).bit_length(), 0
    if len(points) > _DIRECT or threads > 1:
        most = _MOST_WIDE if lanes else _MOST_PARTITIONS
        apart = min(most, (len(points) // _ROWS_A_PARTITION).bit_length() - 1, bits)
    known, taken = _NONE, _NO_CELLS
    if bits > _KEY_BITS or bits - apart + row_bits > _WORD_BITS:
        known, taken = _numbered(points, box.grid)
        bits = max(len(taken) - 1, 1).bit_length()
        apart = min(apart, bits)
    grid, (_, y, z) = box.grid, map(float, box.shape)
    where = Where(grid.origin, grid.corner, grid.size, box.low, y, z, box.near, known, taken, row_bits)
    return where, bits, apart


def _chains(rows: int, parts: int, threads: int, lanes: int) -> Chains:
    """Room for the rows: every partition of a thread may have one block that is not full."""
    a_thread = -(-rows // threads)
    blocks = threads * (a_thread // BLOCK + min(a_thread, parts) + 1)
    records, following = scratch.carve(((blocks * BLOCK, 2 + lanes // 2), _WORD), ((blocks,), _INDEX))
    ends = np.zeros((5, threads, parts), np.int64)
    return Chains(records, records.view(np.float32), following, *ends)


def _shares(count: NDArray[np.int64], threads: int) -> tuple[int, list[Span]]:
    """The most records of a partition, and each thread's partitions, of about as many records.

    ``count``: those of each thread's chains, (threads, partitions).
    """
    if count.size == 1:  # at small clouds every call of numpy is felt
        rows = int(count[0, 0])
        return rows, [(0, 1, rows)]
    counts = count.sum(axis=0)
    ends = np.cumsum(counts)
    cuts = np.searchsorted(ends, ends[-1] * np.arange(1, threads) // threads).tolist()
    spans = [(a, b, int(counts[a:b].sum())) for a, b in itertools.pairwise([0, *cuts, len(counts)]) if b > a]
    return int(counts.max()), spans


def _sums(rows: int, lanes: int) -> Sums:
    """Room for so many rows at once."""
    slots, cells, words, sums = scratch.carve(
        ((1 << slot_bits(rows),), _SLOT),
        ((rows, WORDS), _WORD),
        ((2, rows), _WORD),
        ((rows if lanes else 0, lanes), _SUM),
    )
    return Sums(slots, cells, sums, words)


def _table(most: int, columns: int, mean: bool, lanes: int) -> Table:
    """Room for so many cells."""
    return Table(
        *scratch.carve(
            ((most, columns), _WORD), ((most if mean else 0, 3), _MEAN), ((most if lanes else 0, lanes), _SUM)
        )
    )


def _cut(table: Table, m: int) -> Table:
    return Table(table.lines[:m], table.mean[:m], table.lanes[:m])


def _numbered(points: NDArray[Any], grid: Grid) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """The number of each row's cell among those taken, int64 (n,), and these cells, sorted, int64 (m, 3)."""
    cells = np.floor(grid.place(points)).astype(np.int64)
    number, order, starts = numbered(cells)
    return number, cells[order[starts[:-1]]]


@njit(cache=True, nogil=True, error_model="numpy")
def _by_cell(inverse: NDArray[np.int64], at: NDArray[np.int64], order: NDArray[np.int64]) -> None:
    """Fill in ``order``, the rows cell by cell; ``at``: where those of each cell begin, later stop."""
    for row in range(len(inverse)):
        cell = inverse[row]
        if cell >= 0:
            order[at[cell]] = row
            at[cell] += 1
