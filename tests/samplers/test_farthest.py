from __future__ import annotations

import logging
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from tamis.errors import UsageError
from tamis.samplers import draw, farthest, farthest_batch


def brute_force(xyz: NDArray[Any], k: int, start: int = 0) -> list[int]:
    """Farthest-point sampling by its definition, in float32."""
    p = xyz if xyz.dtype == np.float32 else (xyz.astype(float) - xyz[0].astype(float)).astype(np.float32)
    nearest, picked = np.full(len(p), np.inf, np.float32), [start]
    for _ in range(k - 1):
        nearest[picked[-1]] = -1
        dx, dy, dz = (p - p[picked[-1]]).T
        nearest = np.minimum(nearest, (dx * dx + dy * dy) + dz * dz)
        picked.append(int(np.argmax(nearest)))
    return picked[:k]


def lattice(side: int) -> NDArray[np.float32]:
    return np.stack(np.meshgrid(*[np.linspace(-1, 1, side)] * 3), -1).reshape(-1, 3).astype(np.float32)


@st.composite
def clouds(draw: st.DrawFn) -> NDArray[Any]:
    """Random, lattice, collinear and duplicated clouds, near the origin and far from it."""
    n, seed = draw(st.integers(1, 400)), draw(st.integers(0, 2**32 - 1))
    generator = np.random.default_rng(seed)
    shape = draw(st.sampled_from(["cube", "lattice", "line", "plane", "copies", "one", "wide", "tiny"]))
    xyz = generator.random((n, 3))
    if shape == "lattice":
        xyz = np.floor(xyz * draw(st.integers(1, 6)))
    elif shape == "line":
        xyz[:, 1:] = 0.5
    elif shape == "plane":
        xyz[:, 2] = xyz[:, 0]
    elif shape == "copies":
        xyz = xyz[generator.integers(0, max(n // 4, 1), n)]
    elif shape == "one":
        xyz[:] = xyz[0]
    elif shape == "wide":
        xyz *= [1e6, 10, 1e-3]
    elif shape == "tiny":
        xyz *= 1e-21  # squared distances are denormal
    xyz += draw(st.sampled_from([0.0, -3.0, 1e5]))
    return xyz.astype(draw(st.sampled_from([np.float32, np.float64])))


@settings(deadline=None, max_examples=500)
@given(clouds(), st.data())
def test_equals_brute_force(xyz: NDArray[Any], data: st.DataObject) -> None:
    k, start = data.draw(st.integers(1, len(xyz))), data.draw(st.integers(0, len(xyz) - 1))
    assert farthest(xyz, k, start=start).tolist() == brute_force(xyz, k, start)


@pytest.mark.parametrize("n", [63, 64, 65, 1023, 1024, 1025, 16_383, 16_384, 16_385, 40_000])
def test_equals_brute_force_across_blocks_groups_and_regions(n: int) -> None:
    generator, k = np.random.default_rng(n), min(n, 150)
    for xyz in (generator.random((n, 3), np.float32), generator.integers(0, 9, (n, 3)).astype(np.float32)):
        start = int(generator.integers(n))
        assert farthest(xyz, k, start=start).tolist() == brute_force(xyz, k, start)


@pytest.mark.parametrize("seed", range(300))
def test_equals_brute_force_by_seed(seed: int) -> None:
    """Clouds of all sizes up to several regions, some with rows that are not finite."""
    generator = np.random.default_rng(seed)
    n = int(10 ** generator.uniform(0, 4.5))
    xyz = generator.normal(0, 10 ** generator.uniform(-6, 6), (n, 3)) + generator.normal(0, 1e5, 3)
    if seed % 3 == 0:
        xyz = np.round(xyz, int(generator.integers(0, 3)))
    if seed % 4 == 0:
        xyz[generator.integers(0, n, n // 2)] = xyz[0]
    rows = np.arange(n)
    if seed % 5 == 0 and n > 10:
        bad = generator.integers(1, n, n // 10)
        xyz[bad, seed % 3] = np.nan
        rows = np.setdiff1d(rows, bad)
    k = len(rows) if n < 2000 else int(generator.integers(1, 300))
    assert farthest(xyz, k).tolist() == rows[brute_force(xyz[rows], k)].tolist()


@pytest.mark.parametrize("n", [2047, 2048, 2049, 20_000])
def test_equals_brute_force_on_larger_clouds(n: int) -> None:
    xyz = (np.random.default_rng(n).normal(size=(n, 3)) * [10, 10, 1]).astype(np.float32)
    assert farthest(xyz, 300).tolist() == brute_force(xyz, 300)
    rounded = np.round(xyz, 1)  # decimal lattices tie often
    assert farthest(rounded, 300, start=n - 1).tolist() == brute_force(rounded, 300, n - 1)


@pytest.mark.slow
def test_f11_a_million_rows_equal_brute_force() -> None:
    xyz = np.random.default_rng(11).normal(size=(1_000_000, 3)).astype(np.float32)
    assert farthest(xyz, 40, start=5).tolist() == brute_force(xyz, 40, 5)


def test_whole_cloud_equals_brute_force() -> None:
    xyz = np.round(np.random.default_rng(3).random((3000, 3)), 2).astype(np.float32)
    assert farthest(xyz, 3000).tolist() == brute_force(xyz, 3000)


def test_picks_are_prefixes_of_each_other() -> None:
    xyz = np.random.default_rng(4).random((5000, 3), dtype=np.float32)
    assert farthest(xyz, 700).tolist() == farthest(xyz, 5000)[:700].tolist()


@pytest.mark.parametrize(("copies", "k"), [(0, 512), (0, 511), (0, 400), (100, 612), (100, 600), (100, 513)])
def test_f02_as_many_rows_as_there_are_stay_distinct(copies: int, k: int) -> None:
    xyz = np.concatenate([lattice(8), lattice(8)[:copies]])
    index = farthest(xyz, k)
    assert len(np.unique(index)) == len(index) == k
    assert index.tolist() == brute_force(xyz, k)


def test_f04_threads_and_repeats_give_the_same_bits() -> None:
    xyz = np.random.default_rng(5).random((10_000, 3), dtype=np.float32)
    expected = farthest(xyz, 256, start=17).tobytes()
    with ThreadPoolExecutor(4) as pool:
        picks = list(pool.map(lambda _: farthest(xyz, 256, start=17).tobytes(), range(40)))
    assert set(picks) == {expected}


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_f04_non_finite_rows_are_left_out(bad: float, caplog: pytest.LogCaptureFixture) -> None:
    xyz = np.random.default_rng(6).random((1000, 3), dtype=np.float32)
    rows = np.setdiff1d(np.arange(1000), [0, 500, 999])
    xyz[[0, 500, 999], [0, 1, 2]] = bad
    with caplog.at_level(logging.WARNING):
        index = farthest(xyz, 997)
    assert "3 of 1000 rows" in caplog.text
    assert index.tolist() == rows[brute_force(xyz[rows], 997)].tolist()
    with pytest.raises(UsageError, match="998 of 997 finite rows"):
        farthest(xyz, 998)


def test_a_start_that_is_not_finite_gives_way_to_the_next_row() -> None:
    xyz = np.random.default_rng(7).random((5, 3))
    xyz[[2, 4]] = np.nan
    assert [farthest(xyz, 1, start=s).item() for s in range(5)] == [0, 1, 3, 3, 0]


def test_f06_duplicates_come_after_all_distinct_positions() -> None:
    generator = np.random.default_rng(8)
    unique = generator.normal(size=(234, 3)).astype(np.float32)
    xyz = np.concatenate([unique, unique[generator.integers(0, 234, 25)]])[generator.permutation(259)]
    index = farthest(xyz, 256)
    assert len(np.unique(index)) == 256
    assert len(np.unique(xyz[index[:234]], axis=0)) == 234


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_f08_spans_beyond_any_constant(dtype: type) -> None:
    xyz: NDArray[Any] = np.array([[0, 0, 0], [2e5, 0, 0], [9e5, 0, 0], [3e5, 0, 0], [9.0001e5, 10, 0]], dtype)
    assert farthest(xyz, 3).tolist() == [0, 4, 3]
    assert farthest(xyz * 1e12, 3).tolist() == [0, 4, 3]


@pytest.mark.parametrize("scale", [1e20, -1e38])
def test_f08_squares_beyond_float32_are_refused(scale: float) -> None:
    xyz = np.array([[0, 0, 0], [1, 0, 0], [0, 1, 0]]) * scale
    with pytest.raises(UsageError, match="overflow float32"):
        farthest(xyz.astype(np.float32), 2)
    for wide in (xyz, xyz * 1e200, np.array([[-1e308, 0, 0], [1e308, 0, 0]])):
        with pytest.raises(UsageError, match="overflow float32"):
            farthest(wide, 2)


def test_a_cloud_far_out_is_no_wide_cloud() -> None:
    xyz = np.array([[1e30, 0, 0], [1e30, 1e5, 0], [1e30, 0, 3]])
    assert farthest(xyz, 3).tolist() == [0, 1, 2]


def test_float64_is_shifted_before_the_cast() -> None:
    near = np.random.default_rng(9).random((500, 3)).round(3)
    far = near + np.array([698_000.0, 6_259_000.0, 100.0])
    assert farthest(far, 100).tolist() == brute_force(far, 100)
    assert len(np.unique(farthest(far, 500))) == 500


def test_f09_ties_go_to_the_lowest_row() -> None:
    square = np.array([[x, y, 0] for x in (-1, 0, 1) for y in (-1, 0, 1) if x or y], np.float32)
    assert farthest(square, 6).tolist() == [0, 7, 2, 5, 1, 3]
    assert farthest(np.zeros((300, 3), np.float32), 300).tolist() == list(range(300))


def test_f10_start_is_honoured() -> None:
    xyz = np.random.default_rng(10).random((1000, 3), dtype=np.float32) + np.float32(5)
    assert farthest(xyz, 2, start=17)[0] == 17
    assert farthest(xyz, 2, start=999)[0] == 999
    assert farthest(xyz, 2, start="random", seed=1)[0] == draw.key("farthest", 1) % 1000
    assert farthest(xyz, 2, start="random", seed=1)[0] != farthest(xyz, 2, start="random", seed=2)[0]
    offset = xyz.astype(float) - xyz.astype(float).mean(axis=0)
    assert farthest(xyz, 2, start="centroid")[0] == np.argmax((offset**2).sum(axis=1))


@pytest.mark.parametrize("start", [-1, 1000, 1.0, True, "centre", None])
def test_f10_other_starts_are_refused(start: Any) -> None:
    with pytest.raises(UsageError, match="start"):
        farthest(np.zeros((1000, 3), np.float32), 2, start=start)


@pytest.mark.parametrize("k", [-1, 5, 2.0, True, None])
def test_impossible_counts_are_refused(k: Any) -> None:
    with pytest.raises(UsageError):
        farthest(np.zeros((4, 3)), k)


def test_small_clouds() -> None:
    for start in (0, "random", "centroid"):
        assert farthest(np.empty((0, 3)), 0, start=start).shape == (0,)
        assert farthest(np.ones((1, 3)), 1, start=start).tolist() == [0]
        assert farthest(np.ones((3, 3)), 0, start=start).dtype == np.int64
        assert farthest(np.full((2, 3), np.nan), 0, start=start).shape == (0,)


@settings(deadline=None, max_examples=30)
@given(st.lists(st.integers(0, 60), max_size=6), st.integers(0, 2**32 - 1))
def test_a_batch_is_its_clouds_one_by_one(sizes: list[int], seed: int) -> None:
    generator = np.random.default_rng(seed)
    xyz, offsets = generator.random((sum(sizes), 3), dtype=np.float32), np.cumsum([0, *sizes])
    counts = [int(generator.integers(0, n + 1)) for n in sizes]
    index, ends = farthest_batch(xyz, offsets, counts)
    assert ends.tolist() == np.cumsum([0, *counts]).tolist()
    for c, (low, high) in enumerate(pairwise(offsets.tolist())):
        assert index[ends[c] : ends[c + 1]].tolist() == (low + farthest(xyz[low:high], counts[c])).tolist()


@pytest.mark.parametrize("start", [3, "random", "centroid"])
def test_neither_threads_nor_splits_change_a_batch(start: Any) -> None:
    generator = np.random.default_rng(11)
    sizes = generator.integers(4, 3000, 40)
    xyz, offsets = generator.random((sizes.sum(), 3)), np.cumsum([0, *sizes])
    counts = generator.integers(0, sizes + 1)
    one = farthest_batch(xyz, offsets, counts, start=start, seed=5, threads=1)
    for threads in (2, 3, 100, None):
        many = farthest_batch(xyz, offsets, counts, start=start, seed=5, threads=threads)
        assert [a.tolist() for a in many] == [a.tolist() for a in one]
    half = int(offsets[20])
    index, ends = farthest_batch(xyz[:half], offsets[:21], counts[:20], start=start, seed=5)
    assert index.tolist() == one[0][: ends[-1]].tolist()
    if start == 3:
        firsts = one[0][one[1][:-1][counts > 0]]
        assert firsts.tolist() == (offsets[:-1][counts > 0] + 3).tolist()


def test_random_starts_of_a_batch_differ_by_cloud() -> None:
    xyz = np.tile(np.random.default_rng(0).random((1000, 3)), (5, 1))
    index, _ = farthest_batch(xyz, np.arange(6) * 1000, 1, start="random", seed=1)
    assert len(set((index % 1000).tolist())) > 1


@pytest.mark.parametrize("threads", [0, -1, 1.5, True, "two"])
def test_impossible_numbers_of_threads_are_refused(threads: Any) -> None:
    with pytest.raises(UsageError, match="threads"):
        farthest_batch(np.zeros((10, 3)), [0, 10], 1, threads=threads)


def test_a_batch_of_tensors_gives_tensors() -> None:
    xyz = torch.rand(30, 3)
    index, ends = farthest_batch(xyz, torch.tensor([0, 10, 30]), 4)
    assert index.tolist() == farthest_batch(xyz.numpy(), [0, 10, 30], 4)[0].tolist()
    assert ends.dtype == index.dtype == torch.int64


def test_a_batch_takes_one_count_for_all() -> None:
    index, ends = farthest_batch(np.random.default_rng(0).random((30, 3)), [0, 10, 30], 4)
    assert ends.tolist() == [0, 4, 8]
    assert index[4] == 10


@pytest.mark.parametrize("dtype", ["u1", "u8", "i4", ">i8"])
def test_offsets_of_any_whole_type(dtype: str) -> None:
    xyz = np.random.default_rng(0).random((30, 3))
    assert (
        farthest_batch(xyz, np.array([0, 10, 30], dtype), 4)[0].tolist()
        == farthest_batch(xyz, [0, 10, 30], 4)[0].tolist()
    )


def test_a_cloud_of_a_batch_is_named() -> None:
    with pytest.raises(UsageError, match=r"cloud 1, .*cannot take 5 of 4 finite rows"):
        farthest_batch(np.zeros((10, 3)), [0, 6, 10], 5)
    with pytest.raises(UsageError, match=r"cloud 0, .*cannot take 7 of 6"):  # the first, whoever fails first
        farthest_batch(np.zeros((10, 3)), [0, 6, 10], 7, threads=2)
    with pytest.raises(UsageError, match="2 clouds"):
        farthest_batch(np.zeros((10, 3)), [0, 6, 10], [1, 2, 3])


@pytest.mark.parametrize(
    ("offsets", "said"),
    [
        ([0, 5], r"\[0, 5\] do not divide 10 rows"),
        ([1, 10], r"\[ 1, 10\] do not divide 10 rows"),
        ([0, 7, 3, 10], "do not divide 10 rows"),
        ([], r"shape \(0,\)"),
        ([0.0, 10.0], r"\[ 0., 10.\] have .* dtype float64"),
        ([[0, 10]], r"shape \(1, 2\)"),
    ],
)
def test_offsets_that_do_not_fit_are_refused(offsets: Any, said: str) -> None:
    with pytest.raises(UsageError, match=f"offsets: .*{said}"):
        farthest_batch(np.zeros((10, 3)), offsets, 1)


def test_a_batch_of_another_shape_is_named() -> None:
    with pytest.raises(UsageError, match=r"xyz: has shape \(2, 50, 3\)"):
        farthest_batch(np.zeros((2, 50, 3)), [0, 50, 100], 3)


@pytest.mark.parametrize("xyz", [np.zeros((0, 3)), np.full((4, 3), np.nan)])
def test_where_there_are_no_rows_it_is_said(xyz: NDArray[np.float64]) -> None:
    with pytest.raises(UsageError, match="there are no finite rows"):
        farthest(xyz, 1)
