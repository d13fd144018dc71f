"""Kernels of the voxel grid, second half: the records of each partition to cells.

The cells of a partition are numbered in the order of their keys, and each record then adds to the line of
sums of its cell. Where keys are dense there is a bit for each, and a cell's number is how many bits are set
below its own: that is the rank of Jacobson, "Space-efficient static trees and graphs", 1989. Where they are
sparse the records' keys are sorted. Partitions keep the order of cells, so one after the other is sorted too.

Sums of places are of whole numbers: neither the order of rows nor the number of threads can change them.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit
from numpy.typing import NDArray

from . import draw
from .tables import (
    BEFORE,
    BITS,
    BLOCK,
    COUNT,
    FIRST,
    HEAD,
    NEAREST,
    ROW,
    ROWS,
    STEPS,
    Chains,
    Picking,
    Table,
    Where,
    Whole,
    X,
    Y,
    Z,
)

_HEAVIEST = np.int64(2**63 - 1)
_LAST_ROW = np.uint32(2**32 - 1)
_FEW_DIGIT, _DIGIT = 8, 11  # bits of the sort's digits, for few records and many: they outnumber the counters
_GOLDEN = draw.CONSTANTS[0]
_PLACE = STEPS - 1
_FEW = 64  # words of bits that are no trouble however few records there are


@njit(cache=True, nogil=True, error_model="numpy")
def group_chains(
    chains: Chains,
    where: Where,
    shift: Whole,
    picking: Picking,
    start: Whole,
    stop: Whole,
    table: Table,
    means: bool,
    owner: NDArray[np.uint32],
) -> tuple[Whole, NDArray[np.float32]]:
    """Fill in ``table`` for the partitions [start, stop); returns how many cells, and means of their rows.

    The means are float32 (m, 3), relative to the grid's origin, or (0, 3) where none are asked for.
    ``owner``: (rows,), where each row's cell is written, or (0,).
    """
    records, sums, counters = chains.records, table.sums, table.sums.view(np.uint32)
    runs, words, order, owners = _room(chains, start, stop)
    m: Whole = 0
    for part in range(start, stop):
        count = _runs(chains, part, runs)
        last = m + _number(records, runs[:count], part, where, shift, words, order, owners, table.key[m:])
        _clear(table, m, last)
        for r in range(count):
            first, end, before = runs[r, 0], runs[r, 1], runs[r, 2]
            some, cells = records[first:end], owners[before : before + end - first]
            _add_rows(some, where.row_bits, cells, sums[m:last], counters[m:last])
            if picking.mode != FIRST:
                _pick(some, where.row_bits, picking, cells, counters[m:last], table.weight[m:last])
            if len(owner):
                _tell(some, where.row_bits, cells, m, owner)
        m = last
    mean = np.empty((m if means else 0, 3), np.float32)
    if means:
        _mean(table, where, mean)
    return m, mean


@njit(cache=True, nogil=True, error_model="numpy")
def invert(
    chains: Chains,
    where: Where,
    shift: Whole,
    start: Whole,
    stop: Whole,
    before: Whole,
    owner: NDArray[Any],
) -> None:
    """Write each row's cell for the partitions [start, stop), counted from ``before`` on."""
    runs, words, order, owners = _room(chains, start, stop)
    keys = np.empty(len(owners), np.int64)
    for part in range(start, stop):
        count = _runs(chains, part, runs)
        found = _number(chains.records, runs[:count], part, where, shift, words, order, owners, keys)
        for r in range(count):
            some = chains.records[runs[r, 0] : runs[r, 1]]
            _tell(some, where.row_bits, owners[runs[r, 2] :], before, owner)
        before += found


@njit(cache=True, nogil=True, error_model="numpy")
def _tell(
    some: NDArray[np.int64],
    row_bits: Whole,
    cells: NDArray[np.uint32],
    before: Whole,
    owner: NDArray[Any],
) -> None:
    """Write each row's cell, counted from ``before`` on."""
    row_mask = (np.int64(1) << row_bits) - 1
    for i in range(len(some)):
        owner[some[i, 0] & row_mask] = before + cells[i]


