"""The state: what it says, what it refuses, and that it comes back as it was."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tamis.errors import UsageError
from tamis.loaders import state
from tamis.loaders.plan import Cursor, Plan


def plan(dataset: str = "f", samples: int = 13, **changes: Any) -> Plan:
    return Plan(np.zeros(1, np.int64), np.array([samples]), dataset, **{"global_batch": 4, **changes})


@given(st.integers(0, 30))
def test_s11_a_state_comes_back_as_it_was(steps: int) -> None:
    made, cursor = plan(), Cursor()
    for _ in range(steps):
        cursor = made.after(cursor)
    saved = state.save(made, cursor)
    loaded, skipped = state.load(made, json.loads(json.dumps(saved)))
    assert (loaded, skipped) == (cursor, ())
    assert state.save(made, loaded) == saved


def test_s11_skipped_samples_come_back() -> None:
    saved = state.save(plan(), Cursor(1, 0, 4), [7, 2**64 - 1])
    cursor, skipped = state.load(plan(), json.loads(json.dumps(saved)))
    assert skipped == (7, 2**64 - 1)
    assert state.save(plan(), cursor, skipped) == saved


def test_s20_the_state_counts_samples_of_a_named_dataset() -> None:
    saved = state.save(plan(), Cursor(3, 0, 12))
    assert saved["datasets"] == [{"fingerprint": "f", "unit": "samples", "consumed": 12}]
    assert (saved["step"], saved["epoch"], saved["skipped"]) == (3, 0, [])


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"dataset": "g"}, "its dataset is f, this loader's is g"),
        ({"seed": 1}, "its plan is .* keep split, seed, batch, ratio, k and graph"),
        ({"global_batch": 5}, "its plan is "),
        ({"k": 5}, "its plan is "),
    ],
)
def test_s20_another_dataset_or_plan_is_refused(change: dict[str, Any], says: str) -> None:
    with pytest.raises(UsageError, match=says):
        state.load(plan(**change), state.save(plan(), Cursor(1, 0, 4)))


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"version": 2}, "its version is 2, this loader's is 1"),
        ({"assignment": 2}, "its assignment is 2"),
        ({"step": 2}, "step 2, epoch 0, consumed 4 do not belong together in epochs of 13 samples"),
        ({"epoch": -1, "step": -3}, "do not belong together"),
        ({"datasets": []}, "number of datasets is 0"),
        ({"datasets": [{"fingerprint": "f", "unit": "batches", "consumed": 4}]}, "'datasets.0.unit'"),
        ({"step": "1"}, "'step'"),
        ({"stage": 1}, "unknown key 'stage'"),
    ],
)
def test_s10_a_state_that_cannot_be_applied_is_refused(change: dict[str, Any], says: str) -> None:
    with pytest.raises(UsageError, match=says):
        state.load(plan(), {**state.save(plan(), Cursor(1, 0, 4)), **change})


def test_s10_a_state_with_a_part_missing_is_refused() -> None:
    saved = state.save(plan(), Cursor(1, 0, 4))
    for name in saved:
        with pytest.raises(UsageError, match=f"key '{name}' is missing"):
            state.load(plan(), {key: value for key, value in saved.items() if key != name})
