"""A class for every point of a cloud: semantic segmentation."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from ...pipelines.dataset import Dataset
from ...samplers.random import random
from ..evaluate import TOGETHER, Answers, own_rows
from ..mesh import Mesh
from ..settings import TrainerSettings
from .features import CloudTask, Columns
from .task import Tensors, ignoring


class Segmentation(CloudTask):
    """A class for every point."""

    def labels(self, columns: Tensors, mask: Tensor, weight: Tensor) -> Tensor:
        """Labels int64 (b, k). A padding row does not count, nor does one without a class."""
        label = columns["label"].long()
        return ignoring(label, mask & (weight > 0)[:, None] & (label >= 0))

    def evaluate(
        self,
        dataset: Dataset,
        model: nn.Module,
        mesh: Mesh,
        settings: TrainerSettings,
        out: Path,
        split: str = "test",
    ) -> dict[str, Any] | None:
        """Every point of the split, once, at full resolution; predictions go to ``out/predictions.arrow``.

        Beside `evaluate.figures`: ``points``, how many were predicted, and ``dropped``, how many more the
        files of the split hold.
        """
        rows = own_rows(dataset, split, mesh)
        if rows is None:
            return None
        answers = Answers(self.state.classes)
        for row in rows:
            sample = dataset.sample(row, [*self.columns, "label", "row"])
            scores = predict_points(model, self, sample.columns, settings, sample.id, mesh.device)
            source = pa.repeat(sample.source, len(scores))
            answers.add(source, sample.columns["row"], sample.columns["label"], scores)
        result, points = answers.close(out / "predictions.arrow", mesh)
        if result is None:
            return None
        held = dataset.manifest.counts.splits[split]
        return {**result, "unit": "points", "points": points, "dropped": held.dropped + held.points - points}


def predict_points(
    model: nn.Module,
    task: CloudTask,
    columns: Columns,
    settings: TrainerSettings,
    id: int,
    device: torch.device,
) -> NDArray[np.float32]:
    """Scores, float32 (n, classes), of all n points of a sample, each predicted once.

    The points are drawn into sets of ``settings.points``, so that clouds are as dense as those the model
    learned from; see `partition`.
    """
    n = len(columns["xyz"])
    scores = np.zeros((n, task.classes), np.float32)
    k = settings.points
    sets, fresh = partition(n, k, settings.seed, id)
    for start in range(0, len(sets), TOGETHER):
        some, new = sets[start : start + TOGETHER], fresh[start : start + TOGETHER]
        mask = new | (n >= k)  # a small cloud repeats rows, and repeats are padding as in training
        answer = task.scores(model, {name: columns[name][some] for name in task.columns}, mask, device)
        scores[some[new]] = answer[new]
    return scores


def partition(n: int, k: int, seed: int, id: int) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
    """Draw n rows into ceil(n / k) sets of exactly k: rows int64 (sets, k), and which of them are fresh.

    Every row is fresh in one place. The last set is filled up with rows of the first; where there are
    fewer than k rows, rows repeat.
    """
    order = random(n, n, seed=seed, id=id)
    sets = -(-n // k)
    rows = np.resize(order, (sets, k))
    return rows, (np.arange(sets * k) < n).reshape(sets, k)
