"""How far the voxel grid's stages are from the least that memory allows."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np

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


def voxel_stages(n: int, m: int, fields: int, whole_ms: float) -> list[Stage]:
    """Of a voxel grid of ``n`` rows and ``m`` cells on one thread. Parts that are timed are added here."""
    row = 4 * (3 + fields)
    name = f"voxel, {fields} fields" if fields else "voxel"
    return [Stage(name, n * row, m * row, whole_ms)]


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
