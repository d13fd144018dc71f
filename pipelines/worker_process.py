"""One worker of a build, as its parent sees it: started, told what to do, listened to and ended."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

from numpy.typing import NDArray

from .spawn import ending, spawned
from .user_messages import Garbled, filled, message, received, sent

_HANG_UP_S = 5.0  # from the end of a worker's pipes to its own
_FROM_OUTSIDE = (signal.SIGKILL, signal.SIGTERM, signal.SIGHUP, signal.SIGINT)


def search_path() -> list[str]:
    """This process's ``sys.path``, for another one."""
    return [entry or os.curdir for entry in sys.path if isinstance(entry, str)]


class Lost(Exception):
    """A worker that has ended: ``how``, a predicate, and whether that came from ``outside``."""

    def __init__(self, how: str, outside: bool) -> None:
        super().__init__(how)
        self.how, self.outside = how, outside


class WorkerProcess:
    """A process with this process's ``sys.path`` that makes one part at a time.

    It is killed by the kernel when the thread that made it ends, however that comes. ``source``: what it
    works at. ``replies``: a descriptor that is readable when it has something to say or has ended.
    """

    def __init__(self, path: Sequence[str] | None = None, folder: str | None = None) -> None:
        """``path``: another ``sys.path``; ``folder``: another current folder."""
        self._process = spawned("worker", path or search_path(), folder)
        assert self._process.stdin
        assert self._process.stdout
        self.pid = self._process.pid
        self.source: str | None = None
        self.replies = self._process.stdout.fileno()
        self._requests = self._process.stdin.fileno()

    def say(self, about: Any) -> None:
        """Send a JSON value. That a worker has ended is found out by waiting for its reply."""
        with suppress(BrokenPipeError):
            sent(self._requests, message(about))

    def reply(self) -> tuple[Any, dict[str, NDArray[Any]]]:
        """The next reply, waited for. Raises Lost where the worker has ended."""
        try:
            return received(self._fill)
        except Garbled:
            raise self._lost() from None

    def end(self) -> None:
        """Kill it and what it started: what it has said is finished is on the disk."""
        if self._process.poll() is None:
            # Before it is reaped, as after that the number may be another process's.
            with suppress(ProcessLookupError):
                os.killpg(self.pid, signal.SIGKILL)
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe:
                pipe.close()

    def _fill(self, room: memoryview) -> None:
        try:
            filled(self.replies, room)
        except EOFError:
            raise self._lost() from None

    def _lost(self) -> Lost:
        """How the worker, which does not speak any more, has ended."""
        try:
            code = self._process.wait(_HANG_UP_S)
        except subprocess.TimeoutExpired:
            return Lost("closed its pipes", False)
        return Lost(ending(code), -code in _FROM_OUTSIDE)
