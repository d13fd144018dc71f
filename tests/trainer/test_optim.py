from __future__ import annotations

import json
import math
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from tamis.pipelines.dataset import Dataset
from tamis.trainer import loop
from tamis.trainer.mesh import alone
from tamis.trainer.optimisers.lion import Lion
from tamis.trainer.optimisers.optimiser import (
    adamw,
    is_hidden_matrix,
    learning_rate,
    muon,
    optimiser_of,
    states,
)
from tamis.trainer.settings import OptimiserName, TrainerSettings

Make = Callable[..., Any]

SETTINGS = TrainerSettings(points=32, steps=200, lr=1e-3, warmup=0.05)
LINE = SETTINGS.model_copy(update={"decay": "linear"})
NAMES: tuple[OptimiserName, ...] = ("adamw", "lion", "muon")


@pytest.mark.parametrize("settings", [SETTINGS, LINE], ids=["cosine", "linear"])
def test_the_rate_rises_to_its_peak_and_falls_to_two_percent(settings: TrainerSettings) -> None:
    rates = [learning_rate(u, settings) for u in range(200)]
    assert rates[0] == pytest.approx(1e-4)
    assert rates[9] == max(rates) == pytest.approx(1e-3)
    assert rates[:10] == sorted(rates[:10])
    assert rates[9:] == sorted(rates[9:], reverse=True)
    assert learning_rate(200, settings) == pytest.approx(2e-5)
    assert learning_rate(10_000, settings) == pytest.approx(2e-5)


@pytest.mark.parametrize("update", [10, 57, 105, 199])
def test_the_rate_is_half_a_cosine_or_a_line(update: int) -> None:
    x = (update - 10) / 190
    cosine = 1e-3 * (0.02 + 0.98 * 0.5 * (1 + math.cos(math.pi * x)))
    assert learning_rate(update, SETTINGS) == pytest.approx(cosine)
    assert learning_rate(update, LINE) == pytest.approx(1e-3 * (1 - 0.98 * x))


def test_without_warm_up_the_first_rate_is_the_peak() -> None:
    settings = TrainerSettings(points=32, steps=10, lr=0.5, warmup=0.0)
    assert learning_rate(0, settings) == 0.5


@pytest.mark.parametrize(
    ("batch", "lr_batch", "lr"), [(4, None, 0.01), (4, 4, 0.01), (12, 4, 0.03), (4, 16, 0.0025)]
)
def test_the_rate_is_in_proportion_to_the_batch(
    settings_of: Make, batch: int, lr_batch: int | None, lr: float
) -> None:
    """Whatever the layout; the configuration keeps what was written."""
    trainer = {"points": 32, "steps": 9, "lr": 0.01} | ({"lr_batch": lr_batch} if lr_batch else {})
    for dp in (1, 2):
        settings = settings_of(loader={"batch": batch}, layout={"dp": dp}, trainer=trainer)
        assert settings.learning.lr == pytest.approx(lr)
        assert settings.trainer.lr == 0.01
        assert settings.model_copy(update={"trainer": settings.learning}).learning == settings.learning


def model_of() -> nn.ModuleDict:
    """Two blocks, a head, norms: names and shapes as a model has them."""
    torch.manual_seed(0)
    blocks = nn.ModuleDict()
    for i in range(2):
        parts = {"up": nn.Linear(4, 6), "down": nn.Linear(6, 4), "norm": nn.LayerNorm(4)}
        blocks[str(i)] = nn.ModuleDict(parts)
    return nn.ModuleDict({"embed": nn.Embedding(5, 4), "blocks": blocks, "head": nn.Linear(4, 3)})


