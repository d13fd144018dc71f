"""What the kernels of the voxel grid (`cells`) read and write."""

from __future__ import annotations

from typing import Any, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

Whole: TypeAlias = Any
"""A whole number in a kernel, Python's or numpy's."""


class Where(NamedTuple):
    """The grid, and the box of cells that the cloud touches."""

    origin: NDArray[np.float64]
    """(3,): what points are relative to."""
    corner: NDArray[np.float64]
    """(3,): a corner of the grid."""
    size: float
    low: NDArray[np.float64]
    """(3,): the lowest cell numbers."""
    width_y: float
    """Cells of the box along y."""
    width_z: float
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
    """(cells, 8), as they came up: key, rows, sums of places on x, y and z, the row picked and its weight."""
    lanes: NDArray[np.float64]
    """(cells, 2, w): sums of the lanes, and their rounding errors."""
    order: NDArray[np.int64]
    """(2, cells): for the sort."""


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
    first: NDArray[np.int32]
    """(threads, partitions): the first block of each chain, -1 where it has none."""
    last: NDArray[np.int32]
    """(threads, partitions): the last block."""
    blocks: NDArray[np.int64]
    """(threads, partitions): how many blocks."""
    end: NDArray[np.int64]
    """(threads, partitions): where the next record goes; a multiple of 64 where that takes a new block."""


class Table(NamedTuple):
    """Cells of some partitions, sorted: m of them."""

    key: NDArray[np.int64]
    """(m,): places in the box of cells, z fastest, or numbers of cells where those taken are numbered."""
    counts: NDArray[np.int64]
    """(m,): rows of each."""
    row: NDArray[np.int64]
    """(m,): the row that stands for each, of those that were partitioned."""
    weight: NDArray[np.int64]
    """(m,) where a row is picked by weight: the least, of several the lowest row's; else (0,)."""
    steps: NDArray[np.int64]
    """(m, 3) where asked for: sums of the places inside the cell, in steps of edge / 2^21; else (0, 3)."""
    mean: NDArray[np.float32]
    """(m, 3) for "centroid": mean of the rows, relative to the grid's origin; else (0, 3)."""
    lanes: NDArray[np.float64]
    """(m, w): sums of the lanes."""
