"""Runs work over the samples of a batch on threads: the kernels release the interpreter's lock."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, wait

from ..samplers.fields import Kind
from .ops import TABLE, Call, Columns, Operator

_LITTLE_BYTES = 1 << 22  # moved in less time than threads take to wake up and share the interpreter


class Threads:
    """Up to ``threads`` threads that share the items of one piece of work at a time."""

    def __init__(self, threads: int) -> None:
        self._threads = threads
        self._pool = ThreadPoolExecutor(threads, "tamis-sample") if threads > 1 else None
        self._stopped = threading.Event()

    def each(self, work: Callable[[int], None], n: int, moved_bytes: int | None = None) -> None:
        """Call ``work(0)`` to ``work(n - 1)``, each once, in any order; raises what a call raised.

        Work that only moves ``moved_bytes`` bytes is done on the calling thread where these are few.
        """
        items = itertools.count()  # its next() is atomic: a thread takes an item when it is free

        def loop() -> None:
            while (item := next(items)) < n:
                self.go_on()
                work(item)

        little = moved_bytes is not None and moved_bytes < _LITTLE_BYTES
        if self._pool is None or n < 2 or little:
            loop()
            return
        started = [self._pool.submit(loop) for _ in range(min(self._threads, n))]
        wait(started)
        while started:  # taken out one by one, so that a raised error holds no thread
            started.pop(0).result()

    def stop(self) -> None:
        """Make the work that runs, and any that follows, end at its next item with an error."""
        self._stopped.set()

    def go_on(self) -> None:
        """Raise RuntimeError where `stop` was called."""
        if self._stopped.is_set():
            raise RuntimeError("the threads were stopped while they worked")

    def close(self) -> None:
        """End the threads; nothing may be in work."""
        if self._pool is not None:
            self._pool.shutdown()


def run(
    threads: Threads,
    clouds: list[Columns],
    graph: Sequence[Operator],
    kinds: dict[str, Kind],
    key: Callable[[int, Operator], int],
    k: int | None,
) -> None:
    """Replace every cloud of ``clouds`` by what ``graph`` makes of it.

    ``key(i, operator)`` gives the key of all random draws of one operator on cloud ``i``; it must depend on
    nothing but the seed, the epoch, the sample and the operator, so that neither threads nor the other
    samples of a batch change a result.
    """

    def work(i: int) -> None:
        for operator in graph:
            apply = TABLE[operator.settings.kind, "threads"]
            clouds[i] = apply(clouds[i], Call(operator.settings, kinds, key(i, operator), k))

    if graph:
        threads.each(work, len(clouds))
