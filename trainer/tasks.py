"""What is learned: which columns the task needs, what the model reads, and what the loss counts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

from ..config import Model
from ..errors import DataError
from ..pipelines.dataset import Dataset
from ..pipelines.records import IGNORED
from .settings import FIELDS, Feature, ModelSettings

_WIDTHS: dict[Feature, int] = {"xy": 2, "z": 1, "intensity": 1, "returns": 2, "rgb": 3}
_BRIGHTNESS: tuple[Feature, ...] = ("intensity", "rgb")

Tensors = Mapping[str, Tensor]


class TaskState(Model):
    """What a checkpoint keeps of the task, so that a model can be used without its dataset.

    ``bright``: what counts as full brightness of a field, its 99th percentile over the training split.
    """

    classes: tuple[str, ...]
    bright: dict[str, float]


class Inputs(NamedTuple):
    """The model's arguments, see `PointTransformer.forward`."""

    xyz: Tensor
    features: Tensor
    transposed: Tensor
    mask: Tensor | None


class Segmentation:
    """A class for every point.

    ``fields``: the fields a dataset or a file has, ``where`` it is (for errors). Raises DataError where a
    field is missing that a feature needs.
    """

    def __init__(self, model: ModelSettings, state: TaskState, fields: Sequence[str], where: str) -> None:
        self.model, self.state = model, state
        for feature in model.features:
            missing = [f for f in FIELDS[feature] if f not in fields]
            if missing:
                raise DataError(
                    where,
                    f"has no field '{missing[0]}', which the feature '{feature}' of the model needs",
                    "add the field or take the feature out of model.features and train again",
                )
        self.columns = list(model.columns)
        self.width = sum(_WIDTHS[f] for f in model.features)
        self.classes = len(state.classes)

    def inputs(self, columns: Tensors, mask: Tensor) -> Inputs:
        """What the model reads of a dense batch, where its tensors are: columns (b, k, ...), mask (b, k).

        The rows are sorted along the first curve.
        """
        features = self.features(columns)
        return Inputs(columns["xyz"], features, columns["transposed"], None if mask.all() else mask)

    def features(self, columns: Tensors) -> Tensor:
        """Features float32 (b, k, width) of dense columns (b, k, ...), each near 1 in size."""
        return torch.cat([self._feature(f, columns) for f in self.model.features], dim=-1)

    def _feature(self, name: Feature, columns: Tensors) -> Tensor:
        if name == "xy":
            xy = columns["xyz"][..., :2]
            middle = (xy.amin(dim=1, keepdim=True) + xy.amax(dim=1, keepdim=True)) / 2
            return (xy - middle) / self.model.xy_scale
        if name == "z":
            z = columns["xyz"][..., 2:]
            return (z - z.amin(dim=1, keepdim=True)) / self.model.z_scale
        if name == "returns":
            number, returns = (columns[f].float() for f in FIELDS[name])
            returns = returns.clamp(min=1)
            return torch.stack([number / returns, (returns - 1) / 4], dim=-1)
        share = columns[name].float() / self.state.bright[name]
        return share.clamp(0, 1).reshape(*columns["xyz"].shape[:2], -1)

    def labels(self, columns: Tensors, mask: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
        """Labels int64 (b, k), `IGNORED` where a row does not count, and how many rows count."""
        label = columns["label"].long()
        counts = mask & (weight > 0)[:, None] & (label >= 0)
        return torch.where(counts, label, IGNORED), counts.sum()

    def loss(self, scores: Tensor, labels: Tensor) -> Tensor:
        """Cross entropy, summed over the rows that count."""
        return functional.cross_entropy(
            scores.flatten(0, 1), labels.flatten(), ignore_index=IGNORED, reduction="sum"
        )


def task_state(model: ModelSettings, dataset: Dataset) -> TaskState:
    """The classes of a dataset, and what counts as bright in it.

    Raises DataError where the dataset has no classes.
    """
    if not dataset.classes:
        raise DataError(dataset.path, "has no classes", "name them in data.classes and build again")
    fields = [f for f in _BRIGHTNESS if f in model.features and f in dataset.statistics]
    bright = {f: max(value or 0.0 for value in dataset.statistics[f].p99) for f in fields}
    return TaskState(classes=tuple(dataset.classes), bright={f: b or 1.0 for f, b in bright.items()})
