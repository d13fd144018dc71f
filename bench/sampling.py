"""Farthest-point sampling on the way: what the loader adds to the kernel, and what a stored order saves."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import islice
from pathlib import Path
from typing import Any, Literal

import numpy as np

from ..loaders.loader import Loader
from ..pipelines.build import build
from ..pipelines.dataset import Dataset
from ..pipelines.settings import DataSettings
from ..samplers.farthest import farthest
from .measure import touch

K = 1024
BATCH = 32
THREADS = 2
FARTHEST = ({"kind": "farthest"},)

_ROUNDS = 5
_READ_AHEAD = 3  # batches that a loader may have made before the clock runs
_SETTLE_S = 0.3  # in which it makes them, so that it does not while another is timed

Timed = Callable[[], tuple[int, float]]
"""Does some work: how many clouds, in how many seconds."""


def on_the_way(folder: Path, clouds: int = 320, rows: int = 10_000) -> dict[str, Any]:
    """Clouds a second through a loader that samples each, and through the kernel alone on the same clouds.

    Both on two threads, in turn; medians. The kernel finds its clouds in memory.
    """
    dataset = _dataset(folder / "way", clouds, rows, "source")
    memory = [dataset.sample(i, ["xyz"]).columns["xyz"] for i in range(clouds)]
    with (
        ThreadPoolExecutor(THREADS) as pool,
        Loader(dataset, global_batch=BATCH, k=K, columns=[], graph=FARTHEST, threads=THREADS) as loader,
    ):

        def kernel() -> tuple[int, float]:
            start = time.perf_counter()
            done = len(list(pool.map(lambda xyz: farthest(xyz, K), memory)))
            return done, time.perf_counter() - start

        rates = _rates([kernel, lambda: _taken(loader, loader.batches_per_epoch)])
    return {
        "clouds": clouds,
        "rows": rows,
        "k": K,
        "kernel_samples_s": rates[0],
        "loader_samples_s": rates[1],
    }


def prefix(folder: Path, clouds: int = 64, rows: int = 100_000) -> dict[str, Any]:
    """Clouds a second, 1,024 farthest points of each: read as a stored order's prefix, and read and sampled.

    Both check what they read the first time, on two threads, in turn; medians.
    """
    ordered = _dataset(folder / "ordered", clouds, rows, "farthest")
    plain = _dataset(folder / "plain", clouds, rows, "source")
    with (
        Loader(ordered, global_batch=BATCH, k=K, columns=[], threads=THREADS) as short,
        Loader(plain, global_batch=BATCH, k=K, columns=[], graph=FARTHEST, threads=THREADS) as whole,
    ):
        few, many = whole.batches_per_epoch, 100 * short.batches_per_epoch
        rates = _rates([lambda: _taken(short, many), lambda: _taken(whole, few)])
    return {
        "clouds": clouds,
        "rows": rows,
        "k": K,
        "prefix_samples_s": rates[0],
        "sampled_samples_s": rates[1],
    }


def _taken(loader: Loader, batches: int) -> tuple[int, float]:
    """Read every byte of so many batches, after those that were made before."""
    for _ in islice(loader, _READ_AHEAD):
        pass
    clouds, start = 0, time.perf_counter()
    for batch in islice(loader, batches):
        for values in batch.columns.values():
            touch(values)
        clouds += int(batch.weight.sum())
    return clouds, time.perf_counter() - start


def _rates(runs: Sequence[Timed]) -> list[float]:
    """Median clouds a second of each, run in turn, after one to warm up."""
    rates: list[list[float]] = [[] for _ in runs]
    for _ in range(_ROUNDS + 1):
        for run, found in zip(runs, rates, strict=True):
            time.sleep(_SETTLE_S)
            done, taken_s = run()
            found.append(done / taken_s)
    return [statistics.median(found[1:]) for found in rates]


def _dataset(folder: Path, clouds: int, rows: int, order: Literal["farthest", "random", "source"]) -> Dataset:
    """A dataset of random clouds, the same for the same sizes."""
    raw = folder / "raw"
    if not raw.is_dir():
        raw.mkdir(parents=True)
        rng = np.random.default_rng(0)
        for i in range(clouds):
            np.save(raw / f"{i:04d}.npy", (rng.random((rows, 3), np.float32) * 50))
    return build(DataSettings(root=raw, row_order=order), folder)
