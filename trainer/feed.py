"""The batches a run learns from, for the run itself and for ``tamis stream``. Free of torch."""

from __future__ import annotations

from ..loaders.loader import Loader
from ..metrics import Meter
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
        slots=loader.slots,
        timeout_s=loader.timeout_s,
        max_damaged=loader.max_damaged,
        verify=settings.data.verify,
        meter=meter,
    )
