"""The batches of a run, read without training."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from tamis import cli
from tamis.metrics import STREAM, Meter
from tamis.pipelines.dataset import Dataset
from tamis.trainer.feed import loader_of, stream
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


def test_the_table_tells_what_was_read(run_settings: Make, dataset: Dataset) -> None:
    text = stream(run_settings(), dataset.path, 3)
    assert "first batch of 5 clouds of 32 points" in text
    assert "2 more in" in text
    assert "limiting stage: stream." in text


@pytest.mark.parametrize("where", ["dataset", "parent"])
def test_a_dataset_alone_can_be_streamed(
    dataset: Dataset, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    path: Path = dataset.path if where == "dataset" else dataset.path.parent
    monkeypatch.setattr(
        sys, "argv", ["tamis", "stream", str(path), "--steps", "2", "--set", "loader.batch=3"]
    )
    with pytest.raises(SystemExit) as exit:
        cli.main()
    assert not exit.value.code
    assert "first batch of 3 clouds" in capsys.readouterr().out
