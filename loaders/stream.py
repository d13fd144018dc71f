"""Reads a dataset as training does, and says how fast each stage was."""

from __future__ import annotations

import time
from itertools import islice
from pathlib import Path

from ..metrics import STREAM, Meter, limiting_stage, render, stage_rows
from ..pipelines.dataset import Dataset
from .loader import Loader, LoaderSettings


def stream(settings: LoaderSettings, dataset: Path, k: int, seed: int, steps: int | None) -> str:
    """The stage table of ``steps`` dense training batches, None for an epoch's, of k rows a cloud."""
    opened, meter = Dataset(dataset), Meter(STREAM)
    samples = sum(stop - start for start, stop in (r.rows for r in opened.splits.get("train", [])))
    steps = steps or max(1, -(-samples // settings.batch))
    with Loader(
        opened,
        global_batch=settings.batch,
        seed=seed,
        ratio=settings.ratio.schedule(steps) if settings.ratio else None,
        k=k,
        graph=settings.graph,
        feeder=settings.feeder,
        engine=settings.engine,
        threads=settings.threads,
        meter=meter,
    ) as loader:
        start = time.perf_counter()
        for _ in islice(loader, steps):
            pass
        wall_s = time.perf_counter() - start
    rows = stage_rows(STREAM, meter.table[None], wall_s)
    return render(rows, limiting_stage(rows))
