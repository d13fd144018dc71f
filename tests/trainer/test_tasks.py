from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor

from tamis.errors import DataError, UsageError
from tamis.trainer.learner import whole_model
from tamis.trainer.model_settings import CloudSettings, PointSettings, TokenSettings
from tamis.trainer.tasks import Classification, NextToken, Segmentation, TaskState, task_of
from tamis.trainer.tasks.features import cloud_state
from tamis.trainer.tasks.task import counted

ALL = PointSettings(features=("xy", "z", "intensity", "returns", "rgb"), xy_scale=2.0, z_scale=4.0)
STATE = TaskState(classes=("a", "b"), bright={"intensity": 50.0, "rgb": 200.0})
FIELDS = ["xyz", "intensity", "return_number", "number_of_returns", "rgb", "label"]


def columns() -> dict[str, Any]:
    return {
        "xyz": np.array([[[0, 0, 1], [4, 2, 3]], [[10, 10, -1], [12, 16, 0]]], np.float32),
        "intensity": np.array([[25, 50], [100, 0]], np.uint16),
        "return_number": np.array([[1, 2], [1, 3]], np.uint8),
        "number_of_returns": np.array([[2, 2], [0, 3]], np.uint8),
        "rgb": np.full((2, 2, 3), 100, np.uint16),
    }


def features_of(task: Segmentation, columns: dict[str, Any]) -> NDArray[np.float32]:
    found = task.entry({name: torch.from_numpy(values) for name, values in columns.items()}).numpy()
    assert found.dtype == np.float32
    return found


def test_features_are_what_the_settings_say() -> None:
    features = features_of(Segmentation(ALL, STATE, FIELDS, "here"), columns())
    assert features.shape == (2, 2, 9)
    np.testing.assert_allclose(features[0, 0], [-1, -0.5, 0, 0.5, 0.5, 0.25, 0.5, 0.5, 0.5])
    np.testing.assert_allclose(features[0, 1], [1, 0.5, 0.5, 1.0, 1.0, 0.25, 0.5, 0.5, 0.5])
    np.testing.assert_allclose(features[1, 0], [-0.5, -1.5, 0, 1.0, 1.0, 0.0, 0.5, 0.5, 0.5])


def test_features_do_not_depend_on_where_the_cloud_stands() -> None:
    task = Segmentation(ALL, STATE, FIELDS, "here")
    here = columns()
    there = columns() | {"xyz": here["xyz"] + np.float32(64)}
    np.testing.assert_array_equal(features_of(task, here), features_of(task, there))


@pytest.mark.parametrize("seed", range(3))
def test_features_are_what_numpy_makes_of_them(seed: int) -> None:
    rng = np.random.default_rng(seed)
    task = Segmentation(ALL.model_copy(update={"xy_scale": 3.7, "z_scale": 0.3}), STATE, FIELDS, "here")
    xyz = rng.normal(0, 50, (3, 40, 3)).astype(np.float32)
    number, returns = rng.integers(0, 8, (2, 3, 40)).astype(np.uint8)
    intensity, rgb = (rng.integers(0, 2**16, (3, 40, *w)).astype(np.uint16) for w in ((), (3,)))
    lowest, highest = xyz.min(axis=1, keepdims=True), xyz.max(axis=1, keepdims=True)
    least = np.maximum(returns.astype(np.float32), 1)
    expected = [
        ((xyz - (lowest + highest) / 2) / np.float32(3.7))[..., :2],
        ((xyz - lowest) / np.float32(0.3))[..., 2:],
        (intensity.astype(np.float32) / np.float32(50)).clip(0, 1)[..., None],
        np.stack([number / least, (least - 1) / 4], axis=-1),
        (rgb.astype(np.float32) / np.float32(200)).clip(0, 1),
    ]
    found = features_of(
        task,
        {
            "xyz": xyz,
            "intensity": intensity,
            "return_number": number,
            "number_of_returns": returns,
            "rgb": rgb,
        },
    )
    np.testing.assert_array_equal(found, np.concatenate(expected, axis=-1))


def test_the_task_asks_for_the_columns_it_needs() -> None:
    assert Segmentation(ALL, STATE, FIELDS, "here").columns == FIELDS[:-1]
    assert Segmentation(PointSettings(), STATE, FIELDS, "here").columns == ["xyz"]


@pytest.mark.parametrize(("field", "feature"), [("intensity", "intensity"), ("number_of_returns", "returns")])
def test_a_missing_field_is_an_error_that_names_it(field: str, feature: str) -> None:
    with pytest.raises(DataError, match=f"x.laz: has no field '{field}', which the feature '{feature}'"):
        Segmentation(ALL, STATE, [f for f in FIELDS if f != field], "x.laz")


def test_only_labelled_valid_rows_of_real_samples_count() -> None:
    task = Segmentation(PointSettings(), STATE, FIELDS, "here")
    label = torch.tensor([[0, 1, -1, 1], [1, 1, 1, 1]], dtype=torch.int32)
    mask = torch.tensor([[True, True, True, False], [True] * 4])
    found = task.labels({"label": label}, mask, torch.tensor([1.0, 0.0]))
    assert counted(found) == 2
    assert found.dtype == torch.int64
    assert found.tolist() == [[0, 1, -1, -1], [-1] * 4]


