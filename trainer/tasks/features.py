"""What the model is told of each point, from the fields of a scan."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from ...errors import DataError
from ...pipelines.dataset import Dataset
from ...samplers.curve import serialise
from ..model_settings import FIELDS, CurveSettings, Feature
from ..models.layers import Mlp
from ..models.points import CurveSight
from ..models.trunk import Makers
from ..parallel.rows import Rows
from .task import Task, TaskState, Tensors

Columns = Mapping[str, NDArray[Any]]

_WIDTHS: dict[Feature, int] = {"xy": 2, "z": 1, "intensity": 1, "returns": 2, "rgb": 3}
_BRIGHTNESS: tuple[Feature, ...] = ("intensity", "rgb")


class CloudTask(Task):
    """A task on point clouds.

    ``fields``: the fields a dataset or a file has, ``where`` it is (for errors). Raises DataError where a
    field is missing that a feature needs.
    """

    model: CurveSettings  # type: ignore[assignment]

    def __init__(self, model: CurveSettings, state: TaskState, fields: Sequence[str], where: str) -> None:
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

    @property
    def makers(self) -> Makers:
        """See `Task`."""
        return Makers(self._embedding, lambda: CurveSight(self.model), self._pool, self.classes)

    _pool: type[nn.Module] | None = None

    def _embedding(self, rows: Rows) -> nn.Module:
        return Mlp(self.width, self.model.width, self.model.width, rows)

    @property
    def sight_columns(self) -> tuple[str, ...]:
        """See `Task`."""
        return ("xyz", "transposed")

    def entry(self, columns: Tensors) -> Tensor:
        """Features float32 (b, k, width) of dense columns (b, k, ...), each near 1 in size."""
        return torch.cat([self._feature(f, columns) for f in self.model.features], dim=-1)

    def inputs(self, columns: Tensors, mask: Tensor, /) -> dict[str, Tensor]:
        """Where the points are; the rows are sorted along the first curve. See `CurveSight.forward`."""
        known = {"xyz": columns["xyz"], "transposed": columns["transposed"]}
        return known if mask.all() else {**known, "mask": mask}

    def scores(
        self, model: nn.Module, columns: Columns, mask: NDArray[np.bool_], device: torch.device
    ) -> NDArray[np.float32]:
        """What a whole model says of dense columns (b, k, ...), in any order, of which ``mask`` are valid.

        Float32 (b, k, classes), or (b, classes) where it says one thing of each cloud.
        """
        pairs = [serialise(xyz, self.model.cell) for xyz in columns["xyz"]]
        order = np.stack([first for first, _ in pairs])
        cloud = np.arange(len(order))[:, np.newaxis]
        dense = {name: values[cloud, order] for name, values in columns.items()}
        dense["transposed"] = np.stack([second for _, second in pairs])
        tensors = {name: torch.from_numpy(values).to(device) for name, values in dense.items()}
        with torch.inference_mode():
            inputs = self.inputs(tensors, torch.from_numpy(mask[cloud, order]).to(device))
            answer: NDArray[np.float32] = model(self.entry(tensors), **inputs).cpu().numpy()
        if answer.ndim == 2:
            return answer
        scores = np.empty_like(answer)
        scores[cloud, order] = answer
        return scores

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


def cloud_state(model: CurveSettings, dataset: Dataset) -> TaskState:
    """The classes of a dataset, and what counts as bright in it.

    Raises DataError where the dataset has no classes, or no training point has one.
    """
    if not dataset.classes:
        raise DataError(dataset.path, "has no classes", "name them in data.classes and build again")
    if not any(dataset.manifest.counts.splits["train"].classes.values()):
        raise DataError(dataset.path, "no training point has a class", "correct data.classes or data.split")
    fields = [f for f in _BRIGHTNESS if f in model.features and f in dataset.statistics]
    bright = {f: max(value or 0.0 for value in dataset.statistics[f].p99) for f in fields}
    return TaskState(classes=tuple(dataset.classes), bright={f: b or 1.0 for f, b in bright.items()})