def give_gradients(model: nn.Module, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    for parameter in model.parameters():
        parameter.grad = torch.randn(parameter.shape, generator=generator)


@pytest.mark.parametrize("name", NAMES)
def test_only_matrices_decay(name: OptimiserName) -> None:
    model = model_of()
    optimiser = optimiser_of(model, TrainerSettings(points=32, weight_decay=0.1, optimiser=name))
    for parameter in model.parameters():
        parameter.grad = torch.zeros_like(parameter)
    before = [p.detach().clone() for p in model.parameters()]
    optimiser.step()
    for old, new in zip(before, model.parameters(), strict=True):
        if old.ndim == 1:
            assert torch.equal(old, new)
        else:
            assert torch.allclose(new, old * (1 - 2e-3 * 0.1), rtol=1e-6, atol=0)


@given(
    st.lists(st.sampled_from([(), (1,), (0, 3), (17,), (5, 3), (2, 3, 4)]), min_size=1, max_size=4),
    st.integers(0, 2**32 - 1),
    st.floats(1e-4, 1.0),
    st.floats(0, 1.0),
    st.tuples(st.floats(0, 0.99), st.floats(0, 0.99)),
)
def test_lion_is_the_algorithm_of_its_paper(
    shapes: list[tuple[int, ...]], seed: int, lr: float, decay: float, betas: tuple[float, float]
) -> None:
    draw = torch.Generator().manual_seed(seed)
    parameters = [nn.Parameter(torch.randn(s, generator=draw, dtype=torch.float64)) for s in shapes]
    optimiser = Lion([{"params": parameters, "weight_decay": decay}], lr=lr, betas=betas)
    wanted, momenta = [p.detach().clone() for p in parameters], [torch.zeros_like(p) for p in parameters]
    for _ in range(3):
        for i, p in enumerate(parameters):
            p.grad = torch.randn(p.shape, generator=draw, dtype=torch.float64)
            update = torch.sign(betas[0] * momenta[i] + (1 - betas[0]) * p.grad)
            wanted[i] = wanted[i] - lr * (update + decay * wanted[i])
            momenta[i] = betas[1] * momenta[i] + (1 - betas[1]) * p.grad
        optimiser.step()
    for p, value, momentum in zip(parameters, wanted, momenta, strict=True):
        torch.testing.assert_close(p.detach(), value, rtol=1e-9, atol=1e-12)
        torch.testing.assert_close(optimiser.state[p]["momentum"], momentum, rtol=1e-9, atol=1e-12)


def test_muon_is_that_of_torch_and_adamw_has_the_rest() -> None:
    settings = TrainerSettings(points=32, lr=0.01, weight_decay=0.1)
    ours, theirs = model_of(), model_of()
    named = dict(theirs.named_parameters())
    hidden = [p for name, p in named.items() if is_hidden_matrix(name, p.ndim)]
    assert [name for name, p in named.items() if any(p is h for h in hidden)] == [
        f"blocks.{i}.{layer}.weight" for i in range(2) for layer in ("up", "down")
    ]
    rest = nn.ParameterList([p for p in named.values() if not any(p is h for h in hidden)])
    optimisers = [
        torch.optim.Muon(hidden, lr=0.01, weight_decay=0.1, momentum=0.95, adjust_lr_fn="match_rms_adamw"),
        adamw(rest, settings),
    ]
    one = muon(ours, settings)
    for seed in range(5):
        for model in (ours, theirs):
            give_gradients(model, seed)
        one.step()
        for optimiser in optimisers:
            optimiser.step()
    for (name, p), q in zip(ours.named_parameters(), named.values(), strict=True):
        if any(q is h for h in hidden):
            # torch scales by rate and shape at once, this in two steps: a rounding apart.
            torch.testing.assert_close(p, q, rtol=1e-6, atol=1e-7)
            momentum = optimisers[0].state[q]["momentum_buffer"]
            assert torch.equal(one.state[p]["momentum_buffer"], momentum), name
        else:
            assert torch.equal(p, q), name


@pytest.mark.parametrize("name", NAMES)
def test_states_are_as_many_as_said(name: OptimiserName) -> None:
    model = model_of()
    optimiser = optimiser_of(model, TrainerSettings(points=32, optimiser=name))
    give_gradients(model, 0)
    optimiser.step()
    for key, p in model.named_parameters():
        kept = [v for v in optimiser.state[p].values() if v.ndim]
        assert len(kept) == states(name, key, p.ndim)
        assert all(v.shape == p.shape for v in kept)


@pytest.mark.parametrize(("name", "lr"), [("adamw", 5e-3), ("lion", 1e-3), ("muon", 5e-3)])
def test_each_optimiser_learns(new_trainer: Make, new_batch: Make, name: OptimiserName, lr: float) -> None:
    """On which side of its sample a point lies."""
    trainer, losses = new_trainer(optimiser=name, lr=lr), []
    for step in range(20):
        batch = new_batch(step)
        batch.columns["label"][:] = batch.columns["xyz"][:, :, 0] > 0
        losses.append(trainer.step(batch).loss)
    assert losses[0] > 0.9
    assert losses[-1] < 0.5


def test_a_run_learns_at_the_rate_of_its_batch(run_settings: Make, dataset: Dataset, tmp_path: Path) -> None:
    settings = run_settings(steps=1, warmup=0.0, lr=0.01, lr_batch=10)  # and a batch of 5
    loop.run(settings, dataset, tmp_path, alone(), time.time())
    (line,) = (tmp_path / "steps.jsonl").read_text().splitlines()
    assert json.loads(line)["lr"] == 0.005
