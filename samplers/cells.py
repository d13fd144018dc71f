"""Kernels of the voxel grid, second half: the records of each partition to cells.

A hash table finds the line of sums of each record's cell. In the end a partition's cells are sorted by key;
partitions keep the order of cells, so one after the other is sorted too. Sums of places are of whole numbers:
neither the order of rows nor the number of threads can change them. Those of fields are float64, and records
come in the order of rows whatever the threads.
"""

from __future__ import annotations

import numpy as np
from numba import njit
from numpy.typing import NDArray

from . import draw
from .tables import (
    BLOCK,
    COUNT,
    FIRST,
    KEY,
    NEAREST,
    ROW,
    STEPS,
    WEIGHT,
    Chains,
    Picking,
    Sums,
    Table,
    Where,
    Whole,
    X,
    Y,
    Z,
)

_EMPTY = np.uint32(2**32 - 1)
_HEAVIEST = np.int64(2**63 - 1)
_FEW_DIGIT, _DIGIT = 8, 11  # bits of the sort's digits, for few cells and many: they outnumber the counters
_GOLDEN = draw.CONSTANTS[0]
_PLACE = STEPS - 1
_PATIENCE = 4  # tries a record, beyond the first, before keys are mixed


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
    slots, cells, words, lane_sums = sums.slots, sums.cells, sums.words[0], sums.lanes
    records, lanes = chains.records, chains.lanes
    row_bits, row_mask, width = where.row_bits, (np.int64(1) << where.row_bits) - 1, lane_sums.shape[1]
    owners = np.empty(BLOCK, np.uint32)
    m: Whole = 0
    for part in range(start, stop):
        rows, mixed, tried, found = chains.rows[:, part].sum(), False, 0, np.uint32(0)
        bits = _empty(slots, rows)
        for t in range(len(chains.blocks)):
            block, left = chains.first[t, part], chains.rows[t, part]
            while left > 0:
                at, n = block * BLOCK, min(left, BLOCK)
                before = found
                found, tried = _add_rows(
                    records, at, n, row_bits, slots, bits, mixed, tried, cells, words, found, owners
                )
                if tried > _PATIENCE * rows and not mixed:
                    mixed = True
                    _mix(slots, bits, cells, found)
                if width:
                    lane_sums[before:found] = 0.0
                for four in range(0, width, 4):
                    for i in range(n):
                        _add_lanes(lane_sums, owners[i], lanes, at + i, four)
                if picking.mode != FIRST:
                    for i in range(n):
                        _pick(cells, owners[i], records[at + i, 0] & row_mask, records[at + i, 1], picking)
                block, left = chains.following[block], left - n
        _sort(sums.words, found, row_bits, shift)
        _write(sums, found, np.int64(part) << shift, where, table, m)
        m += found
    return m


@njit(cache=True, nogil=True, error_model="numpy")
def _add_rows(
    records: NDArray[np.int64],
    at: Whole,
    n: Whole,
    row_bits: Whole,
    slots: NDArray[np.uint32],
    bits: Whole,
    mixed: bool,
    tried: Whole,
    cells: NDArray[np.int64],
    words: NDArray[np.int64],
    found: Whole,
    owners: NDArray[np.uint32],
) -> tuple[Whole, Whole]:
    """Add ``n`` records from ``at`` on to their cells; returns how many cells there are, and tries so far."""
    row_mask, last_slot = (np.int64(1) << row_bits) - 1, np.uint64((1 << bits) - 1)
    for i in range(n):
        word, place = records[at + i, 0], records[at + i, 1]
        key = word >> row_bits
        slot = _slot(key, bits, mixed)
        c = slots[slot]
        while c != _EMPTY and cells[c, KEY] != key:
            slot = (slot + np.uint64(1)) & last_slot
            c = slots[slot]
            tried += 1
        if c == _EMPTY:
            c = np.uint32(found)
            slots[slot] = c
            words[c] = (key << row_bits) | c
            cells[c, KEY], cells[c, COUNT] = key, 0
            cells[c, ROW], cells[c, WEIGHT] = word & row_mask, _HEAVIEST
            cells[c, X], cells[c, Y], cells[c, Z] = 0, 0, 0
            found += np.uint32(1)
        cells[c, COUNT] += 1
        cells[c, X] += place >> 42
        cells[c, Y] += (place >> 21) & _PLACE
        cells[c, Z] += place & _PLACE
        owners[i] = c
    return np.uint32(found), tried


