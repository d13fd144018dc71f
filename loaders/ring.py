"""The state of a ring: which batch each slot holds and who is done with it.

Pure: the state is words in an array, which may lie in shared memory, and nothing here waits. A ring gives
every reader every batch, in order; a batch is put into any slot that all readers are done with, so that one
that is kept for long takes one slot from the rest and no more. Every word has one writer (the feeder has one
a slot, each reader has one a slot): a process killed at any point leaves no lock held and nothing half done.
"""

from __future__ import annotations

from collections.abc import Collection

import numpy as np
from numpy.typing import NDArray

_GONE = np.uint64(2**64 - 1)


class Ring:
    """The words of a ring, uint64 (slots, 1 + readers), zero at the start.

    Batches are counted from 0. Word 0 of a slot is 1 + the batch that lies there, word 1 + r is 1 + the last
    one there that reader r released.
    """

    def __init__(self, words: NDArray[np.uint64]) -> None:
        self._words = words
        self.slots, self.readers = words.shape[0], words.shape[1] - 1

    def free(self) -> int | None:
        """A slot that may be written, if there is one: every reader has released what lies there."""
        done = (self._words[:, 1:] >= self._words[:, :1]).all(axis=1)
        return int(done.argmax()) if done.any() else None

    def publish(self, slot: int, seq: int) -> None:
        """The feeder has written batch ``seq``: readers may take it."""
        self._words[slot, 0] = seq + 1

    def slot(self, seq: int) -> int | None:
        """Where batch ``seq`` lies, None before it is published."""
        found = self._words[:, 0] == seq + 1
        return int(found.argmax()) if found.any() else None

    def release(self, slot: int, seq: int, reader: int) -> None:
        """``reader`` will not look at batch ``seq`` again."""
        self._words[slot, 1 + reader] = seq + 1

    def released(self, slot: int, seq: int, reader: int) -> bool:
        """Whether ``reader`` has released batch ``seq``, which lay in ``slot``."""
        return bool(self._words[slot, 1 + reader] > seq)

    def leave(self, reader: int, kept: Collection[int] = ()) -> None:
        """``reader`` takes no more batches, and nobody waits for it, but for the slots ``kept``."""
        for slot in set(range(self.slots)) - set(kept):
            self._words[slot, 1 + reader] = _GONE

    def held(self, reader: int) -> list[int]:
        """The slots that wait for ``reader`` to release what lies there."""
        return np.flatnonzero(self._words[:, 1 + reader] < self._words[:, 0]).tolist()
