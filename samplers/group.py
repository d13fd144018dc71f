"""Rows grouped by the cell they lie in, with the sums of each cell."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal, get_args

import numpy as np
from numba import njit
from numpy.typing import DTypeLike, NDArray

from ..lazy import lazy
from . import draw, scratch
from .cells import group_chains, invert
from .grid import Box, Grid, numbered
from .records import scatter
from .tables import (
    BLOCK,
    COUNT,
    FIRST,
    NEAREST,
    RANDOM,
    ROW,
    ROWS,
    Chains,
    Picking,
    Table,
    Where,
    Z,
)
from .threads import each

Pick = Literal["centroid", "first", "nearest", "random", "center"]
"""What stands for a cell: the mean of its rows; its first row; the row nearest to its centre; the row
with the least hash; its middle."""

PICKS: tuple[Pick, ...] = get_args(Pick)

Room = tuple[tuple[tuple[int, ...], np.dtype[Any]], ...]
"""Shapes and dtypes of arrays."""

_DIRECT, _DIRECT_SPARSE = 1 << 19, 1 << 16
"""Most rows that one partition is best for, as measured, where keys are dense and where they are sorted."""

_MOST_PARTITIONS = 10  # bits; of each a line is being written, which must stay in the cache
_ROWS_A_PARTITION = 4096
_KEY_BITS = 51  # more do not fit a float with a half
_WORD_BITS = 63  # of a key within its partition, beside a row

_MODES = {"nearest": NEAREST, "random": RANDOM}
_WORD, _INDEX = np.dtype(np.int64), np.dtype(np.int32)
_NONE, _NO_CELLS, _UNTOLD = np.empty(0, np.int64), np.empty((0, 3), np.int64), np.empty(0, np.uint32)
_FIRST = Picking(FIRST, np.uint64(0), _NONE)


@dataclass(frozen=True)
class Groups:
    """The cells taken, m of them, sorted, and what their rows add up to.

    ``n``, ``rows``: how many rows there are, and which of them were grouped, int64, or None for all.
    ``shift``: bits of a key within its partition. ``tables``: one for each thread, and how many cells it has;
    ``spans``: which partitions they are of. ``mean``: means of the rows, float32 (m, 3), for the pick
    "centroid". ``told``: the cell of each row, if that was asked for at once.
    """

    n: int
    rows: NDArray[np.int64] | None
    box: Box
    where: Where
    chains: Chains
    shift: int
    tables: list[tuple[Table, int]]
    spans: list[tuple[int, int]]
    mean: NDArray[np.float32]
    told: NDArray[np.uint32] | None

    def __len__(self) -> int:
        return sum(m for _, m in self.tables)

    @property
    def weight(self) -> NDArray[np.int64]:
        """int64 (m,): the weight of the row that stands for each cell; 0 for the first."""
        if not any(len(table.weight) for table, _ in self.tables):
            return np.zeros(len(self), np.int64)
        return self._of_all(lambda table: table.weight)

    @property
    def steps(self) -> NDArray[np.int64]:
        """int64 (m, 3): sums of places inside the cells."""
        return self._of_all(lambda table: table.sums[:, : Z + 1])

    @lazy
    def cell(self) -> NDArray[np.int64]:
        """int64 (m, 3): cell numbers."""
        key, taken = self._of_all(lambda table: table.key), self.where.taken
        return taken[key] if len(taken) else self.box.cell_of(key)

    @lazy
    def count(self) -> NDArray[np.int64]:
        """int64 (m,): rows of each cell."""
        return self._of_all(lambda table: table.sums.view(np.uint32)[:, COUNT], np.int64)

    @lazy
    def picked(self) -> NDArray[np.int64]:
        """int64 (m,): the row that stands for each cell, of those that were grouped."""
        return self._of_all(lambda table: table.sums.view(np.uint32)[:, ROW], np.int64)

    @lazy
    def index(self) -> NDArray[np.int64]:
        """int64 (m,): the same, of all rows."""
        return self.picked if self.rows is None else self.rows[self.picked]

    @lazy
    def owner(self) -> NDArray[np.uint32]:
        """uint32: the cell of each row that was grouped, an index into the others."""
        return self._invert(np.uint32) if self.told is None else self.told

    @lazy
    def inverse(self) -> NDArray[np.int64]:
        """int64 (n,): the same of every row; -1 for those that were not grouped."""
        if self.rows is not None:
            inverse = np.full(self.n, -1, np.int64)
            inverse[self.rows] = self.owner
            return inverse
        return self._invert(np.int64) if self.told is None else self.told.astype(np.int64)

    @lazy
    def starts(self) -> NDArray[np.int64]:
        """int64 (m + 1,): where in ``order`` each cell's rows begin, and the end."""
        return np.concatenate([[0], np.cumsum(self.count)])

    @lazy
    def order(self) -> NDArray[np.int64]:
        """int64: the rows in the order of cells; rows of one cell in their own."""
        order = np.empty(len(self.owner), np.int64)
        _by_cell(self.owner, self.starts[:-1].copy(), order)
        return order if self.rows is None else self.rows[order]

    def _invert(self, dtype: DTypeLike) -> NDArray[Any]:
        owner = scratch.take(self.n if self.rows is None else len(self.rows), dtype)
        before, calls = 0, []
        for (_, m), (a, b) in zip(self.tables, self.spans, strict=True):
            calls.append((a, b, before, owner))
            before += m
        each(partial(invert, self.chains, self.where, self.shift), calls)
        return owner

    def _of_all(
        self, column: Callable[[Table], NDArray[Any]], dtype: DTypeLike | None = None
    ) -> NDArray[Any]:
        """A copy of a column of the tables' cells."""
        return np.concatenate([column(table)[:m] for table, m in self.tables], dtype=dtype)


