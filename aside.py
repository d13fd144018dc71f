"""Work done by a thread of its own, for which the end of the process does not wait."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from threading import Thread
from typing import TypeVar

Result = TypeVar("Result")


def aside(work: Callable[[], Result], name: str) -> Future[Result]:
    """``work()`` on a daemon thread of this ``name``; what it gives or raises comes with the future.

    An executor's threads are waited for at the end of the process, also where one of them never returns.
    """
    found: Future[Result] = Future()

    def run() -> None:
        try:
            found.set_result(work())
        except BaseException as error:  # noqa: BLE001 - it is raised where the result is asked for
            found.set_exception(error)

    Thread(target=run, name=name, daemon=True).start()
    return found