@njit(cache=True, nogil=True, error_model="numpy")
def _room(
    chains: Chains, start: Whole, stop: Whole
) -> tuple[NDArray[np.int64], NDArray[np.uint64], NDArray[np.int64], NDArray[np.uint32]]:
    """Room for the runs, words of bits, an order and the owners of any of the partitions."""
    rows: Whole = 0
    for part in range(start, stop):
        rows = max(rows, chains.ends[ROWS, :, part].sum())
    runs = np.empty((rows // BLOCK + chains.ends.shape[1], 3), np.int64)
    words = np.empty((max(rows, _FEW), 2), np.uint64)
    return runs, words, np.empty((2, len(words)), np.int64), np.empty(rows, np.uint32)


@njit(cache=True, nogil=True, error_model="numpy")
def _runs(chains: Chains, part: Whole, runs: NDArray[np.int64]) -> Whole:
    """Where a partition's records lie: the first of each run, the one after its last, and how many before."""
    count, before = 0, np.int64(0)
    for t in range(chains.ends.shape[1]):
        block, left = np.int64(chains.ends[HEAD, t, part]), chains.ends[ROWS, t, part]
        while left > 0:
            at, n = block * BLOCK, min(left, BLOCK)
            if count and runs[count - 1, 1] == at:
                runs[count - 1, 1] += n
            else:
                runs[count, 0], runs[count, 1], runs[count, 2] = at, at + n, before
                count += 1
            block, left, before = np.int64(chains.following[block]), left - n, before + n
    return count


@njit(cache=True, nogil=True, error_model="numpy")
def _number(
    records: NDArray[np.int64],
    runs: NDArray[np.int64],
    part: Whole,
    where: Where,
    shift: Whole,
    words: NDArray[np.uint64],
    order: NDArray[np.int64],
    owners: NDArray[np.uint32],
    keys: NDArray[np.int64],
) -> Whole:
    """Number a partition's cells in the order of keys; returns how many.

    ``owners``: the cell of each record, in the order of ``runs``; ``keys``: of each cell.
    """
    base = np.int64(part) << shift
    rows = runs[-1, 2] + runs[-1, 1] - runs[-1, 0] if len(runs) else 0
    needed = (min(np.int64(1) << shift, where.keys - base) + 63) >> 6
    if needed <= max(rows, _FEW):
        return _by_bits(records, runs, where.row_bits, base, words[:needed], order[0], owners, keys)
    return _by_sorting(records, runs, where.row_bits, base, shift, rows, order, owners, keys)


@njit(cache=True, nogil=True, error_model="numpy")
def _by_bits(
    records: NDArray[np.int64],
    runs: NDArray[np.int64],
    row_bits: Whole,
    base: Whole,
    words: NDArray[np.uint64],
    taken: NDArray[np.int64],
    owners: NDArray[np.uint32],
    keys: NDArray[np.int64],
) -> Whole:
    """The same with a bit for each key."""
    low, six, one = np.uint64(row_bits), np.uint64(6), np.uint64(1)
    words[:] = np.uint64(0)
    for r in range(len(runs)):
        some = records[runs[r, 0] : runs[r, 1]]
        for i in range(len(some)):
            key = np.uint64(some[i, 0]) >> low
            words[key >> six, BITS] |= one << (key & np.uint64(63))
    count: Whole = 0
    for w in range(len(words)):
        taken[count] = w  # the next overwrites it if none of its bits is set
        count += np.int64(words[w, BITS] != 0)
    found = np.uint64(0)
    for i in range(count):
        word = np.uint64(taken[i])
        bits, first = words[word, BITS], np.uint64(base) + (word << six)
        words[word, BEFORE] = found
        while True:
            keys[found] = first + _ones((bits & -bits) - one)
            bits &= bits - one
            found += one
            if bits == 0:
                break
    for r in range(len(runs)):
        some, cells = records[runs[r, 0] : runs[r, 1]], owners[runs[r, 2] :]
        for i in range(len(some)):
            key = np.uint64(some[i, 0]) >> low
            below = (one << (key & np.uint64(63))) - one
            cells[i] = words[key >> six, BEFORE] + _ones(words[key >> six, BITS] & below)
    return np.int64(found)


@njit(cache=True, nogil=True, error_model="numpy", inline="always")
def _ones(word: np.uint64) -> np.uint64:
    """How many bits are set. It compiles to the processor's instruction for that."""
    word -= (word >> np.uint64(1)) & np.uint64(0x5555555555555555)
    word = (word & np.uint64(0x3333333333333333)) + ((word >> np.uint64(2)) & np.uint64(0x3333333333333333))
    word = (word + (word >> np.uint64(4))) & np.uint64(0x0F0F0F0F0F0F0F0F)
    return (word * np.uint64(0x0101010101010101)) >> np.uint64(56)


@njit(cache=True, nogil=True, error_model="numpy")
def _by_sorting(
    records: NDArray[np.int64],
    runs: NDArray[np.int64],
    row_bits: Whole,
    base: Whole,
    shift: Whole,
    rows: Whole,
    order: NDArray[np.int64],
    owners: NDArray[np.uint32],
    keys: NDArray[np.int64],
) -> Whole:
    """The same by sorting keys, with the number of each record in the partition."""
    mask, found, key = (np.int64(1) << row_bits) - 1, np.int64(0), np.int64(-1)
    for r in range(len(runs)):
        some, before = records[runs[r, 0] : runs[r, 1]], runs[r, 2]
        for i in range(len(some)):
            order[0, before + i] = (some[i, 0] & ~mask) | (before + i)
    _sort(order, rows, row_bits, shift)
    for i in range(rows):
        word = order[0, i]
        if word >> row_bits != key:
            key = word >> row_bits
            keys[found] = base | key
            found += 1
        owners[word & mask] = found - 1
    return found


@njit(cache=True, nogil=True, error_model="numpy")
def _sort(words: NDArray[np.int64], rows: Whole, low: Whole, bits: Whole) -> None:
    """Sort ``rows`` of ``words[0]`` by ``bits`` bits from ``low`` on: a radix sort. The rest is scratch."""
    widest = _DIGIT if rows > 1 << _FEW_DIGIT else _FEW_DIGIT
    passes = (bits + widest - 1) // widest
    digit_bits = (bits + passes - 1) // max(passes, 1)
    last = (1 << digit_bits) - 1
    counters = np.zeros((passes, last + 1), np.int32)
    for i in range(rows):
        word = words[0, i] >> low
        for p in range(passes):
            counters[p, word & last] += 1
            word >>= digit_bits
    old, new = words[0], words[1]
    for p in range(passes):
        shift, ends, before = low + p * digit_bits, counters[p], np.int32(0)
        for digit in range(last + 1):
            before, ends[digit] = before + ends[digit], before
        for i in range(rows):
            place = np.uint64((old[i] >> shift) & last)
            at = np.uint32(ends[place])
            ends[place] += 1
            new[at] = old[i]
        old, new = new, old
    if passes % 2:
        new[:rows] = old[:rows]


@njit(cache=True, nogil=True, error_model="numpy")
def _clear(table: Table, m: Whole, last: Whole) -> None:
    """Empty the sums of cells."""
    sums, counters = table.sums, table.sums.view(np.uint32)
    for c in range(m, last):
        sums[c, X], sums[c, Y], sums[c, Z], sums[c, 3] = 0, 0, 0, 0
        counters[c, ROW] = _LAST_ROW
    if len(table.weight):
        table.weight[m:last] = _HEAVIEST


@njit(cache=True, nogil=True, error_model="numpy")
def _add_rows(
    some: NDArray[np.int64],
    row_bits: Whole,
    cells: NDArray[np.uint32],
    sums: NDArray[np.int64],
    counters: NDArray[np.uint32],
) -> None:
    """Add records to their cells."""
    row_mask = (np.int64(1) << row_bits) - 1
    for i in range(len(some)):
        c, row, place = cells[i], np.uint32(some[i, 0] & row_mask), some[i, 1]
        sums[c, X] += place >> 42
        sums[c, Y] += (place >> 21) & _PLACE
        sums[c, Z] += place & _PLACE
        counters[c, COUNT] += np.uint32(1)
        counters[c, ROW] = min(counters[c, ROW], row)


@njit(cache=True, nogil=True, error_model="numpy")
def _pick(
    some: NDArray[np.int64],
    row_bits: Whole,
    picking: Picking,
    cells: NDArray[np.uint32],
    counters: NDArray[np.uint32],
    weights: NDArray[np.int64],
) -> None:
    """Let rows stand for their cell if they weigh less than the one that does."""
    row_mask = (np.int64(1) << row_bits) - 1
    for i in range(len(some)):
        c, row, place = cells[i], some[i, 0] & row_mask, some[i, 1]
        if picking.mode == NEAREST:  # the square of twice the distance from the cell's centre, exactly
            x, y, z = place >> 42, (place >> 21) & _PLACE, place & _PLACE
            x, y, z = 2 * x + 1 - STEPS, 2 * y + 1 - STEPS, 2 * z + 1 - STEPS
            weight = np.int64(x * x + y * y + z * z)
        else:
            name = picking.names[row] if picking.names.size else row
            weight = np.int64(
                draw.mix(picking.seed + np.uint64(name + 1) * np.uint64(_GOLDEN)) >> np.uint64(1)
            )
        if weight < weights[c]:
            counters[c, ROW], weights[c] = row, weight


@njit(cache=True, nogil=True, error_model="numpy")
def _mean(table: Table, where: Where, mean: NDArray[np.float32]) -> None:
    """Write the means of cells.

    A key below 2^51 and a half, times a reciprocal, is never rounded to the next whole number.
    """
    counters, keys, m = table.sums.view(np.uint32), table.key, len(mean)
    size, width_y, width_z, taken = where.size, where.width_y, where.width_z, where.taken
    one_y, one_z = 1.0 / width_y, 1.0 / width_z
    ox, oy, oz = where.origin
    cx, cy, cz = where.corner
    lx, ly, lz = where.low
    places, sums = np.empty((3, BLOCK)), np.empty((4, BLOCK), np.int64)
    x, y, z = places[0], places[1], places[2]
    for start in range(0, m, BLOCK):  # loops over numbers that lie end to end vectorise
        n = min(BLOCK, m - start)
        if len(taken):
            for i in range(n):
                key = keys[start + i]
                x[i], y[i], z[i] = taken[key, 0], taken[key, 1], taken[key, 2]
        else:
            for i in range(n):
                key = np.float64(keys[start + i])
                xy = np.floor((key + 0.5) * one_z)
                first = np.floor((xy + 0.5) * one_y)
                x[i], y[i], z[i] = first + lx, xy - first * width_y + ly, key - xy * width_z + lz
        for i in range(n):
            cell = table.sums[start + i]
            sums[X, i], sums[Y, i], sums[Z, i] = cell[X], cell[Y], cell[Z]
            sums[3, i] = counters[start + i, COUNT]
        for i in range(n):
            one = 1.0 / sums[3, i]
            # the half step makes up for the steps' being rounded down
            x[i] = (x[i] + (sums[X, i] * one + 0.5) / STEPS) * size + cx - ox
            y[i] = (y[i] + (sums[Y, i] * one + 0.5) / STEPS) * size + cy - oy
            z[i] = (z[i] + (sums[Z, i] * one + 0.5) / STEPS) * size + cz - oz
        for i in range(n):
            mean[start + i, 0], mean[start + i, 1], mean[start + i, 2] = x[i], y[i], z[i]
