"""The batches a run learns from, for the run itself and for ``tamis stream``. Free of torch."""

from __future__ import annotations

from collections.abc import Sequence

from crc32c import crc32c

from ..loaders.loader import Batch, Loader
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


def tally(batch: Batch, leads: bool = True) -> tuple[int, int, int, int]:
    """Samples of a batch, their rows but for padding, bytes with padding, and a sum of their CRC32Cs.

    A sample's CRC32C is that of its id and its rows.

    Sums over ranks, so that they describe the global batch, however it is shared out.
    """
    if not leads:
        return 0, 0, 0, 0  # the rank that leads this one's replica counts the same batch
    # Few and plain calls: with many of numpy's this took as long as a hundredth of a small model's step.
    columns = [batch.columns[name] for name in sorted(batch.columns)]
    samples = rows = crc = 0
    valid = batch.mask.sum(1).tolist() if batch.mask is not None else []
    for i, weight in enumerate(batch.weight.tolist()):
        if weight > 0:
            running = crc32c(batch.ids[i : i + 1].data)
            for column in columns:
                running = crc32c(column[i], running)
            samples += 1
            rows += valid[i]
            crc += running
    size = samples * sum(column[0].nbytes for column in columns)
    return samples, rows, size, crc
