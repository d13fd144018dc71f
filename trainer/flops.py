"""Floating-point operations of a model, by formula: a multiplication and an addition count as two.

Matrix products and attention alone, as is usual (Narayanan et al. 2021; Chowdhery et al. 2022, appendix B):
what else there is takes time, but few operations. A backward pass takes twice as many as the forward pass.
"""

from __future__ import annotations

from .model_settings import ModelSettings, TokenSettings
from .tasks import Task
from .tasks.features import CloudTask

BACKWARD = 2
"""Operations of a backward pass for each of the forward pass."""


def block_flops(model: ModelSettings, k: int) -> float:
    """Of a block's forward pass, for each of k rows."""
    matrices = 4 + 2 * model.mlp_ratio
    seen = (k + 1) / 2 if isinstance(model, TokenSettings) else model.window
    return 2.0 * matrices * model.width**2 + 4.0 * model.width * seen


def embedding_flops(task: Task) -> float:
    """Of the embedding's forward pass, for each row; a table that is looked up takes none."""
    width = task.model.width
    return 2.0 * width * (task.width + width) if isinstance(task, CloudTask) else 0.0


def head_flops(task: Task) -> float:
    """Of the head's forward pass, for each row (where rows are pooled, at most)."""
    return 2.0 * task.model.width * task.classes


def step_flops(task: Task, k: int, samples: int) -> float:
    """Of a step's forward and backward passes over ``samples`` samples of k rows, on all ranks together."""
    forward = task.model.depth * block_flops(task.model, k) + embedding_flops(task) + head_flops(task)
    return (1 + BACKWARD) * forward * k * samples
