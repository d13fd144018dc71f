"""A class for every cloud: classification."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from torch import Tensor, nn

from ...pipelines.dataset import Dataset
from ..mesh import Mesh
from ..models.points import MeanPool
from ..settings import TrainerSettings
from .features import CloudTask
from .task import Tensors, ignoring


class Classification(CloudTask):
    """A class for every cloud: the one that all its labelled points have."""

    _pool = MeanPool

    def labels(self, columns: Tensors, mask: Tensor, weight: Tensor) -> Tensor:
        """Labels int64 (b,): the highest of a cloud's valid points, all of which have the same."""
        label = columns["label"].long().where(mask, -1).amax(1)
        return ignoring(label, (weight > 0) & (label >= 0))

    def evaluate(
        self, dataset: Dataset, model: nn.Module, mesh: Mesh, settings: TrainerSettings, out: Path
    ) -> dict[str, Any] | None:
        """Every cloud of the split, once, by its first ``trainer.points`` rows."""
        raise NotImplementedError
