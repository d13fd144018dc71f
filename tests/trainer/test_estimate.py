"""What a run is said to take, against what ranks really hold and send."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from tamis.errors import UsageError
from tamis.loaders.loader import Batch
from tamis.metrics import STREAM, TRAIN, Meter
from tamis.trainer.dry_run import planned_task, text
from tamis.trainer.estimate import Estimator, RankEstimate
from tamis.trainer.flops import step_flops
from tamis.trainer.learner import Learner
from tamis.trainer.mesh import Mesh
from tamis.trainer.parallel.shares import local
from tamis.trainer.parallel.wire import Wire, axes_of
from tamis.trainer.settings import Settings
from tamis.trainer.step import Trainer
from tamis.trainer.tasks import Task

POINTS = {"kind": "points", "width": 24, "heads": 2, "depth": 5, "window": 8, "features": ("xy", "intensity")}
MODELS: dict[str, dict[str, Any]] = {
    "points": POINTS,
    "clouds": POINTS | {"kind": "clouds"},
    "tokens": {"kind": "tokens", "width": 24, "heads": 2, "depth": 4, "vocabulary": 7, "end": 6},
}
K, EACH = 32, 4  # rows of a sample, samples of a replica
COUNTS = 64  # bytes that carry the number of rows and the loss


@pytest.fixture
def planned(settings_of: Callable[..., Settings], tmp_path: Path) -> Callable[..., tuple[Settings, Task]]:
    """``planned(model, layout, **trainer)``: a configuration without a dataset, and its task."""

    def make(model: dict[str, Any], layout: dict[str, Any], **trainer: Any) -> tuple[Settings, Task]:
        settings = settings_of(
            data={"classes": {"a": [1], "b": [2], "c": [3]}},
            loader={"batch": EACH * layout.get("dp", 1)},
            model=model,
            layout=layout,
            trainer={"points": K, "steps": 4} | trainer,
        )
        task = planned_task(settings, tmp_path)
        task.state.bright["intensity"] = 100.0
        return settings, task

    return make


def new_batch(seed: int) -> Batch:
    """A replica's share, with the columns of every task."""
    rng = np.random.default_rng(seed)
    columns: dict[str, Any] = {
        "xyz": rng.uniform(-5, 5, (EACH, K, 3)).astype(np.float32),
        "intensity": rng.integers(0, 120, (EACH, K)).astype(np.uint16),
        "label": np.broadcast_to(rng.integers(0, 3, (EACH, 1)), (EACH, K)).astype(np.int32),
        "transposed": rng.permuted(np.tile(np.arange(K), (EACH, 1)), axis=1),
        "tokens": rng.integers(0, 7, (EACH, K)).astype(np.int32),
    }
    ids, weight = np.arange(EACH, dtype=np.uint64), np.ones(EACH, np.float32)
    return Batch(0, 0, ids, columns, np.ones((EACH, K), bool), None, weight, K)


def step(
    mesh: Mesh, settings: Settings, task: Task, seed: int
) -> tuple[int, int, list[str], dict[str, float]]:
    """Numbers this rank keeps, its optimiser's bytes, its blocks, and bytes it sent in a step, by axis."""
    learner = Learner(task, settings.layout, settings.trainer, mesh)
    trainer = Trainer(learner, EACH, Meter(STREAM + TRAIN))
    batch = new_batch(seed + mesh.replica)
    for _ in range(2):  # in which ranks connect, and agree on shapes and buckets
        trainer.step(batch)
    with Wire(axes_of(mesh)) as wire:
        trainer.step(batch)
    held = [local(p) for p in learner.model.parameters()]
    kept = [v for values in learner.optimiser.state.values() for v in values.values() if v.ndim]
    sent = {axis: traffic.wire_bytes for axis, traffic in wire.by_axis().items()}
    return (
        sum(t.numel() for t in held),
        sum(local(v).nbytes for v in kept),
        list(learner.model.blocks),
        sent,
    )


@pytest.mark.parametrize(
    ("model", "layout", "trainer"),
    [
        ("points", {"dp": 2}, {}),
        ("points", {"dp": 2, "microbatches": 2}, {}),
        ("points", {"dp": 3, "shard": 3, "microbatches": 2}, {"optimiser": "muon"}),
        ("points", {"dp": 4, "shard": 2, "reshard": False}, {}),
        ("points", {"dp": 2, "tp": 2}, {"recompute": "full"}),
        ("clouds", {"tp": 2, "microbatches": 2}, {"recompute": "selective"}),
        ("tokens", {"tp": 2, "pp": 2, "microbatches": 4}, {"optimiser": "lion"}),
        ("tokens", {"pp": 2, "schedule": "zbv", "microbatches": 4}, {}),
        ("points", {"tp": 2, "pp": 2, "schedule": "interleaved"}, {"recompute": "full"}),
        ("points", {"dp": 2, "shard": 2, "pp": 2, "schedule": "interleaved"}, {}),
        ("points", {"dp": 2, "shard": 2, "pp": 2, "microbatches": 4, "reshard": True}, {}),
        ("points", {"dp": 2, "shard": 2, "tp": 2}, {"optimiser": "muon"}),
        pytest.param(
            "points",
            {"dp": 2, "shard": 2, "tp": 2, "pp": 2, "schedule": "zero_bubble"},
            {},
            marks=pytest.mark.slow,
        ),
    ],
    ids=str,
)
def test_ranks_hold_and_send_what_was_said(
    planned: Callable[..., tuple[Settings, Task]],
    run_ranks: Callable[..., list[Any]],
    model: str,
    layout: dict[str, Any],
    trainer: dict[str, Any],
) -> None:
    settings, task = planned(MODELS[model], layout, **trainer)
    said = Estimator(settings, task).ranks()
    found = run_ranks(settings.layout, step, settings, task, 5)
    assert len(said) == len(found) == settings.layout.ranks
    for estimate, (parameters, kept, blocks, sent) in zip(said, found, strict=True):
        assert estimate.parameters == parameters
        assert estimate.memory["optimiser"] == kept
        assert sorted(estimate.blocks) == sorted(map(int, blocks))
        # What belongs to no axis is the few bytes of counts.
        for axis in {*estimate.wire_bytes, *sent}:
            assert sent.get(axis, 0.0) == pytest.approx(estimate.wire_bytes.get(axis, 0.0), abs=COUNTS), axis


