"""Kernels of the voxel grid: rows to cells.

Each row's cell becomes a key, its number in the box of cells that the cloud touches, and a hash table finds
the cell's line of sums. A million rows so grouped would touch memory at random, so the rows of large clouds
are first written, as records, to one of up to 1,024 partitions: runs of neighbouring cells, each small enough
for the cache (radix partitioning: Manegold, Boncz, Kersten, "Optimizing main-memory join on modern
hardware", 2002). In the end a table's cells are sorted by key; partitions keep the order of cells, so one
after the other is sorted too. All sums are of whole numbers: neither the order of rows nor the number of
threads can change them.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit
from numpy.typing import NDArray

from . import draw
from .tables import Chains, Picking, Sums, Table, Where, Whole

STEPS = 1 << 21
"""Steps to a cell's edge, in which places inside it are kept: three fit a word, as do sums of 2^31 rows."""

BLOCK = 64
"""Records of a block: a kilobyte, written from start to end."""

FIRST, NEAREST, RANDOM = range(3)
"""How a row is picked for its cell: the first, the nearest to the centre, the one with the least hash."""

WORDS = 8
"""Words of a cell's sums: a line of the cache."""

_KEY, _COUNT, _X, _Y, _Z, _ROW, _WEIGHT = range(7)  # what they are
_EMPTY = np.uint32(2**32 - 1)
_HEAVIEST = np.int64(2**63 - 1)
_FEW_DIGIT, _DIGIT = 8, 11  # bits of the sort's digits, for few cells and many: they outnumber the counters
_GOLDEN = draw.CONSTANTS[0]
_CHUNK = 512  # rows whose cells are found at once, in the first-level cache
_PLACE = STEPS - 1


@njit(cache=True, nogil=True, error_model="numpy")
def scatter(
    points: NDArray[Any],
    where: Where,
    lanes: NDArray[np.float32],
    shift: Whole,
    chains: Chains,
    start: Whole,
    stop: Whole,
    thread: Whole,
    block: Whole,
) -> None:
    """Append the rows [start, stop) to a thread's chains, whose blocks begin with ``block``."""
    keys, places = np.empty(_CHUNK, np.int64), np.empty(_CHUNK, np.int64)
    columns = np.empty((3, _CHUNK), points.dtype)
    within = (np.int64(1) << shift) - 1
    records, lines, following = chains.records, chains.lanes, chains.following
    first, last = chains.first[thread], chains.last[thread]
    blocks, end = chains.blocks[thread], chains.end[thread]
    for chunk in range(start, stop, _CHUNK):
        n = min(_CHUNK, stop - chunk)
        _locate(points, where, chunk, n, columns, keys, places)
        for i in range(n):
            part = keys[i] >> shift
            at = end[part]
            if at & (BLOCK - 1) == 0:  # the last block is full, or there is none
                if blocks[part] == 0:
                    first[part] = block
                else:
                    following[last[part]] = block
                last[part] = block
                blocks[part] += 1
                at = block * BLOCK
                block += 1
            end[part] = at + 1
            records[at, 0] = ((keys[i] & within) << where.row_bits) | (chunk + i)
            records[at, 1] = places[i]
            for four in range(0, len(lanes), 4):
                for j in range(four, four + 4):
                    lines[at, 4 + j] = lanes[j, chunk + i]


@njit(cache=True, nogil=True, error_model="numpy")
def _locate(
    points: NDArray[Any],
    where: Where,
    start: Whole,
    n: Whole,
    columns: NDArray[Any],
    keys: NDArray[np.int64],
    places: NDArray[np.int64],
) -> None:
    """Of ``n`` points from ``start`` on the keys, cells counted within the box, and places inside cells.

    Floats hold the keys exactly, and a loop over columns vectorises where one over rows does not.
    """
    ox, oy, oz = where.origin
    cx, cy, cz = where.corner
    lx, ly, lz = where.low
    size, width_y, width_z = where.size, where.width_y, where.width_z
    some = points[start : start + n]
    for i in range(len(some)):
        columns[0, i], columns[1, i], columns[2, i] = some[i, 0], some[i, 1], some[i, 2]
    for i in range(len(some)):
        px = (np.float64(columns[0, i]) + ox - cx) / size
        py = (np.float64(columns[1, i]) + oy - cy) / size
        pz = (np.float64(columns[2, i]) + oz - cz) / size
        x, y, z = np.floor(px), np.floor(py), np.floor(pz)
        keys[i] = np.int64(((x - lx) * width_y + (y - ly)) * width_z + (z - lz))
        places[i] = (_step(px - x) << 42) | (_step(py - y) << 21) | _step(pz - z)
    if where.known.size:
        keys[:n] = where.known[start : start + n]


