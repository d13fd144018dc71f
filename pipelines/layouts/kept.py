"""What was read from tables that many scans share, kept until one of the files changes."""

from __future__ import annotations

import time
from collections.abc import Callable, Hashable, Sequence
from pathlib import Path
from typing import Generic, TypeVar

T = TypeVar("T")

_TICK_NS = 100_000_000
"""File systems may not tell times apart that are closer: a file so new may change and keep its time."""

Stamp = tuple[int, int] | None


class Kept(Generic[T]):
    """The ``size`` things that were asked for last, each by its key; a process has its own."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._kept: dict[Hashable, tuple[Sequence[Stamp], T]] = {}

    def get(self, key: Hashable, files: Sequence[Path], read: Callable[[], T]) -> T:
        """What ``read`` gave for the key; read again where a file has come, gone or changed."""
        stamps = [_stamp(file) for file in files]
        known = self._kept.pop(key, None)
        if known is not None and known[0] == stamps:
            self._kept[key] = known
            return known[1]
        now = time.time_ns()
        found = read()
        if not any(stamp and abs(now - stamp[0]) < _TICK_NS for stamp in stamps):
            self._kept[key] = stamps, found
        while len(self._kept) > self._size:
            del self._kept[next(iter(self._kept))]
        return found


def _stamp(path: Path) -> Stamp:
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_mtime_ns, found.st_size
