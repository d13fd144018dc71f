"""The plan: which samples make up each global batch, decided before anything is read.

Pure. A global batch is a function of the step alone; how many replicas share it changes nothing but who
takes which part. An epoch ends with a short batch, so every sample appears exactly once in it.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..samplers.ratio import RatioSchedule
from . import order

VERSION = 1
ASSIGNMENT = 1  # samples go to replicas by position, in contiguous shares


@dataclass(frozen=True)
class Cursor:
    """A place in the run: ``step`` global batches are behind it, and ``consumed`` samples of ``epoch``.

    At the end of an epoch ``consumed`` is the epoch's length: the next one has not begun.
    """

    step: int = 0
    epoch: int = 0
    consumed: int = 0


@dataclass(frozen=True)
class GlobalBatch:
    """The batch of all replicas: ``rows`` are index rows, int64 (b,); ``k`` is None without a row limit."""

    step: int
    epoch: int
    rows: NDArray[np.int64]
    k: int | None


class Plan:
    """The global batches of a run over one split of one dataset.

    ``starts``, ``sizes``: see `order.shards_of`. ``dataset``: its fingerprint. ``graph``: the operators as
    plain values. ``multiple_of``: what k is rounded to where ``ratio`` moves it.
    """

    def __init__(
        self,
        starts: NDArray[np.int64],
        sizes: NDArray[np.int64],
        dataset: str,
        *,
        global_batch: int,
        split: str = "train",
        seed: int = 0,
        ratio: RatioSchedule | None = None,
        k: int | None = None,
        multiple_of: int = 1,
        graph: Sequence[dict[str, Any]] = (),
    ) -> None:
        self._starts, self._sizes, self.dataset = starts, sizes, dataset
        self.global_batch, self.seed = global_batch, seed
        self._ratio, self._k, self._multiple_of = ratio, k, multiple_of
        self.samples = int(sizes.sum())
        self.batches_per_epoch = -(-self.samples // global_batch)
        self.fingerprint = _digest(
            {
                "version": VERSION,
                "order": order.VERSION,
                "window": order.WINDOW,
                "split": split,
                "seed": seed,
                "global_batch": global_batch,
                "ratio": repr(ratio),
                "k": k,
                "multiple_of": multiple_of if ratio else 1,
                "graph": list(graph),
            }
        )
        self._order: tuple[int, order.Order] | None = None

    def batch(self, cursor: Cursor) -> GlobalBatch:
        """The global batch that comes after ``cursor``."""
        at = self._entered(cursor)
        rows = self._epoch(at.epoch).rows(at.consumed, self._end(at))
        return GlobalBatch(at.step, at.epoch, rows, self.k(at.step))

    def after(self, cursor: Cursor) -> Cursor:
        """The cursor once the batch that comes after ``cursor`` is done."""
        at = self._entered(cursor)
        return Cursor(at.step + 1, at.epoch, self._end(at))

    def k(self, step: int) -> int | None:
        """Rows a cloud has in the batch of ``step``."""
        if self._k is None or self._ratio is None:
            return self._k
        return self._ratio.count(step, self._k, multiple_of=self._multiple_of)

    def ends(self, cursor: Cursor, epochs: int | None) -> bool:
        """Whether nothing comes after ``cursor`` in a run of ``epochs`` epochs (None: endless)."""
        return epochs is not None and self._entered(cursor).epoch >= epochs

    def reaches(self, cursor: Cursor) -> bool:
        """Whether a run of this plan passes through ``cursor``."""
        step, epoch, consumed = cursor.step, cursor.epoch, cursor.consumed
        if cursor == Cursor():
            return True
        batches = -(-consumed // self.global_batch)
        cut = 0 < consumed <= self.samples and consumed == min(batches * self.global_batch, self.samples)
        return cut and epoch >= 0 and step == epoch * self.batches_per_epoch + batches

    def _entered(self, cursor: Cursor) -> Cursor:
        if cursor.consumed < self.samples:
            return cursor
        return replace(cursor, epoch=cursor.epoch + 1, consumed=0)

    def _end(self, cursor: Cursor) -> int:
        return min(cursor.consumed + self.global_batch, self.samples)

    def _epoch(self, epoch: int) -> order.Order:
        if self._order is None or self._order[0] != epoch:
            made = order.Order(
                self._starts, self._sizes, seed=self.seed, epoch=epoch, fingerprint=self.dataset
            )
            self._order = epoch, made
        return self._order[1]


def share(samples: int, replica: int, replicas: int) -> slice:
    """The part of a global batch of ``samples`` that ``replica`` takes: contiguous, as even as can be."""
    size, more = divmod(samples, replicas)
    start = replica * size + min(replica, more)
    return slice(start, start + size + (replica < more))


def _digest(values: dict[str, Any]) -> str:
    text = json.dumps(values, sort_keys=True, separators=(",", ":"))
    return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()
