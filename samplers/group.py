"""Rows grouped by the cell they lie in, with the sums of each cell."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any, Literal, get_args

import numpy as np
from numba import njit
from numpy.typing import NDArray

from . import draw, scratch
from .cells import (
    BLOCK,
    FIRST,
    NEAREST,
    RANDOM,
    WORDS,
    group_chains,
    group_rows,
    invert,
    scatter,
    slot_bits,
)
from .grid import Box, Grid, numbered
from .tables import Chains, Picking, Sums, Table, Where
from .threads import each

Pick = Literal["centroid", "first", "nearest", "random", "center"]
"""What stands for a cell: the mean of its rows; its first row; the row nearest to its centre; the row
with the least hash; its middle."""

PICKS: tuple[Pick, ...] = get_args(Pick)

Fill = Callable[[NDArray[np.int64]], object]
"""Writes each grouped row's cell into an array."""

_DIRECT = 1 << 16  # rows; so many cells and their slots still fit the second-level cache
_MOST_PARTITIONS, _MOST_WIDE = 10, 7  # bits; of each a line is being written, which must stay in the cache
_ROWS_A_PARTITION = 2048


@dataclass(frozen=True)
class Groups:
    """The cells taken, m of them, sorted, and what their rows add up to.

    ``n``, ``rows``: how many rows there are, and which of them were grouped, int64, or None for all.
    ``tables``: one for each thread. ``fill``: writes each grouped row's cell into an array.
    """

    n: int
    rows: NDArray[np.int64] | None
    box: Box
    where: Where
    tables: list[Table]
    fill: Fill

    def __len__(self) -> int:
        return sum(len(table.key) for table in self.tables)

    def column(self, name: str) -> NDArray[Any]:
        """A column of all tables, by its name, in memory of its own."""
        return np.concatenate([getattr(table, name) for table in self.tables])

    @cached_property
    def cell(self) -> NDArray[np.int64]:
        """int64 (m, 3): cell numbers."""
        key, taken = self.column("key"), self.where.taken
        return taken[key] if len(taken) else self.box.cell_of(key)

    @cached_property
    def count(self) -> NDArray[np.int64]:
        """int64 (m,): rows of each cell."""
        return self.column("counts")

    @cached_property
    def picked(self) -> NDArray[np.int64]:
        """int64 (m,): the row that stands for each cell, of those that were grouped."""
        return self.column("row")

    @cached_property
    def index(self) -> NDArray[np.int64]:
        """int64 (m,): the same, of all rows."""
        return self.picked if self.rows is None else self.rows[self.picked]

    @cached_property
    def inverse(self) -> NDArray[np.int64]:
        """int64 (n,): the cell of each row, an index into the others; -1 for rows that were not grouped."""
        grouped = np.empty(self.n if self.rows is None else len(self.rows), np.int64)
        self.fill(grouped)
        if self.rows is None:
            return grouped
        every = np.full(self.n, -1, np.int64)
        every[self.rows] = grouped
        return every

    @cached_property
    def starts(self) -> NDArray[np.int64]:
        """int64 (m + 1,): where in ``order`` each cell's rows begin, and the end."""
        return np.concatenate([[0], np.cumsum(self.count)])

    @cached_property
    def order(self) -> NDArray[np.int64]:
        """The rows in the order of cells; rows of one cell in their own."""
        order = np.empty(int(self.starts[-1]), np.int64)
        _by_cell(self.inverse, self.starts[:-1].copy(), order)
        return order


