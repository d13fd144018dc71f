"""What tests of layouts share: made-up clouds and tokens, and what a few steps on them do."""

from __future__ import annotations

import importlib
import warnings
from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from tamis.loaders.loader import Batch
from tamis.metrics import STREAM, TRAIN, Meter
from tamis.samplers.curve import serialise
from tamis.trainer.learner import Learner
from tamis.trainer.mesh import Mesh
from tamis.trainer.model_settings import PointSettings, TokenSettings
from tamis.trainer.models.layers import here
from tamis.trainer.optimisers.optimiser import adamw
from tamis.trainer.parallel.wire import Wire, axes_of
from tamis.trainer.settings import LayoutSettings, TrainerSettings
from tamis.trainer.step import Trainer
from tamis.trainer.tasks import NextToken, Segmentation, Task, TaskState

CLOUDS, K = 8, 32
POINTS = PointSettings(width=24, heads=2, depth=5, window=8, features=("xy", "z", "intensity"))
TOKENS = TokenSettings(width=16, heads=2, depth=4, vocabulary=7, end=6)
STEPS = 5


def points() -> Task:
    state = TaskState(classes=("ground", "plants", "roof"), bright={"intensity": 100.0})
    return Segmentation(POINTS, state, ["xyz", "intensity", "label"], "here")


def tokens() -> Task:
    return NextToken(TOKENS, True, "here")


def cloud_batch(step: int, k: int = K, clouds: int = CLOUDS) -> Batch:
    """Clouds of which some have few labelled points, one none, and one is mostly padding."""
    rng = np.random.default_rng([4, step])
    xyz = rng.uniform(-5, 5, (clouds, k, 3)).astype(np.float32)
    transposed = np.empty((clouds, k), np.int64)
    for cloud in range(clouds):
        order, transposed[cloud] = serialise(xyz[cloud], POINTS.cell)
        xyz[cloud] = xyz[cloud][order]
    label = rng.integers(-1, 3, (clouds, k)).astype(np.int32)
    label[1], label[2, 1:], label[3, 7:] = -1, -1, -1
    mask = np.ones((clouds, k), bool)
    mask[-1, 5:] = False
    columns: dict[str, Any] = {
        "xyz": xyz,
        "intensity": rng.integers(0, 120, (clouds, k)).astype(np.uint16),
        "label": label,
        "transposed": transposed,
    }
    return _batch(step, columns, mask, k)


def token_batch(step: int, k: int = K, clouds: int = CLOUDS) -> Batch:
    """Sequences of tokens with document boundaries in most of them, and one that is mostly padding."""
    rng = np.random.default_rng([5, step])
    values = rng.integers(0, 6, (clouds, k)).astype(np.uint16)
    values[rng.random((clouds, k)) < 0.1] = TOKENS.end
    mask = np.ones((clouds, k), bool)
    mask[-1, 5:] = False
    return _batch(step, {"tokens": values}, mask, k)


def _batch(step: int, columns: dict[str, Any], mask: Any, k: int) -> Batch:
    ids, weight = np.arange(len(mask), dtype=np.uint64) + 10, np.ones(len(mask), np.float32)
    return Batch(step, 0, ids, columns, mask, None, weight, k)


def share(batch: Batch, mesh: Mesh) -> Batch:
    """A replica's share of the clouds; they need not be next to each other."""
    mine = slice(mesh.replica, None, mesh.replicas)
    assert batch.mask is not None
    columns = {name: values[mine] for name, values in batch.columns.items()}
    return replace(
        batch, ids=batch.ids[mine], columns=columns, mask=batch.mask[mine], weight=batch.weight[mine]
    )


def sgd(model: nn.Module, settings: TrainerSettings) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=settings.lr)


TASKS: dict[str, tuple[Callable[[], Task], Callable[..., Batch]]] = {
    "points": (points, cloud_batch),
    "tokens": (tokens, token_batch),
}
LEVELS = (32, 32, 16, 16, 8)  # rows at each step: a ratio that crosses three levels


