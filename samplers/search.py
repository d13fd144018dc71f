"""Exact search for the farthest row, again and again, that skips what a pick cannot change.

Each row keeps d, the squared distance to the nearest picked row, and a pick lowers the d of rows around it
only. So the rows are sorted along a Morton curve into blocks of 64, sixteen blocks make a group, sixteen
groups a region, and each of them knows the box around its points and the largest d among them. A pick
descends only where a box is nearer to it than the largest d inside (bucket search: Han et al., "QuickFPS",
2023). The next pick is found from the top as well: along the largest d.

It is exact, not nearly so:

- A box's distance is computed by the same float32 operations in the same order as a point's, from parts that
  are no larger, and rounding never swaps the order of two numbers. So every point of a box is at least as
  far, as computed, as its box: where that is no less than the largest d inside, no minimum changes.
- Minima and maxima are of the same numbers in whatever order, and nothing else is computed. The compiler may
  neither reassociate nor contract, as the kernels are not compiled with fastmath.
- Of all rows with the largest d the lowest is picked: every block that holds one is asked for its lowest.
- d is 0 for picked rows. Once it is 0 for all, the rest are copies, and follow in the order of their rows.

The order of the rows, and so the boxes, have a say in the time alone. That of n rows and k picks is O(n) for
the sorting and then mostly k times the rows around a pick, which are n / k times a constant, so O(n log k) in
all, and for each pick one look at every region of 16,384 rows. A million rows and 16,384 picks take about a
tenth of a second, ten million rows and a thousand picks about one. Memory: 40 bytes a row while it runs.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from .scratch import take
from .tree import BLOCK_BYTES, BOXES_BYTES, GROUP, WAYS, search_tree

_WORTH = 64  # picks' even share of the rows: where more than it share a cell, sorting them further pays


def search(points: NDArray[np.float32], k: int, first: int) -> NDArray[np.int64]:
    """``k`` rows of ``points``, float32 (n, 3) in C order, from row ``first`` on: int64 (k,).

    The points must be finite, their squared distances too, and 0 < k <= n < 2^31.
    """
    n = len(points)
    groups = -(-n // GROUP)
    regions = -(-groups // WAYS)
    lines = groups * GROUP * 16  # bytes of the sorted records
    size = lines + groups * (WAYS * BLOCK_BYTES + BOXES_BYTES) + regions * BOXES_BYTES
    room = take(size + 64, np.uint8)
    room = room[-room.ctypes.data % 64 :]  # from a cache line on: no vector lies across two
    records, tree = room[:lines].view(np.float32).reshape(-1, 4), room[lines:]
    index = np.empty(k, np.int64)
    found = search_tree(points, records, tree, _WORTH * n // k, first, index)
    if found < k:  # only copies of picked rows are left
        left = take(n, np.bool)
        left[:] = True
        left[index[:found]] = False
        index[found:] = np.flatnonzero(left)[: k - found]
    return index
