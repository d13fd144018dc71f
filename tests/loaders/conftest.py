"""Small datasets for the loaders' tests, built from NPY files as any other."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import numpy as np
import pytest

from tamis.pipelines import shards
from tamis.pipelines.build import build
from tamis.pipelines.dataset import Dataset
from tamis.pipelines.settings import DataSettings

SCAN = np.dtype(
    [
        ("x", "f4"),
        ("y", "f4"),
        ("z", "f4"),
        ("normal", "f4", 3),
        ("intensity", "u2"),
        ("classification", "u1"),
    ]
)


def write_scan(path: Path, rows: int, seed: int) -> None:
    """A scan of points in a box, with normals of length 1."""
    rng = np.random.default_rng(seed)
    scan = np.zeros(rows, SCAN)
    for axis, extent in (("x", 40), ("y", 40), ("z", 10)):
        scan[axis] = rng.uniform(0, extent, rows)
    normal = rng.normal(size=(rows, 3))
    scan["normal"] = normal / np.linalg.norm(normal, axis=1, keepdims=True)
    scan["intensity"] = rng.integers(0, 2**16, rows)
    scan["classification"] = rng.integers(0, 4, rows)
    np.save(path, scan)


@pytest.fixture
def make(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Dataset]:
    """``make(sizes, row_order=, per_shard=, seed=)``: a dataset with a training sample a size."""

    def made(
        sizes: Sequence[int], row_order: str = "source", per_shard: int | None = None, seed: int = 0
    ) -> Dataset:
        name = f"{len(sizes)}-{row_order}-{seed}"
        (tmp_path / name).mkdir()
        for i, rows in enumerate(sizes):
            write_scan(tmp_path / name / f"{i:03d}.npy", rows, 1000 * seed + i)
        settings = DataSettings(
            root=tmp_path / name,
            classes={"low": [0, 1], "high": [2]},
            row_order=row_order,  # type: ignore[arg-type]
        )
        step = per_shard or max(len(sizes), 1)

        def divide(sizes: Sequence[int], splits: Sequence[str], limit: int) -> list[range]:
            return [range(i, min(i + step, len(sizes))) for i in range(0, len(sizes), step)]

        monkeypatch.setattr(shards, "divide", divide)
        return build(settings, tmp_path / f"run-{name}")

    return made


def no_threads() -> bool:
    """Whether no thread of a loader lives."""
    return not any(thread.name.startswith("tamis-") for thread in threading.enumerate())


@pytest.fixture
def wait_until() -> Callable[..., None]:
    """``wait_until(true)``: come back when ``true()`` is, fail after 10 s."""

    def wait(true: Callable[[], bool]) -> None:
        end = time.monotonic() + 10
        while not true():
            assert time.monotonic() < end
            time.sleep(0.01)

    return wait


@pytest.fixture(autouse=True)
def _no_thread_is_left(wait_until: Callable[..., None]) -> Iterator[None]:
    yield
    wait_until(no_threads)
