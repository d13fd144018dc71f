"""SIGTERM, by which schedulers take a machine back: a run saves what it has learned and ends well."""

from __future__ import annotations

import logging
import signal
import threading
from types import FrameType, TracebackType
from typing import Any, Self

log = logging.getLogger(__name__)


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
            raise SystemExit(0)

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
            raise SystemExit(0)
