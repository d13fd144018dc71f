"""What can be learned: a module each."""

from __future__ import annotations

from ...errors import UsageError
from ...pipelines.dataset import Dataset
from ..model_settings import CloudSettings, ModelSettings, PointSettings, TokenSettings
from .clouds import Classification
from .features import cloud_state
from .points import Segmentation
from .task import Task, TaskState
from .tokens import NextToken

__all__ = ["Classification", "NextToken", "Segmentation", "Task", "TaskState", "task_of"]


def task_of(model: ModelSettings, dataset: Dataset) -> Task:
    """The task of a configuration on a dataset. Raises DataError where the dataset does not serve it."""
    if "train" not in dataset.splits:
        raise UsageError(dataset.path, "has no split 'train'", "correct data.split")
    fields, where = list(dataset.schema), str(dataset.path)
    match model:
        case TokenSettings():
            return NextToken(model, "tokens" in {a.name for a in dataset.manifest.annotations}, where)
        case CloudSettings():
            return Classification(model, cloud_state(model, dataset), fields, where)
        case PointSettings():
            return Segmentation(model, cloud_state(model, dataset), fields, where)
