from __future__ import annotations

import math
from fractions import Fraction
from typing import Any, get_args

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tamis.config import check
from tamis.errors import UsageError
from tamis.samplers import RatioSchedule, RatioSettings
from tamis.samplers.ratio import RatioKind

FINE = 100_001
"""So many levels that rounding to them hides no error of a formula."""


@st.composite
def schedules(draw: st.DrawFn) -> RatioSchedule:
    kind: RatioKind = draw(st.sampled_from(get_args(RatioKind)))
    steps = draw(st.integers(2, 500))
    warmup = draw(st.integers(0, steps - 2))
    start, end = (draw(st.integers(1, 1000)) / 1000 for _ in range(2))
    marks = draw(st.sets(st.integers(warmup + 1, steps), min_size=1, max_size=4))
    return RatioSchedule(
        kind,
        start=start,
        end=start if kind == "constant" else end,
        steps=steps,
        warmup=warmup,
        milestones=tuple(sorted(marks)) if kind == "steps" else (),
        levels=draw(st.integers(2, 20)),
    )


@settings(deadline=None)
@given(schedules(), st.integers(0, 600))
def test_starts_ends_and_stays_between(ratio: RatioSchedule, step: int) -> None:
    assert [ratio(s) for s in range(ratio.warmup + 1)] == [ratio.start] * (ratio.warmup + 1)
    assert ratio(ratio.steps) == ratio(ratio.steps + step) == ratio.end
    assert min(ratio.start, ratio.end) <= ratio(step) <= max(ratio.start, ratio.end)


@settings(deadline=None)
@given(schedules())
def test_moves_one_way_over_at_most_its_levels(ratio: RatioSchedule) -> None:
    values = [ratio(s) for s in range(ratio.steps + 2)]
    assert values == sorted(values, reverse=ratio.end < ratio.start)
    assert len(set(values)) <= ratio.levels
    assert ratio == RatioSchedule(**vars(ratio))
    assert values == [RatioSchedule(**vars(ratio))(s) for s in range(ratio.steps + 2)]  # no state


@pytest.mark.parametrize(("start", "end"), [(1.0, 0.25), (0.2, 0.9)])
def test_formulas(start: float, end: float) -> None:
    keys: dict[str, Any] = {"start": start, "end": end, "steps": 110, "warmup": 10, "levels": FINE}
    linear, cosine = RatioSchedule("linear", **keys), RatioSchedule("cosine", **keys)
    exponential = RatioSchedule("exponential", **keys)
    stairs = RatioSchedule("steps", milestones=(20, 60, 110), **keys)
    for step in range(10, 111):
        x = (step - 10) / 100
        assert linear(step) == pytest.approx(start + (end - start) * x, abs=1e-5)
        assert cosine(step) == pytest.approx(end + (start - end) * (1 + math.cos(math.pi * x)) / 2, abs=1e-5)
        assert exponential(step) == pytest.approx(start * (end / start) ** x, abs=1e-5)
        reached = (step >= 20) + (step >= 60) + (step >= 110)
        assert stairs(step) == pytest.approx(start * (end / start) ** (reached / 3), abs=1e-5)


def test_decay_counts_from_the_end_of_the_warm_up() -> None:
    ratio = RatioSchedule("exponential", start=1, end=0.3, steps=500, warmup=100, decay=0.99, levels=FINE)
    assert ratio(100) == 1
    for step in range(100, 600):
        assert ratio(step) == pytest.approx(max(0.99 ** (step - 100), 0.3), abs=1e-5)


def test_decay_a_milestone_is_bounded_by_end() -> None:
    ratio = RatioSchedule("steps", start=1, end=0.3, steps=9, decay=0.5, milestones=(2, 4, 6), levels=FINE)
    assert [round(ratio(s), 4) for s in range(9)] == [1, 1, 0.5, 0.5, 0.3, 0.3, 0.3, 0.3, 0.3]


def test_rising_decay_of_any_size_ends_at_end() -> None:
    ratio = RatioSchedule("exponential", start=0.1, end=1, steps=10_000, decay=50.0)
    assert ratio(9_999) == 1


@settings(deadline=None)
@given(schedules(), st.integers(0, 600), st.integers(0, 10**7), st.integers(1, 600))
def test_counts_are_the_nearest_multiple(ratio: RatioSchedule, step: int, n: int, multiple_of: int) -> None:
    count = ratio.count(step, n, multiple_of)
    if n < multiple_of:
        assert count == n
        return
    assert multiple_of <= count <= n
    assert count % multiple_of == 0
    exact = ratio._ratio(step) * n
    assert float(exact / n) == ratio(step)
    for other in (count - multiple_of, count + multiple_of):
        if multiple_of <= other <= n:
            assert abs(count - exact) <= abs(other - exact)


def test_counts_are_exact_where_floats_are_not() -> None:
    tenth = RatioSchedule("constant", start=0.1, end=0.1, steps=1)
    assert tenth.count(0, 10**17) == 10**16
    assert tenth.count(0, 10) == 1  # ceil(float32(0.1) * 10) is 2
    half = RatioSchedule("constant", start=0.5, end=0.5, steps=1)
    assert half.count(0, 5) == 3  # a half rounds up
    assert half._ratio(0) == Fraction(1, 2)


GOOD: dict[str, Any] = {"kind": "linear", "start": 1.0, "end": 0.5, "steps": 10}


@pytest.mark.parametrize(
    "wrong",
    [
        {"kind": "polynomial"},
        {"kind": "constant"},
        {"start": 0.0},
        {"start": 1.1},
        {"end": -0.5},
        {"end": float("nan")},
        {"steps": 0},
        {"steps": 1.5},
        {"warmup": -1},
        {"warmup": 10},
        {"levels": 0},
        {"decay": 0.9},
        {"kind": "exponential", "decay": 1.1},
        {"kind": "exponential", "decay": 0.9, "end": 1.0, "start": 0.5},
        {"kind": "exponential", "decay": 0.0},
        {"milestones": (3,)},
        {"kind": "steps"},
        {"kind": "steps", "milestones": (5, 5)},
        {"kind": "steps", "milestones": (3, 11)},
        {"kind": "steps", "milestones": (3,), "warmup": 3},
        {"start": None},
        {"end": "0.5"},
        {"kind": "exponential", "decay": "0.9"},
        {"kind": "steps", "milestones": 3},
    ],
)
def test_arguments_out_of_range_are_refused_by_name(wrong: dict[str, Any]) -> None:
    with pytest.raises(UsageError, match="ratio\\."):
        RatioSchedule(**GOOD | wrong)


@pytest.mark.parametrize("call", [(-1,), (0.5,), (0, -1), (0, 10, 0)])
def test_impossible_counts_are_refused(call: tuple[Any, ...]) -> None:
    with pytest.raises(UsageError):
        RatioSchedule(**GOOD).count(*call, *(10,) * (2 - len(call)))


def test_settings_make_the_schedule() -> None:
    settings = check(
        {"kind": "steps", "end": 0.5, "steps": 9, "milestones": [3, 6]}, RatioSettings, where="test"
    )
    assert settings.schedule() == RatioSchedule("steps", start=1.0, end=0.5, steps=9, milestones=(3, 6))
    assert RatioSettings().schedule()(3) == 1.0
    for wrong, told in (
        ({"kind": "linear", "end": 0.5}, "ratio.steps: is missing"),
        ({"start": 2.0}, "is 2.0"),
    ):
        with pytest.raises(UsageError, match=told):
            check(wrong, RatioSettings, where="test")
