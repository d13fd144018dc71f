"""The optimiser and its learning rate."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import nn

from ..settings import OptimiserName, TrainerSettings
from .lion import Lion
from .muon import Muon

Optimiser = Callable[[nn.Module, TrainerSettings], torch.optim.Optimizer]
"""Makes an optimiser of a model's parameters."""

ADAMW_BETAS = (0.9, 0.95)
LION_BETAS = (0.9, 0.99)
MUON_MOMENTUM = 0.95
FLOOR = 0.02  # share of the peak rate that is left at the end


def optimiser_of(model: nn.Module, settings: TrainerSettings) -> torch.optim.Optimizer:
    """The optimiser that ``trainer.optimiser`` names."""
    return _MAKERS[settings.optimiser](model, settings)


def adamw(model: nn.Module, settings: TrainerSettings) -> torch.optim.AdamW:
    """AdamW (Loshchilov and Hutter 2019)."""
    return torch.optim.AdamW(
        _groups(model.parameters(), settings), lr=settings.lr, betas=ADAMW_BETAS, fused=True
    )


def lion(model: nn.Module, settings: TrainerSettings) -> Lion:
    """Lion; its steps are larger than AdamW's at the same rate."""
    return Lion(_groups(model.parameters(), settings), lr=settings.lr, betas=LION_BETAS)


def muon(model: nn.Module, settings: TrainerSettings) -> Muon:
    """Muon for the matrices inside blocks, AdamW for embedding, head, norms and biases."""
    hidden: list[nn.Parameter] = []
    rest: list[nn.Parameter] = []
    for name, parameter in model.named_parameters():
        (hidden if is_hidden_matrix(name, parameter.ndim) else rest).append(parameter)
    return Muon(
        hidden,
        _groups(rest, settings),
        lr=settings.lr,
        weight_decay=settings.weight_decay,
        momentum=MUON_MOMENTUM,
        betas=ADAMW_BETAS,
    )


_MAKERS: dict[OptimiserName, Optimiser] = {"adamw": adamw, "lion": lion, "muon": muon}


def is_hidden_matrix(name: str, dims: int) -> bool:
    """Whether Muon learns a parameter of a model, by its name there and its number of dims."""
    return name.startswith("blocks.") and dims == 2


def states(optimiser: OptimiserName, name: str, dims: int) -> int:
    """How many numbers an optimiser keeps for each of a parameter's, which has this name in the model."""
    if optimiser == "muon":
        return 1 if is_hidden_matrix(name, dims) else 2
    return 1 if optimiser == "lion" else 2


def _groups(parameters: Iterable[nn.Parameter], settings: TrainerSettings) -> list[dict[str, Any]]:
    """Matrices, which decay, and vectors, norms and biases, which do not."""
    parameters = list(parameters)
    return [
        {"params": [p for p in parameters if p.ndim > 1], "weight_decay": settings.weight_decay},
        {"params": [p for p in parameters if p.ndim <= 1], "weight_decay": 0.0},
    ]


def learning_rate(updates: int, settings: TrainerSettings) -> float:
    """Rate of the update that follows ``updates`` others: a linear warm-up, then a fall to 2 % of the peak.

    A pure function of the number of optimiser steps, so that a run goes on from a checkpoint as if it had
    never stopped. It falls along half a cosine, as in SGDR (Loshchilov and Hutter 2017), or a line.
    """
    warmup = settings.warmup * settings.steps
    rise = min(1.0, (updates + 1) / warmup) if warmup else 1.0
    progress = min(1.0, max(0.0, (updates - warmup) / (settings.steps - warmup)))
    left = (1 + math.cos(math.pi * progress)) / 2 if settings.decay == "cosine" else 1 - progress
    return settings.lr * rise * (FLOOR + (1 - FLOOR) * left)


def set_learning_rate(optimiser: torch.optim.Optimizer, rate: float) -> None:
    """Give all parameter groups the same rate."""
    for group in optimiser.param_groups:
        group["lr"] = rate
