"""Random rows without replacement, the same on every machine."""

from __future__ import annotations

import math

import numpy as np
from numba import njit
from numpy.typing import NDArray

from ..errors import UsageError
from . import draw
from .gate import room, share, whole
from .scratch import take

_SPARE = 4
"""Standard deviations above k that hashes are kept for: fewer than one call in 30,000 must try again."""

_MOST = 2**40
"""Rows: hashing these takes some 20 minutes."""

_CHUNK = 1 << 18
"""Rows hashed at once: the memory does not follow n, and Ctrl-C is heard between them."""

_GOLDEN = draw.CONSTANTS[0]


def random(n: int, k: int, *, seed: int = 0, id: int = 0) -> NDArray[np.int64]:
    """``k`` different rows of ``n``: those with the smallest hashes of (seed, id, row), smallest first.

    Returns int64 (k,). The first j of them are ``random(n, j)``, and all n are a shuffle. Two rows never have
    equal hashes, so there are no ties. Every row is hashed, so it takes a time that follows n, and memory
    that follows k. Raises UsageError unless 0 <= k <= n <= 2^40, and for k rows larger than the memory.
    """
    n, key = whole(n, "n"), draw.key("random", whole(seed, "seed"), whole(id, "id"))
    if not 0 <= n <= _MOST:
        raise UsageError("random", f"n is {n}", "give the number of rows, 0 to 2^40: every one is hashed")
    k = share(k, n, "random")
    if k == 0:
        return np.empty(0, np.int64)
    room(8 * k, "random", "take fewer rows")
    # Hashes alone are sorted, several times quicker than rows by their hashes: each hash tells its row.
    return draw.rows(key, _least(key, n, k))


def _least(key: int, n: int, k: int) -> NDArray[np.uint64]:
    """The ``k`` smallest of ``n`` hashes, rising: uint64 (k,).

    Hashes are spread evenly, so those up to a share of the range that is a little above k / n nearly always
    are k or more. Where they are fewer, or far more, a larger share is tried, in the end all.
    """
    if k == n:
        hashes = draw.hashes(key, n)
        hashes.sort()
        return hashes
    spare, m = _SPARE * (math.isqrt(k) + 2), -1
    while m < k:
        last = min((k + spare) * 2**64 // n, 2**64) - 1
        most, m = k + 3 * spare, 0
        kept = take(min(most + _CHUNK, n), np.uint64)
        for start in range(0, n, _CHUNK):
            if m > most:
                m = -1
                break
            here = np.uint64((key + start * _GOLDEN) % 2**64)
            m += _up_to(np.uint64(last), here, min(_CHUNK, n - start), kept[m:])
        spare = 2 * spare + 1
    kept[:m].sort()
    return kept[:k].copy()


@njit(cache=True, nogil=True, error_model="numpy")
def _up_to(last: np.uint64, key: np.uint64, n: int, kept: NDArray[np.uint64]) -> int:
    """Fill in the hashes of the next n rows that are at most ``last``; returns how many.

    Each is written, and stays where the next is written behind it: a branch would be mispredicted too often.
    """
    m = 0
    for row in range(n):
        kept[m] = draw.mix(key + (np.uint64(row) + np.uint64(1)) * np.uint64(_GOLDEN))
        m += kept[m] <= last
    return m
