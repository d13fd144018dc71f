"""Work over threads: kernels release the GIL, so a thread a core is as good as a process."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

from ..errors import UsageError
from .gate import whole

Result = TypeVar("Result")


def threads_for(threads: Any, most: int) -> int:
    """How many threads to use: as asked, at most ``most``; None stands for the CPUs this process may use.

    Raises UsageError for anything but None and a whole number above 0.
    """
    asked = len(os.sched_getaffinity(0)) if threads is None else whole(threads, "threads")
    if asked < 1:
        raise UsageError("threads", f"is {threads!r}", "give a whole number above 0, or None")
    return max(min(asked, most), 1)


def each(work: Callable[..., Result], calls: Sequence[tuple[Any, ...]]) -> list[Result]:
    """``work(*call)`` for each call, a thread each; one call runs on the caller's own.

    The threads end with the call, so that a process may fork afterwards.
    """
    if len(calls) == 1:
        return [work(*calls[0])]
    with ThreadPoolExecutor(len(calls)) as pool:
        return list(pool.map(lambda call: work(*call), calls))