def taught(
    kind: str,
    layout: LayoutSettings,
    mesh: Mesh,
    optimiser: Any,
    levels: tuple[int, ...] = (K,) * STEPS,
    **settings: Any,
) -> dict[str, Any]:
    """What a few steps do: losses, norms, the first gradients, the whole model at last, what was sent."""
    new_task, new_batch = TASKS[kind]
    options = {"points": K, "steps": 100, "lr": 0.1, "warmup": 0.0, "clip": 0.5, "seed": 2} | settings
    learner = Learner(new_task(), layout, TrainerSettings(**options), mesh, optimiser)
    trainer = Trainer(learner, -(-CLOUDS // mesh.replicas), Meter(STREAM + TRAIN))
    first: dict[str, Tensor] = {}

    def keep(*_: object) -> None:
        if not first:
            first.update({n: full(p.grad) for n, p in learner.model.named_parameters() if p.grad is not None})

    learner.optimiser.register_step_pre_hook(keep)  # they are clipped then, all by the same factor
    outcomes = []
    for i, k in enumerate(levels[:-1]):
        outcomes.append(trainer.step(share(new_batch(i, k), mesh)))
    with Wire(axes_of(mesh)) as wire:
        outcomes.append(trainer.step(share(new_batch(len(levels) - 1, levels[-1]), mesh)))
    return {
        "losses": [o.loss for o in outcomes],
        "norms": [o.grad_norm for o in outcomes],
        "gradients": {n: g.numpy() for n, g in first.items()},
        "model": {n: p.detach().numpy() for n, p in learner.whole().named_parameters()},
        "held": {n: here(p).numel() for n, p in learner.model.named_parameters()},
        "bits": {n: here(p).detach().numpy().tobytes() for n, p in learner.model.named_parameters()},
        "traffic": {key: vars(traffic) for key, traffic in wire.traffic.items()},
        "world": dist.get_world_size() if dist.is_initialized() else 1,
    }


def full(tensor: Tensor) -> Tensor:
    return (tensor.full_tensor() if isinstance(tensor, DTensor) else tensor).detach().clone()


def both(kind: str, layout: LayoutSettings, mesh: Mesh, levels: tuple[int, ...]) -> dict[str, Any]:
    """With plain gradient descent, which shows every gradient in the parameters, and with AdamW."""
    return {
        "sgd": taught(kind, layout, mesh, sgd, levels),
        "adamw": taught(kind, layout, mesh, adamw, levels, lr=1e-3),
    }


def check(answers: list[dict[str, Any]], wanted: dict[str, Any], parameters: bool = True) -> None:
    """The ranks' answers are those of one process."""
    seen = set()
    whole = np.sqrt(sum(np.square(g).sum() for g in wanted["gradients"].values()))
    for rank, answer in enumerate(answers):
        np.testing.assert_allclose(answer["losses"], wanted["losses"], rtol=1e-5, err_msg=f"rank {rank}")
        np.testing.assert_allclose(answer["norms"], wanted["norms"], rtol=1e-5, err_msg=f"rank {rank}")
        for name, gradient in answer["gradients"].items():
            seen.add(name)
            one = wanted["gradients"][name]
            assert not gradient[len(one) :].any(), f"rank {rank}: {name} has a gradient where it is filled up"
            gap = np.linalg.norm(gradient[: len(one)] - one)
            assert gap <= 1e-5 * np.linalg.norm(one) + 1e-7 * whole, f"rank {rank}: {name}: {gap}"
        if parameters:
            for name, values in answer["model"].items():
                np.testing.assert_allclose(values, wanted["model"][name], rtol=1e-5, atol=1e-6, err_msg=name)
    assert seen == wanted["gradients"].keys()


@pytest.fixture(scope="session")
def lab() -> SimpleNamespace:
    """The functions of this file."""
    return SimpleNamespace(
        both=both, check=check, taught=taught, share=share, sgd=sgd, adamw=adamw, tasks=TASKS, levels=LEVELS
    )


@pytest.fixture(scope="session")
def _compiler() -> None:
    """The compiler's modules, loaded before ranks are forked: each would spend seconds on that.

    Nothing is compiled here: once autograd's threads run, no fork can trace a backward pass.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for module in ("torch._dynamo.backends.debugging", "torch._inductor.compile_fx"):
            importlib.import_module(module)


@pytest.fixture
def graphs_only(_compiler: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Compile to graphs, and run these by torch's operators: a C++ compiler would take a minute a test."""
    plain = nn.Module.compile
    monkeypatch.setattr(nn.Module, "compile", lambda module: plain(module, backend="aot_eager"))
