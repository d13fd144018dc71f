from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tamis.errors import DataError
from tamis.samplers.curve import serialise
from tamis.trainer.evaluate import confusion_matrix, cross_entropy, figures
from tamis.trainer.tasks.points import partition, predict_points


@settings(deadline=None)
@given(n=st.integers(1, 300), k=st.integers(1, 70), seed=st.integers(0, 9))
def test_every_row_is_fresh_once_and_sets_hold_no_row_twice(n: int, k: int, seed: int) -> None:
    sets, fresh = partition(n, k, seed, 5)
    assert sets.shape == fresh.shape == (-(-n // k), k)
    assert np.sort(sets[fresh]).tolist() == list(range(n))
    for rows in sets:
        assert len(np.unique(rows)) == min(n, k)


def test_the_partition_is_a_function_of_seed_and_sample() -> None:
    first = partition(100, 32, 1, 7)[0]
    assert (first == partition(100, 32, 1, 7)[0]).all()
    assert (first != partition(100, 32, 2, 7)[0]).any()
    assert (first != partition(100, 32, 1, 8)[0]).any()


def test_figures_are_those_of_the_confusion_matrix() -> None:
    label = np.array([0, 0, 0, 1, 1, -1], np.int32)
    predicted = np.array([0, 0, 1, 1, 2, 0], np.int32)
    found = figures(confusion_matrix(label, predicted, 4), 2.5, ("a", "b", "c", "d"))
    assert found == {
        "accuracy": pytest.approx(3 / 5),
        "majority": pytest.approx(3 / 5),
        "mean_iou": pytest.approx((2 / 3 + 1 / 3) / 2),  # c and d do not occur in the truth
        "iou": {"a": pytest.approx(2 / 3), "b": pytest.approx(1 / 3)},
        "classes": {"a": 3, "b": 2, "c": 0, "d": 0},
        "loss": pytest.approx(0.5),
        "labelled": 5,
    }
    assert figures(np.zeros((2, 2), np.int64), 0.0, ("a", "b")) is None


@pytest.mark.parametrize("loss_sum", [math.nan, math.inf])
def test_answers_that_are_no_numbers_are_refused(loss_sum: float) -> None:
    confusion = confusion_matrix(np.zeros(5, np.int32), np.zeros(5, np.int32), 2)
    with pytest.raises(DataError, match=r"the loss is (nan|inf): .* lower trainer\.lr, or judge an earlier"):
        figures(confusion, loss_sum, ("a", "b"))


def test_cross_entropy_leaves_unlabelled_points_out() -> None:
    scores = np.random.default_rng(0).normal(size=(5, 3)).astype(np.float32)
    label = np.array([0, -1, 2, 1, -1], np.int32)
    log = scores - np.log(np.exp(scores).sum(1, keepdims=True))
    assert cross_entropy(scores, label) == pytest.approx(-(log[0, 0] + log[2, 2] + log[3, 1]), rel=1e-6)


@pytest.mark.parametrize("n", [5, 32, 100, 700])
def test_each_point_gets_the_scores_of_its_set(n: int, new_learner: Any, task: Any) -> None:
    """Against the same sets one by one, each point looked up by its row."""
    rng = np.random.default_rng(n)
    columns: dict[str, Any] = {
        "xyz": rng.uniform(-5, 5, (n, 3)).astype(np.float32),
        "intensity": rng.integers(0, 99, n).astype(np.uint16),
    }
    learner = new_learner()
    found = predict_points(learner.model, task, columns, learner.settings, 7, torch.device("cpu"))
    assert found.shape == (n, 3)
    sets, fresh = partition(n, 32, learner.settings.seed, 7)
    for rows, new in zip(sets, fresh, strict=True):
        order, transposed = serialise(columns["xyz"][rows], task.model.cell)
        dense = {name: values[rows][order][None] for name, values in columns.items()}
        dense["transposed"] = transposed[None]
        mask = np.ones((1, 32), bool) if n >= 32 else new[order][None]
        with torch.no_grad():
            tensors = {name: torch.from_numpy(v) for name, v in dense.items()}
            inputs = task.inputs(tensors, torch.from_numpy(mask))
            scores = learner.model(task.entry(tensors), **inputs)[0].numpy()
        for place, row in enumerate(rows[order]):
            if new[order][place]:
                np.testing.assert_allclose(found[row], scores[place], atol=1e-5)


def test_a_sample_without_points_is_predicted_too(new_learner: Any, task: Any) -> None:
    columns: dict[str, Any] = {"xyz": np.empty((0, 3), np.float32), "intensity": np.empty(0, np.uint16)}
    learner = new_learner()
    assert predict_points(learner.model, task, columns, learner.settings, 7, torch.device("cpu")).shape == (
        0,
        3,
    )
