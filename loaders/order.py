"""The order of an epoch: a keyed permutation that is computed where it is asked for and stored nowhere.

The shards of a split are permuted, then the samples inside a window of consecutive permuted shards, so that
a run of positions touches few files. The order depends on the seed, the epoch and the dataset's fingerprint
alone: never on ranks, threads or nodes.

Method: a Feistel network is a bijection whatever its round function (Luby and Rackoff, 1988); values that
fall outside the domain are sent through it again until they fall inside (cycle walking: Black and Rogaway,
2002).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np
from numba import njit
from numpy.typing import NDArray

from ..samplers import draw

VERSION = 1
WINDOW = 16  # shards whose samples are mixed
_ROUNDS = 6
_AHEAD = 1024  # positions computed at a time: a call costs more than many of them


class _Range(Protocol):
    @property
    def shards(self) -> tuple[int, int]: ...
    @property
    def rows(self) -> tuple[int, int]: ...


def permute(positions: NDArray[np.int64], n: int, key: int) -> NDArray[np.int64]:
    """Where the permutation of ``range(n)`` that ``key`` names sends each position, int64 (m,)."""
    half = max(1, ((n - 1).bit_length() + 1) // 2)
    keys = draw.hashes(draw.key(key, "feistel"), _ROUNDS)
    walked = _walk(positions.astype(np.uint64), np.uint64(n), keys, np.uint64(half))
    return np.asarray(walked.astype(np.int64))


@njit(cache=True, nogil=True, error_model="numpy")
def _walk(positions, n, keys, half):  # type: ignore[no-untyped-def]
    mask = (np.uint64(1) << half) - np.uint64(1)
    walked = np.empty_like(positions)
    for i in range(positions.size):
        value = positions[i]
        while True:
            left, right = value >> half, value & mask
            for j in range(keys.size):
                left, right = right, left ^ (draw.mix(right ^ keys[j]) & mask)
            value = (left << half) | right
            if value < n:
                break
        walked[i] = value
    return walked


def shards_of(
    ranges: Sequence[_Range], shard: NDArray[np.int32]
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """First index row and number of samples of every shard of a split, int64 (shards,) each.

    ``ranges``: the split's ranges of shards and of index rows; ``shard``: each index row's shard, ascending.
    """
    edges = [
        np.searchsorted(shard[r.rows[0] : r.rows[1]], np.arange(r.shards[0], r.shards[1] + 1)) + r.rows[0]
        for r in ranges
    ]
    none = np.zeros(0, np.int64)
    return np.concatenate([none, *(e[:-1] for e in edges)]), np.concatenate([none, *map(np.diff, edges)])


class Order:
    """The order of one epoch over shards that begin at index rows ``starts`` and hold ``sizes`` samples."""

    def __init__(
        self, starts: NDArray[np.int64], sizes: NDArray[np.int64], *, seed: int, epoch: int, fingerprint: str
    ) -> None:
        self._key = draw.key("order", VERSION, seed, epoch, fingerprint)
        shards = permute(np.arange(len(sizes)), len(sizes), draw.key(self._key, "shards"))
        self._starts = starts[shards]
        self._edges = np.concatenate([[0], np.cumsum(sizes[shards])])
        self._windows = np.append(self._edges[:-1:WINDOW], self._edges[-1])
        self.samples = int(self._edges[-1])
        self._known = 0, np.zeros(0, np.int64)  # the first of some positions, and their rows

    def rows(self, start: int, stop: int) -> NDArray[np.int64]:
        """The index rows at positions ``start`` to ``stop`` of the epoch, int64 (stop - start,)."""
        if not 0 <= start <= stop <= self.samples:
            raise IndexError(f"positions {start} to {stop} of an epoch of {self.samples}")
        first, known = self._known
        if not first <= start <= stop <= first + len(known):
            first, known = start, self._rows(start, max(stop, min(start + _AHEAD, self.samples)))
            known.setflags(write=False)  # what is given out is a part of it
            self._known = first, known
        return known[start - first : stop - first]

    def _rows(self, start: int, stop: int) -> NDArray[np.int64]:
        parts = [np.zeros(0, np.int64)]
        while start < stop:
            window = int(np.searchsorted(self._windows, start, side="right")) - 1
            first, last = int(self._windows[window]), int(self._windows[window + 1])
            local = np.arange(start, min(stop, last)) - first
            parts.append(first + permute(local, last - first, draw.key(self._key, "window", window)))
            start = min(stop, last)
        places = np.concatenate(parts)
        shard = np.searchsorted(self._edges, places, side="right") - 1
        return np.asarray(self._starts[shard] + places - self._edges[shard])
