"""Runs work over the samples of a batch on threads: the kernels release the interpreter's lock."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from functools import partial
from typing import Protocol

from ..samplers.fields import Kind
from .ops import TABLE, Call, Columns, Operator, carried
from .user_code import UserCode

Key = Callable[[int, Operator], int]
"""The key of all random draws of an operator on a cloud of the batch."""

Name = Callable[[int], str]
"""The name of a cloud of the batch, for errors."""

_LITTLE_BYTES = 1 << 22  # moved in less time than threads take to wake up and share the interpreter


class Threads:
    """Up to ``threads`` threads, the calling one among them, that share the items of one piece of work."""

    def __init__(self, threads: int) -> None:
        self._used = self.most = threads
        self._pool = ThreadPoolExecutor(threads - 1, "tamis-sample") if threads > 1 else None
        self._stopped = threading.Event()

    def use(self, threads: int) -> None:
        """Share the work that follows among ``threads`` threads, at most as many as there are."""
        self._used = min(threads, self.most)

    def each(self, work: Callable[[int], None], n: int, moved_bytes: int | None = None) -> None:
        """Call ``work(0)`` to ``work(n - 1)``, each once, in any order.

        Raises what a call raised, and begins no other after it. Work that only moves ``moved_bytes`` bytes
        is done on the calling thread where these are few.
        """
        little = moved_bytes is not None and moved_bytes < _LITTLE_BYTES
        if self._pool is None or self._used == 1 or n < 2 or little:
            for item in range(n):
                self.go_on()
                work(item)
            return
        items = itertools.count()  # its next() is atomic: a thread takes an item when it is free
        failed = threading.Event()

        def loop() -> None:
            try:
                while not failed.is_set() and (item := next(items)) < n:
                    self.go_on()
                    work(item)
            except BaseException:
                failed.set()
                raise

        started = [self._pool.submit(loop) for _ in range(min(self._used, n) - 1)]
        try:
            loop()
        finally:
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


class Engine(Protocol):
    """Runs one graph over the clouds of one batch after another; one batch at a time."""

    def run(
        self,
        clouds: list[Columns],
        key: Key,
        k: int | None,
        name: Name = str,
        annotations: list[Columns] | None = None,
    ) -> None:
        """Replace every cloud of ``clouds`` by what the graph makes of it; raises what an operator raised.

        ``key(i, operator)`` gives the key of all random draws of one operator on cloud ``i``; it must depend
        on nothing but the seed, the epoch, the sample and the operator, so that neither threads nor the other
        samples of a batch change a result. ``k``: the rows of this batch, None for no limit.
        ``name(i)``: what errors call cloud ``i``, by default its number. ``annotations``: of each cloud,
        replaced by what moves with it.
        """

    def stop(self) -> None:
        """Make a batch in work, and any that follows, end soon with RuntimeError; from another thread."""

    def close(self) -> None:
        """Give back what the engine holds, but not the threads it was given; nothing may be in work."""


class ThreadsEngine:
    """Each cloud goes through the whole graph on one thread.

    ``user`` calls functions of the user's own; `stop` stops it, whoever made it closes it.
    """

    def __init__(
        self,
        threads: Threads,
        operators: Sequence[Operator],
        kinds: dict[str, Kind],
        user: UserCode | None = None,
    ) -> None:
        self._threads, self._operators, self._kinds = threads, tuple(operators), kinds
        self._user = user

    def run(
        self,
        clouds: list[Columns],
        key: Key,
        k: int | None,
        name: Name = str,
        annotations: list[Columns] | None = None,
    ) -> None:
        """See `Engine`."""

        def work(i: int) -> None:
            for operator in self._operators:
                apply = TABLE[operator.settings.kind, "threads"]
                seed, sample = key(i, operator), partial(name, i)
                call = Call(operator.settings, self._kinds, seed, k, self._user, sample)
                if annotations is not None:
                    annotations[i] = carried(annotations[i], clouds[i], call)
                clouds[i] = apply(clouds[i], call)

        if self._operators:
            self._threads.each(work, len(clouds))

    def stop(self) -> None:
        """See `Engine`."""
        self._threads.stop()
        if self._user:
            self._user.stop()

    def close(self) -> None:
        """See `Engine`."""
