"""Kernels of the voxel grid, first half: rows to records, and records to partitions.

Each row's cell becomes a key, its number in the box of cells that the cloud touches. A million rows grouped
by it as they come would touch memory at random, so the rows of large clouds are first written, as records, to
one of up to 1,024 partitions: runs of neighbouring cells, each small enough for the cache. That is the radix
partitioning of Manegold, Boncz, Kersten, "Optimizing main-memory join on modern hardware", 2002.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit
from numpy.typing import NDArray

from .tables import BLOCK, BLOCKS, END, HEAD, ROWS, STEPS, TAIL, Chains, Where, Whole

_CHUNK = 256  # rows whose cells are found at once, in the first-level cache


@njit(cache=True, nogil=True, error_model="numpy")
def scatter(
    points: NDArray[Any],
    where: Where,
    shift: Whole,
    chains: Chains,
    start: Whole,
    stop: Whole,
    thread: Whole,
    block: Whole,
) -> None:
    """Append the rows [start, stop) to a thread's chains, whose blocks begin with ``block``."""
    keys, places, at = np.empty(_CHUNK, np.int64), np.empty(_CHUNK, np.int64), np.empty(_CHUNK, np.int64)
    axes, cells, steps = _axes(where), np.empty(3 * _CHUNK), np.empty(3 * _CHUNK, np.int64)
    flat = points.reshape(-1)
    within, row_bits = (np.int64(1) << shift) - 1, where.row_bits
    records, ends = chains.records, chains.ends[:, thread]
    parts, beginning = ends.shape[1], block * BLOCK - start
    ends[:] = 0
    for chunk in range(start, stop, _CHUNK):
        n = min(_CHUNK, stop - chunk)
        some = flat[3 * chunk : 3 * (chunk + n)]
        if not _locate(some, where, axes, cells, steps):
            _settle(some, where, axes, cells, steps)
        _pack(n, where, cells, steps, keys, places)
        if where.known.size:
            keys[:n] = where.known[chunk : chunk + n]
        if parts > 1:
            block = _append(keys, n, shift, ends, chains.following, block, at)
            for i in range(n):
                records[at[i], 0] = ((keys[i] & within) << row_bits) | (chunk + i)
                records[at[i], 1] = places[i]
        else:  # one chain, of blocks that lie end to end
            some = records[beginning + chunk : beginning + chunk + n]
            for i in range(n):
                some[i, 0] = (keys[i] << row_bits) | (chunk + i)
                some[i, 1] = places[i]
    if parts == 1:
        count = (stop - start + BLOCK - 1) // BLOCK
        ends[HEAD, 0], ends[BLOCKS, 0], ends[END, 0] = block, count, beginning + stop
        for b in range(block, block + count):
            chains.following[b] = b + 1
    for part in range(parts):  # all blocks but the last are full
        short = (-ends[END, part]) & (BLOCK - 1)
        ends[ROWS, part] = ends[BLOCKS, part] * BLOCK - short


@njit(cache=True, nogil=True, error_model="numpy")
def _append(
    keys: NDArray[np.int64],
    n: Whole,
    shift: Whole,
    ends: NDArray[np.int64],
    following: NDArray[np.int32],
    block: Whole,
    at: NDArray[np.int64],
) -> Whole:
    """Where the records of ``n`` keys go, into ``at``; returns the next block that is free."""
    first, last, blocks, end = ends[HEAD], ends[TAIL], ends[BLOCKS], ends[END]
    current, place = keys[0] >> shift, end[keys[0] >> shift]
    for i in range(n):
        part = keys[i] >> shift
        if part != current:  # rows of a scan stay in one for long, and registers are quicker than memory
            end[current] = place
            current, place = part, end[part]
        if place & (BLOCK - 1) == 0:  # the last block is full, or there is none
            if blocks[part] == 0:
                first[part] = block
            else:
                following[last[part]] = block
            last[part] = block
            blocks[part] += 1
            place = block * BLOCK
            block += 1
        at[i] = place
        place += 1
    end[current] = place
    return block


@njit(cache=True, nogil=True, error_model="numpy")
def _axes(where: Where) -> NDArray[np.float64]:
    """The grid's origin, corner and lowest cell for each of a chunk's numbers, as they lie: (3, 3 * rows)."""
    axes = np.empty((3, 3 * _CHUNK))
    for i in range(0, 3 * _CHUNK, 3):
        axes[0, i], axes[0, i + 1], axes[0, i + 2] = where.origin
        axes[1, i], axes[1, i + 1], axes[1, i + 2] = where.corner
        axes[2, i], axes[2, i + 1], axes[2, i + 2] = where.low
    return axes


@njit(cache=True, nogil=True, error_model="numpy")
def _locate(
    numbers: NDArray[Any],
    where: Where,
    axes: NDArray[np.float64],
    cells: NDArray[np.float64],
    steps: NDArray[np.int64],
) -> bool:
    """Of x, y and z, end to end, the cell, counted within the box, and the place inside it.

    A product with the reciprocal is quicker than a quotient, but near a border may be rounded into another
    cell; returns whether all are far enough from it. A loop over numbers as they lie vectorises.
    """
    one, near = 1.0 / where.size, where.near
    close = np.int64(0)
    for i in range(len(numbers)):
        place = (np.float64(numbers[i]) + axes[0, i] - axes[1, i]) * one
        cell = np.floor(place)
        inside = place - cell
        cells[i] = cell - axes[2, i]
        steps[i] = np.int64(inside * STEPS)
        close |= np.int64(abs(inside - 0.5) > near)
    return bool(close == 0)


@njit(cache=True, nogil=True, error_model="numpy")
def _settle(
    numbers: NDArray[Any],
    where: Where,
    axes: NDArray[np.float64],
    cells: NDArray[np.float64],
    steps: NDArray[np.int64],
) -> None:
    """The same with the cell of the quotient, by definition the right one."""
    one = 1.0 / where.size
    for i in range(len(numbers)):
        moved = np.float64(numbers[i]) + axes[0, i] - axes[1, i]
        cell = np.floor(moved / where.size)
        cells[i] = cell - axes[2, i]
        steps[i] = np.int64(min(max((moved * one - cell) * STEPS, 0.0), STEPS - 1.0))


@njit(cache=True, nogil=True, error_model="numpy")
def _pack(
    n: Whole,
    where: Where,
    cells: NDArray[np.float64],
    steps: NDArray[np.int64],
    keys: NDArray[np.int64],
    places: NDArray[np.int64],
) -> None:
    """Of ``n`` rows the key, which floats hold exactly, and the place inside the cell, each in a word."""
    width_y, width_z = where.width_y, where.width_z
    for i in range(n):
        x, y, z = 3 * i, 3 * i + 1, 3 * i + 2
        keys[i] = np.int64((cells[x] * width_y + cells[y]) * width_z + cells[z])
        places[i] = (steps[x] << 42) | (steps[y] << 21) | steps[z]