def group(
    points: NDArray[Any],
    box: Box,
    n: int,
    rows: NDArray[np.int64] | None = None,
    *,
    pick: Pick,
    seed: int = 0,
    start: int = 0,
    tell: bool = False,
    threads: int = 1,
) -> Groups:
    """Group points in a box, float32 or float64 (n, 3) in C order.

    ``n``, ``rows``: how many rows there are, and which of them the points are, or None for all. ``seed``: for
    the pick "random", whose hash is one of the seed and the row, counted from ``start``. ``tell``: whether
    the cell of each row will be asked for.
    """
    where, bits, apart = _where(points, box, threads)
    shift, parts = bits - apart, 1 << apart
    names = _NONE
    if pick == "random" and (rows is not None or start):
        names = start + (np.arange(n) if rows is None else rows)
    key = draw.key("voxel", seed) if pick == "random" else 0
    picking = Picking(_MODES[pick], np.uint64(key), names) if pick in _MODES else _FIRST
    records, cells = _chains_room(len(points), parts, threads), partial(_table_room, pick in _MODES)
    means, owner = pick == "centroid", _UNTOLD

    if threads == 1:  # one piece of memory: at small clouds every call is felt
        memory = scratch.carve(*records, *cells(len(points)))
        chains, table = Chains(*memory[:3]), Table(*memory[3:])
        scatter(points, where, shift, chains, 0, len(points), 0, 0)
        if tell:
            owner = scratch.take(len(points), np.uint32)
        m, mean = group_chains(chains, where, shift, picking, 0, parts, table, means, owner)
        tables, spans = [(table, m)], [(0, parts)]
        return Groups(n, rows, box, where, chains, shift, tables, spans, mean, owner if tell else None)

    chains = Chains(*scratch.carve(*records))
    cuts = [len(points) * t // threads for t in range(threads + 1)]
    blocks = len(chains.following) // threads
    each(
        partial(scatter, points, where, shift, chains),
        [(a, b, t, t * blocks) for t, (a, b) in enumerate(itertools.pairwise(cuts))],
    )
    shares = _shares(chains.ends[ROWS], len(points))
    calls = [  # memory is taken on this thread, which lasts
        (a, b, Table(*scratch.carve(*cells(most))), means, owner) for a, b, most in shares
    ]
    found = each(partial(group_chains, chains, where, shift, picking), calls)
    tables = [(call[2], m) for call, (m, _) in zip(calls, found, strict=True)]
    mean, spans = np.concatenate([mean for _, mean in found]), [(a, b) for a, b, _ in shares]
    return Groups(n, rows, box, where, chains, shift, tables, spans, mean, None)


def _where(points: NDArray[Any], box: Box, threads: int) -> tuple[Where, int, int]:
    """What kernels are told of the grid, the bits of a key, and how many of them tell partitions apart."""
    row_bits, bits, apart = max(len(points) - 1, 1).bit_length(), (box.cells - 1).bit_length(), 0
    dense = box.cells <= 64 * len(points)  # as `cells` decides it
    if threads > 1 or len(points) > (_DIRECT if dense else _DIRECT_SPARSE):
        parts = max(len(points) // _ROWS_A_PARTITION, 1)
        apart = min(_MOST_PARTITIONS, parts.bit_length() - 1, bits)
    known, taken = _NONE, _NO_CELLS
    if bits > _KEY_BITS or bits - apart + row_bits > _WORD_BITS:
        known, taken = _numbered(points, box.grid)
        bits = max(len(taken) - 1, 1).bit_length()
        apart = min(apart, bits)
    keys = len(taken) or box.cells
    grid, (_, y, z) = box.grid, map(float, box.shape)
    where = Where(grid.origin, grid.corner, grid.size, box.low, y, z, box.near, known, taken, keys, row_bits)
    return where, bits, apart


def _chains_room(rows: int, parts: int, threads: int) -> Room:
    """Of chains: every partition of a thread may have one block that is not full."""
    a_thread = -(-rows // threads)
    blocks = threads * (a_thread // BLOCK + min(a_thread, parts) + 1)
    return ((blocks * BLOCK, 2), _WORD), ((blocks,), _INDEX), ((5, threads, parts), _WORD)


def _table_room(weights: bool, most: int) -> Room:
    """Of a table of at most so many cells."""
    return ((most,), _WORD), ((most, 4), _WORD), ((most if weights else 0,), _WORD)


def _shares(count: NDArray[np.int64], rows: int) -> list[tuple[int, int, int]]:
    """Each thread's partitions, the first and the one after the last, of about as many records, and these.

    ``count``: the records of each thread's chains, (threads, partitions), ``rows`` in all.
    """
    counts = count.sum(axis=0)
    ends = np.cumsum(counts)
    cuts = np.searchsorted(ends, rows * np.arange(1, len(count)) // len(count)).tolist()
    return [(a, b, int(counts[a:b].sum())) for a, b in itertools.pairwise([0, *cuts, len(counts)]) if b > a]


def _numbered(points: NDArray[Any], grid: Grid) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """The number of each row's cell among those taken, int64 (n,), and these cells, sorted, int64 (m, 3)."""
    cells = np.floor(grid.place(points)).astype(np.int64)
    number, order, starts = numbered(cells)
    return number, cells[order[starts[:-1]]]


@njit(cache=True, nogil=True, error_model="numpy")
def _by_cell(owner: NDArray[np.uint32], at: NDArray[np.int64], order: NDArray[np.int64]) -> None:
    """Fill in ``order``, the rows cell by cell; ``at``: where those of each cell begin, later stop."""
    for row in range(len(owner)):
        cell = owner[row]
        order[at[cell]] = row
        at[cell] += 1
