"""One worker for user code, as its parent sees it: started, asked, watched and ended."""

from __future__ import annotations

import os
import select
import signal
import sys
import time
from collections.abc import Sequence
from contextlib import suppress

from ..errors import from_plain
from ..processes import Watch
from .ops.call import Columns
from .spawn import ending, spawned
from .user_messages import Garbled, message, received

_LOOK_S = 0.2  # between two looks at a worker that says nothing
_HANG_UP_S = 0.5  # from the end of a process's pipes to its own
_KILL_S = 2.0  # from a kill to the end; longer only where the system holds the process


class Lost(Exception):
    """A worker that is of no more use: ``cause``, a predicate of the worker, and what to do."""

    def __init__(self, cause: str, fix: str) -> None:
        super().__init__(cause)
        self.cause, self.fix = cause, fix


class UserProcess:
    """A process for one call at a time, with this process's ``sys.path`` and, last, its working folder.

    It is killed by the kernel when the thread that made it ends, however that comes. ``wake``: a descriptor
    that ends a call by becoming readable.
    """

    def __init__(self, wake: int) -> None:
        path = [entry for entry in sys.path if isinstance(entry, str)]
        self._process = spawned("user_worker", [*path, ""])
        assert self._process.stdin
        assert self._process.stdout
        self.pid = self._process.pid
        self._requests, self._replies = self._process.stdin.fileno(), self._process.stdout.fileno()
        try:
            self._wake, self._death = wake, os.pidfd_open(self.pid)
        except OSError:  # no descriptor is left
            with self._process:
                self._process.kill()
            raise
        self._open, self._left_s = True, 0.0
        for descriptor in (self._requests, self._replies):
            os.set_blocking(descriptor, False)

    def call(self, function: str, columns: Columns, seed: int, timeout_s: float) -> Columns:
        """What ``function`` makes of ``columns``.

        Raises Lost, RuntimeError where ``wake`` became readable, and the error that the worker found, with
        the function alone for its place. After any of these the worker has to be ended.
        """
        self._left_s = timeout_s
        try:
            self._write(message([function, seed], columns))
            error, result = received(self._fill)
        except Garbled:
            raise Lost("sent what is no reply", "let the function leave open files alone") from None
        except TimeoutError:
            cause = f"gave no answer in {timeout_s:g} s"
            raise Lost(cause, "mend the function, or raise loader.timeout_s") from None
        if error is not None:
            raise from_plain(error)
        return result

    def has_ended(self, within_s: float = 0.0) -> bool:
        """Whether the process has ended, or does so in time."""
        death = select.poll()
        death.register(self._death, select.POLLIN)
        return bool(death.poll(max(within_s, 0.0) * 1000))

    def ask_to_end(self) -> None:
        """Let the process, which is idle, end by itself."""
        with suppress(OSError):  # it ended before, or is stopped: `end` sees to that
            os.write(self._requests, message(None)[0])

    def end(self) -> int | None:
        """End it and what it started; its exit code as in `subprocess`, None where it does not die."""
        if self._open:
            self._open = False
            # Before it is reaped, as after that the number may be another process's.
            with suppress(ProcessLookupError):
                os.killpg(self.pid, signal.SIGKILL)
            self.has_ended(_KILL_S)
            for pipe in (self._process.stdin, self._process.stdout):
                if pipe:
                    pipe.close()
            os.close(self._death)
        return self._process.poll()

    def _write(self, parts: Sequence[memoryview]) -> None:
        for part in parts:
            while part:
                try:
                    part = part[os.write(self._requests, part) :]
                except BlockingIOError:
                    self._wait(self._requests, select.POLLOUT)
                except BrokenPipeError:
                    raise self._lost() from None

    def _fill(self, room: memoryview) -> None:
        while room:
            try:
                n = os.readv(self._replies, [room])
            except BlockingIOError:
                self._wait(self._replies, select.POLLIN)
                continue
            if not n:
                raise self._lost()
            room = room[n:]

    def _wait(self, pipe: int, event: int) -> None:
        """Until a pipe is ready. Raises TimeoutError, Lost, and RuntimeError where ``wake`` is readable."""
        poll = select.poll()
        for descriptor in (self._wake, self._death):
            poll.register(descriptor, select.POLLIN)
        poll.register(pipe, event)
        watch = Watch(self.pid)
        while True:
            look_s, start = min(_LOOK_S, max(self._left_s, 0.0)), time.monotonic()
            ready = dict(poll.poll(look_s * 1000))
            # A look counts at most as it was meant to: this process may have been stopped for an hour.
            self._left_s -= min(time.monotonic() - start, look_s)
            if self._wake in ready:
                raise RuntimeError("user code was stopped while it worked")
            if pipe in ready:  # what a worker said before it died still counts
                return
            if self._death in ready:
                raise self._lost()
            if self._left_s <= 0:
                raise TimeoutError
            if watch.stopped():
                raise Lost("is stopped (SIGSTOP)", "see who stopped it, and start again")

    def _lost(self) -> Lost:
        """Why the worker does not speak any more."""
        if not self.has_ended(_HANG_UP_S):
            return Lost("closed its pipes", "let the function leave open files alone")
        code = self.end()
        if code is not None and code < 0:
            return Lost(ending(code), "see who did, such as a system without memory left")
        return Lost(ending(code), "see what it printed; the function has to return")
