"""Work over threads: kernels release the GIL, so a thread a core is as good as a process."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
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
    """``work(*call)`` for each call, the first on the caller's own thread."""
    if len(calls) == 1:
        return [work(*calls[0])]
    others = [_workers().submit(work, *call) for call in calls[1:]]
    try:
        first = work(*calls[0])
    finally:
        wait(others)  # they work on the caller's arrays
    return [first, *(other.result() for other in others)]


_kept: list[ThreadPoolExecutor] = []


def _workers() -> ThreadPoolExecutor:
    """Threads that stay, and their scratch memory with them: new ones cost as much as a small cloud."""
    if not _kept:
        _kept.append(ThreadPoolExecutor(len(os.sched_getaffinity(0)), "tamis"))
    return _kept[0]


os.register_at_fork(after_in_child=_kept.clear)  # a forked process has none of them
