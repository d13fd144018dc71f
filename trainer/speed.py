"""How fast a run is, once it runs steadily."""

from __future__ import annotations

import time
from collections import Counter
from typing import Any

from ..metrics import Meter
from .step import Outcome

WARM_STEPS = 10  # before the steady state: first touches of memory, allocations, connections


class Speed:
    """Counts the steps of one rank.

    ``levels``: for each k the ``steps``, ``samples``, ``rows`` (not padding) and ``bytes`` of all
    ranks, and ``wall_s``. ``wall_s`` and
    ``cpu_s`` (this process) are of all steps; `samples`, `rows`, `steady_samples` (by k), `steady_s` and
    ``steady`` (the meter's table) leave out the first ones.
    """

    def __init__(self, meter: Meter, steps: int) -> None:
        self._meter, self._warm = meter, min(WARM_STEPS, steps // 2)
        self._cpu_start_s, self._start_s = time.process_time(), time.perf_counter()
        self.levels: dict[int, dict[str, Any]] = {}
        self.wall_s = self.cpu_s = 0.0
        self._done = 0
        self._begin()

    def count(self, k: int, outcome: Outcome) -> None:
        """A step over samples of k rows is done; ``outcome.tally`` begins as `feed.tally`."""
        samples, rows, size, *_ = outcome.tally
        wall_s = time.perf_counter() - self._start_s
        level = self.levels.setdefault(
            k, {"k": k, "steps": 0, "samples": 0, "rows": 0, "bytes": 0, "wall_s": 0.0}
        )
        level["steps"] += 1
        level["samples"] += samples
        level["rows"] += rows
        level["bytes"] += size
        level["wall_s"] += wall_s - self.wall_s
        self.wall_s, self._done = wall_s, self._done + 1
        self.samples += samples
        self.steady_samples[k] += samples
        self.rows += rows
        if self._done == self._warm:
            self._begin()

    def stop(self) -> None:
        """No more steps."""
        self.steady = self._meter.table - self._before
        self.steady_s = self.wall_s - self._before_s
        self.cpu_s = time.process_time() - self._cpu_start_s

    def _begin(self) -> None:
        self._before, self._before_s = self._meter.table.copy(), self.wall_s
        self.samples = self.rows = 0
        self.steady_samples: Counter[int] = Counter()  # by k
