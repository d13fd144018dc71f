"""Rows by a method that is chosen: the best there is for the cloud and the count, at a cost that is known."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numba import njit
from numpy.typing import NDArray

from . import draw
from .bounds import bounds
from .farthest import farthest
from .gate import as_float32, as_given, checked, share, whole
from .scratch import take
from .stratified import stratified

Method = Literal["all", "farthest", "voxel-farthest", "voxel-stratified"]

_LIMIT = 1 << 26
"""Most steps that `farthest` may take here: a second or two, as a step takes 4 to 40 ns."""

_FEW = 8
"""Where at least this many rows come to a pick, cells can stand for them."""

_LOOK = 1 << 18
"""Rows looked at to find the size of such cells; 8 a pick, where that is more."""

_TRIES = 16
"""Sizes looked at."""

_CELLS = 2.0**40
"""Cells along an axis from which on a grid is no longer made finer."""


@dataclass(frozen=True, eq=False)
class Adaptive:
    """What was chosen, and why."""

    index: Any
    """int64 (k,): different rows, all finite; numpy or torch as the cloud is."""
    method: Method
    size: float | None
    """Edge of the voxels, in the unit of the cloud; None where there are none."""
    reason: str
    """One sentence, with numbers."""


def adaptive(xyz: Any, k: int, *, seed: int = 0) -> Adaptive:
    """``k`` different rows by the method that leaves the smallest gaps among those that are quick enough.

    ``xyz``: (n, 3) real numbers, numpy or a torch CPU tensor; n counts the finite rows below. The rule:

    1. k = n: all rows, in their order.
    2. `farthest` from the first row, which leaves the smallest gaps, where it takes at most 2^26 steps: 4 n
       for sorting the rows, and for each pick 3 bits(n) + n / 2^14, for the rows and the groups of rows
       around it. That is about half of 1 million rows, or 39,000 of 10 million.
    3. Else, where k is at most n / 8: "voxel-farthest", the first row of each voxel and among these
       `farthest`. The voxels are so large that about 2 k to 4 k are occupied. Left out where there are fewer
       than k, and where even those would take too many steps.
    4. Else "voxel-stratified": `stratified` with equal shares of voxels so large that about 0.8 k to
       k are occupied; each gives a row, and ``seed`` chooses which, and which give more.

    Random rows are never chosen: they leave larger gaps in every cloud, evenly filled ones too. Steps are
    counted, not timed, so the choice is the same on every machine. docs/choosing.md has the figures for it.
    Voxels are counted from the lowest corner of the cloud, and a size is searched on a part of the rows where
    there are many. Raises UsageError as `farthest` does.
    """
    cloud, seed = checked(xyz), whole(seed, "seed")
    n = len(cloud.xyz if cloud.rows is None else cloud.rows)
    k = share(k, n, "adaptive", "finite rows")
    steps, size = _steps(n, k), None
    cost = f"{steps:,} steps for {k:,} of {n:,} rows, where {_LIMIT:,} are allowed"
    method: Method
    if k == n:
        method, index, reason = "all", np.arange(n), f"all {n:,} rows are wanted"
    elif steps <= _LIMIT or k == 0:
        method, index = "farthest", farthest(cloud.finite, k)
        reason = f"farthest point leaves the smallest gaps and takes {cost}"
    else:
        method, index, size, m = _by_cells(as_float32(cloud, "adaptive"), k, seed)
        how = "farthest point among the first rows" if method == "voxel-farthest" else "equal shares"
        reason = f"{how} of {m:,} voxels of {size:g}, as farthest point among all takes {cost}"
    rows = index if cloud.rows is None else cloud.rows[index]
    return Adaptive(as_given(rows, cloud.tensor), method, size, reason)


def _steps(n: int, k: int) -> int:
    return 4 * n + k * (3 * n.bit_length() + n // 2**14)


def _by_cells(points: NDArray[np.float32], k: int, seed: int) -> tuple[Method, NDArray[np.int64], float, int]:
    """Method, rows, voxel size and number of voxels, where all rows are too many to pick among."""
    lowest, highest, _ = bounds(points)
    low = lowest.astype(np.float64)
    n, extent = len(points), float((highest - low).max())
    codes = take(n, np.int32 if n < 2**31 else np.int64)
    look = points
    if _FEW * k <= n and n > max(_LOOK, _FEW * k):
        rows = draw.hashes(draw.key("adaptive", seed), max(_LOOK, _FEW * k)) % np.uint64(n)
        look = points[rows.astype(np.int64)]
    if _FEW * k <= n and _steps(4 * k, k) <= _LIMIT:
        size = _size(look, low, extent, 2 * k, 4 * k, codes)
        first = np.empty(min(16 * k, n), np.int64)
        m = _number(points, low, size, codes, first)
        if k <= m:
            return "voxel-farthest", first[farthest(points[first[:m]], k)], size, m
    size = _size(look, low, extent, 4 * k // 5, k, codes)
    m = _number(points, low, size, codes, np.empty(n, np.int64))
    return "voxel-stratified", stratified(codes, k, seed=seed), size, m


def _size(
    points: NDArray[np.float32],
    low: NDArray[np.float64],
    extent: float,
    least: int,
    most: int,
    codes: NDArray[Any],
) -> float:
    """A voxel size, of four digits, with ``least`` to ``most`` voxels occupied by ``points``.

    Where no size has so many, as with many copies of a position, the smallest tried with fewer. The number of
    occupied voxels grows like size^-d; d, the cloud's dimension, is measured at two sizes and used for the
    next, inside what is known to be too small and too large.
    """
    if not extent > 0:
        return 1.0
    first = np.empty(max(2 * most, 1), np.int64)
    fine, coarse = extent / _CELLS, extent * 2  # too many voxels, and too few
    size, before, dimension = extent / math.sqrt(most), None, 2.0
    for _ in range(_TRIES):
        size = float(f"{size:.4g}")
        m = _number(points, low, size, codes, first)
        if least <= m <= most:
            return size
        m = len(first) if m < 0 else max(m, 1)
        if m > most:
            fine = size
        else:
            coarse = size
        if before is not None and before[0] != size and before[1] != m:
            dimension = min(max(math.log(m / before[1]) / math.log(before[0] / size), 0.5), 4.0)
        before = size, m
        size *= (m / math.sqrt(max(least, 1) * most)) ** (1 / dimension)
        if not fine < size < coarse:
            size = math.sqrt(fine * coarse)
        if coarse < 1.001 * fine:
            break
    return coarse


@njit(cache=True, nogil=True, error_model="numpy")
def _number(
    points: NDArray[np.float32],
    low: NDArray[np.float64],
    size: float,
    codes: NDArray[Any],
    first: NDArray[np.int64],
) -> int:
    """Number the occupied voxels as they come: of each point its voxel, of each voxel its first point.

    Returns how many they are, or -1 as soon as they are more than ``first`` has room for. A voxel is told by
    a 64-bit hash of its place: two that share one, in a cloud of a million voxels once in 3e7, count as one.
    """
    slots = 16
    while slots < 2 * len(first):
        slots *= 2
    table = np.zeros((slots, 2), np.uint64)  # hash of a voxel, and its number, counted from 1
    mask, m = np.uint64(slots - 1), 0
    for i in range(len(points)):
        word = np.uint64(0)
        for axis in range(3):
            place = np.int64(np.floor((np.float64(points[i, axis]) - low[axis]) / size))
            word = draw.mix((word + np.uint64(1)) ^ np.uint64(place))
        at = word & mask
        while table[at, 1] > 0 and table[at, 0] != word:
            at = (at + np.uint64(1)) & mask
        if table[at, 1] == 0:
            if m == len(first):
                return -1
            first[m] = i
            m += 1
            table[at, 0], table[at, 1] = word, m
        codes[i] = np.int64(table[at, 1]) - 1
    return m
