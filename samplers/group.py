"""The cells of each partition: the second of the two steps that bring the rows of a cell together.

In a partition, small enough for the cache, a hash table finds each record's cell, and the record is added to
it there. Then the partition's cells, a few hundred, are sorted. All sums are of whole numbers, so
neither the order of rows nor the number of threads can change them.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any, Literal

import numpy as np
from numba import njit
from numpy.typing import NDArray

from . import draw, scratch
from .grid import Grid
from .partition import BLOCK, STEPS, Partitions
from .threads import each

Weight = Literal["none", "nearest", "random"]
"""Which row stands for its cell: the first; the nearest to the cell's centre; the one with the least hash."""

_KEY, _COUNT, _X, _Y, _Z, _ROW, _WEIGHT = range(7)  # words of a cell's line in a table
_WORDS = 8  # a line of the cache
_DIGIT = 8  # bits of a digit of the sort: its counters are fewer than a partition's cells
_LAST_DIGIT = (1 << _DIGIT) - 1
_GOLDEN = draw.CONSTANTS[0]
_PLACE = STEPS - 1
_EMPTY = np.uint32(2**32 - 1)


@dataclass(frozen=True)
class Groups:
    """The cells taken, m of them, sorted, and what their rows add up to.

    ``n``, ``rows``: how many rows there are, and which of them were grouped, int64, or None for all.
    ``tables``: int64 (cells, 8), one for each thread. ``lane_sums``: float64 (cells, w) beside each. ``spans``: the
    partitions of each.
    """

    partitions: Partitions
    n: int
    rows: NDArray[np.int64] | None
    tables: list[NDArray[np.int64]]
    lane_sums: list[NDArray[np.float64]]
    spans: list[tuple[int, int]]

    def __len__(self) -> int:
        return sum(map(len, self.tables))

    def _column(self, column: int) -> NDArray[np.int64]:
        return np.concatenate([table[:, column] for table in self.tables])

    @cached_property
    def cell(self) -> NDArray[np.int64]:
        """int64 (m, 3): cell numbers."""
        return self.partitions.cell_of(self._column(_KEY))

    @cached_property
    def count(self) -> NDArray[np.int64]:
        """int64 (m,): rows of each cell."""
        return self._column(_COUNT)

    @cached_property
    def picked(self) -> NDArray[np.int64]:
        """int64 (m,): the row that stands for each cell, of those that were grouped."""
        return self._column(_ROW)

    @cached_property
    def index(self) -> NDArray[np.int64]:
        """int64 (m,): the same, of all rows."""
        return self.picked if self.rows is None else self.rows[self.picked]

    @cached_property
    def weight(self) -> NDArray[np.int64]:
        """int64 (m,): of several rows the one with the least weight, then the lowest, stands for the cell."""
        return self._column(_WEIGHT)

    @cached_property
    def steps(self) -> NDArray[np.int64]:
        """int64 (m, 3): sums of the places inside the cell, in steps of its edge / 2^21."""
        return np.concatenate([table[:, _X : _Z + 1] for table in self.tables])

    @cached_property
    def lanes(self) -> NDArray[np.float64]:
        """float64 (m, w): sums of the lanes."""
        return np.concatenate(self.lane_sums)

    @cached_property
    def inverse(self) -> NDArray[np.int64]:
        """int64 (n,): the cell of each row, an index into the others; -1 for rows that were not grouped."""
        out = np.empty(self.n, np.int64) if self.rows is None else np.full(self.n, -1, np.int64)
        parts, before, calls = self.partitions, 0, []
        for table, (start, stop) in zip(self.tables, self.spans, strict=True):
            slots = scratch.take(_slots(parts.counts), np.uint32)
            calls.append((start, stop, table, before, slots, _names(self.rows), out))
            before += len(table)
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
    n: int,
    rows: NDArray[np.int64] | None = None,
    weight: Weight = "none",
    seed: int = 0,
    threads: int = 1,
) -> Groups:
    """The cells of partitioned rows.

    ``n``, ``rows``: how many rows there are, and which of them were partitioned. ``seed``: for the weight "random", which
    is a hash of the seed and the row.
    """
    counts = partitions.counts
    ends, most, width = np.cumsum(counts), int(counts.max()), partitions.lanes
    cuts = [0, *(int(np.searchsorted(ends, ends[-1] * t // threads)) for t in range(1, threads)), len(counts)]
    spans = [(a, b) for a, b in zip(cuts, cuts[1:], strict=False) if b > a]
    mode, key = ("none", "nearest", "random").index(weight), np.uint64(draw.key("voxel", seed))
    calls = []
    for start, stop in spans:  # memory is taken on this thread, which lasts
        taken = int(counts[start:stop].sum())
        calls.append((
            start, stop, mode, key, _names(rows), scratch.take(_slots(counts), np.uint32),
            scratch.take((most, _WORDS), np.int64), scratch.take((2, most), np.int64),
            scratch.take((most if width else 0, 2, width), np.float64),
            scratch.take((taken, _WORDS), np.int64), scratch.take((taken if width else 0, width), np.float64),
        ))  # fmt: skip
    found = each(partial(_group, partitions.chains, partitions.shift, partitions.row_bits), calls)
    tables = [call[-2][:m] for call, m in zip(calls, found, strict=True)]
    sums = [call[-1][:m] for call, m in zip(calls, found, strict=True)]
    return Groups(partitions, n, rows, tables, sums, spans)


def _names(rows: NDArray[np.int64] | None) -> NDArray[np.int64]:
    """The rows' own numbers, as kernels take them: empty where they are 0 to n."""
    return np.empty(0, np.int64) if rows is None else rows


def _slots(counts: NDArray[np.int64]) -> int:
    """Slots of a table for the largest partition: at least twice its records, a power of two."""
    return 1 << _slot_bits(int(counts.max()))


@njit(cache=True, nogil=True, error_model="numpy")
def _slot_bits(count: int) -> int:
    bits = 4
    while (1 << bits) < 2 * count:
        bits += 1
    return bits


@njit(cache=True, nogil=True, error_model="numpy")
def _group(
    chains: Any,
    shift: int,
    row_bits: int,
    start: int,
    stop: int,
    mode: int,
    seed: np.uint64,
    names: NDArray[np.int64],
    slots: NDArray[np.uint32],
    cells: NDArray[np.int64],
    order: NDArray[np.int64],
    lanes: NDArray[np.float64],
    table: NDArray[np.int64],
    sums: NDArray[np.float64],
) -> int:
    """Fill in ``table``, and ``sums`` of lanes, for the partitions [start, stop); returns how many cells."""
    row_mask, width = (np.int64(1) << row_bits) - 1, lanes.shape[2]
    counters = np.empty(_LAST_DIGIT + 1, np.int32)
    m = 0
    for part in range(start, stop):
        count = np.int64(0)
        for t in range(len(chains.blocks)):
            count += chains.blocks[t, part] * BLOCK - ((-chains.end[t, part]) & (BLOCK - 1))
        if count == 0:
            continue
        bits = _slot_bits(count)
        slots[: 1 << bits] = _EMPTY
        last_slot = np.uint64((1 << bits) - 1)
        found = 0
        for t in range(len(chains.blocks)):
            block = chains.first[t, part]
            for b in range(chains.blocks[t, part]):
                at = np.int64(block) * BLOCK
                upto = at + BLOCK if b + 1 < chains.blocks[t, part] else chains.end[t, part]
                for i in range(at, upto):
                    key, row = chains.records[i, 0] >> row_bits, chains.records[i, 0] & row_mask
                    place = chains.records[i, 1]
                    x, y, z = place >> 42, (place >> 21) & _PLACE, place & _PLACE
                    weight = np.int64(0)
                    if mode != 0:
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
                        cells[c, _KEY], cells[c, _COUNT], cells[c, _ROW], cells[c, _WEIGHT] = (
                            key,
                            1,
                            row,
                            weight,
                        )
                        cells[c, _X], cells[c, _Y], cells[c, _Z] = x, y, z
                        if width:
                            lanes[c] = 0.0
                    else:
                        cells[c, _COUNT] += 1
                        cells[c, _X] += x
                        cells[c, _Y] += y
                        cells[c, _Z] += z
                        if mode != 0 and weight < cells[c, _WEIGHT]:
                            cells[c, _ROW], cells[c, _WEIGHT] = row, weight
                    if width:
                        _add(chains.lanes[i, 4:], lanes[c])
                block = chains.following[block]
        sorted_cells = _sorted(cells, found, shift, row_bits, counters, order)
        for i in range(found):
            c = np.uint64(sorted_cells[i] & row_mask)
            for word in range(_WORDS):
                table[m + i, word] = cells[c, word]
            table[m + i, _KEY] |= np.int64(part) << shift
            for j in range(width):
                total = lanes[c, 0, j]
                sums[m + i, j] = total + lanes[c, 1, j] if np.isfinite(total) else total
        m += found
    return m


@njit(cache=True, nogil=True, error_model="numpy", inline="always")
def _slot(key: np.int64, bits: int) -> np.uint64:
    """Where to look for a key first: the top bits of its product with a large odd number."""
    return (np.uint64(key) * np.uint64(_GOLDEN)) >> np.uint64(64 - bits)


@njit(cache=True, nogil=True, error_model="numpy")
def _weight(mode: int, x: np.int64, y: np.int64, z: np.int64, seed: np.uint64, name: np.int64) -> np.int64:
    """Of a record, so that the least of a cell stands for it."""
    if mode == 1:  # the square of twice the distance from the cell's centre, exactly
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
    old, new = order[0], order[1]
    for c in range(found):
        old[c] = (cells[c, _KEY] << row_bits) | c
    for shift in range(row_bits, row_bits + bits, _DIGIT):
        counters[:] = 0
        for i in range(found):
            counters[(old[i] >> shift) & _LAST_DIGIT] += 1
        before = np.int32(0)
        for digit in range(len(counters)):
            before, counters[digit] = before + counters[digit], before
        for i in range(found):
            digit = np.uint64((old[i] >> shift) & _LAST_DIGIT)
            at = np.uint32(counters[digit])
            counters[digit] += 1
            new[at] = old[i]
        old, new = new, old
    return old


@njit(cache=True, nogil=True, error_model="numpy")
def _inverse(
    chains: Any,
    shift: int,
    row_bits: int,
    start: int,
    stop: int,
    table: NDArray[np.int64],
    before: int,
    slots: NDArray[np.uint32],
    names: NDArray[np.int64],
    out: NDArray[np.int64],
) -> None:
    """Write each row's cell, its place in ``table`` counted from ``before``, for the partitions [start, stop)."""
    row_mask, within = (np.int64(1) << row_bits) - 1, (np.int64(1) << shift) - 1
    m = 0
    for part in range(start, stop):
        count = np.int64(0)
        for t in range(len(chains.blocks)):
            count += chains.blocks[t, part] * BLOCK - ((-chains.end[t, part]) & (BLOCK - 1))
        if count == 0:
            continue
        bits = _slot_bits(count)
        slots[: 1 << bits] = _EMPTY
        last_slot = np.uint64((1 << bits) - 1)
        while m < len(table) and table[m, _KEY] >> shift == part:
            slot = _slot(table[m, _KEY] & within, bits)
            while slots[slot] != _EMPTY:
                slot = (slot + np.uint64(1)) & last_slot
            slots[slot] = m
            m += 1
        for t in range(len(chains.blocks)):
            block = chains.first[t, part]
            for b in range(chains.blocks[t, part]):
                at = np.int64(block) * BLOCK
                upto = at + BLOCK if b + 1 < chains.blocks[t, part] else chains.end[t, part]
                for i in range(at, upto):
                    key, row = chains.records[i, 0] >> row_bits, chains.records[i, 0] & row_mask
                    slot = _slot(key, bits)
                    while table[slots[slot], _KEY] & within != key:
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


def means(groups: Groups, grid: Grid) -> NDArray[np.float32]:
    """Mean of each cell's rows, relative to the grid's origin: float32 (m, 3)."""
    parts = groups.partitions
    cells = np.empty((0, 3), np.int64) if parts.cells is None else parts.cells
    out = np.empty((len(groups), 3), np.float32)
    ends = np.cumsum([len(table) for table in groups.tables])
    each(
        lambda table, end: _means(
            table, cells, parts.box.low, float(parts.box.shape[1]), float(parts.box.shape[2]),
            grid.origin, grid.corner, grid.size, out[end - len(table) : end],
        ),
        list(zip(groups.tables, ends.tolist(), strict=True)),
    )  # fmt: skip
    return out


@njit(cache=True, nogil=True, error_model="numpy")
def _means(
    table: NDArray[np.int64],
    cells: NDArray[np.int64],
    low: NDArray[np.float64],
    width_y: float,
    width_z: float,
    origin: NDArray[np.float64],
    corner: NDArray[np.float64],
    size: float,
    out: NDArray[np.float32],
) -> None:
    for m in range(len(table)):
        key, count = table[m, _KEY], np.float64(table[m, _COUNT])
        if len(cells):
            x, y, z = np.float64(cells[key, 0]), np.float64(cells[key, 1]), np.float64(cells[key, 2])
        else:  # below 2^53 a quotient of whole numbers, rounded, never reaches the next whole number
            xy = np.floor(key / width_z)
            x = np.floor(xy / width_y)
            x, y, z = x + low[0], xy - x * width_y + low[1], key - xy * width_z + low[2]
        # the half step makes up for the steps' being rounded down
        out[m, 0] = (x + (table[m, _X] / count + 0.5) / STEPS) * size + corner[0] - origin[0]
        out[m, 1] = (y + (table[m, _Y] / count + 0.5) / STEPS) * size + corner[1] - origin[1]
        out[m, 2] = (z + (table[m, _Z] / count + 0.5) / STEPS) * size + corner[2] - origin[2]
