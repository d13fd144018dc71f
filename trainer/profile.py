"""``tamis train --profile``: a trace of a few steps of every rank, with our stages named. Free of torch."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from ..metrics import Meter

if TYPE_CHECKING:
    from torch.profiler import profile

log = logging.getLogger(__name__)

VARIABLE = "TAMIS_PROFILE"
"""Environment variable that is "1" in every process of a run to be profiled."""

WAIT, WARMUP, ACTIVE = 5, 2, 3  # steps that are left alone, that the profiler warms up in, that it traces


def wanted() -> bool:
    """Whether this run is to be profiled."""
    return os.environ.get(VARIABLE) == "1"


@contextmanager
def profiled(folder: Path, rank: int, meter: Meter, steps: int) -> Iterator[Callable[[], None]]:
    """Yield what is to be called after each of the ``steps`` steps; nothing happens where none is `wanted`.

    Writes ``folder/rank-N.json``, a trace in Chrome's format, in which each stage of ``meter`` that ran in
    the loop's thread is an event of its name. A run too short for that says so and has none.
    """
    if not wanted():
        yield lambda: None
        return
    if steps < WARMUP + ACTIVE:
        if rank == 0:
            log.warning("--profile: %d steps are left, %d are needed", steps, WARMUP + ACTIVE)
        yield lambda: None
        return
    from torch.profiler import profile, record_function, schedule

    folder.mkdir(exist_ok=True)
    path = folder / f"rank-{rank}.json"

    def write(profiler: profile) -> None:
        meter.annotate = None
        temporary = folder / f".{path.name}.tmp"
        profiler.export_chrome_trace(str(temporary))
        temporary.replace(path)
        log.info("wrote %s", path)

    plan = schedule(wait=min(WAIT, steps - WARMUP - ACTIVE), warmup=WARMUP, active=ACTIVE, repeat=1)
    meter.annotate = record_function
    try:
        with profile(schedule=plan, on_trace_ready=write) as profiler:
            yield profiler.step
    finally:
        meter.annotate = None
