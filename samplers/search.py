"""Exact search for the farthest row, again and again, that skips what a pick cannot change.

Each row keeps d, the squared distance to the nearest picked row, and a pick lowers the d of rows around it
only. So rows are sorted along a Morton curve into blocks of 128 with a tight box each, sixteen blocks to a
group, and a pick visits only the blocks whose box is nearer to it than the largest d inside (bucket search:
Han et al., "QuickFPS", 2023).

Skipping is exact, not nearly so. A box's distance is computed by the same float32 operations in the same
order as a point's, from parts that are no larger, and rounding never swaps the order of two numbers. So every
point of a box is at least as far, as computed, as its box: where that is no less than the largest d, no
minimum changes.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numba import njit
from numpy.typing import NDArray

from .curve import morton_order

_BLOCK = 128
_GROUP = 16
_X, _Y, _Z, _D = 0, 1, 2, 3  # the four lines of a block
_MAX = 6  # the seventh line of a group's boxes: the largest d of each block
_PICKED = np.float32(-1)  # the d of picked rows and of padding: less than every distance
_LOWEST = np.int32(-(2**31))


def search(points: NDArray[np.float32], k: int, first: int) -> NDArray[np.int64]:
    """``k`` rows of ``points``, float32 (n, 3) in C order, from row ``first`` on: int64 (k,).

    The points must be finite, their squared distances too, and 0 < k <= n.
    """
    # Sorted by a call of its own: numba would not notice a change in another file in what it has inlined.
    index = np.empty(k, np.int64)
    _search(points, morton_order(points), first, index)
    return index


class _Tree(NamedTuple):
    """The points in blocks, the blocks in groups, and what is known of each."""

    blocks: NDArray[np.float32]
    """(blocks, 4, 128): x, y, z and d of each block's points, in lines of their own."""
    boxes: NDArray[np.float32]
    """(groups, 7, 16): low x, high x, low y, high y, low z, high z and largest d of each block of a group."""
    hulls: NDArray[np.float32]
    """(6, groups): the same bounds of whole groups."""
    highs: NDArray[np.float32]
    """(groups, up to a multiple of 8): largest d of each group."""
    ties: NDArray[np.int32]
    """(blocks,): lane of the lowest row that has its block's largest d; -1 where not known."""
    near: NDArray[np.uint8]
    """(groups, up to a multiple of 8): whether the last pick may change the group."""
    near_blocks: NDArray[np.uint8]
    """(16,): the same of the blocks of one group."""
    block_bits: NDArray[np.int32]
    """The same memory as ``blocks``. Distances, and -1, order alike as int32, whose maximum vectorises."""
    box_bits: NDArray[np.int32]
    """The same memory as ``boxes``."""
    high_bits: NDArray[np.int32]
    """The same memory as ``highs``."""
    near_eights: NDArray[np.uint64]
    """The same memory as ``near``, so that eight groups out of reach are passed over at once."""


