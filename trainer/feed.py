"""The batches a run learns from, for the run itself and for ``tamis stream``. Free of torch."""

from __future__ import annotations

import time
from itertools import islice
from pathlib import Path

from ..loaders.loader import Loader
from ..metrics import STREAM, Meter, limiting_stage, render, stage_rows
from ..pipelines.dataset import Dataset
from ..pipelines.ops import SerialiseSettings
from .settings import Settings


def loader_of(
    settings: Settings,
    dataset: Dataset,
    meter: Meter,
    replica: int = 0,
    replicas: int = 1,
    epochs: int | None = None,
) -> Loader:
    """One replica's share of the training batches: dense, and sorted along the model's curves."""
    trainer, model, loader = settings.trainer, settings.model, settings.loader
    return Loader(
        dataset,
        split="train",
        global_batch=loader.batch,
        seed=trainer.seed,
        epochs=epochs,
        ratio=loader.ratio.schedule() if loader.ratio else None,
        k=trainer.points,
        multiple_of=model.window,
        graph=[*loader.graph, SerialiseSettings(cell=model.cell)],
        replica=replica,
        replicas=replicas,
        form="dense",
        columns=[*model.columns, *(["label"] if dataset.classes else [])],
        feeder=loader.feeder,
        engine=loader.engine,
        threads=loader.threads,
        verify=settings.data.verify,
        meter=meter,
    )


def stream(settings: Settings, path: Path, steps: int | None) -> str:
    """Read ``steps`` training batches of the dataset at ``path``, None for one epoch, as fast as they come.

    Returns the stage table and the rates, for a console. They count from the first batch on: what comes
    before it is start-up, and told apart.
    """
    dataset, meter = Dataset(path), Meter(STREAM)
    opened_s = time.perf_counter()
    with loader_of(settings, dataset, meter, epochs=1 if steps is None else None) as loader:
        batches = islice(loader, steps)
        k = next(batches).k
        start_s, before = time.perf_counter(), meter.table.copy()
        count = samples = points = size = 0
        for batch in batches:
            count += 1
            samples += int(batch.weight.sum())
            points += int(batch.weight.sum()) * batch.k
            size += sum(column.nbytes for column in batch.columns.values())
        wall_s = time.perf_counter() - start_s
    first = f"first batch of {settings.loader.batch} clouds of {k} points after {start_s - opened_s:.2f} s"
    if not count:
        return first
    rows = stage_rows(STREAM, (meter.table - before)[None], wall_s)
    return (
        f"{render(rows, limiting_stage(rows))}\n\n"
        f"{first}, {count} more in {wall_s:.2f} s: "
        f"{samples / wall_s:.1f} samples/s, {points / wall_s / 1e6:.2f} million points/s, "
        f"{size / wall_s / 1e6:.1f} MB/s"
    )
