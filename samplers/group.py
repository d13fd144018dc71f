"""The cells of each partition: the second of the two steps that bring the rows of a cell together.

In a partition, small enough for the cache, a hash table finds each record's cell, and the record is added to
it there. Then the partition's cells, a few hundred, are sorted. All sums are of whole numbers, so
neither the order of rows nor the number of threads can change them.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any, Literal, NamedTuple, get_args

import numpy as np
from numba import njit
from numpy.typing import NDArray

from . import draw, scratch
from .grid import Grid
from .partition import STEPS, Chains, Partitions
from .threads import each

Pick = Literal["centroid", "first", "nearest", "random", "center"]
"""What stands for a cell: the mean of its rows; its first row; the row nearest to its centre; the row with the
least hash; its middle."""

PICKS: tuple[Pick, ...] = get_args(Pick)

_KEY, _COUNT, _X, _Y, _Z, _ROW, _WEIGHT = range(7)  # words of a cell while its partition is in the cache
_WORDS = 8  # a line of the cache
_FIRST, _NEAREST, _RANDOM = range(3)  # how a row is picked
_EMPTY = np.uint32(2**32 - 1)
_FEW_DIGIT, _DIGIT = 8, 11  # bits of the sort's digits, for few cells and many: they outnumber the counters
_GOLDEN = draw.CONSTANTS[0]
_PLACE = STEPS - 1


class Table(NamedTuple):
    """Cells of some partitions, sorted: m of them."""

    key: NDArray[np.int64]
    """(m,): places in the box of cells, z fastest, or numbers of cells where those taken are numbered."""
    count: NDArray[np.int64]
    """(m,): rows of each."""
    row: NDArray[np.int64]
    """(m,): the row that stands for each, of those that were partitioned."""
    weight: NDArray[np.int64]
    """(m,) where a row is picked by weight: the least, of several the lowest row's, stands for the cell; else (0,)."""
    steps: NDArray[np.int64]
    """(m, 3) where asked for: sums of the places inside the cell, in steps of its edge / 2^21; else (0, 3)."""
    mean: NDArray[np.float32]
    """(m, 3) for "centroid": mean of the rows, relative to the grid's origin; else (0, 3)."""
    lanes: NDArray[np.float64]
    """(m, w): sums of the lanes."""


@dataclass(frozen=True)
class Groups:
    """The cells taken, m of them, sorted, and what their rows add up to.

    ``n``, ``rows``: how many rows there are, and which of them were grouped, int64, or None for all.
    ``tables``: one for each thread. ``spans``: the partitions of each, (first, end).
    """

    partitions: Partitions
    n: int
    rows: NDArray[np.int64] | None
    tables: list[Table]
    spans: list[tuple[int, int]]

    def __len__(self) -> int:
        return sum(len(table.key) for table in self.tables)

    def column(self, name: str) -> NDArray[Any]:
        """A column of all tables, by its name, in memory of its own."""
        return np.concatenate([getattr(table, name) for table in self.tables])

    @cached_property
    def cell(self) -> NDArray[np.int64]:
        """int64 (m, 3): cell numbers."""
        return self.partitions.cell_of(self.column("key"))

    @cached_property
    def count(self) -> NDArray[np.int64]:
        """int64 (m,): rows of each cell."""
        return self.column("count")

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
        out = np.empty(self.n, np.int64) if self.rows is None else np.full(self.n, -1, np.int64)
        parts, before, calls = self.partitions, 0, []
        for table, (start, stop) in zip(self.tables, self.spans, strict=True):
            slots = scratch.take(1 << _slot_bits(int(parts.counts.max())), np.uint32)
            calls.append((start, stop, table.key, before, slots, _names(self.rows), out))
            before += len(table.key)
        each(partial(_inverse, parts.chains, parts.shift, parts.row_bits), calls)
        return out

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
    partitions: Partitions,
    grid: Grid,
    n: int,
    rows: NDArray[np.int64] | None = None,
    *,
    pick: Pick,
    seed: int = 0,
    steps: bool = False,
    threads: int = 1,
) -> Groups:
    """The cells of partitioned rows.

    ``n``, ``rows``: how many rows there are, and which of them were partitioned. ``seed``: for the pick
    "random", whose hash is one of the seed and the row. ``steps``: whether to keep the sums of places.
    """
    counts, width = partitions.counts, partitions.lanes
    most, spans = int(counts.max()), _spans(counts, threads)
    mode = {"nearest": _NEAREST, "random": _RANDOM}.get(pick, _FIRST)
    calls = []
    for start, stop in spans:  # memory is taken on this thread, which lasts
        taken = int(counts[start:stop].sum())
        table = Table(
            *(scratch.take(taken, np.int64) for _ in range(3)),
            scratch.take(taken if mode != _FIRST else 0, np.int64),
            scratch.take((taken if steps else 0, 3), np.int64),
            scratch.take((taken if pick == "centroid" else 0, 3), np.float32),
            scratch.take((taken if width else 0, width), np.float64),
        )
        calls.append((
            start, stop, scratch.take(1 << _slot_bits(most), np.uint32), scratch.take((most, _WORDS),
            np.int64), scratch.take((most if width else 0, 2, width), np.float64), scratch.take((2, most),
            np.int64), table,
        ))  # fmt: skip
    _, width_y, width_z = map(float, partitions.box.shape)
    key = np.uint64(draw.key("voxel", seed))
    where = (grid.origin, grid.corner, grid.size, partitions.box.low, width_y, width_z, _taken(partitions))
    chains = (partitions.chains, partitions.shift, partitions.row_bits)
    found = each(partial(_group, *chains, *where, mode, key, _names(rows)), calls)
    tables = [Table(*(column[:m] for column in call[-1])) for call, m in zip(calls, found, strict=True)]
    return Groups(partitions, n, rows, tables, spans)