@njit(cache=True, nogil=True, error_model="numpy", inline="always")
def _step(inside: float) -> Whole:
    """A place in [0, 1] as a whole number below 2^21; just under a cell's edge it may have come out as 1."""
    step = inside * STEPS
    return np.int64(step if step < STEPS - 1 else STEPS - 1.0)


@njit(cache=True, nogil=True, error_model="numpy")
def group_rows(
    points: NDArray[Any],
    where: Where,
    lanes: NDArray[np.float32],
    bits: Whole,
    picking: Picking,
    sums: Sums,
    owners: NDArray[np.uint32],
    table: Table,
) -> Whole:
    """Fill in ``table`` for all rows, whose keys have so many bits; returns how many cells.

    ``owners`` (n,) gets each row's cell, as they came up.
    """
    slots, cells, lane_sums = sums.slots, sums.cells, sums.lanes
    keys, places = np.empty(_CHUNK, np.int64), np.empty(_CHUNK, np.int64)
    columns = np.empty((3, _CHUNK), points.dtype)
    table_bits, found = _empty(slots, len(points)), np.uint32(0)
    for chunk in range(0, len(points), _CHUNK):
        n = min(_CHUNK, len(points) - chunk)
        _locate(points, where, chunk, n, columns, keys, places)
        for i in range(n):
            row = chunk + i
            c = _add_row(slots, cells, table_bits, found, keys[i], places[i], row)
            owners[row] = c
            for four in range(0, len(lanes), 4):
                _add(lane_sums, c, four, lanes[four : four + 4, row], c == found)
            found += np.uint32(c == found)
        if picking.mode != FIRST:
            for i in range(n):
                _pick(cells, owners[chunk + i], chunk + i, places[i], picking)
    _write(sums, found, bits, np.int64(0), where, table, 0)
    return found


@njit(cache=True, nogil=True, error_model="numpy")
def group_chains(
    chains: Chains,
    where: Where,
    shift: Whole,
    picking: Picking,
    start: Whole,
    stop: Whole,
    sums: Sums,
    table: Table,
) -> Whole:
    """Fill in ``table`` for the partitions [start, stop); returns how many cells."""
    slots, cells, lane_sums = sums.slots, sums.cells, sums.lanes
    records, lanes = chains.records, chains.lanes
    row_bits, row_mask, width = where.row_bits, (np.int64(1) << where.row_bits) - 1, lane_sums.shape[2]
    owners = np.empty(BLOCK, np.uint32)
    m: Whole = 0
    for part in range(start, stop):
        table_bits, found = _empty(slots, _records(chains, part)), np.uint32(0)
        for t in range(len(chains.blocks)):
            block = chains.first[t, part]
            for b in range(chains.blocks[t, part]):
                at, n = _span(chains, t, part, b, block)
                for i in range(n):
                    word, place = records[at + i, 0], records[at + i, 1]
                    key, row = word >> row_bits, word & row_mask
                    c = _add_row(slots, cells, table_bits, found, key, place, row)
                    owners[i] = c
                    for four in range(0, width, 4):
                        _add(lane_sums, c, four, lanes[at + i, 4 + four : 8 + four], c == found)
                    found += np.uint32(c == found)
                if picking.mode != FIRST:
                    for i in range(n):
                        _pick(cells, owners[i], records[at + i, 0] & row_mask, records[at + i, 1], picking)
                block = chains.following[block]
        _write(sums, found, shift, np.int64(part) << shift, where, table, m)
        m += found
    return m


