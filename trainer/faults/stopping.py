"""SIGTERM, by which schedulers take a machine back: a run saves what it has learned and ends well."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType, TracebackType
from typing import Any, Self

STOPPED = 128 + signal.SIGTERM
"""The exit code by which a rank tells the command that SIGTERM ended it, while others may not know."""

TOLD = "stopped by SIGTERM; the same command goes on"

_SENT = (signal.SIGINT, signal.SIGTERM)


class Stopped(SystemExit):
    """SIGTERM came where nothing needs to be saved. The exit code is 0."""

    def __init__(self) -> None:
        super().__init__(0)


class Stop:
    """A context in which SIGTERM ends the process with exit code 0.

    At once, or while steps are taken (`stepping`) when the loop has seen ``asked`` and saved. Where it is
    entered from another than the main thread, which alone may handle signals, SIGTERM does what it did.
    """

    def __init__(self) -> None:
        self.asked, self.stepping = False, False
        self._before: Any = None

    def stepped(self) -> None:
        """The last step is done and saved: end now if SIGTERM came in it, too late for the loop to see."""
        self.stepping = False
        if self.asked:
            raise Stopped

    def __enter__(self) -> Self:
        if threading.current_thread() is threading.main_thread():
            self._before = signal.signal(signal.SIGTERM, self._end)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._before is not None:
            signal.signal(signal.SIGTERM, self._before)

    def _end(self, _number: int, _frame: FrameType | None) -> None:
        if self.stepping:
            self.asked = True
        else:
            raise Stopped


@contextmanager
def held() -> Iterator[None]:
    """Processes that are started here hear of Ctrl-C and SIGTERM no earlier than they call `let_in`."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, _SENT)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def let_in() -> None:
    """Hear of the signals that came since `held`. Before, Python would tell of Ctrl-C with a traceback."""
    signal.pthread_sigmask(signal.SIG_UNBLOCK, _SENT)
