from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tamis.trainer.precision.raising import LONG, MANY, RECENT, Raising
from tamis.trainer.precision.scaling import Scaler, ScalerState, ScalingSettings

INTERVAL = 8
T08 = ScalingSettings(interval=INTERVAL, floor=1.0)


def flags() -> list[bool]:
    """Whether one of two ranks overflows in each of 60 steps; in six steps in a row the first one alone."""
    found = np.less(np.random.default_rng(9).random((2, 60)), 0.08)
    found[0, 30:36], found[1, 30:36] = True, False
    return [bool(one or other) for one, other in found.T]


def wanted_trace(overflows: Sequence[bool]) -> list[tuple[float, int]]:
    """Scale and good steps after each step, by the rule as it is told."""
    scale, good, trace = 65536.0, 0, []
    for overflow in overflows:
        good = 0 if overflow else good + 1
        if overflow:
            scale = max(scale / 2, 1.0)
        elif good == INTERVAL:
            scale, good = scale * 2, 0
        trace.append((scale, good))
    return trace


def trace_of(scaler: Scaler, overflows: Sequence[bool]) -> list[tuple[float, int]]:
    trace = []
    for overflow in overflows:
        scaler.update(overflow)
        trace.append((scaler.state.scale, scaler.state.good))
    return trace


def test_t08_the_trace_is_that_of_the_rule_wherever_it_is_cut() -> None:
    """T08: one of two ranks overflows, in six steps in a row, and at random; restored after every step."""
    overflows = flags()
    wanted = wanted_trace(overflows)
    assert trace_of(Scaler(T08), overflows) == wanted
    assert {scale for scale, _ in wanted} >= {65536.0 / 2**i for i in range(1, 8)}
    for cut in range(len(overflows)):
        before, after = Scaler(T08), Scaler(T08)
        trace_of(before, overflows[:cut])
        after.state = ScalerState.model_validate_json(before.state.model_dump_json())
        assert trace_of(after, overflows[cut:]) == wanted[cut:]


@given(
    st.lists(st.booleans(), max_size=200),
    st.integers(1, 5),
    st.sampled_from([0.5, 0.25, 0.9]),
    st.sampled_from([2.0, 1.5, 1e6]),
)
def test_the_scale_stays_between_floor_and_ceiling(
    overflows: list[bool], interval: int, backoff: float, growth: float
) -> None:
    settings = ScalingSettings(interval=interval, backoff=backoff, growth=growth)
    scaler = Scaler(settings)
    for overflow in overflows:
        before = scaler.scale
        had_room = scaler.update(overflow)
        assert settings.floor <= scaler.scale <= settings.ceiling
        assert had_room == (overflow and before > settings.floor)
        assert (scaler.scale < before) == had_room
        assert 0 <= scaler.state.good < interval


def test_the_scale_is_never_zero_and_comes_back() -> None:
    scaler = Scaler(ScalingSettings(interval=1))
    assert [scaler.update(True) for _ in range(100)] == [True] * 13 + [False] * 87
    assert scaler.scale == 8.0
    for _ in range(100):
        scaler.update(False)
    assert scaler.scale == 2.0**24


LAYERS = ("embed", "blocks.0", "blocks.1", "head")
ALL = set(LAYERS)


def test_the_layer_that_breaks_the_others_is_raised() -> None:
    """What is not finite goes backward through all layers before the one to blame."""
    raising, broken = Raising(LAYERS), {"embed", "blocks.0"}
    assert [raising.broke(step, broken, ALL) for step in (5, 6, 7)] == [[], [], ["blocks.0"]]
    assert raising.state.raised == ("blocks.0",)
    assert "blocks.0" not in raising.state.blamed


def test_a_layer_that_was_handed_what_is_too_large_is_not_to_blame() -> None:
    raising = Raising(LAYERS)
    lowered = ALL - {"blocks.0"}
    found = [raising.broke(step, {"embed", "blocks.0"}, lowered) for step in range(MANY)]
    assert found[-1] == ["blocks.1"]
    assert raising.broke(9, {"head"}, ALL - {"head"}) == []
    assert raising.broke(9, set(), ALL) == []


def test_what_is_rare_raises_nothing() -> None:
    raising = Raising(LAYERS)
    every = RECENT // (MANY - 1)
    assert not any(raising.broke(step, {"head"}, ALL) for step in range(0, 500, every))
    assert raising.broke(496, {"head"}, ALL) == ["head"]


def test_a_layer_whose_gradients_vanish_for_long_is_raised() -> None:
    raising = Raising(LAYERS)
    zeros = {"embed": 0.0, "blocks.0": 0.6, "blocks.1": 0.6, "head": 0.5}
    for _ in range(LONG - 1):
        assert raising.finite(zeros, {"blocks.0", "head"}) == []
    assert raising.finite(zeros | {"blocks.0": 0.1}, {"blocks.0", "head"}) == []
    for _ in range(LONG - 1):
        assert raising.finite(zeros, {"blocks.0", "head"}) == []
    assert raising.finite(zeros, {"blocks.0", "head"}) == ["blocks.0"]
    assert raising.state.raised == ("blocks.0",)


@pytest.mark.parametrize("cut", range(12))
def test_raising_goes_on_where_it_was_cut(cut: int) -> None:
    def seen(raising: Raising, steps: range) -> list[list[str]]:
        return [
            raising.broke(step, {"blocks.1"}, ALL)
            if step % 4 == 0
            else raising.finite({"embed": 0.9}, {"embed"} if step < 11 else set())
            for step in steps
        ]

    whole = Raising(LAYERS)
    wanted = seen(whole, range(12))
    assert ["blocks.1"] in wanted
    first, second = Raising(LAYERS), Raising(LAYERS)
    found = seen(first, range(cut))
    second.state = type(first.state).model_validate_json(first.state.model_dump_json())
    assert found + seen(second, range(cut, 12)) == wanted
    assert second.state == whole.state
