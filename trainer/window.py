"""What the ranks did since the last time somebody asked: rates and stages of a row of `export`."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..metrics import FIGURES, Meter, stage_rows

Gather = Callable[[Any], Sequence[Any]]
"""The values of all ranks, on every rank."""

_STAGE = ("items_per_s", "p50_s", "p99_s")
_SHARES = ("busy", "starved", "blocked")
_TIMES = [FIGURES.index(name) for name in ("busy_s", "wait_in_s", "wait_out_s")]


class Window:
    """Counts of one rank between two rows. ``meter``: of that rank."""

    def __init__(self, meter: Meter) -> None:
        self._meter = meter
        self._begin()

    def _begin(self) -> None:
        self._before, self._start_s = self._meter.table.copy(), time.perf_counter()
        self._done: dict[str, int] = {"steps": 0}

    def count(self, **done: int) -> None:
        """A step is done, with so many ``samples``, ``points``, ... over all ranks."""
        self._done["steps"] += 1
        for name, number in done.items():  # every step: a Counter would take ten times as long
            self._done[name] = self._done.get(name, 0) + number

    def take(self, gather: Gather = lambda value: [value]) -> dict[str, Any]:
        """What was done since the last call, as a part of a row; every rank calls this.

        ``{steps,samples,...}_per_s``; ``data_wait_fraction``, the share of the time that ranks waited for a
        batch; ``bubble_fraction``, of a pipeline's time, that in which ranks waited for other stages;
        ``stages``, see `stage_numbers`; ``ranks``, see `rank_numbers`.
        """
        wall_s = time.perf_counter() - self._start_s
        found = gather((self._meter.table - self._before, _resident_bytes()))
        tables = np.stack([table for table, _ in found])
        numbers: dict[str, Any] = {f"{name}_per_s": count / wall_s for name, count in self._done.items()}
        stages = stage_numbers(stage_rows(self._meter.stages, tables, wall_s))
        numbers["data_wait_fraction"] = stages.get("train.wait", {}).get("starved_fraction", 0.0)
        bubble = stages.get("train.bubble", {}).get("starved_fraction", 0.0)
        passes = [
            stages.get(f"train.{name}", {}).get("busy_fraction", 0.0) for name in ("forward", "backward")
        ]
        numbers["bubble_fraction"] = bubble / (bubble + sum(passes)) if bubble else 0.0
        numbers["stages"] = stages
        numbers["ranks"] = {
            str(rank): rank_numbers(self._meter.stages, table, wall_s) | {"memory_bytes": memory}
            for rank, (table, memory) in enumerate(found)
        }
        self._begin()
        return numbers


def stage_numbers(rows: Sequence[dict[str, Any]]) -> dict[str, dict[str, float]]:
    """Stage -> rate, shares of the time and durations, of `metrics.stage_rows`."""
    return {
        row["stage"]: {name: row[name] for name in _STAGE}
        | {f"{name}_fraction": row[name] for name in _SHARES}
        for row in rows
    }


def rank_numbers(stages: Sequence[str], table: NDArray[np.float64], wall_s: float) -> dict[str, float]:
    """Share of the time that a rank spent in each stage of training, waiting in it included."""
    spent_s = table[:, _TIMES].sum(axis=1)
    return {
        f"{stage.removeprefix('train.')}_fraction": float(seconds / wall_s)
        for stage, seconds in zip(stages, spent_s, strict=True)
        if stage.startswith("train.") and seconds > 0
    }


def _resident_bytes() -> int:
    """Memory of this process that is in RAM now."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")