def group(
    points: NDArray[Any],
    grid: Grid,
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
    """Group finite points, float32 or float64 (n, 3) in C order, with ``lanes`` (w, n), w a multiple of 4.

    ``n``, ``rows``: how many rows there are, and which of them the points are, or None for all. ``seed``: for
    the pick "random", whose hash is one of the seed and the row, counted from ``start``. ``steps``: whether
    to keep sums of places.
    """
    box, row_bits = grid.box(points), max(len(points) - 1, 1).bit_length()
    bits, apart = (box.cells - 1).bit_length(), 0
    if len(points) > _DIRECT or threads > 1:
        most = _MOST_WIDE if len(lanes) else _MOST_PARTITIONS
        apart = min(most, (len(points) // _ROWS_A_PARTITION).bit_length() - 1, bits)
    known, taken = np.empty(0, np.int64), np.empty((0, 3), np.int64)
    if bits > 53 or bits - apart + row_bits > 63:  # cells' numbers do not fit a float, or a word beside a row
        known, taken = _numbered(points, grid)
        bits = max(len(taken) - 1, 1).bit_length()
        apart = min(apart, bits)
    _, width_y, width_z = map(float, box.shape)
    where = Where(grid.origin, grid.corner, grid.size, box.low, width_y, width_z, known, taken, row_bits)

    mode = {"nearest": NEAREST, "random": RANDOM}.get(pick, FIRST)
    names = np.empty(0, np.int64)
    if mode == RANDOM and (rows is not None or start):
        names = start + (np.arange(n) if rows is None else rows)
    picking = Picking(mode, np.uint64(draw.key("voxel", seed)), names)
    work = _Work(points, where, lanes, picking, steps, pick == "centroid")
    tables, fill = _partitioned(work, bits, apart, threads) if apart else _direct(work, bits)
    return Groups(n, rows, box, where, tables, fill)


@dataclass(frozen=True)
class _Work:
    """What both ways to group take."""

    points: NDArray[Any]
    where: Where
    lanes: NDArray[np.float32]
    picking: Picking
    steps: bool
    mean: bool

    def table(self, most: int) -> Table:
        """Room for so many cells."""
        width = len(self.lanes)
        return Table(
            scratch.take(most, np.int64),
            scratch.take(most, np.int64),
            scratch.take(most, np.int64),
            scratch.take(most if self.picking.mode != FIRST else 0, np.int64),
            scratch.take((most if self.steps else 0, 3), np.int64),
            scratch.take((most if self.mean else 0, 3), np.float32),
            scratch.take((most if width else 0, width), np.float64),
        )

    def sums(self, most: int) -> Sums:
        """Room for so many rows at once."""
        width = len(self.lanes)
        return Sums(
            scratch.take(1 << slot_bits(most), np.uint32),
            scratch.take((most, WORDS), np.int64),
            scratch.take((most if width else 0, 2, width), np.float64),
            scratch.take((2, most), np.int64),
        )


def _direct(work: _Work, bits: int) -> tuple[list[Table], Fill]:
    """Rows as they come into one table."""
    n, points, where, lanes = len(work.points), work.points, work.where, work.lanes
    sums, table, owners = work.sums(n), work.table(n), scratch.take(n, np.uint32)
    m = group_rows(points, where, lanes, bits, work.picking, sums, owners, table)

    def fill(out: NDArray[np.int64]) -> None:
        rank = np.empty(m, np.int64)
        rank[sums.order[0, :m] & ((1 << where.row_bits) - 1)] = np.arange(m)
        np.take(rank, owners, out=out)

    return [_cut(table, m)], fill


def _partitioned(work: _Work, bits: int, apart: int, threads: int) -> tuple[list[Table], Fill]:
    """Rows into partitions, told apart by the first bits of their key; then partition by partition."""
    n, shift = len(work.points), bits - apart
    parts, a_thread = 1 << apart, -(-n // threads)
    chains = _chains(a_thread, parts, threads, len(work.lanes))
    blocks = len(chains.following) // threads
    each(
        partial(scatter, work.points, work.where, work.lanes, shift, chains),
        [(n * t // threads, n * (t + 1) // threads, t, t * blocks) for t in range(threads)],
    )

    counts = (chains.blocks * BLOCK - (-chains.end) % BLOCK).sum(axis=0)
    most, spans = int(counts.max()), _spans(counts, threads)
    # memory is taken on this thread, which lasts
    calls = [(a, b, work.sums(most), work.table(int(counts[a:b].sum()))) for a, b in spans]
    found = each(partial(group_chains, chains, work.where, shift, work.picking), calls)
    tables = [_cut(call[-1], m) for call, m in zip(calls, found, strict=True)]

    def fill(out: NDArray[np.int64]) -> None:
        before, inversions = 0, []
        for table, (a, b) in zip(tables, spans, strict=True):
            slots = scratch.take(1 << slot_bits(most), np.uint32)
            inversions.append((a, b, table.key, before, slots, out))
            before += len(table.key)
        each(partial(invert, chains, shift, work.where.row_bits), inversions)

    return tables, fill


def _chains(rows: int, parts: int, threads: int, lanes: int) -> Chains:
    """Room for so many rows of each thread: every partition may have one block that is not full."""
    blocks = threads * (rows // BLOCK + min(rows, parts) + 1)
    records = scratch.take((blocks * BLOCK, 2 + lanes // 2), np.int64)
    return Chains(
        records,
        records.view(np.float32),
        scratch.take(blocks, np.int32),
        np.empty((threads, parts), np.int32),
        np.empty((threads, parts), np.int32),
        np.zeros((threads, parts), np.int64),
        np.zeros((threads, parts), np.int64),
    )


def _spans(counts: NDArray[np.int64], threads: int) -> list[tuple[int, int]]:
    """Partitions for each thread, about as many records each: (first, end)."""
    ends = np.cumsum(counts)
    cuts = np.searchsorted(ends, ends[-1] * np.arange(1, threads) // threads).tolist()
    return [(a, b) for a, b in itertools.pairwise([0, *cuts, len(counts)]) if b > a]


def _cut(table: Table, m: int) -> Table:
    return Table._make(column[:m] for column in table)


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