@njit(cache=True, nogil=True, error_model="numpy")
def _empty(slots: NDArray[np.uint32], rows: Whole) -> Whole:
    """Empty as many slots as a table for so many rows has; returns the bits of their number."""
    bits = slot_bits(rows)
    slots[: 1 << bits] = _EMPTY
    return bits


@njit(cache=True, nogil=True, error_model="numpy")
def slot_bits(rows: Whole) -> Whole:
    """Bits of the number of slots of a table for so many rows: at least five for four of them."""
    bits = 4
    while 4 * (1 << bits) < 5 * rows:
        bits += 1
    return bits


@njit(cache=True, nogil=True, error_model="numpy")
def _records(chains: Chains, part: Whole) -> Whole:
    """How many records a partition has."""
    count = np.int64(0)
    for t in range(len(chains.blocks)):
        count += chains.blocks[t, part] * BLOCK - ((-chains.end[t, part]) & (BLOCK - 1))
    return count


@njit(cache=True, nogil=True, error_model="numpy")
def _span(chains: Chains, t: Whole, part: Whole, b: Whole, block: Whole) -> tuple[Whole, Whole]:
    """Where the records of a chain's block begin, and how many there are: all but the last are full."""
    last = b + 1 == chains.blocks[t, part]
    return block * BLOCK, ((chains.end[t, part] - 1) & (BLOCK - 1)) + 1 if last else BLOCK


@njit(cache=True, nogil=True, error_model="numpy", inline="always")
def _slot(key: Whole, bits: Whole) -> np.uint64:
    """Where to look for a key first: the top bits of its product with a large odd number."""
    return (np.uint64(key) * np.uint64(_GOLDEN)) >> np.uint64(64 - bits)


@njit(cache=True, nogil=True, error_model="numpy", inline="always")
def _add_row(
    slots: NDArray[np.uint32],
    cells: NDArray[np.int64],
    table_bits: Whole,
    found: Whole,
    key: Whole,
    place: Whole,
    row: Whole,
) -> Whole:
    """Add a row to its cell; returns the cell, which is ``found`` where it is a new one."""
    x, y, z = place >> 42, (place >> 21) & _PLACE, place & _PLACE
    slot = _slot(key, table_bits)
    c = slots[slot]
    while c != _EMPTY and cells[c, _KEY] != key:
        slot = (slot + np.uint64(1)) & np.uint64((1 << table_bits) - 1)
        c = slots[slot]
    if c == _EMPTY:
        c = found
        slots[slot] = c
        cells[c, _KEY], cells[c, _COUNT] = key, 1
        cells[c, _X], cells[c, _Y], cells[c, _Z] = x, y, z
        cells[c, _ROW], cells[c, _WEIGHT] = row, _HEAVIEST
    else:
        cells[c, _COUNT] += 1
        cells[c, _X] += x
        cells[c, _Y] += y
        cells[c, _Z] += z
    return c


@njit(cache=True, nogil=True, error_model="numpy")
def _pick(cells: NDArray[np.int64], c: Whole, row: Whole, place: Whole, picking: Picking) -> None:
    """Let a row stand for its cell if it weighs less than the one that does."""
    if picking.mode == NEAREST:  # the square of twice the distance from the cell's centre, exactly
        x, y, z = place >> 42, (place >> 21) & _PLACE, place & _PLACE
        x, y, z = 2 * x + 1 - STEPS, 2 * y + 1 - STEPS, 2 * z + 1 - STEPS
        weight = np.int64(x * x + y * y + z * z)
    else:
        name = picking.names[row] if picking.names.size else row
        weight = np.int64(draw.mix(picking.seed + np.uint64(name + 1) * np.uint64(_GOLDEN)) >> np.uint64(1))
    if weight < cells[c, _WEIGHT]:
        cells[c, _ROW], cells[c, _WEIGHT] = row, weight


@njit(cache=True, nogil=True, error_model="numpy", inline="always")
def _add(sums: NDArray[np.float64], c: Whole, at: int, values: NDArray[np.float32], new: bool) -> None:
    """Add four lanes to sums and keep their rounding errors (Knuth's two-sum): rows' order hardly matters."""
    for j in range(4):
        more, lane = np.float64(values[j]), at + j
        old = 0.0 if new else sums[c, 0, lane]
        total = old + more
        part = total - old
        sums[c, 0, lane] = total
        sums[c, 1, lane] = (old - (total - part)) + (more - part) + (0.0 if new else sums[c, 1, lane])


