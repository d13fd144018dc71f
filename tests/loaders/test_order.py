"""The order of an epoch: a bijection, a disjoint cover, and nothing but the seed, epoch and dataset."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from itertools import pairwise
from unittest import mock

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tamis.loaders import order as order_module
from tamis.loaders.order import WINDOW, Order, permute, shards_of

keys = st.integers(0, 2**64 - 1)


def order(sizes: list[int], seed: int = 0, epoch: int = 0, fingerprint: str = "f") -> Order:
    held = np.array(sizes, np.int64)
    return Order(np.cumsum(held) - held, held, seed=seed, epoch=epoch, fingerprint=fingerprint)


def rows(made: Order) -> list[int]:
    return list(map(int, made.rows(0, made.samples)))


@settings(max_examples=60, deadline=None)
@given(n=st.integers(1, 10_000), key=keys)
def test_permute_is_a_bijection(n: int, key: int) -> None:
    assert np.array_equal(np.sort(permute(np.arange(n), n, key)), np.arange(n))


@settings(max_examples=30, deadline=None)
@given(n=st.integers(2, 2**40), key=keys, data=st.data())
def test_permute_of_some_positions_is_that_of_all(n: int, key: int, data: st.DataObject) -> None:
    some = np.array(data.draw(st.lists(st.integers(0, n - 1), max_size=20, unique=True)), np.int64)
    sent = permute(some, n, key)
    assert len(set(sent.tolist())) == len(some)
    assert all(0 <= s < n for s in sent)
    assert [int(permute(some[i : i + 1], n, key)[0]) for i in range(len(some))] == sent.tolist()


@pytest.mark.parametrize("n", [3, 5])
def test_permute_reaches_every_place_about_equally_often(n: int) -> None:
    rounds = 3000
    seen = Counter((i, int(p)) for key in range(rounds) for i, p in enumerate(permute(np.arange(n), n, key)))
    expected = rounds / n
    chi2 = sum((seen[i, j] - expected) ** 2 / expected for i in range(n) for j in range(n))
    assert chi2 < 3 * n * n  # (n - 1)^2 degrees of freedom


@settings(max_examples=60, deadline=None)
@given(sizes=st.lists(st.integers(0, 9), min_size=1, max_size=40), seed=keys, epoch=st.integers(0, 5))
def test_s12_every_epoch_is_a_disjoint_cover(sizes: list[int], seed: int, epoch: int) -> None:
    assert sorted(rows(order(sizes, seed, epoch))) == list(range(sum(sizes)))


@settings(max_examples=60, deadline=None)
@given(sizes=st.lists(st.integers(1, 9), min_size=1, max_size=40), ahead=st.integers(1, 50), data=st.data())
def test_any_cut_gives_the_same_rows(sizes: list[int], ahead: int, data: st.DataObject) -> None:
    made = order(sizes)
    whole = rows(order(sizes))
    cuts = sorted(data.draw(st.lists(st.integers(0, made.samples), max_size=5)))
    edges = data.draw(st.permutations([*pairwise([0, *cuts, made.samples])]))
    with mock.patch.object(order_module, "_AHEAD", ahead):  # rows that are known already, and others
        for a, b in edges:
            assert made.rows(a, b).tolist() == order(sizes).rows(a, b).tolist() == whole[a:b]


def test_seed_epoch_and_dataset_each_change_the_order() -> None:
    base = rows(order([10] * 20))
    assert rows(order([10] * 20)) == base
    for changed in (order([10] * 20, seed=1), order([10] * 20, epoch=1), order([10] * 20, fingerprint="g")):
        assert rows(changed) != base


def test_samples_are_mixed_inside_a_window_of_shards_only() -> None:
    shards = 5 * WINDOW
    made = np.array(rows(order([10] * shards))) // 10
    for start in range(0, 10 * shards, 10 * WINDOW):
        window = made[start : start + 10 * WINDOW]
        assert len(set(window.tolist())) == WINDOW
        assert len(set(window[:16].tolist())) > 4


def test_positions_outside_the_epoch_are_refused() -> None:
    with pytest.raises(IndexError, match="positions 0 to 4 of an epoch of 3"):
        order([1, 2]).rows(0, 4)


@dataclass
class Range:
    shards: tuple[int, int]
    rows: tuple[int, int]


def test_s01_shards_of_uneven_and_empty_shards() -> None:
    shard = np.repeat(np.arange(4, dtype=np.int32), [7, 1, 5, 0])
    starts, sizes = shards_of([Range((0, 4), (0, 13))], shard)
    assert (starts.tolist(), sizes.tolist()) == ([0, 7, 8, 13], [7, 1, 5, 0])
    starts, sizes = shards_of([Range((0, 1), (0, 7)), Range((2, 4), (8, 13))], shard)
    assert (starts.tolist(), sizes.tolist()) == ([0, 8, 13], [7, 5, 0])
    assert [len(a) for a in shards_of([], shard)] == [0, 0]
