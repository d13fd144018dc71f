from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from tamis.errors import UsageError
from tamis.samplers import draw, random, voxel
from tamis.samplers.stratified import stratified

Labels = list[int]
labels = st.lists(st.sampled_from([-1, 0, 1, 2, 7, -(2**40), 2**60]), max_size=60)


def luck(stratum: int, seed: int) -> int:
    return draw.key("strata", seed, 0, stratum)


def equal(counts: dict[int, int], k: int, seed: int) -> dict[int, int]:
    """One row at a time to the stratum that has the fewest so far; of several the lowest hash."""
    quotas = dict.fromkeys(counts, 0)
    for _ in range(k):
        quotas[
            min((s for s in counts if quotas[s] < counts[s]), key=lambda s: (quotas[s], luck(s, seed)))
        ] += 1
    return quotas


def proportional(counts: dict[int, int], k: int, seed: int) -> dict[int, int]:
    small: set[int] = set()
    while True:
        left, rows = k - len(small), sum(c for s, c in counts.items() if s not in small)
        share = {s: Fraction(left * c, rows) for s, c in counts.items() if s not in small}
        below = {s for s in share if share[s] < 1} if k >= len(counts) else set()
        if not below:
            break
        small |= below
    quotas = {s: 1 if s in small else int(share[s]) for s in counts}
    for s in sorted(share, key=lambda s: (-(share[s] % 1), luck(s, seed)))[: k - sum(quotas.values())]:
        quotas[s] += 1
    return quotas


@pytest.mark.parametrize(("quota", "reference"), [("equal", equal), ("proportional", proportional)])
@settings(deadline=None, max_examples=150)
@given(labels, st.integers(0, 60), st.integers(0, 3))
@example([], 0, 0)
@example([-1, -1], 0, 0)
def test_quotas_and_rows_match_the_definition(
    quota: Any,
    reference: Callable[[dict[int, int], int, int], dict[int, int]],
    strata: Labels,
    k: int,
    seed: int,
) -> None:
    counts = Counter(s for s in strata if s != -1)
    k = min(k, counts.total())
    quotas = reference(counts, k, seed) if counts else {}
    index = stratified(np.array(strata, np.int64), k, quota=quota, seed=seed)
    taken: Counter[int] = Counter()
    expected = []
    for row in random(len(strata), len(strata), seed=seed).tolist():
        if taken[strata[row]] < quotas.get(strata[row], 0):
            taken[strata[row]] += 1
            expected.append(row)
    assert index.dtype == np.int64
    assert index.tolist() == expected
    assert len(expected) == k


@settings(deadline=None, max_examples=50)
@given(labels, st.randoms(use_true_random=False))
def test_a_mapping_is_met_exactly(strata: Labels, chance: Any) -> None:
    counts = Counter(s for s in strata if s != -1)
    quota = {s: chance.randint(0, c) for s, c in counts.items() if chance.random() < 0.8}
    index = stratified(np.array(strata, np.int64), sum(quota.values()), quota=quota)
    taken = Counter(strata[i] for i in index.tolist())
    assert len(set(index.tolist())) == len(index)
    assert {s: taken[s] for s in quota} == quota


def test_what_is_asked_for_does_not_depend_on_the_order_of_the_mapping() -> None:
    strata = np.arange(90) % 3
    a = stratified(strata, 6, quota={0: 1, 1: 2, 2: 3})
    assert a.tolist() == stratified(strata, 6, quota={2: 3, 0: 1, 1: 2}).tolist()


def test_one_stratum_is_a_random_sample() -> None:
    strata = np.full(500, 3)
    for quota in ("equal", "proportional", {3: 40}):
        rows: Any = quota
        assert (
            stratified(strata, 40, quota=rows, seed=5, id=9).tolist()
            == random(500, 40, seed=5, id=9).tolist()
        )


def test_what_is_left_over_goes_to_another_stratum_with_another_sample() -> None:
    strata = np.repeat(np.arange(3), 10)
    lucky = {int(strata[stratified(strata, 1, id=id)[0]]) for id in range(40)}
    assert lucky == {0, 1, 2}


def test_every_voxel_gives_a_row(caplog: pytest.LogCaptureFixture) -> None:
    xyz = np.random.default_rng(0).random((3000, 3))
    xyz[5] = np.nan
    voxels = voxel(xyz, 0.2)
    m = len(voxels.xyz)
    index = stratified(voxels.inverse, m)
    assert sorted(voxels.inverse[index].tolist()) == list(range(m))
    assert 5 not in stratified(voxels.inverse, 2999).tolist()


@pytest.mark.parametrize("dtype", ["u1", "i1", ">i2", "i4", "u4", ">u8", "i8", "?"])
def test_any_whole_number_will_do(dtype: str) -> None:
    numbers = np.random.default_rng(1).integers(0, 2, 200)
    expected = stratified(numbers, 50).tolist()
    assert stratified(numbers.astype(dtype), 50).tolist() == expected
    assert stratified(np.repeat(numbers.astype(dtype), 2)[::2], 50).tolist() == expected


def test_strata_beyond_int64() -> None:
    strata = np.array([2**64 - 1, 2**64 - 2, 2**64 - 1, 0], np.uint64)
    assert sorted(stratified(strata, 3).tolist()) in ([0, 1, 3], [1, 2, 3])
    assert stratified(strata, 1, quota={2**64 - 2: 1}).tolist() == [1]


def test_a_tensor_gives_a_tensor() -> None:
    strata = np.arange(40) % 4
    index = stratified(torch.from_numpy(strata), 12)
    assert isinstance(index, torch.Tensor)
    assert index.tolist() == stratified(strata, 12).tolist()


@pytest.mark.parametrize(
    ("strata", "k", "quota", "said"),
    [
        ([0, 1, -1], 3, "equal", "cannot take 3 of 2 rows"),
        ([0, 1], -1, "equal", "cannot take -1"),
        ([0, 1], 1.0, "equal", "give a whole number"),
        ([0, 1], 1, "even", "quota is 'even'"),
        ([0, 1], 1, {2: 1}, "no such stratum; there are 0, 1"),
        ([0, -1], 1, {-1: 1}, "no such stratum"),
        ([0, 1], 2, {0: 2}, "cannot take 2 different rows of 1"),
        ([0, 1], 1, {0: -1, 1: 1}, "cannot take -1"),
        ([0, 1], 2, {0: 1}, "quota sums to 1, k is 2"),
        ([0, 1], 1, {0: 0.5}, "give a whole number"),
        ([[0], [1]], 1, "equal", r"shape \(2, 1\)"),
        ([0.0, 1.0], 1, "equal", "dtype float64"),
        (["a"], 1, "equal", "dtype <U1"),
    ],
)
def test_what_cannot_be_taken_is_refused(strata: Any, k: Any, quota: Any, said: str) -> None:
    values: NDArray[Any] = np.array(strata)
    with pytest.raises(UsageError, match=said):
        stratified(values, k, quota=quota)
