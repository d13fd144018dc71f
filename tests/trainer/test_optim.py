from __future__ import annotations

import math

import pytest
import torch
from torch import nn

from tamis.trainer.optim import adamw, learning_rate
from tamis.trainer.settings import TrainerSettings

SETTINGS = TrainerSettings(points=32, steps=200, lr=1e-3, warmup=0.05)


def test_the_rate_rises_to_its_peak_and_falls_to_two_percent() -> None:
    rates = [learning_rate(u, SETTINGS) for u in range(200)]
    assert rates[0] == pytest.approx(1e-4)
    assert rates[9] == max(rates) == pytest.approx(1e-3)
    assert rates[:10] == sorted(rates[:10])
    assert rates[9:] == sorted(rates[9:], reverse=True)
    assert learning_rate(200, SETTINGS) == pytest.approx(2e-5)
    assert learning_rate(10_000, SETTINGS) == pytest.approx(2e-5)


@pytest.mark.parametrize("update", [10, 57, 105, 199])
def test_the_rate_is_half_a_cosine(update: int) -> None:
    x = (update - 10) / 190
    expected = 1e-3 * (0.02 + 0.98 * 0.5 * (1 + math.cos(math.pi * x)))
    assert learning_rate(update, SETTINGS) == pytest.approx(expected)


def test_without_warm_up_the_first_rate_is_the_peak() -> None:
    settings = TrainerSettings(points=32, steps=10, lr=0.5, warmup=0.0)
    assert learning_rate(0, settings) == 0.5


def test_only_matrices_decay() -> None:
    model = nn.Sequential(nn.Linear(3, 3), nn.LayerNorm(3))
    optimiser = adamw(model, TrainerSettings(points=32, weight_decay=0.1))
    for parameter in model.parameters():
        parameter.grad = torch.zeros_like(parameter)
    before = [p.detach().clone() for p in model.parameters()]
    optimiser.step()
    for old, new in zip(before, model.parameters(), strict=True):
        assert torch.equal(old, new) == (old.ndim == 1)
