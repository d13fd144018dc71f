"""``tamis build``: a build that is watched while it runs, and what is told of it at the end."""

from __future__ import annotations

import time
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING

from ..metrics import BUILD, Meter, limiting_stage, render, stage_rows
from . import build as building
from .inspect import inspect
from .progress import Progress, live
from .settings import DataSettings

if TYPE_CHECKING:
    from rich.console import Console


def watched(settings: DataSettings, out: Path, console: Console | None = None, *, update: bool) -> str:
    """Build as `build` does; returns what the dataset holds and, where something was done, the stage table.

    On ``console``, a terminal, a line shows how far it is. The table sums the times of all workers.
    """
    meter = Meter(BUILD)
    progress = Progress(meter)
    with live(console, progress) if console else nullcontext():
        dataset = building.build(settings, out, meter, progress, update=update)
    text = [inspect(dataset.path)]
    rows = stage_rows(BUILD, meter.table[None], time.perf_counter() - meter.started_s)
    if rows:
        text.append(render(rows, limiting_stage(rows)))
        if progress.workers > 1:
            text.append(f"the times of {progress.workers} workers are summed: busy may be over 100 %")
    return "\n".join(text)
