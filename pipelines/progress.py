"""How far a build is, as a line that changes on a terminal."""

from __future__ import annotations

import logging
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING

from ..metrics import FIGURES, Meter

if TYPE_CHECKING:
    from rich.console import Console

_REFRESHES = 4  # a second


class Progress:
    """Counts what a build has done; another thread may ask.

    ``done``: files, the bad ones too. ``workers``: processes that read files.
    """

    def __init__(self, meter: Meter) -> None:
        self._meter = meter
        self.workers = 1
        self._sizes: dict[str, int] = {}
        self._started_s = time.perf_counter()
        self.done = self._total = self._samples = self._failed = 0
        self._bytes_left = 0

    def begin(self, files: int, sizes: Mapping[str, int], workers: int) -> None:
        """Files there are, and the bytes of each that is not known to be bad."""
        self.workers = workers
        self._total, self._sizes, self._bytes_left = files, dict(sizes), sum(sizes.values())
        self.done = self._failed = files - len(sizes)
        self._started_s = time.perf_counter()

    def add(self, source: str, samples: int | None) -> None:
        """A file is done: its samples, None where it is bad."""
        self.done += 1
        self._failed += samples is None
        self._samples += samples or 0
        self._bytes_left -= self._sizes[source]

    def text(self) -> str:
        """One line."""
        figures = {stage: dict(zip(FIGURES, row, strict=False)) for stage, row in self._rows()}
        read, written = figures["build.read"], int(figures["build.write"]["items"])
        if self.done == self._total if self._total else written:
            return f"writing shards: {written}{f' of {self._samples}' if self._samples else ''} samples"
        if not self._total and not read["items"]:
            return "looking for files"
        wall_s = max(time.perf_counter() - self._started_s, 1e-9)
        parts = [
            f"{self.done} of {self._total} files" if self._total else f"{int(read['items'])} files",
            f"{read['points_out'] / wall_s / 1e6:.2f} million points/s",
            f"{read['bytes'] / wall_s / 1e6:.1f} MB/s",
        ]
        if self._total and read["bytes"]:
            parts.append(f"{_duration(self._bytes_left * wall_s / read['bytes'])} left")
        if self._failed:
            parts.append(f"{self._failed} failed")
        return ", ".join(parts)

    def _rows(self) -> Iterator[tuple[str, list[float]]]:
        yield from zip(self._meter.stages, self._meter.table.tolist(), strict=True)


@contextmanager
def live(console: Console, progress: Progress) -> Iterator[None]:
    """Show the line on a terminal, wiped at the end; what is logged stands above it."""
    from rich.live import Live
    from rich.text import Text

    def shown() -> Text:
        return Text(progress.text(), no_wrap=True, overflow="ellipsis")

    handlers = [one for one in logging.getLogger().handlers if type(one) is logging.StreamHandler]
    with Live(
        get_renderable=shown, console=console, refresh_per_second=_REFRESHES, transient=True
    ) as display:
        display.refresh()  # which it does itself only after a while
        before = [(one, one.setStream(sys.stderr)) for one in handlers]  # which the display has taken over
        try:
            yield
        finally:
            for one, stream in before:
                one.setStream(stream)


def _duration(seconds: float) -> str:
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60} s"
    return f"{whole // 3600} h {whole % 3600 // 60} min"
