"""Partitions of a cloud by cell: the first of the two steps that bring the rows of a cell together.

A million rows that are grouped by one table of cells touch memory at random. So each row is first written, as
a record, to one of up to 1,024 partitions: runs of neighbouring cells, each small enough for the cache, in
which `group` then finds the cells (radix partitioning: Manegold, Boncz, Kersten, "Optimizing main-memory join
on modern hardware", 2002). Partitions keep the order of cells, so what comes out of one after the other is
sorted.

A partition is a chain of blocks of 64 records. It grows a block at a time, so nobody needs to count before,
and each thread has chains of its own: a partition is the first thread's chain, then the second's, and so on,
which is the order of rows.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import numpy as np
from numba import njit
from numpy.typing import NDArray

from . import scratch
from .grid import Box, Grid, sorted_rows, starts_of
from .threads import each

STEPS = 1 << 21
"""Steps to a cell's edge, in which places inside it are kept: three fit a word, and so do the sums of 2^31 rows.

It never changes: numba would not notice in the kernels of other files, which have it built in.
"""

_BLOCK = 64  # records of a block: a kilobyte, written from start to end
_CHUNK = 512  # rows whose cells are found at once, in the first-level cache
_MOST_PARTITIONS = 10  # bits; each has a line that is being written, and these must stay in the cache
_ROWS_A_PARTITION = 512


class Chains(NamedTuple):
    """Records by partition, as chains of blocks.

    A record is two words and then the row's lanes. The first word is the place of its cell within the
    partition, shifted left, and the row; the second its place inside the cell, 21 bits an axis.
    """

    records: NDArray[np.int64]
    """(blocks, 64, 2 + words of lanes)."""
    lanes: NDArray[np.float32]
    """The same memory, (blocks, 64, 4 + lanes, up to an even number)."""
    following: NDArray[np.int32]
    """(blocks,): the next block of the chain."""
    first: NDArray[np.int32]
    """(threads, partitions): the first block of each chain, -1 where it has none."""
    last: NDArray[np.int32]
    """(threads, partitions): the last block."""
    blocks: NDArray[np.int64]
    """(threads, partitions): how many blocks."""
    filled: NDArray[np.int64]
    """(threads, partitions): records of the last block; 64 where there is none, so that the next needs a new one."""


@dataclass(frozen=True)
class Partitions:
    """A cloud's rows by partition.

    ``shift``: bits of a cell's key that are told apart within a partition. ``row_bits``: bits of a row in a
    record's first word. ``lanes``: how many a record has. ``box``: the cells. ``cells``: int64 (m, 3) of the
    cells that keys stand for, where the box has too many to number; else None.
    """

    chains: Chains
    shift: int
    row_bits: int
    lanes: int
    box: Box
    cells: NDArray[np.int64] | None

    @property
    def counts(self) -> NDArray[np.int64]:
        """int64 (partitions,): records of each."""
        in_chains: NDArray[np.int64] = (self.chains.blocks - 1) * _BLOCK + self.chains.filled
        return in_chains.sum(axis=0)

    def cell_of(self, keys: NDArray[np.int64]) -> NDArray[np.int64]:
        """Cell numbers, int64 (m, 3)."""
        return self.box.cell_of(keys) if self.cells is None else self.cells[keys]


def partition(points: NDArray[Any], grid: Grid, lanes: NDArray[np.float32], threads: int) -> Partitions:
    """Rows of ``points``, finite float32 or float64 (n, 3), by partition, each with its column of ``lanes`` (w, n)."""
    box, n = grid.box(points), len(points)
    row_bits = max(n - 1, 1).bit_length()
    bits = (box.cells - 1).bit_length()
    most = min(_MOST_PARTITIONS, max((n // _ROWS_A_PARTITION).bit_length() - 1, 0))
    known, cells = np.empty(0, np.int64), None
    if bits > 53 or bits - min(bits, most) + row_bits > 63:
        # So many cells that their numbers do not fit: the cells taken are numbered instead.
        known, cells = _numbered(points, grid)
        bits = max(len(cells) - 1, 1).bit_length()
    shift = bits - min(bits, most)
    parts = (((1 << bits) if cells is not None else box.cells) - 1 >> shift) + 1
    chains = _chains(n, parts, threads, lanes.shape[0])
    per_thread = _blocks(-(-n // threads), parts)
    _, width_y, width_z = map(float, box.shape)
    where = (points, grid.origin, grid.corner, grid.size, box.low, width_y, width_z)
    each(
        partial(_scatter, *where, known, lanes, shift, row_bits, chains),
        [(n * t // threads, n * (t + 1) // threads, t, t * per_thread) for t in range(threads)],
    )
    return Partitions(chains, shift, row_bits, len(lanes), box, cells)


def _blocks(rows: int, parts: int) -> int:
    """Most blocks that a thread fills: every partition may have one that is not full."""
    return rows // _BLOCK + min(rows, parts) + 1


def _chains(n: int, parts: int, threads: int, lanes: int) -> Chains:
    blocks = threads * _blocks(-(-n // threads), parts)
    records = scratch.take((blocks, _BLOCK, 2 + (lanes + 1) // 2), np.int64)
    return Chains(
        records,
        records.view(np.float32),
        scratch.take(blocks, np.int32),
        np.full((threads, parts), -1, np.int32),
        np.empty((threads, parts), np.int32),
        np.zeros((threads, parts), np.int64),
        np.full((threads, parts), _BLOCK, np.int64),
    )


def _numbered(points: NDArray[Any], grid: Grid) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """The number of each row's cell among those taken, int64 (n,), and these cells, sorted, int64 (m, 3)."""
    cells = np.floor(grid.place(points)).astype(np.int64)
    order = sorted_rows(cells)
    starts = starts_of(cells[order])
    number = np.empty(len(cells), np.int64)
    number[order] = np.repeat(np.arange(len(starts) - 1), np.diff(starts))
    return number, cells[order[starts[:-1]]]


