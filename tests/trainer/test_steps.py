"""Steps that stand out: against the rule written out, and in files as training writes them."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tamis.trainer.replays.steps import WINDOW, Steps, distances

VALUES = st.lists(
    st.one_of(st.floats(-10, 10, width=32), st.sampled_from([math.nan, math.inf])), max_size=150
)


def one_by_one(values: list[float]) -> list[tuple[float, float]]:
    """The rule for each value alone: the WINDOW finite values around it, or as many as there are."""
    known = [i for i, value in enumerate(values) if math.isfinite(value)]
    found = [(math.nan, math.inf if value == math.inf else math.nan) for value in values]
    size = min(WINDOW, len(known))
    for place, i in enumerate(known):
        start = max(0, min(place - size // 2, len(known) - size))
        around = np.array([values[j] for j in known[start : start + size]])
        median = float(np.median(around))
        spread = float(np.median(np.abs(around - median)))
        least = max(1e-3 * abs(median), 1e-12)
        found[i] = median, (values[i] - median) / max(spread, least)
    return found


@settings(deadline=None)
@given(VALUES)
def test_distances_are_those_of_each_value_alone(values: list[float]) -> None:
    medians, times = distances(values)
    wanted = np.array(one_by_one(values)).reshape(-1, 2)
    np.testing.assert_array_equal(medians, wanted[:, 0])
    np.testing.assert_array_equal(times, wanted[:, 1])


def write(run: Path, lines: list[dict[str, Any]]) -> Steps:
    text = "".join(
        json.dumps({"step": i, "epoch": 0, "k": 8, "samples": 4, "crc": 1} | line) + "\n"
        for i, line in enumerate(lines)
    )
    (run / "steps.jsonl").write_text(text)
    return Steps(run)


def test_spikes_are_found_on_a_curve_that_falls(tmp_path: Path) -> None:
    """Not its steep beginning; the higher of two figures counts, and what is not finite comes first."""
    rng = np.random.default_rng(0)
    lines: list[dict[str, Any]] = [
        {"loss": 5 * math.exp(-i / 40) + rng.normal(0, 0.02), "grad_norm": 1 + rng.normal(0, 0.05)}
        for i in range(300)
    ]
    lines[120]["loss"] += 1.0
    lines[200]["grad_norm"] = 9.0
    lines[210]["loss"], lines[210]["grad_norm"] = 1.0, 3.0
    lines[250]["loss"] = math.nan
    lines[30]["loss"] = lines[30]["grad_norm"] = None
    spikes = write(tmp_path, lines).spikes(4)
    assert [spike.step for spike in spikes[:2]] == [250, 200]
    assert {spike.step for spike in spikes} == {250, 200, 210, 120}
    assert spikes[0].times == math.inf
    assert spikes[1].figure == "grad_norm"
    assert spikes[1].value == 9.0
    assert spikes[1].median == pytest.approx(1, abs=0.1)
    assert min(spike.times for spike in spikes) > 10


def test_steps_that_were_skipped(tmp_path: Path) -> None:
    """Those first in which it was not the scale alone; runs of before had no such key."""
    lines: list[dict[str, Any]] = [{"loss": 1.0, "grad_norm": 1.0} for _ in range(6)]
    for step, why in {1: "overflow", 3: "not finite", 4: None, 5: "nothing counted"}.items():
        lines[step]["skipped"] = why
    steps = write(tmp_path, lines)
    assert steps.skipped() == [3, 5, 1]
    assert steps.spikes(9) == []
    assert steps.count == 6


def test_a_run_without_a_step_has_no_spike(tmp_path: Path) -> None:
    steps = write(tmp_path, [])
    assert (steps.count, steps.spikes(3), steps.skipped()) == (0, [], [])
    with pytest.raises(ValueError, match="is 0, the run has done 0 steps; wait for the first"):
        steps.line(0)
