from __future__ import annotations

import re
from collections.abc import Iterator
from importlib import import_module
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from numpy.typing import NDArray

from tamis.errors import UsageError
from tamis.samplers import farthest
from tamis.samplers.adaptive import adaptive

module = import_module("tamis.samplers.adaptive")  # its name in the package is the function


@pytest.fixture
def small_limit() -> Iterator[None]:
    """A limit that clouds of a test exceed."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "_LIMIT", 20_000)
        yield


def surface(n: int, seed: int = 0) -> NDArray[np.float32]:
    """A hilly ground, a corner of which is ten times as dense."""
    generator = np.random.default_rng(seed)
    xy = generator.random((n, 2)) * 40
    xy[: n // 10] /= 4
    return np.column_stack([xy, np.sin(xy).sum(axis=1)]).astype(np.float32)


def gap(xyz: NDArray[Any], index: NDArray[Any]) -> float:
    """Coverage radius: how far the row that is farthest from all picked ones is from them."""
    return max(
        float(torch.cdist(torch.from_numpy(part), torch.from_numpy(xyz[index])).min(1).values.max())
        for part in np.array_split(xyz, 20)
    )


def test_all_rows_and_what_is_quick_enough() -> None:
    xyz = surface(2000)
    every = adaptive(xyz, 2000)
    assert (every.method, every.size, every.index.tolist()) == ("all", None, list(range(2000)))
    some = adaptive(xyz, 300)
    assert (some.method, some.size) == ("farthest", None)
    assert some.index.tolist() == farthest(xyz, 300).tolist()
    assert "takes 17,900 steps for 300 of 2,000 rows, where 67,108,864 are allowed" in some.reason
    assert adaptive(xyz, 0).index.shape == (0,)


@pytest.mark.parametrize(("n", "k"), [(1_000_000, 500_000), (10_000_000, 39_000), (100_000, 90_000)])
def test_what_is_said_to_be_quick_is_allowed(n: int, k: int) -> None:
    assert module._steps(n, k) <= module._LIMIT
    assert module._steps(n * 3, k * 3) > module._LIMIT or n < 1_000_000


@pytest.mark.usefixtures("small_limit")
def test_voxels_then_farthest_leave_nearly_as_small_gaps() -> None:
    xyz = surface(20_000)
    chosen = adaptive(xyz, 100)
    assert chosen.method == "voxel-farthest"
    assert chosen.size is not None
    found = re.match(r"farthest point among the first rows of (\d+) voxels of ([\d.]+), as", chosen.reason)
    assert found is not None
    cells = np.unique(np.floor((xyz - xyz.min(axis=0).astype(float)) / chosen.size), axis=0)
    assert len(cells) == int(found[1])
    assert 200 <= len(cells) <= 400
    assert float(found[2]) == pytest.approx(chosen.size)
    assert gap(xyz, chosen.index) < 2 * gap(xyz, farthest(xyz, 100))


@pytest.mark.usefixtures("small_limit")
def test_equal_shares_leave_smaller_gaps_than_random() -> None:
    xyz = surface(4000)
    chosen = adaptive(xyz, 1000, seed=3)
    assert chosen.method == "voxel-stratified"
    assert chosen.size is not None
    cells = np.unique(
        np.floor((xyz - xyz.min(axis=0).astype(float)) / chosen.size), axis=0, return_inverse=True
    )
    assert 800 <= len(cells[0]) <= 1000
    assert len(set(cells[1][chosen.index].tolist())) == len(cells[0])  # each gave a row
    random = np.random.default_rng(0).permutation(4000)[:1000]
    assert gap(xyz, chosen.index) < gap(xyz, random)
    assert adaptive(xyz, 1000, seed=4).index.tolist() != chosen.index.tolist()


@pytest.mark.usefixtures("small_limit")
def test_many_rows_are_looked_at_in_part(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_LOOK", 1000)
    xyz = surface(30_000)
    for k in (100, 1000):
        chosen = adaptive(xyz, k)
        assert len(set(chosen.index.tolist())) == k
        found = re.search(r"(\d[\d,]*) voxels", chosen.reason)
        assert found is not None
        low, high = (2, 6) if chosen.method == "voxel-farthest" else (0.8, 1.2)
        assert low * k <= int(found[1].replace(",", "")) <= high * k


@pytest.mark.usefixtures("small_limit")
@settings(deadline=None, max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.integers(0, 2**32 - 1),
    st.sampled_from(["even", "lattice", "copies", "line", "point", "far", "not finite"]),
    st.integers(1, 4000),
    st.sampled_from([np.float32, np.float64]),
)
def test_always_k_different_finite_rows(seed: int, kind: str, k: int, dtype: Any) -> None:
    generator = np.random.default_rng(seed)
    n = int(generator.integers(4000, 9000))
    xyz = generator.random((n, 3)) * 10
    if kind == "lattice":
        xyz = np.round(xyz)
    elif kind == "copies":
        xyz = xyz[generator.integers(0, 40, n)]
    elif kind == "line":
        xyz[:, 1:] = 0
    elif kind == "point":
        xyz[:] = 1.5
    elif kind == "far":
        xyz += [6e5, 6e6, 0]
    elif kind == "not finite":
        xyz[generator.integers(0, n, 50), 1] = np.nan
    xyz = xyz.astype(dtype)
    chosen = adaptive(xyz, k, seed=seed)
    assert chosen.index.dtype == np.int64
    assert len(set(chosen.index.tolist())) == k
    assert np.isfinite(xyz[chosen.index]).all()
    assert chosen.index.tolist() == adaptive(xyz.copy(), k, seed=seed).index.tolist()


@pytest.mark.usefixtures("small_limit")
def test_the_place_of_a_cloud_in_the_world_changes_nothing() -> None:
    xyz = np.round(surface(20_000).astype(np.float64), 2)
    here, there = (adaptive(xyz + corner, 100) for corner in ([0.0, 0, 0], [2.0**20, 2.0**22, 64]))
    assert here.size == there.size
    assert (here.index == there.index).mean() > 0.9  # decimals are cut at another place


def test_a_tensor_gives_a_tensor() -> None:
    chosen = adaptive(torch.from_numpy(surface(500)), 20)
    assert isinstance(chosen.index, torch.Tensor)


@given(hnp.arrays(np.float32, (5, 3), elements=st.floats(-1, 1, width=32)))
def test_small_clouds(xyz: NDArray[np.float32]) -> None:
    assert sorted(adaptive(xyz, 5).index.tolist()) == list(range(5))


@pytest.mark.parametrize(
    ("k", "said"), [(6, "cannot take 6 of 5"), (-1, "cannot take -1"), (2.0, "whole number")]
)
def test_impossible_counts_are_refused(k: Any, said: str) -> None:
    with pytest.raises(UsageError, match=said):
        adaptive(np.zeros((5, 3)), k)


@pytest.mark.usefixtures("small_limit")
def test_a_cloud_too_wide_is_refused() -> None:
    xyz = surface(8000).astype(np.float64)
    xyz[7] = 1e30
    with pytest.raises(UsageError, match="overflow float32"):
        adaptive(xyz, 500)
