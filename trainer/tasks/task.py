"""What a task is: everything that differs between learning one thing and another."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from pydantic import Field
from torch import Tensor, nn

from ...config import Model
from ...pipelines.dataset import Dataset
from ...pipelines.records import IGNORED
from ..mesh import Mesh
from ..model_settings import ModelSettings
from ..models.trunk import Makers
from ..parallel.loss import cross_entropy
from ..parallel.rows import ALL, Rows
from ..settings import TrainerSettings

Tensors = Mapping[str, Tensor]


class TaskState(Model):
    """What a checkpoint keeps of the task, so that a model can be used without its dataset.

    ``bright``: what counts as full brightness of a field, its 99th percentile over the training split.
    """

    classes: tuple[str, ...] = ()
    bright: dict[str, float] = Field(default_factory=dict)


class Task(ABC):
    """One thing to learn; each is a module of this folder.

    ``model``: its settings; ``state``: see `TaskState`; ``classes``: how many there are to tell apart.
    """

    model: ModelSettings
    state: TaskState
    classes: int

    @property
    @abstractmethod
    def makers(self) -> Makers:
        """The modules that the trunk needs of it."""

    @property
    @abstractmethod
    def sight_columns(self) -> tuple[str, ...]:
        """The columns of a batch that `inputs` reads: those that every pipeline rank needs."""

    @abstractmethod
    def entry(self, columns: Tensors) -> Tensor:
        """What the first stage reads of a dense batch, columns (b, k, ...)."""

    @abstractmethod
    def inputs(self, columns: Tensors, mask: Tensor, /) -> dict[str, Tensor]:
        """What every stage reads: the keyword arguments of the task's sight. ``mask``: bool (b, k)."""

    @abstractmethod
    def labels(self, columns: Tensors, mask: Tensor, weight: Tensor) -> Tensor:
        """The class of each row (b, k), or of each sample (b,), int64; `IGNORED` where it does not count.

        ``weight``: float32 (b,), 0 for a place without a sample.
        """

    def loss(self, scores: Tensor, labels: Tensor, rows: Rows = ALL) -> Tensor:
        """Cross entropy, summed over what counts; ``scores`` as the head gives them, ``labels`` as above."""
        return cross_entropy(scores.flatten(0, -2), labels.flatten(), self.classes, IGNORED, rows)

    @abstractmethod
    def evaluate(
        self,
        dataset: Dataset,
        model: nn.Module,
        mesh: Mesh,
        settings: TrainerSettings,
        out: Path,
        split: str = "test",
    ) -> dict[str, Any] | None:
        """Judge a whole model on ``split``; every rank calls this, and all get the same figures.

        Predictions, where the task has some, go to ``out``. None where there is nothing to judge by.
        """


def counted(labels: Tensor) -> Tensor:
    """How many labels count, int64 ()."""
    return (labels != IGNORED).sum()


def ignoring(labels: Tensor, counts: Tensor) -> Tensor:
    """Labels int64, `IGNORED` where ``counts``, bool, is False."""
    return torch.where(counts, labels, IGNORED)