@njit(cache=True, nogil=True, error_model="numpy")
def _mix(slots: NDArray[np.uint32], bits: Whole, cells: NDArray[np.int64], found: Whole) -> None:
    """Find each cell's slot again, with its key mixed."""
    slots[: 1 << bits] = _EMPTY
    for c in range(found):
        _insert(slots, bits, cells[c, KEY], True, c)


@njit(cache=True, nogil=True, error_model="numpy")
def _insert(slots: NDArray[np.uint32], bits: Whole, key: Whole, mixed: bool, cell: Whole) -> Whole:
    """Put a cell, whose key is not there yet, into a free slot; returns how many were not."""
    slot, tried = _slot(key, bits, mixed), 0
    while slots[slot] != _EMPTY:
        slot = (slot + np.uint64(1)) & np.uint64((1 << bits) - 1)
        tried += 1
    slots[slot] = cell
    return tried


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


@njit(cache=True, nogil=True, error_model="numpy", inline="always")
def _slot(key: Whole, bits: Whole, mixed: bool) -> np.uint64:
    """Where to look for a key first: the top bits of its product with a large odd number.

    That spreads neighbouring keys better than chance would, but has no luck with some steps between keys, as
    a long wall may have: where it shows, keys are mixed first.
    """
    word = draw.mix(np.uint64(key)) if mixed else np.uint64(key)
    return (word * np.uint64(_GOLDEN)) >> np.uint64(64 - bits)


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
    if weight < cells[c, WEIGHT]:
        cells[c, ROW], cells[c, WEIGHT] = row, weight


@njit(cache=True, nogil=True, error_model="numpy", inline="always")
def _add_lanes(
    sums: NDArray[np.float64], c: Whole, lanes: NDArray[np.float32], at: Whole, four: Whole
) -> None:
    """Add four lanes of a record to the sums of a cell; written out, they are added side by side."""
    x = sums[c, four] + np.float64(lanes[at, 4 + four])
    y = sums[c, four + 1] + np.float64(lanes[at, 5 + four])
    z = sums[c, four + 2] + np.float64(lanes[at, 6 + four])
    w = sums[c, four + 3] + np.float64(lanes[at, 7 + four])
    sums[c, four], sums[c, four + 1], sums[c, four + 2], sums[c, four + 3] = x, y, z, w


@njit(cache=True, nogil=True, error_model="numpy")
def _sort(words: NDArray[np.int64], found: Whole, low: Whole, bits: Whole) -> None:
    """Sort ``words[0]`` by so many bits from bit ``low`` on: a radix sort; ``words[1]`` is scratch."""
    widest = _DIGIT if found > 1 << _FEW_DIGIT else _FEW_DIGIT
    passes = (bits + widest - 1) // widest
    digit_bits = (bits + passes - 1) // max(passes, 1)
    last = (1 << digit_bits) - 1
    counters = np.empty(1 << _DIGIT, np.int32)
    old, new = words[0], words[1]
    for p in range(passes):
        shift = low + p * digit_bits
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
def _write(sums: Sums, found: Whole, base: Whole, where: Where, table: Table, m: Whole) -> None:
    """Write the cells found, sorted, to ``table`` from line ``m`` on; ``base`` is part of their key."""
    cells, words, lines, lanes = sums.cells, sums.words[0], table.lines, sums.lanes
    row_bits, mask = where.row_bits, (np.int64(1) << where.row_bits) - 1
    some, xyz = np.empty((5, BLOCK), np.int64), np.empty((3, BLOCK))
    for start in range(0, found, BLOCK):
        n = min(BLOCK, found - start)
        for i in range(n):
            word, line = words[start + i], m + start + i
            key, c = base | (word >> row_bits), np.uint64(word & mask)
            count = cells[c, COUNT]
            lines[line, KEY], lines[line, COUNT], lines[line, ROW] = key, count, cells[c, ROW]
            some[0, i], some[1, i] = key, count
            some[2, i], some[3, i], some[4, i] = cells[c, X], cells[c, Y], cells[c, Z]
        if lines.shape[1] > WEIGHT:
            for i in range(n):
                for column in range(WEIGHT, lines.shape[1]):
                    lines[m + start + i, column] = cells[words[start + i] & mask, column]
        if len(table.mean):
            _mean(some, n, where, xyz, table.mean[m + start : m + start + n])
    for i in range(found if lanes.shape[1] else 0):
        for lane in range(lanes.shape[1]):
            table.lanes[m + i, lane] = lanes[words[i] & mask, lane]


