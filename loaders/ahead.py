"""Makes batches on a thread before they are asked for."""

from __future__ import annotations

import logging
import time
from collections import deque
from concurrent.futures import ThreadPoolExecutor
from queue import SimpleQueue

from ..metrics import Meter
from .batches import Batches
from .pack import Batch
from .plan import Cursor, Plan
from .pool import Pool
from .slots import HostMemory

_log = logging.getLogger(__name__)

_BATCHES = 2
_CLOSE_S = 10.0


class Run:
    """Batches that follow one another from ``cursor``, which is that of the next to ask for.

    ``asked``: cursors whose batch was asked for and not taken; ``to_make``: those of them that the thread
    has not begun. ``made``: cursors and their batches, or what their making raised, in the same order.
    """

    def __init__(self, cursor: Cursor) -> None:
        self.cursor = cursor
        self.asked, self.to_make = deque[Cursor](), deque[Cursor]()
        self.made: SimpleQueue[tuple[Cursor | None, Batch | BaseException]] = SimpleQueue()
        self.working = self.dropped = False
        self.idle_since_s: float | None = None

    def ask(self, after: Cursor) -> None:
        """Ask for one more; ``after``: the cursor behind it. An interrupt leaves none that nobody makes."""
        self.to_make.append(self.cursor)
        self.asked.append(self.cursor)
        self.cursor = after

    def next(self) -> Cursor:
        """The cursor of the batch that comes next."""
        return self.asked[0] if self.asked else self.cursor


class ReadAhead:
    """Up to two batches after the one that was taken last, made in turn by one thread.

    One thread takes at a time. Work on the thread holds this object, never the Loader: a Loader that is
    dropped takes the thread along.
    """

    def __init__(self, batches: Batches, plan: Plan, epochs: int | None, meter: Meter) -> None:
        self._batches, self._plan, self._epochs, self._meter = batches, plan, epochs, meter
        self._pool = Pool(keep=4 + _BATCHES)
        self._run = Run(Cursor())
        self._thread = ThreadPoolExecutor(1, "tamis-read")
        # Started here, where an interrupt costs the whole object: one that comes while a pool starts its
        # thread makes it start another later.
        self._thread.submit(lambda: None).result()

    def take(self, cursor: Cursor) -> Batch | None:
        """The batch that comes after ``cursor``, or None after the last; raises what its making raised.

        An interrupt may come anywhere in here: the next call sees that what is coming does not go on from
        its cursor, and begins anew.
        """
        while True:
            if cursor != self._run.next():
                before, self._run = self._run, Run(cursor)
                before.dropped = True
            run = self._run
            self._fill(run)
            if not run.asked:
                return None
            run.asked.popleft()
            self._fill(run)
            made, batch = run.made.get()
            if made != cursor:  # an interrupt has lost one, or the loader is closed
                continue
            if isinstance(batch, BaseException):
                try:
                    raise batch
                finally:
                    del batch  # it holds this frame
            return batch

    def host_memory(self) -> HostMemory:
        """See `Loader.host_memory`: there is none that lasts, and any number of batches may be kept."""
        return HostMemory([], 2 + _BATCHES)

    def close(self) -> None:
        """End the thread: work on it stops at the next sample, then the shards are closed."""
        self._batches.stop()
        self._thread.shutdown(wait=False, cancel_futures=True)
        self._run.made.put((None, RuntimeError("closed")))  # for a thread that waits
        if not self._batches.close(_CLOSE_S):
            _log.warning("a read has not come back in %.0f s: its thread is left behind", _CLOSE_S)

    def _fill(self, run: Run) -> None:
        while len(run.asked) < _BATCHES and not self._plan.ends(run.cursor, self._epochs):
            run.ask(self._plan.after(run.cursor))
        if run.to_make and not run.working:
            if run.idle_since_s is not None:
                self._meter.add("stream.deliver", wait_out_s=time.perf_counter() - run.idle_since_s)
                run.idle_since_s = None
            self._thread.submit(self._work, run)  # where it still works, that finds nothing to do

    def _work(self, run: Run) -> None:
        """Make what was asked for until there is no more. To be called where ``working`` is not set."""
        while run.to_make and not run.dropped:
            run.working = True
            while run.to_make and not run.dropped:
                self._make(run, run.to_make.popleft())
            run.idle_since_s = time.perf_counter()
            run.working = False  # whoever asks from now on starts this anew; look whether one did before

    def _make(self, run: Run, cursor: Cursor) -> None:
        try:
            run.made.put((cursor, self._batches.make(cursor, self._pool.empty)))
        except BaseException as error:  # noqa: BLE001 - it is raised where the batch is taken
            run.made.put((cursor, error))
