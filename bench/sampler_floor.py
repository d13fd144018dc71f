"""How far the voxel grid's stages are from the least that memory allows."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import cache
from typing import Any
from unittest.mock import patch

import numpy as np

from ..samplers import gate, group

_TIMES = 30


@dataclass(frozen=True)
class Stage:
    """``read`` and ``written``: bytes that it cannot do without. ``ms``: what it took."""

    name: str
    read: int
    written: int
    ms: float


def floor_ms(read: int, written: int = 0) -> float:
    """Milliseconds to read and write so many bytes once, on one thread, of arrays that are warm."""
    return _ms(read, "read") + _ms(written, "write")


def stage_rows(stages: Sequence[Stage], n: int, cloud: str) -> list[dict[str, Any]]:
    """Each stage beside its floor, as plain values."""
    found = []
    for stage in stages:
        least = floor_ms(stage.read, stage.written)
        about = {"stage": stage.name, "n": n, "cloud": cloud, "read": stage.read, "written": stage.written}
        found.append({**about, "floor_ms": least, "ours_ms": stage.ms, "of_floor": stage.ms / least})
    return found


def voxel_stages(n: int, m: int, fields: int, whole_ms: float, parts: Mapping[str, float]) -> list[Stage]:
    """Of a voxel grid of ``n`` rows and ``m`` cells on one thread: the whole, and ``parts``, kernels' times.

    A record is two words and the fields, two to a word; a cell is five words, its mean and its fields.
    """
    row, record = 4 * (3 + fields), 16 + 8 * -(-fields // 2)
    cells = m * (40 + row + 4 * fields)
    name = f"voxel, {fields} fields" if fields else "voxel"
    traffic = {
        "bounds": (n * 12, 0),
        "scatter": (n * row, n * record),
        "group_chains": (n * record, cells),
    }
    return [
        Stage(name, n * row, m * row, whole_ms),
        *(Stage(f"{name}: {part}", *traffic[part], ms) for part, ms in parts.items()),
    ]


def kernels_ms(run: Callable[[], object], rounds: int) -> dict[str, float]:
    """Milliseconds a run spends in each kernel of the voxel grid that it calls: medians."""
    taken: dict[str, list[float]] = {}

    def timed(name: str, kernel: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any) -> Any:
            start = time.perf_counter()
            found = kernel(*arguments)
            taken.setdefault(name, []).append((time.perf_counter() - start) * 1e3)
            return found

        return call

    with ExitStack() as patches:
        for module, name in ((gate, "bounds"), (group, "scatter"), (group, "group_chains")):
            patches.enter_context(patch.object(module, name, timed(name, getattr(module, name))))
        for _ in range(rounds):
            run()
    return {name: statistics.median(ms) for name, ms in taken.items()}


@cache
def _ms(bytes: int, how: str) -> float:
    if not bytes:
        return 0.0
    words = np.ones(max(bytes // 8, 1), np.int64)
    work: Callable[[], object] = words.max if how == "read" else lambda: words.fill(2)
    taken = []
    for _ in range(_TIMES):
        start = time.perf_counter()
        work()
        taken.append(time.perf_counter() - start)
    return min(taken) * 1e3
