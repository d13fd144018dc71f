"""The optimiser and its learning rate."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import nn

from .settings import TrainerSettings

Optimiser = Callable[[nn.Module, TrainerSettings], torch.optim.Optimizer]
"""Makes an optimiser of a model's parameters."""

BETAS = (0.9, 0.95)
FLOOR = 0.02  # share of the peak rate that is left at the end


def adamw(model: nn.Module, settings: TrainerSettings) -> torch.optim.AdamW:
    """AdamW (Loshchilov and Hutter 2019) that decays matrices only, not norms and biases."""
    matrices = [p for p in model.parameters() if p.ndim > 1]
    vectors = [p for p in model.parameters() if p.ndim <= 1]
    groups = [
        {"params": matrices, "weight_decay": settings.weight_decay},
        {"params": vectors, "weight_decay": 0.0},
    ]
    return torch.optim.AdamW(groups, lr=settings.lr, betas=BETAS, fused=True)


def learning_rate(updates: int, settings: TrainerSettings) -> float:
    """Rate of the update that follows ``updates`` others: a linear warm-up, then half a cosine.

    A pure function of the number of optimiser steps, so that a run goes on from a checkpoint as if it had
    never stopped (SGDR's cosine, Loshchilov and Hutter 2017, to 2 % of the peak).
    """
    warmup = settings.warmup * settings.steps
    rise = min(1.0, (updates + 1) / warmup) if warmup else 1.0
    progress = min(1.0, max(0.0, (updates - warmup) / (settings.steps - warmup)))
    fall = FLOOR + (1 - FLOOR) * (1 + math.cos(math.pi * progress)) / 2
    return settings.lr * rise * fall


def set_learning_rate(optimiser: torch.optim.Optimizer, rate: float) -> None:
    """Give all parameter groups the same rate."""
    for group in optimiser.param_groups:
        group["lr"] = rate
