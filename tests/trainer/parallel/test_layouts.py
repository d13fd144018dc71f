"""Every layout and schedule against one process: loss, each gradient, the norm, and five updates."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
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
from tamis.trainer.mesh import Mesh, alone
from tamis.trainer.model_settings import PointSettings, TokenSettings
from tamis.trainer.optim import adamw
from tamis.trainer.settings import LayoutSettings, TrainerSettings
from tamis.trainer.step import Trainer
from tamis.trainer.tasks import NextToken, Segmentation, Task, TaskState

Make = Callable[..., Any]
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
    """What `STEPS` steps do: losses, norms, the whole first gradients, and the whole model at last."""
    new_task, new_batch = TASKS[kind]
    options = {"points": K, "steps": 100, "lr": 0.1, "warmup": 0.0, "clip": 0.5, "seed": 2} | settings
    learner = Learner(new_task(), layout, TrainerSettings(**options), mesh, optimiser)
    trainer = Trainer(learner, -(-CLOUDS // mesh.replicas), Meter(STREAM + TRAIN))
    first: dict[str, Tensor] = {}

    def keep(*_: object) -> None:
        if not first:
            first.update({n: full(p.grad) for n, p in learner.model.named_parameters() if p.grad is not None})

    learner.optimiser.register_step_pre_hook(keep)  # they are clipped then, all by the same factor
    outcomes = [trainer.step(share(new_batch(i, k), mesh)) for i, k in enumerate(levels)]
    held = sum(
        p.to_local().numel() if isinstance(p, DTensor) else p.numel() for p in learner.model.parameters()
    )
    return {
        "losses": [o.loss for o in outcomes],
        "norms": [o.grad_norm for o in outcomes],
        "gradients": {n: g.numpy() for n, g in first.items()},
        "model": {n: p.detach().numpy() for n, p in learner.whole().named_parameters()},
        "parameters": held,
        "world": dist.get_world_size() if dist.is_initialized() else 1,
    }


def full(tensor: Tensor) -> Tensor:
    return (tensor.full_tensor() if isinstance(tensor, DTensor) else tensor).detach().clone()


def L(**sizes: Any) -> LayoutSettings:
    return LayoutSettings(**sizes)


LAYOUTS = [
    L(dp=2),
    L(dp=4, microbatches=2),
    L(dp=2, shard=2),
    L(dp=4, shard=2, microbatches=2),
    L(microbatches=4),
    L(tp=2),
    L(dp=2, tp=2),
    L(dp=2, shard=2, tp=2),
    L(dp=4, shard=2, tp=2),
    L(tp=2, microbatches=3),
    L(pp=2, schedule="gpipe", microbatches=4),
    L(pp=2, schedule="gpipe", microbatches=1),
    L(pp=4, schedule="gpipe", microbatches=3),
    L(pp=2, schedule="1f1b", microbatches=4),
    L(pp=4, schedule="1f1b", microbatches=8),
    L(pp=2, schedule="interleaved", microbatches=4),
    L(pp=2, schedule="zero_bubble", microbatches=4),
    L(pp=2, schedule="zbv", microbatches=4),
    L(dp=2, pp=2, schedule="1f1b", microbatches=2),
    L(dp=2, shard=2, pp=2, schedule="1f1b", microbatches=3),
    L(dp=2, shard=2, pp=2, schedule="interleaved", microbatches=4),
    L(dp=2, shard=2, pp=2, schedule="zero_bubble", microbatches=4),
    L(dp=2, shard=2, pp=2, schedule="zbv", microbatches=4),
    L(tp=2, pp=2, schedule="1f1b", microbatches=4),
    L(tp=2, pp=2, schedule="zbv", microbatches=4),
    L(dp=2, tp=2, pp=2, schedule="gpipe", microbatches=4),
    L(dp=2, tp=2, pp=2, schedule="1f1b", microbatches=4),
    L(dp=2, tp=2, pp=2, schedule="interleaved", microbatches=4),
    L(dp=2, tp=2, pp=2, schedule="zero_bubble", microbatches=4),
    L(dp=2, tp=2, pp=2, schedule="zbv", microbatches=4),
    L(dp=2, shard=2, tp=2, pp=2, schedule="1f1b", microbatches=4),
    L(dp=2, shard=2, tp=2, pp=2, schedule="zbv", microbatches=4),
]


def name_of(layout: LayoutSettings) -> str:
    sizes = {n: v for n, v in layout.model_dump().items() if v not in (None, 1)}
    if layout.pp == 1:
        sizes.pop("schedule", None)
    return "-".join(v if n == "schedule" else f"{n}{v}" for n, v in sizes.items())


@pytest.mark.parametrize("kind", list(TASKS))
@pytest.mark.parametrize("layout", LAYOUTS, ids=name_of)
def test_a_layout_learns_what_one_process_learns(kind: str, layout: LayoutSettings, run_ranks: Make) -> None:
    levels = LEVELS if layout.ranks == 8 else (K,) * STEPS
    wanted = both(kind, L(), alone(), levels)
    answers = run_ranks(layout, lambda mesh: both(kind, layout, mesh, levels))
    check([a["sgd"] for a in answers], wanted["sgd"], layout)
    check([a["adamw"] for a in answers], wanted["adamw"], layout, parameters=False)


def both(kind: str, layout: LayoutSettings, mesh: Mesh, levels: tuple[int, ...]) -> dict[str, Any]:
    return {
        "sgd": taught(kind, layout, mesh, sgd, levels),
        "adamw": taught(kind, layout, mesh, adamw, levels, lr=1e-3),
    }


def check(
    answers: list[dict[str, Any]], wanted: dict[str, Any], layout: LayoutSettings, parameters: bool = True
) -> None:
    assert [a["world"] for a in answers] == [layout.ranks] * layout.ranks
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