def _taken(partitions: Partitions) -> NDArray[np.int64]:
    """The cells that keys stand for, as kernels take them: empty where keys are places in the box."""
    return np.empty((0, 3), np.int64) if partitions.cells is None else partitions.cells


def _spans(counts: NDArray[np.int64], threads: int) -> list[tuple[int, int]]:
    """Partitions for each thread, about as many records each: (first, end)."""
    if threads == 1:
        return [(0, len(counts))]
    ends = np.cumsum(counts)
    cuts = np.searchsorted(ends, ends[-1] * np.arange(1, threads) // threads).tolist()
    return [(a, b) for a, b in itertools.pairwise([0, *cuts, len(counts)]) if b > a]


def _names(rows: NDArray[np.int64] | None) -> NDArray[np.int64]:
    """The rows' own numbers, as kernels take them: empty where they are 0 to n."""
    return np.empty(0, np.int64) if rows is None else rows


@njit(cache=True, nogil=True, error_model="numpy")
def _slot_bits(count: int) -> int:
    """Of a table for so many records: at least twice as many slots."""
    bits = 4
    while (1 << bits) < 2 * count:
        bits += 1
    return bits


@njit(cache=True, nogil=True, error_model="numpy")
def _group(
    chains: Chains,
    shift: int,
    row_bits: int,
    origin: NDArray[np.float64],
    corner: NDArray[np.float64],
    size: float,
    low: NDArray[np.float64],
    width_y: float,
    width_z: float,
    taken: NDArray[np.int64],
    mode: int,
    seed: np.uint64,
    names: NDArray[np.int64],
    start: int,
    stop: int,
    slots: NDArray[np.uint32],
    cells: NDArray[np.int64],
    lanes: NDArray[np.float64],
    order: NDArray[np.int64],
    table: Table,
) -> int:
    """Fill in ``table`` for the partitions [start, stop); returns how many cells."""
    counters = np.empty(1 << _DIGIT, np.int32)
    m = 0
    for part in range(start, stop):
        found = _collect(chains, part, row_bits, mode, seed, names, slots, cells, lanes)
        by_key = _sorted(cells, found, shift, row_bits, counters, order)
        for i in range(found):
            c = np.uint64(by_key[i] & ((np.int64(1) << row_bits) - 1))
            key, count = (np.int64(part) << shift) | cells[c, _KEY], cells[c, _COUNT]
            table.key[m], table.count[m], table.row[m] = key, count, cells[c, _ROW]
            if len(table.weight):
                table.weight[m] = cells[c, _WEIGHT]
            if len(table.steps):
                table.steps[m] = cells[c, _X : _Z + 1]
            if len(table.mean):
                if len(taken):
                    x, y, z = np.float64(taken[key, 0]), np.float64(taken[key, 1]), np.float64(taken[key, 2])
                else:  # below 2^53 a quotient of whole numbers, rounded, never reaches the next whole number
                    xy = np.floor(key / width_z)
                    x = np.floor(xy / width_y)
                    x, y, z = x + low[0], xy - x * width_y + low[1], key - xy * width_z + low[2]
                # the half step makes up for the steps' being rounded down
                n = np.float64(count)
                table.mean[m, 0] = (x + (cells[c, _X] / n + 0.5) / STEPS) * size + corner[0] - origin[0]
                table.mean[m, 1] = (y + (cells[c, _Y] / n + 0.5) / STEPS) * size + corner[1] - origin[1]
                table.mean[m, 2] = (z + (cells[c, _Z] / n + 0.5) / STEPS) * size + corner[2] - origin[2]
            for j in range(lanes.shape[2]):
                total = lanes[c, 0, j]
                table.lanes[m, j] = total + lanes[c, 1, j] if np.isfinite(total) else total
            m += 1
    return m


@njit(cache=True, nogil=True, error_model="numpy")
def _collect(
    chains: Chains,
    part: int,
    row_bits: int,
    mode: int,
    seed: np.uint64,
    names: NDArray[np.int64],
    slots: NDArray[np.uint32],
    cells: NDArray[np.int64],
    lanes: NDArray[np.float64],
) -> int:
    """Add up the records of a partition by cell, in ``cells`` and ``lanes``, as they come up; returns how many."""
    row_mask, width = (np.int64(1) << row_bits) - 1, lanes.shape[2]
    bits = _slot_bits(_records(chains, part))
    slots[: 1 << bits] = _EMPTY
    last_slot = np.uint64((1 << bits) - 1)
    found = 0
    for t in range(len(chains.blocks)):
        block = chains.first[t, part]
        for b in range(chains.blocks[t, part]):
            last = b + 1 == chains.blocks[t, part]
            for i in range(chains.filled[t, part] if last else chains.records.shape[1]):
                word, place = chains.records[block, i, 0], chains.records[block, i, 1]
                key, row = word >> row_bits, word & row_mask
                x, y, z = place >> 42, (place >> 21) & _PLACE, place & _PLACE
                weight = np.int64(0)
                if mode != _FIRST:
                    weight = _weight(mode, x, y, z, seed, names[row] if names.size else row)
                slot = _slot(key, bits)
                c = slots[slot]
                while c != _EMPTY and cells[c, _KEY] != key:
                    slot = (slot + np.uint64(1)) & last_slot
                    c = slots[slot]
                if c == _EMPTY:
                    c = np.uint32(found)
                    found += 1
                    slots[slot] = c
                    cells[c, _KEY], cells[c, _COUNT] = key, 1
                    cells[c, _X], cells[c, _Y], cells[c, _Z] = x, y, z
                    cells[c, _ROW], cells[c, _WEIGHT] = row, weight
                    if width:
                        lanes[c] = 0.0
                else:
                    cells[c, _COUNT] += 1
                    cells[c, _X] += x
                    cells[c, _Y] += y
                    cells[c, _Z] += z
                    if mode != _FIRST and weight < cells[c, _WEIGHT]:
                        cells[c, _ROW], cells[c, _WEIGHT] = row, weight
                if width:
                    _add(chains.lanes[block, i, 4:], lanes[c])
            block = chains.following[block]
    return found


@njit(cache=True, nogil=True, error_model="numpy")
def _records(chains: Chains, part: int) -> np.int64:
    """How many records a partition has."""
    count = np.int64(0)
    for t in range(len(chains.blocks)):
        count += (chains.blocks[t, part] - 1) * chains.records.shape[1] + chains.filled[t, part]
    return count


@njit(cache=True, nogil=True, error_model="numpy", inline="always")
def _slot(key: np.int64, bits: int) -> np.uint64:
    """Where to look for a key first: the top bits of its product with a large odd number."""
    return (np.uint64(key) * np.uint64(_GOLDEN)) >> np.uint64(64 - bits)


@njit(cache=True, nogil=True, error_model="numpy")
def _weight(mode: int, x: np.int64, y: np.int64, z: np.int64, seed: np.uint64, name: np.int64) -> np.int64:
    """Of a record, so that the least of a cell stands for it."""
    if mode == _NEAREST:  # the square of twice the distance from the cell's centre, exactly
        x, y, z = 2 * x + 1 - STEPS, 2 * y + 1 - STEPS, 2 * z + 1 - STEPS
        return x * x + y * y + z * z
    return np.int64(draw.mix(seed + np.uint64(name + 1) * np.uint64(_GOLDEN)) >> np.uint64(1))


@njit(cache=True, nogil=True, error_model="numpy")
def _add(values: NDArray[np.float32], lanes: NDArray[np.float64]) -> None:
    """Add to sums and keep their rounding errors beside them (Knuth's two-sum): rows' order hardly matters."""
    for j in range(lanes.shape[1]):
        value, old = np.float64(values[j]), lanes[0, j]
        new = old + value
        part = new - old
        lanes[0, j] = new
        lanes[1, j] += (old - (new - part)) + (value - part)


@njit(cache=True, nogil=True, error_model="numpy")
def _sorted(
    cells: NDArray[np.int64],
    found: int,
    bits: int,
    row_bits: int,
    counters: NDArray[np.int32],
    order: NDArray[np.int64],
) -> NDArray[np.int64]:
    """The first ``found`` cells sorted by key: a radix sort of words that hold a key and, below, its cell."""
    widest = _DIGIT if found > 1 << _FEW_DIGIT else _FEW_DIGIT
    passes = (bits + widest - 1) // widest
    digit_bits = (bits + passes - 1) // max(passes, 1)
    last = (1 << digit_bits) - 1
    old, new = order[0], order[1]
    for c in range(found):
        old[c] = (cells[c, _KEY] << row_bits) | c
    for p in range(passes):
        shift = row_bits + p * digit_bits
        counters[: last + 1] = 0
        for i in range(found):
            counters[(old[i] >> shift) & last] += 1
        before = np.int32(0)
        for digit in range(last + 1):
            before, counters[digit] = before + counters[digit], before
        for i in range(found):
            digit = np.uint64((old[i] >> shift) & last)
            at = np.uint32(counters[digit])
            counters[digit] += 1
            new[at] = old[i]
        old, new = new, old
    return old


@njit(cache=True, nogil=True, error_model="numpy")
def _inverse(
    chains: Chains,
    shift: int,
    row_bits: int,
    start: int,
    stop: int,
    keys: NDArray[np.int64],
    before: int,
    slots: NDArray[np.uint32],
    names: NDArray[np.int64],
    out: NDArray[np.int64],
) -> None:
    """Write each row's cell, its place in ``keys`` counted from ``before``, for the partitions [start, stop)."""
    row_mask, within = (np.int64(1) << row_bits) - 1, (np.int64(1) << shift) - 1
    m = 0
    for part in range(start, stop):
        bits = _slot_bits(_records(chains, part))
        slots[: 1 << bits] = _EMPTY
        last_slot = np.uint64((1 << bits) - 1)
        while m < len(keys) and keys[m] >> shift == part:
            slot = _slot(keys[m] & within, bits)
            while slots[slot] != _EMPTY:
                slot = (slot + np.uint64(1)) & last_slot
            slots[slot] = m
            m += 1
        for t in range(len(chains.blocks)):
            block = chains.first[t, part]
            for b in range(chains.blocks[t, part]):
                last = b + 1 == chains.blocks[t, part]
                for i in range(chains.filled[t, part] if last else chains.records.shape[1]):
                    word = chains.records[block, i, 0]
                    key, row = word >> row_bits, word & row_mask
                    slot = _slot(key, bits)
                    while keys[slots[slot]] & within != key:
                        slot = (slot + np.uint64(1)) & last_slot
                    out[names[row] if names.size else row] = before + slots[slot]
                block = chains.following[block]


@njit(cache=True, nogil=True, error_model="numpy")
def _by_cell(inverse: NDArray[np.int64], at: NDArray[np.int64], order: NDArray[np.int64]) -> None:
    for row in range(len(inverse)):
        cell = inverse[row]
        if cell >= 0:
            order[at[cell]] = row
            at[cell] += 1