@njit(cache=True, nogil=True, error_model="numpy")
def _search(points: NDArray[np.float32], order: NDArray[Any], first: int, index: NDArray[np.int64]) -> None:
    """Fill ``index`` with rows of ``points`` from ``first`` on; ``order`` is their Morton order."""
    tree = _tree(points, order)
    at = 0
    while order[at] != first:
        at += 1
    for i in range(index.size):
        index[i] = order[at]
        tree.blocks[at // _BLOCK, _D, at % _BLOCK] = _PICKED
        if i + 1 < index.size:
            _update(tree, at // _BLOCK, at % _BLOCK)
            at = _pick(tree, order)


@njit(cache=True, nogil=True, error_model="numpy", inline="always")
def _tree(points: NDArray[np.float32], order: NDArray[Any]) -> _Tree:
    """Blocks of the points in ``order``, and their boxes; every d infinite.

    The last group is filled up with copies of the last point that count as picked, so that the loops over
    lanes and blocks have constant lengths and vectorise.
    """
    n = len(points)
    groups = (n + _BLOCK * _GROUP - 1) // (_BLOCK * _GROUP)
    blocks = np.empty((groups * _GROUP, 4, _BLOCK), np.float32)
    boxes = np.empty((groups, 7, _GROUP), np.float32)
    hulls = np.empty((6, groups), np.float32)
    highs = np.full((groups + 7) // 8 * 8, _PICKED)
    highs[:groups] = np.inf
    ties = np.full(groups * _GROUP, -1, np.int32)
    near = np.zeros((groups + 7) // 8 * 8, np.uint8)
    for b in range(groups * _GROUP):
        for lane in range(_BLOCK):
            at = b * _BLOCK + lane
            row = order[min(at, n - 1)]
            blocks[b, _X, lane] = points[row, 0]
            blocks[b, _Y, lane] = points[row, 1]
            blocks[b, _Z, lane] = points[row, 2]
            blocks[b, _D, lane] = np.float32(np.inf) if at < n else _PICKED
        g, j = b // _GROUP, b % _GROUP
        for axis in range(3):
            low = high = blocks[b, axis, 0]
            for lane in range(_BLOCK):
                value = blocks[b, axis, lane]
                low = value if value < low else low
                high = value if value > high else high
            boxes[g, 2 * axis, j], boxes[g, 2 * axis + 1, j] = low, high
        boxes[g, _MAX, j] = blocks[b, _D, 0]  # infinite, or padding throughout
    for g in range(groups):
        for axis in range(3):
            hulls[2 * axis, g] = boxes[g, 2 * axis].min()
            hulls[2 * axis + 1, g] = boxes[g, 2 * axis + 1].max()
    return _Tree(
        blocks,
        boxes,
        hulls,
        highs,
        ties,
        near,
        np.empty(_GROUP, np.uint8),
        blocks.view(np.int32),
        boxes.view(np.int32),
        highs.view(np.int32),
        near.view(np.uint64),
    )


@njit(cache=True, nogil=True, error_model="numpy", inline="always")
def _update(tree: _Tree, picked: int, lane: int) -> None:
    """Lower the d of every row to its distance from the row just picked, where that can change it."""
    x, y, z = tree.blocks[picked, _X, lane], tree.blocks[picked, _Y, lane], tree.blocks[picked, _Z, lane]
    own = picked // _GROUP
    for g in range(tree.hulls.shape[1]):
        dx = _outside(tree.hulls[0, g], tree.hulls[1, g], x)
        dy = _outside(tree.hulls[2, g], tree.hulls[3, g], y)
        dz = _outside(tree.hulls[4, g], tree.hulls[5, g], z)
        tree.near[g] = 1 if dx * dx + dy * dy + dz * dz < tree.highs[g] else 0
    tree.near[own] = 1  # the picked row left its block, whose largest d may have been its own
    for e in range(tree.near_eights.size):
        if tree.near_eights[e] == 0:
            continue
        for g in range(e * 8, e * 8 + 8):
            if tree.near[g] == 0:
                continue
            for j in range(_GROUP):
                dx = _outside(tree.boxes[g, 0, j], tree.boxes[g, 1, j], x)
                dy = _outside(tree.boxes[g, 2, j], tree.boxes[g, 3, j], y)
                dz = _outside(tree.boxes[g, 4, j], tree.boxes[g, 5, j], z)
                tree.near_blocks[j] = 1 if dx * dx + dy * dy + dz * dz < tree.boxes[g, _MAX, j] else 0
            if g == own:
                tree.near_blocks[picked - own * _GROUP] = 1
            for j in range(_GROUP):
                if tree.near_blocks[j] != 0:
                    _lower(tree, g, j, x, y, z)
            most = _LOWEST
            for j in range(_GROUP):
                most = max(most, tree.box_bits[g, _MAX, j])
            tree.high_bits[g] = most


@njit(cache=True, nogil=True, error_model="numpy", inline="always")
def _outside(low: np.float32, high: np.float32, value: np.float32) -> np.float32:
    """How far ``value`` lies outside [low, high]: 0 within."""
    below, above = low - value, value - high
    most = below if below > above else above
    return most if most > np.float32(0) else np.float32(0)


@njit(cache=True, nogil=True, error_model="numpy", inline="always")
def _lower(tree: _Tree, g: int, j: int, x: np.float32, y: np.float32, z: np.float32) -> None:
    """Lower the d of block ``j`` of group ``g`` to the distances from a point, and so its largest d."""
    b = g * _GROUP + j
    for lane in range(_BLOCK):
        dx = tree.blocks[b, _X, lane] - x
        dy = tree.blocks[b, _Y, lane] - y
        dz = tree.blocks[b, _Z, lane] - z
        d = dx * dx + dy * dy + dz * dz
        old = tree.blocks[b, _D, lane]
        tree.blocks[b, _D, lane] = d if d < old else old
    most = _LOWEST
    for lane in range(_BLOCK):
        most = max(most, tree.block_bits[b, _D, lane])
    tree.box_bits[g, _MAX, j] = most
    tree.ties[b] = -1


@njit(cache=True, nogil=True, error_model="numpy")
def _pick(tree: _Tree, order: NDArray[Any]) -> int:
    """Where in ``order`` the row with the largest d is; of several, the lowest row.

    On a lattice very many rows tie: ``ties`` saves searching their blocks again for every pick.
    """
    most = _LOWEST
    for g in range(tree.high_bits.size):
        most = max(most, tree.high_bits[g])
    best, at = len(order), 0
    for e in range(tree.near_eights.size):
        hit = False
        for g in range(e * 8, e * 8 + 8):
            hit |= tree.high_bits[g] == most
        if not hit:
            continue
        for g in range(e * 8, e * 8 + 8):
            if tree.high_bits[g] != most:
                continue
            for j in range(_GROUP):
                if tree.box_bits[g, _MAX, j] == most:
                    b = g * _GROUP + j
                    if tree.ties[b] < 0:
                        tree.ties[b] = _lowest_row(tree, order, b, most)
                    row = order[b * _BLOCK + tree.ties[b]]
                    if row < best:
                        best, at = row, b * _BLOCK + tree.ties[b]
    return at


@njit(cache=True, nogil=True, error_model="numpy")
def _lowest_row(tree: _Tree, order: NDArray[Any], b: int, most: np.int32) -> int:
    """Lane of the lowest row of block ``b`` whose d is ``most``."""
    lowest, at = len(order), 0
    for lane in range(_BLOCK):
        if tree.block_bits[b, _D, lane] == most:
            row = order[b * _BLOCK + lane]
            if row < lowest:
                lowest, at = row, lane
    return at
