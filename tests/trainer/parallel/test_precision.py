"""Precision in every kind of layout: one decision for all ranks, and what one process would learn."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from tamis.metrics import STREAM, TRAIN, Meter
from tamis.trainer.learner import Learner
from tamis.trainer.mesh import Mesh, alone
from tamis.trainer.settings import LayoutSettings, TrainerSettings
from tamis.trainer.step import Outcome, Trainer

Make = Callable[..., Any]
STEPS, BAD = 4, 1
CLOUDS = 8

LAYOUTS = {
    "dp2": LayoutSettings(dp=2),
    "shard2": LayoutSettings(dp=2, shard=2),
    "tp2": LayoutSettings(tp=2),
    "pp2": LayoutSettings(pp=2, microbatches=2),
    "dp2-tp2": LayoutSettings(dp=2, tp=2),
    "dp2-pp2": LayoutSettings(dp=2, pp=2, microbatches=2),
    "shard2-tp2": LayoutSettings(dp=2, shard=2, tp=2),
    "shard2-zbv": LayoutSettings(dp=2, shard=2, pp=2, schedule="zbv", microbatches=4),
    "tp2-pp2": LayoutSettings(tp=2, pp=2, microbatches=2),
}
SOAK = ("dp2-tp2", "dp2-pp2")  # what they add to the others is plain data parallelism


def marks(name: str) -> list[pytest.MarkDecorator]:
    if name in SOAK:
        return [pytest.mark.soak]
    return [pytest.mark.slow] if LAYOUTS[name].ranks > 2 else []


CASES = [pytest.param(layout, id=name, marks=marks(name)) for name, layout in LAYOUTS.items()]


class Fault:
    """Breaks what a block's backward pass is handed, on one rank at some steps.

    ``lasting``: in fp32 too, not only where the block runs in less.
    """

    def __init__(self, trainer: Trainer, steps: Sequence[int], lasting: bool) -> None:
        self._learner, self._steps, self._lasting = trainer.learner, set(steps), lasting
        self.step = -1
        name, block = next(iter(trainer.learner.model.blocks.items()))
        self._layer = f"blocks.{name}"
        block.register_forward_hook(self._hook)

    def _hook(self, _block: nn.Module, _x: Any, y: Tensor) -> None:
        exact = self._learner.precisions.of(self._layer) == "fp32"
        if self.step in self._steps and y.requires_grad and (self._lasting or not exact):
            y.register_hook(self._broken)  # type: ignore[no-untyped-call]

    @staticmethod
    def _broken(gradient: Tensor) -> Tensor:
        gradient = gradient.clone()
        gradient.view(-1)[7] = torch.nan
        return gradient


class Ran(NamedTuple):
    outcomes: list[Outcome]
    updates: int
    gradients: dict[str, np.ndarray]
    model: dict[str, np.ndarray]


def ran(
    lab: Any,
    mesh: Mesh,
    layout: LayoutSettings,
    rank: int | None,
    bad: Sequence[int] = (BAD,),
    lasting: bool = True,
    steps: int = STEPS,
    **settings: Any,
) -> Ran:
    """A few steps of gradient descent on points, with a fault on one rank; the first step's gradients."""
    new_task, new_batch = lab.tasks["points"]
    options = {"points": 32, "steps": 100, "lr": 0.1, "warmup": 0.0, "clip": 0.5, "seed": 2} | settings
    learner = Learner(new_task(), layout, TrainerSettings(**options), mesh, lab.sgd)
    trainer = Trainer(learner, -(-CLOUDS // mesh.replicas), Meter(STREAM + TRAIN))
    fault = Fault(trainer, bad if mesh.rank == rank else (), lasting)
    first: dict[str, np.ndarray] = {}

    def keep(*_: object) -> None:
        if not first:
            for name, p in learner.model.named_parameters():
                if p.grad is not None:
                    gradient = p.grad.full_tensor() if isinstance(p.grad, DTensor) else p.grad
                    first[name] = gradient.numpy().copy()

    learner.optimiser.register_step_pre_hook(keep)
    outcomes = []
    for step in range(steps):
        fault.step = step
        outcomes.append(trainer.step(lab.share(new_batch(step), mesh)))
    model = {name: p.detach().numpy() for name, p in learner.whole().named_parameters()}
    return Ran(outcomes, learner.updates, first, model)


def distance(found: dict[str, np.ndarray], wanted: dict[str, np.ndarray]) -> float:
    """Of gradients from those of one process, as a share of their norm."""
    squares = sum(np.square(found[n][: len(wanted[n])] - wanted[n]).sum() for n in found)
    return float(np.sqrt(squares / sum(np.square(wanted[n]).sum() for n in found)))


def near(found: float | None, wanted: float | None, rel: float) -> bool:
    return found is wanted is None or found == pytest.approx(wanted, rel=rel)


NEAR = {"fp32": 1e-5, "bf16": 2e-2, "fp16": 3e-3}
SCALING = {"initial": 1024.0, "floor": 8.0}


def in_every_precision(lab: Any, mesh: Mesh, layout: LayoutSettings, rank: int) -> list[Ran]:
    return [ran(lab, mesh, layout, rank, precision=kind, scaling=SCALING) for kind in NEAR]


@pytest.fixture(scope="module")
def in_one(lab: Any) -> list[Ran]:
    """What one process does in every precision."""
    return in_every_precision(lab, alone(), LayoutSettings(), 0)


@pytest.mark.parametrize("layout", CASES)
def test_t09_what_one_rank_finds_all_ranks_decide(
    layout: LayoutSettings, run_ranks: Make, lab: Any, in_one: list[Ran]
) -> None:
    """T09: NaN in a gradient of the last rank; in every precision all ranks do what one process does."""
    wanted = in_one
    assert [one.outcomes[BAD].skipped for one in wanted] == ["not finite", "not finite", "overflow"]
    assert [one.outcomes[BAD].recomputed for one in wanted] == [False, True, False]
    answers = run_ranks(layout, lambda mesh: in_every_precision(lab, mesh, layout, layout.ranks - 1))
    for i, kind in enumerate(NEAR):
        one, ranks = wanted[i], [answer[i] for answer in answers]
        assert {r.updates for r in ranks} == {one.updates} == {STEPS - 1}
        for r in ranks:
            assert r.outcomes == ranks[0].outcomes
            for found, other in zip(r.outcomes, one.outcomes, strict=True):
                assert (found.skipped, found.recomputed) == (other.skipped, other.recomputed)
                assert (found.scale, found.lr) == (other.scale, other.lr)
                assert near(found.loss, other.loss, NEAR[kind])
                assert near(found.grad_norm, other.grad_norm, NEAR[kind])
            assert distance(r.gradients, one.gradients) < NEAR[kind], kind
            for name, values in r.model.items():
                np.testing.assert_allclose(values, one.model[name], atol=0.05 * NEAR[kind], rtol=NEAR[kind])


@pytest.fixture(scope="module")
def exact(lab: Any) -> Ran:
    """Five steps of one process in fp32."""
    return ran(lab, alone(), LayoutSettings(), None, steps=5)


@pytest.mark.parametrize("layout", CASES)
def test_what_fp32_mends_is_learned_from_and_the_layer_is_raised(
    layout: LayoutSettings, run_ranks: Make, lab: Any, exact: Ran
) -> None:
    """A block that breaks at every step, but not in fp32: as one process in fp32, until it is raised."""
    steps = len(exact.outcomes)

    def work(mesh: Mesh, own: LayoutSettings, rank: int) -> Ran:
        every = range(steps)
        return ran(lab, mesh, own, rank, every, False, steps, layers={"blocks.0": "bf16", "blocks.3": "bf16"})

    for found in run_ranks(layout, lambda mesh: work(mesh, layout, 0)):
        assert [o.recomputed for o in found.outcomes] == [True] * 3 + [False] * 2
        assert not any(o.skipped for o in found.outcomes)
        for i, (one, other) in enumerate(zip(found.outcomes, exact.outcomes, strict=True)):
            assert one.loss == pytest.approx(other.loss, rel=1e-5 if i < 3 else 1e-2)
        assert found.updates == steps


@pytest.fixture(scope="module")
def monitored(lab: Any) -> Outcome:
    """A step of one process that monitors its layers."""
    (outcome,) = ran(lab, alone(), LayoutSettings(), None, steps=1, monitor=True).outcomes
    return outcome


@pytest.mark.parametrize("layout", CASES)
def test_the_monitor_of_all_ranks_is_that_of_one(
    layout: LayoutSettings, run_ranks: Make, lab: Any, monitored: Outcome
) -> None:
    wanted = monitored.layers
    assert wanted is not None
    for found in run_ranks(layout, lambda mesh: ran(lab, mesh, layout, None, steps=1, monitor=True)):
        (outcome,) = found.outcomes
        assert outcome.layers is not None
        assert list(outcome.layers) == ["embed", *(f"blocks.{i}" for i in range(5)), "head"]
        for layer, one in outcome.layers.items():
            assert one.norm == pytest.approx(wanted[layer].norm, rel=1e-5)
            assert one.zeros == pytest.approx(wanted[layer].zeros, abs=0.02)
            assert one.broken == 0


@pytest.mark.parametrize("layout", [pytest.param(LAYOUTS["dp2"], id="dp2")])
def test_t08_t09_two_ranks_follow_the_trace_of_either_overflowing(
    layout: LayoutSettings, run_ranks: Make, lab: Any
) -> None:
    """T08, T09: flags of two ranks at random, and one alone in six steps in a row; the floor is 1."""
    flags = np.less(np.random.default_rng(9).random((2, 60)), 0.08)
    flags[:, 30:36] = [[True], [False]]
    either = [bool(one or other) for one, other in flags.T]
    scaling = {"interval": 8, "floor": 1.0}
    scale, good, trace = 65536.0, 0, []
    for overflow in either:
        trace.append(scale)
        good = 0 if overflow else good + 1
        scale = max(scale / 2, 1.0) if overflow else scale * 2 if good == 8 else scale
        good %= 8

    def work(mesh: Mesh) -> Ran:
        bad = np.flatnonzero(flags[mesh.rank]).tolist()
        layers = {"blocks.0": "fp16"}
        return ran(lab, mesh, layout, mesh.rank, bad, True, 60, layers=layers, scaling=scaling, lr=1e-3)

    for found in run_ranks(layout, work):
        assert [o.scale for o in found.outcomes] == trace
        assert [o.skipped == "overflow" for o in found.outcomes] == either
        assert found.updates == 60 - sum(either)


@pytest.mark.slow
@pytest.mark.usefixtures("graphs_only")
@pytest.mark.filterwarnings("default")
@pytest.mark.parametrize(
    ("precision", "name"), [("bf16", "shard2"), ("bf16", "tp2"), ("bf16", "pp2"), ("fp8", "dp2")]
)
def test_compiled_blocks_compute_in_the_same_precision(
    precision: str, name: str, run_ranks: Make, lab: Any
) -> None:
    layout = LAYOUTS[name]

    def work(mesh: Mesh) -> list[Ran]:
        torch._dynamo.reset()
        options: dict[str, Any] = {"steps": 2, "precision": precision}
        return [ran(lab, mesh, layout, None, compile=on, **options) for on in (False, True)]

    for eager, compiled in run_ranks(layout, work):
        assert distance(compiled.gradients, eager.gradients) < (0.05 if precision == "fp8" else 2e-2)
        assert compiled.outcomes[1].loss == pytest.approx(eager.outcomes[1].loss, rel=2e-2)