@njit(cache=True, nogil=True, error_model="numpy")
def _write(sums: Sums, found: Whole, bits: Whole, base: Whole, where: Where, table: Table, m: Whole) -> None:
    """Sort the cells found, whose keys have so many bits, and write them to ``table`` from line ``m`` on."""
    cells, lanes, row_bits = sums.cells, sums.lanes, where.row_bits
    _sort(cells, found, bits, row_bits, sums.order)
    for i in range(found):
        c = np.uint64(sums.order[0, i] & ((np.int64(1) << row_bits) - 1))
        key, count = base | cells[c, _KEY], cells[c, _COUNT]
        table.key[m], table.counts[m], table.row[m] = key, count, cells[c, _ROW]
        if len(table.weight):
            table.weight[m] = cells[c, _WEIGHT]
        if len(table.steps):
            table.steps[m] = cells[c, _X : _Z + 1]
        if len(table.mean):
            if len(where.taken):
                x, y, z = where.taken[key, 0] + 0.0, where.taken[key, 1] + 0.0, where.taken[key, 2] + 0.0
            else:  # below 2^53 a quotient of whole numbers, rounded, never reaches the next whole number
                xy = np.floor(key / where.width_z)
                x = np.floor(xy / where.width_y)
                x, y, z = (
                    x + where.low[0],
                    xy - x * where.width_y + where.low[1],
                    key - xy * where.width_z + where.low[2],
                )
            n, size, corner, origin = np.float64(count), where.size, where.corner, where.origin
            # the half step makes up for the steps' being rounded down
            table.mean[m, 0] = (x + (cells[c, _X] / n + 0.5) / STEPS) * size + corner[0] - origin[0]
            table.mean[m, 1] = (y + (cells[c, _Y] / n + 0.5) / STEPS) * size + corner[1] - origin[1]
            table.mean[m, 2] = (z + (cells[c, _Z] / n + 0.5) / STEPS) * size + corner[2] - origin[2]
        for j in range(lanes.shape[2]):
            total = lanes[c, 0, j]
            table.lanes[m, j] = total + lanes[c, 1, j] if np.isfinite(total) else total
        m += 1


@njit(cache=True, nogil=True, error_model="numpy")
def _sort(
    cells: NDArray[np.int64], found: Whole, bits: Whole, row_bits: Whole, order: NDArray[np.int64]
) -> None:
    """Sort the cells found by key, in ``order[0]``: a radix sort of words, a key and below it the cell."""
    widest = _DIGIT if found > 1 << _FEW_DIGIT else _FEW_DIGIT
    passes = (bits + widest - 1) // widest
    digit_bits = (bits + passes - 1) // max(passes, 1)
    last = (1 << digit_bits) - 1
    counters = np.empty(1 << _DIGIT, np.int32)
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
            place = np.uint64((old[i] >> shift) & last)
            at = np.uint32(counters[place])
            counters[place] += 1
            new[at] = old[i]
        old, new = new, old
    if passes % 2:
        new[:found] = old[:found]


@njit(cache=True, nogil=True, error_model="numpy")
def invert(
    chains: Chains,
    shift: Whole,
    row_bits: Whole,
    start: Whole,
    stop: Whole,
    keys: NDArray[np.int64],
    before: Whole,
    slots: NDArray[np.uint32],
    out: NDArray[np.int64],
) -> None:
    """Write each row's cell, its place in ``keys`` and those before, for the partitions [start, stop)."""
    row_mask, within = (np.int64(1) << row_bits) - 1, (np.int64(1) << shift) - 1
    records, m = chains.records, 0
    for part in range(start, stop):
        bits = _empty(slots, _records(chains, part))
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
                at, n = _span(chains, t, part, b, block)
                for i in range(n):
                    key, row = records[at + i, 0] >> row_bits, records[at + i, 0] & row_mask
                    slot = _slot(key, bits)
                    while keys[slots[slot]] & within != key:
                        slot = (slot + np.uint64(1)) & last_slot
                    out[row] = before + slots[slot]
                block = chains.following[block]