@pytest.mark.parametrize("model", MODELS)
def test_what_is_kept_for_the_backward_pass(
    planned: Callable[..., tuple[Settings, Task]], model: str
) -> None:
    settings, task = planned(MODELS[model] | {"depth": 8}, {})
    learner = Learner(task, settings.layout, settings.trainer, Mesh(0, torch.device("cpu")))
    parameters = {p.untyped_storage().data_ptr() for p in learner.model.parameters()}
    kept: dict[int, int] = {}

    def pack(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in parameters:
            kept[storage.data_ptr()] = storage.nbytes()
        return tensor

    batch = new_batch(3).torch()
    mask, weight = batch["mask"], batch["weight"]
    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        scores = learner.model(task.entry(batch), **task.inputs(batch, mask))
        loss = task.loss(scores, task.labels(batch, mask, weight))
    (said,) = Estimator(settings, task).ranks()
    assert said.memory["activations"] == pytest.approx(sum(kept.values()), rel=0.1)
    assert loss.requires_grad


def of(planned: Callable[..., tuple[Settings, Task]], layout: dict[str, Any], **trainer: Any) -> RankEstimate:
    return Estimator(*planned(POINTS | {"depth": 8}, layout, **trainer)).ranks()[0]


def test_memory_falls_with_what_saves_it(planned: Callable[..., tuple[Settings, Task]]) -> None:
    whole = of(planned, {})
    assert whole.memory["optimiser"] == 2 * whole.memory["gradients"] == 8 * whole.parameters
    assert whole.memory["gathered"] == 0
    kinds = [of(planned, {}, recompute=r).memory["activations"] for r in ("full", "selective", "none")]
    assert kinds == sorted(kinds)
    assert kinds[0] < kinds[2] / 2
    sharded, kept = (of(planned, {"dp": 2, "shard": 2, "reshard": reshard}) for reshard in (True, False))
    assert sharded.parameters <= whole.parameters / 2 + 100
    assert 0 < sharded.memory["gathered"] < kept.memory["gathered"]
    # 1F1B keeps as many microbatches as there are pipeline ranks, GPipe all.
    pipelines = [{"pp": 2, "microbatches": 4, "schedule": schedule} for schedule in ("1f1b", "gpipe")]
    few, every = (of(planned, layout).memory["activations"] for layout in pipelines)
    assert every == 2 * few


@pytest.mark.parametrize("layout", [{}, {"dp": 2}, {"dp": 2, "tp": 2, "pp": 2, "schedule": "zbv"}], ids=str)
def test_ranks_share_out_the_work(
    planned: Callable[..., tuple[Settings, Task]], layout: dict[str, Any]
) -> None:
    settings, task = planned(POINTS, layout)
    total = sum(r.flops for r in Estimator(settings, task).ranks())
    assert total == pytest.approx(step_flops(task, K, settings.loader.batch))


def test_bubbles_as_schedules_have_them(planned: Callable[..., tuple[Settings, Task]]) -> None:
    bubbles = []
    for schedule in ("zbv", "interleaved", "1f1b"):
        layout = {"pp": 2, "microbatches": 4, "schedule": schedule}
        bubbles.append(Estimator(*planned(POINTS | {"depth": 64}, layout)).bubble())
    assert bubbles == sorted(bubbles)
    assert bubbles[2] == pytest.approx(1 / 5, abs=0.01)  # (p - 1) / (m + p - 1)
    assert Estimator(*planned(POINTS, {})).bubble() == 0


def test_the_table(planned: Callable[..., tuple[Settings, Task]]) -> None:
    settings, task = planned(POINTS, {"dp": 2, "tp": 2, "pp": 2, "schedule": "zbv"})
    first, head, *lines = text(settings, task).splitlines()
    whole = Estimator(*planned(POINTS, {})).ranks()[0].parameters
    assert first.startswith(f"8 rank(s), {whole:,} parameters; zbv over 2 microbatches, bubble ")
    assert head.split()[:5] == ["rank", "pp", "dp_replicate", "tp", "blocks"]
    assert [line.split()[0] for line in lines[:8]] == [str(r) for r in range(8)]
    assert {line.split()[4] for line in lines[:8]} == {"0,4", "1-3"}
    assert lines[-1].endswith("of a step at 32 rows a sample")


def test_classes_that_are_not_known(settings_of: Callable[..., Settings], tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"data\.classes is empty"):
        planned_task(settings_of(), tmp_path)
