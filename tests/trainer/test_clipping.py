from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tamis.config import check
from tamis.errors import UsageError
from tamis.trainer.mesh import Mesh
from tamis.trainer.optimisers.clipping import HIGHEST, LOWEST, Clipping
from tamis.trainer.settings import TrainerSettings

NORMS = st.lists(st.floats(min_value=0), max_size=40)


def followed(norms: list[float]) -> list[float]:
    """The thresholds of these norms, and the one after."""
    clipping, found = Clipping("adaptive"), []
    for norm in norms:
        found.append(clipping.highest)
        clipping.update(norm)
    return [*found, clipping.highest]


def reference(norms: list[float]) -> list[float]:
    """Twice the weighted geometric mean of the norms, each as it was clipped, written as one sum."""
    thresholds, counted = [1.0], []
    for norm in norms:
        if math.isfinite(norm):
            counted.append(math.log(max(0.05, min(norm, thresholds[-1]))))
        n = len(counted)
        weights = [0.98 ** (n - 1)] + [0.02 * 0.98 ** (n - 1 - i) for i in range(1, n)]
        usual = math.exp(sum(w * c for w, c in zip(weights, counted, strict=False)))
        thresholds.append(max(0.1, min(2 * usual, 1.0)) if n else 1.0)
    return thresholds


@given(NORMS)
def test_the_threshold_is_that_of_the_reference(norms: list[float]) -> None:
    assert followed(norms) == pytest.approx(reference(norms), rel=1e-9)


@given(NORMS)
def test_the_threshold_stays_within_its_bounds(norms: list[float]) -> None:
    assert all(LOWEST <= threshold <= HIGHEST for threshold in followed(norms))


def test_it_follows_the_norms_and_no_spike() -> None:
    assert followed([0.2] * 400)[-1] == pytest.approx(0.4, rel=1e-3)
    assert followed([0.2] * 400 + [1e6])[-1] == pytest.approx(0.4, rel=2e-2)
    assert followed([0.2] * 400 + [0.5] * 400)[-1] == pytest.approx(1.0, rel=1e-3)
    assert followed([1e-9] * 400)[-1] == pytest.approx(LOWEST)
    assert followed([50.0] * 400)[-1] == HIGHEST


@pytest.mark.parametrize("norm", [math.inf, math.nan])
def test_what_is_not_finite_does_not_count(norm: float) -> None:
    clipping = Clipping("adaptive")
    clipping.update(norm)
    assert clipping.state.usual is None
    clipping.update(0.3)
    before = clipping.state
    clipping.update(norm)
    assert clipping.state == before


def test_a_number_stays_what_it_is() -> None:
    clipping = Clipping(0.7)
    clipping.update(0.01)
    assert (clipping.highest, clipping.state.usual) == (0.7, None)


@pytest.mark.parametrize("value", ["adaptively", 0, -0.5, True, math.nan, math.inf, []])
def test_what_is_no_threshold_is_refused(value: object) -> None:
    with pytest.raises(UsageError, match=r"'clip'.* neither a number above 0 nor 'adaptive'"):
        check({"clip": value}, TrainerSettings, where="x.toml")
    assert check({"clip": "adaptive"}, TrainerSettings, where="x.toml").clip == "adaptive"
    assert check({"clip": 2}, TrainerSettings, where="x.toml").clip == 2.0


def test_all_ranks_clip_to_the_same(
    run_ranks: Callable[..., Any], new_trainer: Callable[..., Any], new_batch: Callable[..., Any]
) -> None:
    """Each step by the threshold that the norms before it gave."""

    def work(mesh: Mesh) -> Any:
        trainer, clipped = new_trainer(mesh, clip="adaptive"), []

        def keep(*_: object) -> None:
            grads = [p.grad.double().square().sum() for p in trainer.learner.model.parameters()]
            clipped.append(float(sum(grads)) ** 0.5)

        trainer.learner.optimiser.register_step_pre_hook(keep)
        norms = [trainer.step(new_batch(step)).grad_norm for step in range(4)]
        return norms, clipped, trainer.learner.state.clipping.usual

    (norms, clipped, usual), second = run_ranks(2, work)
    assert (norms, clipped, usual) == second
    clipping = Clipping("adaptive")
    for norm, after in zip(norms, clipped, strict=True):
        assert after == pytest.approx(min(norm, clipping.highest), rel=1e-4)
        clipping.update(norm)
    assert clipping.state.usual == usual
    assert min(a / n for n, a in zip(norms, clipped, strict=True)) < 0.99
