"""What each stage of the way did, and which one limits it.

A `Meter` is one float64 table, worker x stage x figure, so that tables of several workers add up by being
stacked. A stage is busy while it works, *starved* while it waits for its input and *blocked* while its
output has no room; what it does in neither is time it did not have to spend.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import numpy as np
from numpy.typing import NDArray

FIGURES = ("items", "points_in", "points_out", "bytes", "busy_s", "wait_in_s", "wait_out_s")
_AT = {name: i for i, name in enumerate(FIGURES)}
# Durations are kept as counts on a logarithmic scale: 8 steps an octave from 1 us, so that the tables of
# many workers merge by adding and a percentile is right to 5 %.
_STEPS, _OCTAVES = 8, 32
WIDTH = len(FIGURES) + _STEPS * _OCTAVES
"""Figures of a stage in a table."""

BUILD = ("build.read", "build.sample", "build.pack", "build.write")
STREAM = ("stream.fetch", "stream.graph", "stream.pack", "stream.deliver")
TRAIN = (
    "train.wait",
    "train.h2d",
    "train.forward",
    "train.backward",
    "train.bubble",
    "train.sync",
    "train.step",
    "train.save",
)

_WAITS = ("train.wait", "train.bubble")
"""Stages that are nothing but waiting."""

_NOTHING = nullcontext()


class Meter:
    """Times the stages of one worker. Each stage is written by one thread at a time.

    ``table``: float64 (stages, figures), see `FIGURES`; it may be given, as a view of shared memory.
    ``annotate``: what each timed block runs in beside, given its stage; a profiler's, that names it.
    """

    annotate: Callable[[str], AbstractContextManager[Any]] | None = None

    def __init__(self, stages: Sequence[str], table: NDArray[np.float64] | None = None) -> None:
        self.stages = tuple(stages)
        self.table = np.zeros((len(self.stages), WIDTH)) if table is None else table
        self._cells = self.table.data.cast("B").cast("d")  # counts faster than the array
        self.started_s = time.perf_counter()

    @contextmanager
    def time(self, stage: str, *, items: int = 1) -> Iterator[None]:
        """Count the block as busy time of ``stage``, and ``items`` done, unless it raises."""
        start = time.perf_counter()
        with self._named(stage):
            yield
        self.busy(stage, time.perf_counter() - start, items=items)

    @contextmanager
    def wait(self, stage: str, *, out: bool = False) -> Iterator[None]:
        """Count the block as time ``stage`` was starved or, with ``out``, blocked."""
        start = time.perf_counter()
        with self._named(stage):
            yield
        self.add(stage, **{"wait_out_s" if out else "wait_in_s": time.perf_counter() - start})

    def _named(self, stage: str) -> AbstractContextManager[Any]:
        annotate = self.annotate  # once: another thread may take it away
        return annotate(stage) if annotate else _NOTHING

    def busy(self, stage: str, seconds: float, *, items: int = 1, **figures: float) -> None:
        """Count one piece of work that took ``seconds``, and what else it counts."""
        self.add(stage, items=items, busy_s=seconds, **figures)
        step = min(int(_STEPS * math.log2(max(seconds, 1e-6) / 1e-6)), _STEPS * _OCTAVES - 1)
        self._cells[self.stages.index(stage) * WIDTH + len(FIGURES) + step] += 1

    def add(self, stage: str, **figures: float) -> None:
        """Add to named figures of ``stage``."""
        row = self.stages.index(stage) * WIDTH
        for name, value in figures.items():
            self._cells[row + _AT[name]] += value


def stage_rows(stages: Sequence[str], tables: NDArray[np.float64], wall_s: float) -> list[dict[str, Any]]:
    """One row a stage from the tables of all workers, float64 (workers, stages, figures).

    Rates are sums over workers; ``busy``, ``starved`` and ``blocked`` are shares of ``wall_s``, the mean
    over the workers that did something. Percentiles are in seconds. Stages nobody touched are left out.
    """
    rows = []
    for s, stage in enumerate(stages):
        table = tables[:, s]
        workers = int((table.sum(axis=1) > 0).sum())
        if not workers:
            continue
        row: dict[str, Any] = {"stage": stage, "workers": workers}
        row.update({name: float(table[:, i].sum()) for i, name in enumerate(FIGURES)})
        for name in ("items", "points_in", "points_out", "bytes"):
            row[name] = int(row[name])
        for name, figure in (("busy", "busy_s"), ("starved", "wait_in_s"), ("blocked", "wait_out_s")):
            row[name] = row[figure] / (workers * wall_s) if wall_s > 0 else 0.0
        row["items_per_s"] = row["items"] / wall_s if wall_s > 0 else 0.0
        counts = table[:, len(FIGURES) :].sum(axis=0)
        row["p50_s"], row["p99_s"] = _percentile(counts, 0.50), _percentile(counts, 0.99)
        rows.append(row)
    return rows


def limiting_stage(rows: Sequence[dict[str, Any]]) -> str | None:
    """The stage to improve first.

    While training, where waiting for data takes over 5 % of the step: the ``stream.*`` stage with the
    highest busy share per worker; else the ``train.*`` stage that takes most time, which may be the
    pipeline's bubble. Without training, the stage with the highest busy share.
    """
    took_s: dict[str, float] = {
        r["stage"]: r["busy_s"] + (r["wait_in_s"] if r["stage"] in _WAITS else 0.0)
        for r in rows
        if r["stage"].startswith("train.")
    }
    stream = [r for r in rows if r["stage"].startswith("stream.")]
    if not took_s:
        return str(max(rows, key=lambda r: r["busy"])["stage"]) if rows else None
    wait_s = took_s.pop("train.wait", 0.0) if len(took_s) > 1 else 0.0
    if stream and wait_s > 0.05 * (wait_s + sum(took_s.values())):
        return str(max(stream, key=lambda r: r["busy"])["stage"])
    return max(took_s, key=lambda stage: took_s[stage])


def render(rows: Sequence[dict[str, Any]], limiting: str | None) -> str:
    """The stage table as plain text."""
    head = ("stage", "items", "items/s", "Mpoints", "MB", "busy", "starved", "blocked", "p50 ms", "p99 ms")
    lines = [head]
    for r in rows:
        points = max(r["points_in"], r["points_out"]) / 1e6
        lines.append(
            (
                r["stage"],
                f"{r['items']}",
                f"{r['items_per_s']:.1f}",
                f"{points:.2f}" if points else "-",
                f"{r['bytes'] / 1e6:.1f}" if r["bytes"] else "-",
                f"{r['busy']:.1%}",
                f"{r['starved']:.1%}",
                f"{r['blocked']:.1%}",
                f"{r['p50_s'] * 1e3:.2f}",
                f"{r['p99_s'] * 1e3:.2f}",
            )
        )
    widths = [max(len(line[i]) for line in lines) for i in range(len(head))]
    text = [
        "  ".join(
            c.ljust(w) if i == 0 else c.rjust(w) for i, (c, w) in enumerate(zip(line, widths, strict=True))
        )
        for line in lines
    ]
    if limiting:
        text.append(f"limiting stage: {limiting}")
    return "\n".join(text)


def _percentile(counts: NDArray[np.float64], share: float) -> float:
    total = counts.sum()
    if not total:
        return 0.0
    step = int(np.searchsorted(np.cumsum(counts), share * total))
    return float(1e-6 * 2 ** ((step + 0.5) / _STEPS))
