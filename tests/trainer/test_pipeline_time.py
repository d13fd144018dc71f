"""How long a pipeline's step takes, against the time simulated from the schedule's own list of actions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tamis.bench.pipeline import measured, simulated
from tamis.trainer.parallel.schedules import Kind, ScheduleName

PP, MICROBATCHES, REPEATS = 4, 8, 3
SECONDS: dict[Kind, float] = {"F": 0.1, "I": 0.12, "W": 0.11}


def step_s(_: Any, name: ScheduleName) -> float:
    return measured(name, MICROBATCHES, SECONDS, REPEATS)


@pytest.mark.soak  # a time, which only an idle machine keeps: bench/results has it, CI does not ask
@pytest.mark.alone
@pytest.mark.parametrize("name", ["1f1b", "interleaved", "zero_bubble", "zbv"])
def test_a_step_takes_as_long_as_simulated(run_ranks: Callable[..., list[Any]], name: ScheduleName) -> None:
    wanted = simulated(name, PP, MICROBATCHES, SECONDS).makespan_s
    found = run_ranks(PP, step_s, name)[0]
    if found > 1.1 * wanted:  # sleepers wake late on a machine under load: once more
        found = run_ranks(PP, step_s, name)[0]
    assert 0.99 * wanted < found < 1.1 * wanted  # none is faster than its sleep
