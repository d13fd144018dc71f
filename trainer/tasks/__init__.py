"""What can be learned: a module each."""

from __future__ import annotations

from collections.abc import Sequence
from typing import assert_never

from ...errors import UsageError
from ...pipelines.dataset import Dataset
from ...pipelines.text import TOKENS
from ..model_settings import CloudSettings, ModelSettings, PointSettings, TokenSettings
from .clouds import Classification
from .features import CloudTask, cloud_state
from .points import Segmentation
from .task import Task, TaskState
from .tokens import NextToken

__all__ = ["Classification", "NextToken", "Segmentation", "Task", "TaskState", "cloud_task", "task_of"]


def task_of(model: ModelSettings, dataset: Dataset) -> Task:
    """The task of a configuration on a dataset. Raises DataError where the dataset does not serve it."""
    if "train" not in dataset.splits:
        raise UsageError(dataset.path, "has no split 'train'", "correct data.split")
    where = str(dataset.path)
    if isinstance(model, TokenSettings):
        return NextToken(model, TOKENS in {a.name for a in dataset.manifest.annotations}, where)
    return cloud_task(model, cloud_state(model, dataset), list(dataset.schema), where)


def cloud_task(
    model: PointSettings | CloudSettings, state: TaskState, fields: Sequence[str], where: str
) -> CloudTask:
    """A task on clouds that have ``fields``, see `CloudTask`."""
    match model:
        case CloudSettings():
            return Classification(model, state, fields, where)
        case PointSettings():
            return Segmentation(model, state, fields, where)
        case _:
            assert_never(model)
