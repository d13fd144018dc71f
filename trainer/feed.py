"""The batches a run learns from, for the run itself and for ``tamis stream``. Free of torch."""

from __future__ import annotations

from collections.abc import Sequence

from ..loaders.loader import Loader
from ..metrics import Meter
from ..pipelines.dataset import Dataset
from .settings import Settings, rows_multiple


def loader_of(
    settings: Settings,
    dataset: Dataset,
    meter: Meter,
    replica: int = 0,
    replicas: int = 1,
    epochs: int | None = None,
    columns: Sequence[str] | None = None,
) -> Loader:
    """One replica's share of the training batches, dense; ``columns``: which of them, None: all it reads."""
    trainer, model, loader = settings.trainer, settings.model, settings.loader
    targets = model.targets if dataset.classes else ()
    known = [*model.columns, *targets]
    return Loader(
        dataset,
        split="train",
        global_batch=loader.batch,
        seed=trainer.seed,
        epochs=epochs,
        ratio=loader.ratio.schedule() if loader.ratio else None,
        k=trainer.points,
        multiple_of=rows_multiple(settings.layout, model),
        graph=[*loader.graph, *model.graph],
        replica=replica,
        replicas=replicas,
        form="dense",
        columns=known if columns is None else [name for name in known if name in columns],
        feeder=loader.feeder,
        engine=loader.engine,
        threads=loader.threads,
        slots=loader.slots,
        timeout_s=loader.timeout_s,
        max_damaged=loader.max_damaged,
        verify=settings.data.verify,
        meter=meter,
    )
