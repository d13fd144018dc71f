"""A class for every point of a cloud: semantic segmentation."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from torch import Tensor, nn

from ...pipelines.dataset import Dataset
from ..mesh import Mesh
from ..settings import TrainerSettings
from .features import CloudTask
from .task import Tensors, ignoring


class Segmentation(CloudTask):
    """A class for every point."""

    def labels(self, columns: Tensors, mask: Tensor, weight: Tensor) -> Tensor:
        """Labels int64 (b, k). A padding row does not count, nor does one without a class."""
        label = columns["label"].long()
        return ignoring(label, mask & (weight > 0)[:, None] & (label >= 0))

    def evaluate(
        self, dataset: Dataset, model: nn.Module, mesh: Mesh, settings: TrainerSettings, out: Path
    ) -> dict[str, Any] | None:
        """Every point of the split, once; predictions go to ``out/predictions.arrow``."""
        from ..evaluate import evaluate

        return evaluate(dataset, model, self, mesh, settings, out / "predictions.arrow")
