"""What the kernels of the voxel grid (`records`, `cells`) read and write."""

from __future__ import annotations

from typing import Any, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

Whole: TypeAlias = Any
"""A whole number in a kernel, Python's or numpy's."""

Triple: TypeAlias = tuple[float, float, float]
"""x, y and z."""

# numba does not see when these change: kernels cached before keep the old ones.

STEPS = 1 << 21
"""Steps to a cell's edge, in which places inside it are kept: three fit a word, as do sums of 2^31 rows."""

BLOCK = 64
"""Records of a block: a kilobyte, written from start to end."""

FIRST, NEAREST, RANDOM = range(3)
"""How a row is picked for its cell: the first, the nearest to the centre, the one with the least hash."""

KEY, COUNT, ROW, WEIGHT, X, Y, Z = range(7)
"""Columns of a table's lines."""

WORDS = 8
"""Words of a cell's sums: a line of the cache."""


class Where(NamedTuple):
    """The grid, and the box of cells that the cloud touches."""

    origin: Triple
    """What points are relative to."""
    corner: Triple
    """A corner of the grid."""
    size: float
    low: Triple
    """The lowest cell numbers."""
    width_y: float
    """Cells of the box along y."""
    width_z: float
    near: float
    """Further from a cell's middle a place is too near to the border to tell the cell but by division."""
    known: NDArray[np.int64]
    """(n,): each row's key, where the box has too many cells to number and those taken are; else (0,)."""
    taken: NDArray[np.int64]
    """(keys, 3): the cells that such keys stand for; else (0, 3)."""
    row_bits: int
    """Bits of a row: a key and a row, or a cell as it came up, share a word."""


class Picking(NamedTuple):
    """Which row stands for its cell."""

    mode: int
    seed: np.uint64
    names: NDArray[np.int64]
    """(n,): the rows' numbers that are hashed; (0,) where they are 0 to n."""


class Sums(NamedTuple):
    """A hash table of cells and what is known of each, while rows are added."""

    slots: NDArray[np.uint32]
    """(a power of two,): cells by the hash of their key."""
    cells: NDArray[np.int64]
    """(cells, 8), as they came up: what a table's lines have, all of it."""
    lanes: NDArray[np.float64]
    """(cells, w): sums of the lanes."""
    words: NDArray[np.int64]
    """(2, cells): each cell's key, shifted left, and its number, to be sorted; and scratch."""


class Chains(NamedTuple):
    """Records by partition, as chains of blocks.

    A record is two words and then the row's lanes. The first word is the place of its cell within the
    partition, shifted left, and the row; the second its place inside the cell, 21 bits an axis.
    """

    records: NDArray[np.int64]
    """(blocks * 64, 2 + words of lanes)."""
    lanes: NDArray[np.float32]
    """The same memory, (blocks * 64, 4 + lanes)."""
    following: NDArray[np.int32]
    """(blocks,): the next block of the chain."""
    first: NDArray[np.int64]
    """(threads, partitions): the first block of each chain."""
    last: NDArray[np.int64]
    """(threads, partitions): the last block."""
    blocks: NDArray[np.int64]
    """(threads, partitions): how many blocks; 0 where it has none."""
    rows: NDArray[np.int64]
    """(threads, partitions): how many records."""
    end: NDArray[np.int64]
    """(threads, partitions): where the next record goes; a multiple of 64 where that takes a new block."""


class Table(NamedTuple):
    """Cells of some partitions, sorted: m of them."""

    lines: NDArray[np.int64]
    """(m, 3) or (m, 7): the key, a place in the box of cells, z fastest, or the number of a cell where those
    taken are numbered; how many rows; the row that stands for the cell, of those that were grouped. Where
    asked for, also its weight, and sums of the places inside the cell, in steps of edge / 2^21."""
    mean: NDArray[np.float32]
    """(m, 3) for "centroid": mean of the rows, relative to the grid's origin; else (0, 3)."""
    lanes: NDArray[np.float64]
    """(m, w): sums of the lanes."""