@njit(cache=True, nogil=True, error_model="numpy")
def _scatter(
    points: NDArray[Any],
    origin: NDArray[np.float64],
    corner: NDArray[np.float64],
    size: float,
    low: NDArray[np.float64],
    width_y: float,
    width_z: float,
    known: NDArray[np.int64],
    lanes: NDArray[np.float32],
    shift: int,
    row_bits: int,
    chains: Chains,
    start: int,
    stop: int,
    thread: int,
    block: int,
) -> None:
    """Append the rows [start, stop) to a thread's chains, whose blocks begin with ``block``."""
    keys, places = np.empty(_CHUNK, np.int64), np.empty(_CHUNK, np.int64)
    columns = np.empty((3, _CHUNK), points.dtype)
    within = (np.int64(1) << shift) - 1
    first, last = chains.first[thread], chains.last[thread]
    blocks, filled = chains.blocks[thread], chains.filled[thread]
    for chunk in range(start, stop, _CHUNK):
        n = min(_CHUNK, stop - chunk)
        _locate(points[chunk : chunk + n], origin, corner, size, low, width_y, width_z, columns, keys, places)
        if known.size:
            keys[:n] = known[chunk : chunk + n]
        for i in range(n):
            part = keys[i] >> shift
            if filled[part] == _BLOCK:
                if blocks[part] == 0:
                    first[part] = block
                else:
                    chains.following[last[part]] = block
                last[part] = block
                blocks[part] += 1
                filled[part] = 0
                block += 1
            at = filled[part]
            filled[part] = at + 1
            chains.records[last[part], at, 0] = ((keys[i] & within) << row_bits) | (chunk + i)
            chains.records[last[part], at, 1] = places[i]
            for j in range(len(lanes)):
                chains.lanes[last[part], at, 4 + j] = lanes[j, chunk + i]


@njit(cache=True, nogil=True, error_model="numpy")
def _locate(
    points: NDArray[Any],
    origin: NDArray[np.float64],
    corner: NDArray[np.float64],
    size: float,
    low: NDArray[np.float64],
    width_y: float,
    width_z: float,
    columns: NDArray[Any],
    keys: NDArray[np.int64],
    places: NDArray[np.int64],
) -> None:
    """Each point's key, its cell counted within the box, and its place inside the cell.

    Floats hold the keys exactly, and a loop over columns vectorises where one over rows does not.
    """
    ox, oy, oz = origin
    cx, cy, cz = corner
    lx, ly, lz = low
    for i in range(len(points)):
        columns[0, i], columns[1, i], columns[2, i] = points[i, 0], points[i, 1], points[i, 2]
    for i in range(len(points)):
        px = (np.float64(columns[0, i]) + ox - cx) / size
        py = (np.float64(columns[1, i]) + oy - cy) / size
        pz = (np.float64(columns[2, i]) + oz - cz) / size
        x, y, z = np.floor(px), np.floor(py), np.floor(pz)
        keys[i] = np.int64(((x - lx) * width_y + (y - ly)) * width_z + (z - lz))
        places[i] = (_step(px - x) << 42) | (_step(py - y) << 21) | _step(pz - z)


@njit(cache=True, nogil=True, error_model="numpy", inline="always")
def _step(inside: float) -> np.int64:
    """A place in [0, 1] as a whole number below 2^21; just under a cell's edge it may have come out as 1."""
    step = inside * STEPS
    return np.int64(step if step < STEPS - 1 else STEPS - 1.0)
