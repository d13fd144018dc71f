from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from numpy.typing import NDArray

from tamis.errors import UsageError
from tamis.samplers import serialise
from tamis.samplers.curve import radix_order
from tamis.samplers.tree import along_curve

CLOUDS = hnp.arrays(
    np.float32, st.tuples(st.integers(0, 60), st.just(3)), elements=st.floats(-500, 500, width=32)
)


def interleave(u: int, v: int) -> int:
    return sum(((u >> b) & 1) << (2 * b) | ((v >> b) & 1) << (2 * b + 1) for b in range(34))


def reference(xyz: NDArray[np.float32], cell: float) -> tuple[list[int], list[int]]:
    q = np.floor((xyz[:, :2].astype(float) - xyz[:, :2].min(0).astype(float)) / cell).astype(int).tolist()
    order = sorted(range(len(q)), key=lambda i: interleave(q[i][0], q[i][1]))
    second = [interleave(q[i][1] + 37, q[i][0] + 37) for i in order]
    return order, sorted(range(len(q)), key=second.__getitem__)


@settings(deadline=None)
@given(CLOUDS, st.sampled_from([0.1, 0.25, 1.0, 40.0]))
def test_both_curves_match_the_reference(xyz: NDArray[np.float32], cell: float) -> None:
    order, transposed = serialise(xyz, cell)
    assert order.dtype == transposed.dtype == np.int64
    if len(xyz):
        assert (order.tolist(), transposed.tolist()) == reference(xyz, cell)


def test_rows_of_one_cell_keep_their_order() -> None:
    order, transposed = serialise(np.zeros((9, 3), np.float32), 1.0)
    assert order.tolist() == transposed.tolist() == list(range(9))


def test_neighbours_along_the_curve_are_near() -> None:
    xyz = np.random.default_rng(1).random((4000, 3), dtype=np.float32) * 50
    order, transposed = serialise(xyz, 0.1)
    for rows in (xyz[order], xyz[order][transposed]):
        steps = np.linalg.norm(np.diff(rows[:, :2], axis=0), axis=1)
        assert np.median(steps) < 1.5  # shuffled rows are 26 apart


@pytest.mark.parametrize("cell", [0.0, -1.0, np.nan, np.inf, 1e-9])
def test_impossible_cells_are_refused(cell: float) -> None:
    with pytest.raises(UsageError, match="serialise"):
        serialise(np.array([[0, 0, 0], [50, 0, 0]], np.float32), cell)


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_non_finite_coordinates_are_refused(bad: float) -> None:
    with pytest.raises(UsageError, match="finite"):
        serialise(np.array([[0, 0, 0], [bad, 0, 0]], np.float32), 1.0)


@settings(deadline=None)
@given(st.lists(st.integers(0, 2**64 - 1) | st.integers(0, 5), max_size=50))
def test_radix_order_is_a_stable_sort(keys: list[int]) -> None:
    order = radix_order(np.array(keys, np.uint64), np.arange(len(keys)))
    assert order.tolist() == sorted(range(len(keys)), key=keys.__getitem__)


def along(xyz: NDArray[np.float32], crowded: int = 0) -> tuple[NDArray[np.float32], list[int]]:
    records = np.full((len(xyz) + 3, 4), np.nan, np.float32)
    along_curve(xyz, records, np.empty(18 * len(xyz), np.uint8), crowded)
    assert np.isnan(records[len(xyz) :]).all()
    return records[: len(xyz), :3], records[: len(xyz), 3].copy().view(np.int32).tolist()


@pytest.mark.parametrize("n", [1, 2, 3, 63, 64, 65, 500, 5000])
@pytest.mark.parametrize("extent", [(0, 0, 0), (1e-40, 0, 1), (1e9, 1, 1), (5, 5, 5), (1e-25, 1e-28, 1e18)])
def test_records_are_the_points_and_their_rows(n: int, extent: tuple[float, float, float]) -> None:
    xyz = ((np.random.default_rng(n).random((n, 3)) - 0.5) * extent).astype(np.float32)
    places, rows = along(xyz)
    assert sorted(rows) == list(range(n))
    assert places.tolist() == xyz[rows].tolist()


def spread_of_blocks(places: NDArray[np.float32]) -> float:
    """Median edge of the box around 64 records that follow each other."""
    blocks = places[: len(places) // 64 * 64].reshape(-1, 64, 3)
    return float(np.median((blocks.max(axis=1) - blocks.min(axis=1)).max(axis=1)))


def test_records_that_follow_each_other_are_near() -> None:
    xyz = np.random.default_rng(2).random((20_000, 3), dtype=np.float32)
    assert spread_of_blocks(along(xyz)[0]) < 0.3  # shuffled: 0.97; cubes of 64 rows have an edge of 0.15


def test_crowded_cells_are_sorted_again() -> None:
    generator = np.random.default_rng(3)
    xyz = np.concatenate([generator.random((20_000, 3)), [[1e6, 1e6, 1e6]]]).astype(np.float32)
    assert spread_of_blocks(along(xyz, crowded=len(xyz))[0]) > 0.9  # all but one share a cell
    assert spread_of_blocks(along(xyz)[0][:-1]) < 0.3
    twins = np.repeat(generator.random((2, 3), dtype=np.float32), 3000, axis=0)
    assert along(twins)[1] in (list(range(6000)), [*range(3000, 6000), *range(3000)])
