"""A class for every cloud: classification."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import torch
from torch import Tensor, nn

from ...errors import DataError
from ...pipelines.dataset import Dataset
from ...pipelines.records import IGNORED
from ..evaluate import TOGETHER, Answers, own_rows, padded
from ..mesh import Mesh
from ..models.points import MeanPool
from ..settings import TrainerSettings
from .features import CloudTask
from .task import Tensors, ignoring


class Classification(CloudTask):
    """A class for every cloud: the one that all its labelled points have."""

    _pool = MeanPool

    def labels(self, columns: Tensors, mask: Tensor, weight: Tensor) -> Tensor:
        """Labels int64 (b,): that of a cloud's valid points. Raises DataError where they have several."""
        label = columns["label"].long()
        known = mask & (weight > 0)[:, None] & (label >= 0)
        highest = label.where(known, IGNORED).amax(1)
        lowest = label.where(known, self.classes).amin(1)
        if (mixed := (highest >= 0) & (lowest != highest)).any():
            names = [self.state.classes[int(one[mixed][0])] for one in (lowest, highest)]
            cause = f"a cloud has points of class '{names[0]}' and of class '{names[1]}'"
            raise DataError("the batch", cause, "learn classes of points, with model.kind = points")
        return ignoring(highest, highest >= 0)

    def evaluate(
        self,
        dataset: Dataset,
        model: nn.Module,
        mesh: Mesh,
        settings: TrainerSettings,
        out: Path,
        split: str = "test",
    ) -> dict[str, Any] | None:
        """Every cloud of the split, once, by its first ``trainer.points`` rows, fewer ones padded.

        Predictions go to ``out/predictions.arrow``, where the row is the cloud's number in its file. Beside
        `evaluate.figures`: ``samples``, the clouds, ``points``, the rows that were looked at, and
        ``dropped``, clouds left out.
        """
        rows = own_rows(dataset, split, mesh)
        if rows is None:
            return None
        answers, seen = Answers(self.state.classes), 0
        for start in range(0, len(rows), TOGETHER):
            samples = [
                dataset.sample(row, [*self.columns, "label"]) for row in rows[start : start + TOGETHER]
            ]
            columns, mask = padded([sample.columns for sample in samples], settings.points)
            label = torch.from_numpy(columns.pop("label"))
            label = self.labels({"label": label}, torch.from_numpy(mask), torch.ones(len(mask)))
            answers.add(
                pa.array([sample.source for sample in samples]),
                np.array([sample.tile for sample in samples], np.int64),
                label.numpy().astype(np.int32),
                self.scores(model, columns, mask, mesh.device),
            )
            seen += int(mask.sum())
        result, clouds = answers.close(out / "predictions.arrow", mesh)
        points = int(mesh.sum(torch.tensor(seen, dtype=torch.float64, device=mesh.device)))
        if result is None:
            return None
        dropped = dataset.manifest.counts.splits[split].samples - clouds
        return {**result, "unit": "clouds", "samples": clouds, "points": points, "dropped": dropped}
