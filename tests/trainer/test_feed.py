"""The batches a run learns from."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from tamis.metrics import STREAM, Meter
from tamis.pipelines.dataset import Dataset
from tamis.trainer.feed import loader_of
from tamis.trainer.settings import Settings

Make = Callable[..., Settings]


def test_an_epoch_is_every_training_sample_once(run_settings: Make, dataset: Dataset) -> None:
    meter = Meter(STREAM)
    with loader_of(run_settings(), dataset, meter, epochs=1) as loader:
        ids = [id for batch in loader for id in batch.ids[batch.weight > 0].tolist()]
    rows = [row for part in dataset.splits["train"] for row in range(*part.rows)]
    assert sorted(ids) == sorted(dataset.ids[rows].tolist())


def test_batches_hold_what_the_model_reads_and_nothing_else(run_settings: Make, dataset: Dataset) -> None:
    settings = run_settings()
    with loader_of(settings, dataset, Meter(STREAM)) as loader:
        batch = next(loader)
    assert set(batch.columns) == {*settings.model.columns, "label", "transposed"}
    assert batch.k == settings.trainer.points
    # Rows come sorted along the first curve, and `transposed` is an order of them.
    assert np.array_equal(np.sort(batch.columns["transposed"], axis=1)[0], np.arange(batch.k))
