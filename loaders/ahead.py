"""Makes batches on a thread before they are asked for."""

from __future__ import annotations

import logging
import time
from collections import deque
from concurrent.futures import Future, ThreadPoolExecutor

from ..metrics import Meter
from .batches import Batches
from .pack import Batch
from .plan import Cursor, Plan
from .pool import Pool
from .slots import HostMemory

_log = logging.getLogger(__name__)

_BATCHES = 2
_CLOSE_S = 10.0


class ReadAhead:
    """Up to two batches after the one that was taken last, made in turn by one thread.

    One thread takes at a time. Work on the thread holds this object, never the Loader: a Loader that is
    dropped takes the thread along.
    """

    def __init__(self, batches: Batches, plan: Plan, epochs: int | None, meter: Meter) -> None:
        self._batches, self._plan, self._epochs, self._meter = batches, plan, epochs, meter
        self._pool = Pool(keep=4 + _BATCHES)
        self._coming: deque[tuple[Cursor, Future[Batch]]] = deque()
        self._last: Future[Batch] | None = None
        self._done_s = 0.0
        self._cursor = Cursor()
        self._thread = ThreadPoolExecutor(1, "tamis-read")
        # Started here, where an interrupt costs the whole object: one that comes while a pool starts its
        # thread makes it start another later.
        self._thread.submit(lambda: None).result()

    def take(self, cursor: Cursor) -> Batch | None:
        """The batch that comes after ``cursor``, or None after the last; raises what its making raised.

        An interrupt may come anywhere in here: the next call sees that what is coming does not go on from
        its cursor, and begins anew.
        """
        if cursor != (self._coming[0][0] if self._coming else self._cursor):
            self._restart(cursor)
        self._fill()
        if not self._coming:
            return None
        batch = self._coming.popleft()[1].result()
        self._fill()
        return batch

    def host_memory(self) -> HostMemory:
        """See `Loader.host_memory`: there is none that lasts, and any number of batches may be kept."""
        return HostMemory([], 2 + _BATCHES)

    def close(self) -> None:
        """End the thread: work on it stops at the next sample, then the shards are closed."""
        self._batches.stop()
        self._thread.shutdown(wait=False, cancel_futures=True)
        if not self._batches.close(_CLOSE_S):
            _log.warning("a read has not come back in %.0f s: its thread is left behind", _CLOSE_S)

    def _restart(self, cursor: Cursor) -> None:
        for _, future in self._coming:
            future.cancel()
        self._coming.clear()
        self._last, self._cursor = None, cursor

    def _fill(self) -> None:
        while len(self._coming) < _BATCHES and not self._plan.ends(self._cursor, self._epochs):
            if self._last and self._last.done():
                idle_s = time.perf_counter() - self._done_s
                self._meter.add("stream.deliver", wait_out_s=idle_s)
            self._last = self._thread.submit(self._make, self._cursor)
            self._coming.append((self._cursor, self._last))
            self._cursor = self._plan.after(self._cursor)

    def _make(self, cursor: Cursor) -> Batch:
        try:
            return self._batches.make(cursor, self._pool.empty)
        finally:
            self._done_s = time.perf_counter()
