"""The plan: the same global batches for any number of replicas, from any cut."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tamis.loaders.plan import Cursor, Plan, share
from tamis.samplers.ratio import RatioSchedule


def plan(sizes: list[int], global_batch: int = 12, **changes: object) -> Plan:
    held = np.array(sizes, np.int64)
    return Plan(np.cumsum(held) - held, held, "f", global_batch=global_batch, **changes)  # type: ignore[arg-type]


def batches(made: Plan, steps: int, cursor: Cursor | None = None, replicas: int = 1) -> list[list[int]]:
    """The global batches of some steps, put together from what each replica takes."""
    cursor, found = cursor or Cursor(), []
    for _ in range(steps):
        rows = made.batch(cursor).rows
        found.append([int(r) for i in range(replicas) for r in rows[share(len(rows), i, replicas)]])
        cursor = made.after(cursor)
    return found


def cursors(made: Plan, steps: int) -> list[Cursor]:
    found = [Cursor()]
    for _ in range(steps):
        found.append(made.after(found[-1]))
    return found


sizes = st.lists(st.integers(0, 9), min_size=1, max_size=20).filter(any)


@settings(max_examples=25, deadline=None)
@given(sizes=sizes, seed=st.integers(0, 2**64 - 1))
def test_any_replicas_see_the_same_global_batches_from_every_cut(sizes: list[int], seed: int) -> None:
    steps = 2 * -(-sum(sizes) // 12) + 1
    whole = batches(plan(sizes, seed=seed), steps)
    for replicas in (1, 2, 3, 4, 6):
        made = plan(sizes, seed=seed)
        for cut, cursor in enumerate(cursors(made, steps)):
            assert batches(made, steps - cut, cursor, replicas) == whole[cut:]


@settings(max_examples=50, deadline=None)
@given(sizes=sizes, global_batch=st.integers(1, 30))
def test_s01_every_sample_once_an_epoch_in_a_known_number_of_batches(
    sizes: list[int], global_batch: int
) -> None:
    made = plan(sizes, global_batch)
    for epoch in range(2):
        first = Cursor(epoch * made.batches_per_epoch, epoch, 0)
        found = batches(made, made.batches_per_epoch, first)
        assert sorted(row for batch in found for row in batch) == list(range(sum(sizes)))
        assert {len(b) for b in found[:-1]} <= {global_batch}


@given(samples=st.integers(0, 50), replicas=st.integers(1, 9))
def test_shares_are_contiguous_and_even(samples: int, replicas: int) -> None:
    parts = [range(samples)[share(samples, i, replicas)] for i in range(replicas)]
    assert [s for part in parts for s in part] == list(range(samples))
    assert max(map(len, parts)) - min(map(len, parts)) <= 1


def test_t16_epochs_have_orders_of_their_own() -> None:
    made = plan([125])
    n = made.batches_per_epoch
    run = batches(made, 3 * n)
    assert run[:n] != run[n : 2 * n]
    assert batches(plan([125]), 1, cursors(made, n + 3)[-1]) == [run[n + 3]]


def test_the_cursor_at_the_end_of_an_epoch_is_of_that_epoch() -> None:
    made = plan([13])
    assert cursors(made, 3)[1:] == [Cursor(1, 0, 12), Cursor(2, 0, 13), Cursor(3, 1, 12)]
    assert [made.ends(c, 1) for c in cursors(made, 3)] == [False, False, True, True]
    assert not made.ends(Cursor(2, 0, 13), None)


@settings(max_examples=50, deadline=None)
@given(st.integers(-1, 5), st.integers(-1, 3), st.integers(-1, 15))
def test_a_plan_knows_the_cursors_it_passes_through(step: int, epoch: int, consumed: int) -> None:
    made = plan([13], 4)
    assert made.reaches(Cursor(step, epoch, consumed)) == (Cursor(step, epoch, consumed) in cursors(made, 20))


def test_k_follows_the_step_of_its_own_batch() -> None:
    ratio = RatioSchedule("linear", start=1.0, end=0.5, steps=4, levels=5)
    made = plan([40], 4, ratio=ratio, k=64, multiple_of=16)
    assert [made.batch(c).k for c in cursors(made, 5)] == [
        ratio.count(step, 64, multiple_of=16) for step in range(6)
    ]
    assert plan([40], k=7).k(3) == 7
    assert plan([40]).k(3) is None


@pytest.mark.parametrize(
    "change",
    [
        {"seed": 1},
        {"global_batch": 6},
        {"split": "test"},
        {"k": 8},
        {"graph": [{"kind": "random"}]},
        {"ratio": RatioSchedule("constant", start=1.0, end=1.0, steps=1)},
    ],
)
def test_the_fingerprint_covers_what_decides_a_batch(change: dict[str, object]) -> None:
    assert plan([5]).fingerprint == plan([9]).fingerprint  # the dataset has a fingerprint of its own
    assert plan([5], **change).fingerprint != plan([5]).fingerprint  # type: ignore[arg-type]


def test_what_rows_are_a_multiple_of_counts_where_a_ratio_moves_them() -> None:
    """A run without a ratio may go on in a layout that divides rows otherwise."""
    ratio = RatioSchedule("constant", start=0.5, end=0.5, steps=1)
    assert plan([5], multiple_of=2).fingerprint == plan([5]).fingerprint
    assert plan([5], ratio=ratio, multiple_of=2).fingerprint != plan([5], ratio=ratio).fingerprint