@njit(cache=True, nogil=True, error_model="numpy")
def _mean(
    some: NDArray[np.int64], n: Whole, where: Where, xyz: NDArray[np.float64], mean: NDArray[np.float32]
) -> None:
    """Write means of ``n`` cells, of which ``some`` has keys, counts and sums of places; ``xyz``: for work.

    A key below 2^51 and a half, times a reciprocal, is never rounded to the next whole number.
    """
    size, width_y, width_z, taken = where.size, where.width_y, where.width_z, where.taken
    one_y, one_z = 1.0 / width_y, 1.0 / width_z
    ox, oy, oz = where.origin
    cx, cy, cz = where.corner
    lx, ly, lz = where.low
    x, y, z = xyz[0], xyz[1], xyz[2]
    if len(taken):
        for i in range(n):
            key = some[0, i]
            x[i], y[i], z[i] = taken[key, 0], taken[key, 1], taken[key, 2]
    else:
        for i in range(n):
            key = np.float64(some[0, i])
            xy = np.floor((key + 0.5) * one_z)
            first = np.floor((xy + 0.5) * one_y)
            x[i], y[i], z[i] = first + lx, xy - first * width_y + ly, key - xy * width_z + lz
    for i in range(n):
        one = 1.0 / some[1, i]
        # the half step makes up for the steps' being rounded down
        x[i] = (x[i] + (some[2, i] * one + 0.5) / STEPS) * size + cx - ox
        y[i] = (y[i] + (some[3, i] * one + 0.5) / STEPS) * size + cy - oy
        z[i] = (z[i] + (some[4, i] * one + 0.5) / STEPS) * size + cz - oz
    for i in range(n):
        mean[i, 0], mean[i, 1], mean[i, 2] = x[i], y[i], z[i]


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
    records, first = chains.records, 0
    for part in range(start, stop):
        last = first
        while last < len(keys) and keys[last] >> shift == part:
            last += 1
        rows, mixed, tried, m = chains.rows[:, part].sum(), False, 0, first
        bits = _empty(slots, rows)
        last_slot = np.uint64((1 << bits) - 1)
        while m < last:
            tried += _insert(slots, bits, keys[m] & within, mixed, m)
            m += 1
            if tried > _PATIENCE * rows and not mixed:  # again from the first
                mixed, m = True, first
                _empty(slots, rows)
        first = last
        for t in range(len(chains.blocks)):
            block, left = chains.first[t, part], chains.rows[t, part]
            while left > 0:
                at, n = block * BLOCK, min(left, BLOCK)
                for i in range(n):
                    key, row = records[at + i, 0] >> row_bits, records[at + i, 0] & row_mask
                    slot = _slot(key, bits, mixed)
                    while keys[slots[slot]] & within != key:
                        slot = (slot + np.uint64(1)) & last_slot
                    out[row] = before + slots[slot]
                block, left = chains.following[block], left - n
