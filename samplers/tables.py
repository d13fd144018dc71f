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

X, Y, Z = range(3)
"""Columns of a cell's sums."""

COUNT, ROW = 6, 7
"""Columns of a cell's sums, seen as numbers of 32 bits."""

BITS, BEFORE = range(2)
"""Columns of words of bits, one for each of 64 keys: which are taken, and how many are in words before."""

HEAD, TAIL, BLOCKS, ROWS, END = range(5)
"""What is known of a chain: its first block, its last, how many blocks, how many records, and where the next
record goes: a multiple of 64 where that takes a new block."""


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
    keys: int
    """How many keys there are."""
    row_bits: int
    """Bits of a row: a key and a row, or a cell as it came up, share a word."""


class Picking(NamedTuple):
    """Which row stands for its cell."""

    mode: int
    seed: np.uint64
    names: NDArray[np.int64]
    """(n,): the rows' numbers that are hashed; (0,) where they are 0 to n."""


class Chains(NamedTuple):
    """Records by partition, as chains of blocks.

    A record is two words: the place of its cell within the partition, shifted left, and the row; and its
    place inside the cell, 21 bits an axis.
    """

    records: NDArray[np.int64]
    """(blocks * 64, 2)."""
    following: NDArray[np.int32]
    """(blocks,): the next block of the chain."""
    ends: NDArray[np.int64]
    """(5, threads, partitions): what is known of each chain."""


class Table(NamedTuple):
    """Cells of some partitions, sorted: m of them."""

    key: NDArray[np.int64]
    """(m,): a place in the box of cells, z fastest, or, where those taken are numbered, the number."""
    sums: NDArray[np.int64]
    """(m, 4): sums of the places inside the cell, in steps of edge / 2^21; then, in 32 bits each, how many
    rows, and the row that stands for the cell, of those that were grouped."""
    weight: NDArray[np.int64]
    """(m,): the weight of that row, where one is picked by it; else (0,)."""
