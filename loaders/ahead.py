"""Makes batches on a thread before they are asked for."""

from __future__ import annotations

import logging
import time
from collections import deque
from concurrent.futures import Future, ThreadPoolExecutor, wait

from ..metrics import Meter
from .batches import Batches
from .pack import Batch
from .plan import Cursor, Plan

_log = logging.getLogger(__name__)

_BATCHES = 2
_CLOSE_S = 10.0


class ReadAhead:
    """Up to two batches after the one that was taken last, made in turn by one thread.

    Work on the thread holds this object, never the Loader: a Loader that is dropped takes the thread along.
    """

    def __init__(self, batches: Batches, plan: Plan, epochs: int | None, meter: Meter) -> None:
        self._batches, self._plan, self._epochs, self._meter = batches, plan, epochs, meter
        self._thread = ThreadPoolExecutor(1, "tamis-read")
        self._coming: deque[Future[Batch]] = deque()
        self._last: Future[Batch] | None = None
        self._done_s = 0.0
        self._cursor = Cursor()

    def restart(self, cursor: Cursor) -> None:
        """Make what comes after ``cursor`` next; what was made ahead is dropped."""
        for future in self._coming:
            future.cancel()
        self._coming.clear()
        self._last, self._cursor = None, cursor

    def take(self) -> Batch | None:
        """The next batch, or None after the last; raises what its making raised."""
        self._fill()
        if not self._coming:
            return None
        batch = self._coming.popleft().result()
        self._fill()
        return batch

    def close(self) -> None:
        """End the thread: work on it stops at the next sample, then the shards are closed."""
        self._batches.stop()
        self.restart(self._cursor)
        closed = self._thread.submit(self._batches.close)
        self._thread.shutdown(wait=False)
        if wait([closed], _CLOSE_S).not_done:
            _log.warning("a read has not come back in %.0f s: its thread is left behind", _CLOSE_S)

    def _fill(self) -> None:
        while len(self._coming) < _BATCHES and not self._plan.ends(self._cursor, self._epochs):
            if self._last and self._last.done():
                idle_s = time.perf_counter() - self._done_s
                self._meter.add("stream.deliver", wait_out_s=idle_s)
            self._last = self._thread.submit(self._make, self._cursor)
            self._coming.append(self._last)
            self._cursor = self._plan.after(self._cursor)

    def _make(self, cursor: Cursor) -> Batch:
        try:
            return self._batches.make(cursor)
        finally:
            self._done_s = time.perf_counter()
