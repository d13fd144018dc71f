"""``tamis stream``: the batches of a run read for their own sake, and how fast they came. Free of torch."""

from __future__ import annotations

import time
from contextlib import nullcontext
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING

from ..loaders.loader import Batch
from ..metrics import STREAM, Meter, limiting_stage, render, stage_rows
from ..pipelines.dataset import Dataset
from .feed import loader_of
from .settings import Settings

if TYPE_CHECKING:
    from rich.console import Console
    from rich.live import Live

_REFRESHES = 4  # a second


class Rates:
    """What has been read, as a table and a line, from the first batch on: before that is start-up."""

    def __init__(self, samples: int, unit: str, meter: Meter) -> None:
        self._wanted, self._unit, self._meter = samples, unit, meter
        self._opened_s = time.perf_counter()
        self._start_s = self._stop_s = 0.0
        self._count = self._samples = self._rows = self._size = 0
        self._first = f"waiting for the first batch of {samples} samples"

    def add(self, batch: Batch) -> None:
        """A batch has come."""
        now_s = time.perf_counter()
        if not self._start_s:
            self._start_s, self._before = now_s, self._meter.table.copy()
            waited_s = now_s - self._opened_s
            self._first = (
                f"first batch of {self._wanted} samples of {batch.k} {self._unit} after {waited_s:.2f} s"
            )
            return
        samples = int(batch.weight.sum())
        self._count += 1
        self._samples += samples
        self._rows += int(batch.mask[batch.weight > 0].sum()) if batch.mask is not None else 0
        self._size += sum(column.nbytes for column in batch.columns.values())

    def stop(self) -> None:
        """No more batches: the rates stay what they are."""
        self._stop_s = time.perf_counter()

    def text(self) -> str:
        """The stage table and the rates so far; another thread may ask."""
        if not self._count:
            return self._first
        wall_s = (self._stop_s or time.perf_counter()) - self._start_s
        rows = stage_rows(STREAM, (self._meter.table - self._before)[None], wall_s)
        return (
            f"{render(rows, limiting_stage(rows))}\n\n"
            f"{self._first}, {self._count} more in {wall_s:.2f} s: "
            f"{self._samples / wall_s:.1f} samples/s, "
            f"{self._rows / wall_s / 1e6:.2f} million {self._unit}/s, "
            f"{self._size / wall_s / 1e6:.1f} MB/s"
        )


def stream(settings: Settings, path: Path, steps: int | None, console: Console | None = None) -> str:
    """Read ``steps`` training batches of the dataset at ``path``, None for one epoch, as fast as they come.

    Returns the stage table and the rates; on ``console``, a terminal, they are shown while they change, and
    wiped at the end.
    """
    dataset, meter = Dataset(path), Meter(STREAM)
    rates = Rates(settings.loader.batch, settings.model.unit, meter)
    with (
        loader_of(settings, dataset, meter, epochs=1 if steps is None else None) as loader,
        _live(console, rates) if console else nullcontext() as live,
    ):
        if live:
            live.refresh()  # which it does itself only after a while
        for batch in islice(loader, steps):
            rates.add(batch)
        rates.stop()
    return rates.text()


def _live(console: Console, rates: Rates) -> Live:
    from rich.live import Live
    from rich.text import Text

    def shown() -> Text:
        text = Text(rates.text(), no_wrap=True, overflow="ellipsis")
        text.highlight_regex(r"(?m)^limiting stage: .*$", "bold")
        return text

    return Live(get_renderable=shown, console=console, refresh_per_second=_REFRESHES, transient=True)
