"""What has gone wrong in other trainers, each with its right value or its refusal."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch.nn import functional

from tamis.config import check
from tamis.errors import UsageError
from tamis.metrics import STREAM, TRAIN, Meter
from tamis.trainer.learner import Learner
from tamis.trainer.mesh import Mesh, alone
from tamis.trainer.model_settings import TokenSettings
from tamis.trainer.parallel.loss import cross_entropy
from tamis.trainer.parallel.norm import clip, gradients, squared_norm
from tamis.trainer.parallel.tensor import rows_of
from tamis.trainer.settings import LayoutSettings, Settings, TrainerSettings
from tamis.trainer.step import Trainer
from tamis.trainer.tasks import NextToken

Make = Callable[..., Any]


def L(**sizes: Any) -> LayoutSettings:
    return LayoutSettings(**sizes)


def configured(**sections: Any) -> Settings:
    values: dict[str, Any] = {"name": "small", "data": {}, "loader": {"batch": 16}}
    values |= {"model": {"depth": 8}, "trainer": {"points": 64}}
    return check(values | sections, Settings, where="small.toml")


@pytest.mark.parametrize("tp", [2, pytest.param(4, marks=pytest.mark.slow)])
def test_t03_a_vocabulary_that_tp_does_not_divide(tp: int, run_ranks: Make) -> None:
    """Seven tokens over two and four ranks: what fills up has no share in the loss and no gradient."""
    model = TokenSettings(width=16, heads=4, depth=2, vocabulary=7, end=6)
    settings = TrainerSettings(points=16, steps=50, lr=0.05, seed=1)
    rng = np.random.default_rng(0)
    tokens = [torch.from_numpy(rng.integers(0, 7, (4, 16))) for _ in range(30)]

    def losses(layout: LayoutSettings, mesh: Mesh) -> tuple[list[float], int]:
        learner = Learner(NextToken(model, True, "here"), layout, settings, mesh)
        trainer = Trainer(learner, 4, Meter(STREAM + TRAIN))
        mask, weight = torch.ones(4, 16, dtype=torch.bool), torch.ones(4)
        found = []
        for step, values in enumerate(tokens):
            columns = {"tokens": values, "mask": mask, "weight": weight}
            found.append(trainer.step(_batch_of(step), move=lambda _, c=columns: c).loss or 0.0)  # type: ignore[misc]
        heads = [p for n, p in learner.model.named_parameters() if n == "head.weight"]
        return found, sum(p.shape[0] for p in heads)

    wanted, rows = losses(L(), alone())
    assert rows == 7
    for found, padded in run_ranks(L(tp=tp), lambda mesh: losses(L(tp=tp), mesh)):
        assert padded == 8
        np.testing.assert_allclose(found, wanted, rtol=2e-4)


def _batch_of(step: int) -> Any:
    from tamis.loaders.loader import Batch

    nothing: dict[str, Any] = {}
    return Batch(step, 0, np.zeros(4, np.uint64), nothing, None, None, np.ones(4, np.float32), 16)


def test_t04_each_element_counts_once_in_the_norm(run_ranks: Make) -> None:
    """Gradients of 1 everywhere: the squared norm is the number of parameters, on any layout."""
    model = TokenSettings(width=16, heads=2, depth=2, vocabulary=8, end=7)
    whole = sum(p.numel() for p in _learner(model, L(), alone()).model.parameters())

    def work(mesh: Mesh, layout: LayoutSettings) -> tuple[float, float]:
        learner = _learner(model, layout, mesh)
        for p in learner.model.parameters():
            p.grad = torch.ones_like(p)
        held = gradients(learner.model)
        norm = float(mesh.sum(squared_norm(held, mesh))) ** 0.5
        clip(held, norm, 1.0)
        return norm, float(mesh.sum(squared_norm(held, mesh))) ** 0.5

    for layout in (L(tp=2), L(dp=2), L(dp=2, shard=2), L(pp=2), L(dp=2, tp=2), L(dp=2, shard=2, tp=2)):
        for norm, clipped in run_ranks(layout, work, layout):
            assert norm == pytest.approx(whole**0.5, rel=1e-6)
            assert clipped == pytest.approx(1.0, rel=1e-4)


def _learner(model: TokenSettings, layout: LayoutSettings, mesh: Mesh) -> Learner:
    return Learner(NextToken(model, True, "here"), layout, TrainerSettings(points=16, steps=9), mesh)


@pytest.mark.parametrize(
    "layout", [L(tp=2), *(pytest.param(L(dp=2, shard=n, tp=2), marks=pytest.mark.slow) for n in (1, 2))]
)
def test_t05_copies_of_a_parameter_stay_equal_to_the_bit(
    layout: LayoutSettings, run_ranks: Make, lab: Any
) -> None:
    """Ten steps with sequence parallelism: norms and biases see other rows on each rank."""
    answers = run_ranks(
        layout, lambda mesh: lab.taught("points", layout, mesh, lab.adamw, (32,) * 10, lr=0.01)
    )
    split = ("query", "key", "value", "up", "head", "out.weight", "down.weight")
    whole = [n for n in answers[0]["bits"] if not any(part in n for part in split)]
    assert len(whole) > 10
    for name in whole:
        replicas = [a["bits"][name] for a in answers]
        for first in range(0, layout.ranks, 2):  # neighbours along tp
            assert replicas[first] == replicas[first + 1], name
    if layout.shard == 1:
        assert all(a["bits"] == answers[i % 2]["bits"] for i, a in enumerate(answers))


def test_t06_the_loss_takes_each_ranks_own_scores(run_ranks: Make) -> None:
    """Scores 0, 1, 2, 3 and label 3 over two ranks; scores that were gathered before are refused."""
    scores, label = torch.arange(4.0)[None], torch.tensor([3])

    def work(mesh: Mesh) -> Any:
        rows = rows_of(mesh)
        own = scores[:, 2 * rows.index : 2 * rows.index + 2].clone().requires_grad_()
        loss = cross_entropy(own, label, 4, -1, rows)
        torch.autograd.backward(loss)
        with pytest.raises(UsageError, match="4 scores a row, where a rank's share of 4 classes is 2"):
            cross_entropy(scores, label, 4, -1, rows)
        return loss.item(), own.grad.tolist() if own.grad is not None else None

    wanted = (scores.softmax(-1) - functional.one_hot(label, 4))[0].tolist()
    (loss, low), (its_loss, high) = run_ranks(L(tp=2), work)
    assert loss == its_loss == pytest.approx(0.4401897, rel=1e-6)
    assert [*low[0], *high[0]] == pytest.approx(wanted, rel=1e-5)


@pytest.mark.parametrize(("tp", "classes"), [(2, 7), (3, 7), (4, 5), (2, 2), (4, 3)])
def test_split_cross_entropy_is_torchs(tp: int, classes: int, run_ranks: Make) -> None:
    rng = torch.Generator().manual_seed(classes)
    scores = torch.randn(40, classes, generator=rng) * 30
    labels = torch.randint(-1, classes, (40,), generator=rng)
    each = -(-classes // tp)
    padded = functional.pad(scores, (0, each * tp - classes), value=99.0)  # fills up, and must not count

    def work(mesh: Mesh) -> Any:
        rows = rows_of(mesh)
        own = padded[:, rows.index * each : (rows.index + 1) * each].clone().requires_grad_()
        loss = cross_entropy(own, labels, classes, -1, rows)
        torch.autograd.backward(loss * 0.5)
        assert own.grad is not None
        return loss.item(), own.grad.numpy()

    one = scores.clone().requires_grad_()
    wanted = functional.cross_entropy(one, labels, ignore_index=-1, reduction="sum")
    torch.autograd.backward(wanted * 0.5)
    answers = run_ranks(L(tp=tp), work)
    assert [loss for loss, _ in answers] == pytest.approx([wanted.item()] * tp, rel=1e-6)
    found = np.concatenate([g for _, g in answers], axis=1)
    assert one.grad is not None
    np.testing.assert_allclose(found[:, :classes], one.grad.numpy(), atol=1e-6)
    assert not found[:, classes:].any()


@pytest.mark.parametrize("microbatches", [1, 2, 3, 4, 5])
def test_t14_fewer_microbatches_than_pipeline_ranks(microbatches: int, run_ranks: Make, lab: Any) -> None:
    """1F1B over four ranks is refused below four microbatches, and GPipe is right with any number."""
    layout = {"pp": 4, "microbatches": microbatches}
    if microbatches < 4:
        with pytest.raises(UsageError, match=r"set layout\.microbatches to 4 or more"):
            configured(layout=layout)
        schedule = "gpipe"
    else:
        schedule = "1f1b"
    settings = configured(layout={**layout, "schedule": schedule}).layout
    wanted = lab.taught("tokens", L(), alone(), lab.sgd, (32,))
    lab.check(run_ranks(settings, lambda mesh: lab.taught("tokens", settings, mesh, lab.sgd, (32,))), wanted)


@pytest.mark.parametrize("schedule", ["zero_bubble", "zbv"])
def test_zero_bubble_with_resharding_is_refused(schedule: str) -> None:
    """Its gradients would be wrong and its loss right."""
    layout = {"dp": 2, "shard": 2, "pp": 2, "schedule": schedule, "microbatches": 4}
    with pytest.raises(UsageError, match=r"set layout[.]reshard to false"):
        configured(layout={**layout, "reshard": True})
    assert not configured(layout=layout).layout.reshards


@pytest.mark.parametrize(
    ("sections", "told"),
    [
        ({"layout": {"tp": 2}, "trainer": {"points": 63}}, "not a multiple of 32"),
        (
            {"layout": {"tp": 2}, "model": {"kind": "tokens"}, "trainer": {"points": 63}},
            "trainer.points 63 is not a multiple of 2",
        ),
        ({"layout": {"tp": 4}}, "layout.tp 4 does not divide model.heads 2"),
        ({"layout": {"dp": 4, "shard": 3}}, "shard 3 does not divide dp 4"),
        ({"layout": {"dp": 8, "pp": 2, "microbatches": 3}}, "above a replica's share of loader.batch, 2"),
        ({"layout": {"dp": 32}}, "layout.dp 32 is above loader.batch 16"),
        ({"layout": {"pp": 16}}, "the model only 8 blocks"),
        (
            {"layout": {"pp": 2, "schedule": "zbv"}, "trainer": {"points": 64, "recompute": "full"}},
            "set trainer.recompute to none",
        ),
        (
            {"layout": {"pp": 2, "schedule": "zero_bubble"}, "trainer": {"points": 64, "compile": True}},
            "set trainer.compile to false",
        ),
        (
            {"layout": {"pp": 4, "schedule": "interleaved", "microbatches": 9}},
            "interleaved cannot part 9 microbatches",
        ),
    ],
)
def test_what_cannot_be_is_refused_before_any_rank_starts(sections: dict[str, Any], told: str) -> None:
    """A length that tp does not divide would end the process in a collective, others would hang."""
    with pytest.raises(UsageError, match=told):
        configured(**sections)


@pytest.mark.parametrize(
    "layout", [L(dp=4), L(microbatches=4), L(dp=2, microbatches=2), L(pp=2, microbatches=4)]
)
def test_t11_parts_with_1_7_100_and_0_tokens(layout: LayoutSettings, run_ranks: Make) -> None:
    """The loss is the mean over all tokens, however they are parted; a part without any does no harm."""
    model = TokenSettings(width=16, heads=2, depth=2, vocabulary=8, end=7)
    settings = TrainerSettings(points=102, steps=9, clip=1e9)
    values = torch.from_numpy(np.random.default_rng(1).integers(0, 7, (4, 102)))
    mask = torch.zeros(4, 102, dtype=torch.bool)
    for row, counted in enumerate((1, 7, 100, 0)):
        mask[row, : counted + 1 if counted else 0] = True

    def work(mesh: Mesh, layout: LayoutSettings) -> Any:
        learner = Learner(NextToken(model, True, "here"), layout, settings, mesh)
        mine = slice(mesh.replica, None, mesh.replicas)
        columns = {"tokens": values[mine], "mask": mask[mine], "weight": torch.ones(4)[mine]}
        trainer = Trainer(learner, -(-4 // mesh.replicas), Meter(STREAM + TRAIN))
        outcome = trainer.step(_batch_of(0), move=lambda _: columns)
        return outcome.loss, outcome.grad_norm, outcome.points

    with torch.no_grad():
        whole = _learner(model, L(), alone())
        task = NextToken(model, True, "here")
        columns = {"tokens": values}
        scores = whole.model(task.entry(columns), **task.inputs(columns, mask))
        each = functional.cross_entropy(scores[:, :-1].transpose(1, 2), values[:, 1:], reduction="none")
    counts = mask[:, 1:]
    wanted, norm, points = work(alone(), L())
    assert points == 108
    assert wanted == pytest.approx(float(each[counts].mean()), rel=1e-5)
    means = [each[row][counts[row]].mean() for row in range(3)]
    assert wanted != pytest.approx(float(torch.stack(means).mean()), rel=1e-3)
    for loss, its_norm, its_points in run_ranks(layout, work, layout):
        assert (loss, its_norm, its_points) == (
            pytest.approx(wanted, rel=1e-5),
            pytest.approx(norm, rel=1e-5),
            108,
        )
