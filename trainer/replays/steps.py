"""``steps.jsonl`` read back: what training says of each step, and which steps stand out. Free of torch."""

from __future__ import annotations

import json
import logging
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ...errors import DataError, UsageError

log = logging.getLogger(__name__)

NAME = "steps.jsonl"
WINDOW = 51
"""Steps that are a step's neighbourhood, itself among them."""

_NEEDED = {"step", "epoch", "k", "loss", "grad_norm", "samples", "crc"}
_LEAST, _TINY = 1e-3, 1e-12  # of the median, and besides: where all are alike, less is no distance


class Spike(NamedTuple):
    """A step whose ``figure`` is high: ``times`` the usual distance above ``median``, that around it."""

    step: int
    figure: str
    value: float
    median: float
    times: float


class Steps:
    """The lines of a run, by step; ``count``: the steps that it has done.

    What follows the last line's end is not there yet: the run may be going on. Raises DataError where there
    is no such file.
    """

    def __init__(self, run: Path) -> None:
        self.path = run / NAME
        try:
            lines = self.path.read_bytes().split(b"\n")[:-1]
        except OSError as error:
            fix = "name a folder that `tamis train` wrote, or copy the file there again"
            raise DataError(self.path, f"cannot be read ({error.strerror})", fix) from None
        self.lines: dict[int, dict[str, Any]] = {}
        self._damaged = [number for number, line in enumerate(lines, 1) if not self._keep(line)]
        self.count = max(self.lines, default=-1) + 1
        if self._damaged:
            log.warning("%s: %d damaged line(s) left out", self.path, len(self._damaged))

    def _keep(self, text: bytes) -> bool:
        line = parsed(text)
        if line is not None:
            self.lines[line["step"]] = line
        return line is not None

    def line(self, step: int) -> dict[str, Any]:
        """What is said of ``step``. UsageError for a step that was not done, DataError for a lost line."""
        if step in self.lines:
            return self.lines[step]
        if step < 0 or (step >= self.count and not self._damaged):
            done = f"the run has done {self.count} steps"
            fix = f"give 0 to {self.count - 1}" if self.count else "wait for the first"
            raise UsageError("--step", f"is {step}, {done}", fix)
        cause = f"has no line of step {step}"
        if self._damaged:
            cause += f", and line {self._damaged[0]} is damaged"
        raise DataError(self.path, cause, "copy the file again, or give another step")

    def spikes(self, most: int) -> list[Spike]:
        """The steps whose loss or gradient norm stands out the most, worst first; see `distances`."""
        steps = sorted(self.lines)
        worst: dict[int, Spike] = {}
        for figure in ("loss", "grad_norm"):
            values = np.array([_number(self.lines[step][figure]) for step in steps])
            for i, (median, times) in enumerate(zip(*distances(values), strict=True)):
                found = Spike(steps[i], figure, float(values[i]), float(median), float(times))
                if times > 0 and times > (worst[found.step].times if found.step in worst else 0):
                    worst[found.step] = found
        return sorted(worst.values(), key=lambda spike: (-spike.times, spike.step))[:most]

    def skipped(self) -> list[int]:
        """The steps that changed nothing: those first in which more than a scale of fp16 was too high."""
        found = [step for step, line in self.lines.items() if line.get("skipped")]
        return sorted(found, key=lambda step: (self.lines[step]["skipped"] == "overflow", step))


def parsed(text: bytes) -> dict[str, Any] | None:
    """A line as training wrote it; None where it is damaged."""
    try:
        line = json.loads(text)
    except (ValueError, RecursionError):
        return None
    if not isinstance(line, dict) or not line.keys() >= _NEEDED or type(line["step"]) is not int:
        return None
    return line


def distances(values: Sequence[float] | NDArray[np.float64]) -> tuple[NDArray[Any], NDArray[Any]]:
    """The median around each value, float64 (n,), and how far above it the value is, float64 (n,).

    The neighbourhood is the `WINDOW` values around, at the ends as many; the distance is counted in median
    absolute deviations of the neighbourhood (Hampel 1974), so that neither a trend nor other spikes make
    one. NaN is nowhere, and infinitely far above is what is infinite.
    """
    values = np.asarray(values, np.float64)
    medians, times = np.full(len(values), np.nan), np.full(len(values), np.nan)
    finite = np.flatnonzero(np.isfinite(values))
    if len(finite):
        known = values[finite]
        size = min(WINDOW, len(known))
        around = np.lib.stride_tricks.sliding_window_view(known, size)
        middle = np.median(around, axis=1)
        spread = np.median(np.abs(around - middle[:, None]), axis=1)
        window = np.clip(np.arange(len(known)) - size // 2, 0, len(around) - 1)
        medians[finite] = middle[window]
        least = np.maximum(_LEAST * np.abs(middle), _TINY)
        times[finite] = (known - middle[window]) / np.maximum(spread, least)[window]
    times[np.isposinf(values)] = math.inf
    return medians, times


def _number(value: float | None) -> float:
    """A figure of a line: NaN where nothing counted, infinite where it was no number."""
    if value is None:
        return math.nan
    return value if math.isfinite(value) else math.inf