def test_the_loss_is_a_sum_over_the_rows_that_count() -> None:
    task = Segmentation(PointSettings(), STATE, FIELDS, "here")
    scores = torch.randn(1, 3, 2, requires_grad=True)
    loss = task.loss(scores, torch.tensor([[0, -1, 1]]))
    log = scores.log_softmax(-1)
    torch.testing.assert_close(loss, -(log[0, 0, 0] + log[0, 2, 1]))
    nothing = task.loss(scores, torch.full((1, 3), -1))
    nothing.backward()  # type: ignore[no-untyped-call]
    assert nothing == 0
    assert scores.grad is not None
    assert not scores.grad.any()


def test_the_state_comes_from_the_dataset() -> None:
    figures = {"intensity": SimpleNamespace(p99=[80.0]), "rgb": SimpleNamespace(p99=[0.0, 0.0, None])}
    counts = SimpleNamespace(splits={"train": SimpleNamespace(classes={"a": 0, "b": 1})})
    dataset: Any = SimpleNamespace(
        classes=["a", "b"], statistics=figures, path="there", manifest=SimpleNamespace(counts=counts)
    )
    assert cloud_state(ALL, dataset) == TaskState(classes=("a", "b"), bright={"intensity": 80.0, "rgb": 1.0})
    dataset.classes = []
    with pytest.raises(DataError, match="there: has no classes"):
        cloud_state(ALL, dataset)
    dataset.classes, counts.splits["train"].classes = ["a", "b"], {"a": 0, "b": 0}
    with pytest.raises(DataError, match="there: no training point has a class"):
        cloud_state(ALL, dataset)


def test_a_cloud_has_the_class_of_its_valid_points() -> None:
    task = Classification(CloudSettings(), STATE, FIELDS, "here")
    label = torch.tensor([[1, 1, 0], [0, 0, -1], [-1, -1, 1], [0, 1, 1]], dtype=torch.int32)
    mask = torch.tensor([[True, True, False], [True] * 3, [True, True, False], [True] * 3])
    found = task.labels({"label": label}, mask, torch.tensor([1.0, 1.0, 1.0, 0.0]))
    assert found.dtype == torch.int64
    assert found.tolist() == [1, 0, -1, -1]
    with pytest.raises(DataError, match=r"a cloud has points of class 'a' and of class 'b'; .*kind = points"):
        task.labels({"label": label}, mask, torch.ones(4))


SMALL = TokenSettings(vocabulary=10, end=9)


def test_a_token_is_followed_by_the_next_one_of_its_document() -> None:
    task = NextToken(SMALL, True, "here")
    tokens = torch.tensor([[1, 2, 9, 3, 9, 4], [5, 6, 7, 5, 6, 7], [1, 1, 1, 1, 1, 1]], dtype=torch.uint16)
    mask = torch.tensor([[True] * 6, [True] * 3 + [False] * 3, [True] * 6])
    found = task.labels({"tokens": tokens}, mask, torch.tensor([1.0, 1.0, 0.0]))
    assert found.dtype == torch.int64
    assert found.tolist() == [[2, 9, -1, 9, -1, -1], [6, 7, -1, -1, -1, -1], [-1] * 6]
    assert task.inputs({"tokens": tokens}, mask)["document"].tolist() == [
        [0, 0, 0, 1, 1, 2],
        [0] * 6,
        [0] * 6,
    ]
    assert torch.equal(task.entry({"tokens": tokens}), tokens.long())


def test_a_token_beyond_the_vocabulary_is_refused() -> None:
    with pytest.raises(DataError, match="a token is 10, the vocabulary holds 10"):
        NextToken(SMALL, True, "here").entry({"tokens": torch.tensor([[1, 10]], dtype=torch.uint16)})


@pytest.mark.parametrize("seed", range(3))
def test_the_next_token_depends_on_what_came_before_in_the_document_alone(seed: int) -> None:
    """Every score against that of the document's own tokens, up to it, without the others."""
    task = NextToken(TokenSettings(vocabulary=10, end=9, width=24, heads=2, depth=2), True, "here")
    torch.manual_seed(seed)
    net = whole_model(task)
    tokens = torch.randint(0, 10, (2, 24))

    def scores(tokens: Tensor) -> Tensor:
        columns = {"tokens": tokens}
        mask = torch.ones(tokens.shape, dtype=torch.bool)
        found: Tensor = net(task.entry(columns), **task.inputs(columns, mask))
        return found

    with torch.no_grad():
        found = scores(tokens)
        for row in range(2):
            start = 0
            for i in range(24):
                alone = scores(tokens[row : row + 1, start : i + 1])[0, -1]
                torch.testing.assert_close(found[row, i], alone, atol=1e-5, rtol=1e-4)
                if tokens[row, i] == 9:
                    start = i + 1


def test_a_dataset_without_tokens_or_training_samples_is_refused() -> None:
    manifest = SimpleNamespace(annotations=[])
    dataset: Any = SimpleNamespace(
        path="there", schema={"xyz": None}, manifest=manifest, splits={"train": []}
    )
    with pytest.raises(DataError, match="there: has no tokens"):
        task_of(TokenSettings(), dataset)
    dataset.splits = {"test": []}
    with pytest.raises(UsageError, match="there: has no split 'train'"):
        task_of(TokenSettings(), dataset)
