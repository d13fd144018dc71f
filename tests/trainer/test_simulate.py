"""Simulated pipelines, against closed forms and against what no schedule can beat."""

from __future__ import annotations

from typing import get_args

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tamis.trainer.parallel.schedules import Action, Kind, ScheduleName, actions, chunks, refusal
from tamis.trainer.parallel.simulate import Timeline, simulate

NAMES: tuple[ScheduleName, ...] = get_args(ScheduleName)
RANKS, MICROBATCHES = st.integers(1, 5), st.integers(1, 12)


def unit(kind: Kind, stage: int) -> float:
    return 2.0 if kind == "B" else 1.0


def even(name: ScheduleName, pp: int, microbatches: int) -> Timeline:
    """Each pass of a microbatch through a rank lasts 1, a whole backward pass 2, over its stages together."""

    def times(kind: Kind, stage: int) -> float:
        return unit(kind, stage) / chunks(name)

    return simulate(actions(name, pp, microbatches), times)


@settings(deadline=None)
@given(st.sampled_from(["gpipe", "1f1b"]), RANKS, MICROBATCHES)
def test_the_bubble_of_one_stage_a_rank(name: ScheduleName, pp: int, microbatches: int) -> None:
    if refusal(name, pp, microbatches, 99, False):
        return
    timeline = even(name, pp, microbatches)
    assert timeline.makespan_s == pytest.approx(3 * (microbatches + pp - 1))
    assert timeline.bubble == pytest.approx((pp - 1) / (microbatches + pp - 1))
    assert timeline.busy_s == dict.fromkeys(range(pp), pytest.approx(3 * microbatches))


@settings(deadline=None)
@given(RANKS, st.integers(1, 3))
def test_two_stages_a_rank_halve_the_bubble(pp: int, rounds: int) -> None:
    microbatches = pp * rounds
    idle = even("interleaved", pp, microbatches).makespan_s - 3 * microbatches
    assert idle == pytest.approx(3 * (pp - 1) / 2)


@settings(deadline=None)
@given(st.sampled_from(["zero_bubble", "zbv"]), RANKS, st.integers(0, 4))
def test_weight_gradients_fill_the_bubble(name: ScheduleName, pp: int, more: int) -> None:
    """Only the way of the first microbatch to the last rank remains: F of p - 1 half stages."""
    microbatches = 2 * pp + (more if name == "zbv" else 0)
    assert even(name, pp, microbatches).makespan_s == pytest.approx(3 * microbatches + (pp - 1) / 2)


@settings(deadline=None)
@given(st.sampled_from(NAMES), RANKS, MICROBATCHES, st.data())
def test_no_rank_works_more_than_its_list(
    name: ScheduleName, pp: int, microbatches: int, data: st.DataObject
) -> None:
    if refusal(name, pp, microbatches, 99, False):
        return
    stages = pp * chunks(name)
    costs = data.draw(
        st.lists(st.tuples(*[st.integers(0, 9)] * 3), min_size=stages, max_size=stages), label="costs"
    )
    times = [{"F": row[0], "I": row[1], "W": row[2], "B": row[1] + row[2]} for row in costs]
    order = actions(name, pp, microbatches)
    timeline = simulate(order, lambda kind, stage: times[stage][kind])
    work = {
        rank: sum(sum(costs[stage]) * microbatches for stage in {action.stage for action in todo})
        for rank, todo in order.items()
    }
    assert timeline.busy_s == work
    there = sum(row[0] for row in costs) + sum(row[1] for row in costs)  # one microbatch through all stages
    assert timeline.makespan_s >= max(*work.values(), there)
    assert 0 <= timeline.bubble < 1


def test_the_gradient_leaves_a_full_backward_pass_only_at_its_end() -> None:
    split = {
        0: [Action("F", 0, 0), Action("I", 0, 0), Action("W", 0, 0)],
        1: [Action("F", 1, 0), Action("I", 1, 0), Action("W", 1, 0)],
    }
    whole = {
        0: [Action("F", 0, 0), Action("B", 0, 0)],
        1: [Action("F", 1, 0), Action("B", 1, 0)],
    }
    assert simulate(split, unit).makespan_s == 5
    assert simulate(whole, unit).makespan_s == 6
    no_input = simulate(split, lambda kind, stage: 0.0 if (kind, stage) == ("I", 0) else 1.0)
    assert (no_input.makespan_s, no_input.busy_s) == (4, {0: 2, 1: 3})


@pytest.mark.parametrize(
    "order",
    [
        {0: [Action("F", 0, 0), Action("B", 0, 0)], 1: [Action("B", 1, 0), Action("F", 1, 0)]},
        {0: [Action("W", 0, 0), Action("I", 0, 0)]},
        {0: [Action("F", 1, 0)]},
    ],
)
def test_ranks_that_wait_for_each_other(order: dict[int, list[Action]]) -> None:
    with pytest.raises(ValueError, match="never ends"):
        simulate(order, unit)


def test_nothing_to_do() -> None:
    assert simulate({0: []}, unit).bubble == 0
