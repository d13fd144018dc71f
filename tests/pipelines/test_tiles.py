from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tamis.errors import DataError
from tamis.pipelines.tiles import Axis, Grid, TileSettings, grid


def brute(axis: Axis, values: np.ndarray) -> dict[int, list[int]]:
    """Which values lie in which tile, by the definition."""
    found = {}
    for tile in range(axis.count):
        low, high = axis.edges(tile)
        inside = (values >= low) & ((values < high) | (tile == axis.count - 1))
        if inside.any():
            found[tile] = np.flatnonzero(inside).tolist()
    return found


def held(grid: Grid, xyz: np.ndarray) -> list[tuple[int, np.ndarray]]:
    """Each tile that holds rows, and the rows."""
    tile, rows, starts = grid.grouped(xyz)
    return [(number, rows[starts[i] : starts[i + 1]]) for i, number in enumerate(tile.tolist())]


@given(
    start=st.integers(-5000, 5000),
    steps=st.lists(st.integers(0, 400), min_size=1, max_size=60),
    size=st.sampled_from([10.0, 2.5, 0.1, 0.3, 7.0]),
    overlap=st.sampled_from([1, 2, 3]),
)
def test_tiles_hold_what_their_edges_say(start: int, steps: list[int], size: float, overlap: int) -> None:
    values = (start + np.array(steps)) * (size / 10)
    axis = Axis.over(float(values.min()), float(values.max()), size, size / overlap)
    found = {tile: rows.tolist() for tile, rows in axis.cut(values)}
    assert set().union(*found.values()) == set(range(len(values)))
    if overlap == 1:
        assert sorted(row for rows in found.values() for row in rows) == list(range(len(values)))
    inner = {t: rows for t, rows in brute(axis, values).items() if 0 < t < axis.count - 1}
    assert {t: rows for t, rows in found.items() if 0 < t < axis.count - 1} == inner


@pytest.mark.parametrize("value", [0.7, 0.1 * 3, 1e5 / 3, 123456.7])
def test_rounding_of_the_anchor_loses_nothing(value: float) -> None:
    for size in (0.1, 0.7, 1 / 3):
        axis = Axis.over(value, value, size, size)
        assert [(tile, rows.tolist()) for tile, rows in axis.cut(np.array([value]))] == [(0, [0])]


def test_the_grid_stands_in_the_world() -> None:
    a, b = Axis.over(103.0, 149.0, 10, 5), Axis.over(107.5, 149.0, 10, 5)
    assert a.anchor == b.anchor == 100
    assert [a.edges(i)[0] for i in range(a.count)] == [100, 105, 110, 115, 120, 125, 130, 135, 140]


def test_the_last_tile_is_closed() -> None:
    axis = Axis.over(100.0, 150.0, 10, 10)
    assert axis.count == 5
    assert {tile: rows.tolist() for tile, rows in axis.cut(np.array([100.0, 110.0, 149.0, 150.0]))} == {
        0: [0],
        1: [1],
        4: [2, 3],
    }


def test_a_far_point_does_not_cost_a_tile_each() -> None:
    values = np.array([0.0, 1.0, 1e8])
    axis = Axis.over(0.0, 1e8, 1.0, 0.5)
    assert [rows.tolist() for _, rows in axis.cut(values)][-1] == [2]


def test_numbers_and_centres(tmp_path: Path) -> None:
    xyz = np.array([[0.5, 0.5, 1], [25, 0.5, 1], [25, 15, 1]], float)
    tiles = grid(tmp_path, xyz, TileSettings(size=10.0, stride=5.0), train=False)
    assert tiles.count == 3 * 2
    assert {tile: rows.tolist() for tile, rows in held(tiles, xyz)} == {0: [0], 4: [1], 5: [2]}
    assert tiles.centre(5) == (25, 15)
    assert grid(tmp_path, xyz, TileSettings(size=10.0, stride=5.0), train=True).count == 4 * 2


@pytest.mark.parametrize("stride", [None, 5.0])
def test_no_rows_are_in_no_tile(tmp_path: Path, stride: float | None) -> None:
    """As of a piece of a large scan without a point, or of a split without a box."""
    tiles = grid(
        tmp_path,
        np.array([[0, 0, 0], [25, 15, 0]], float),
        TileSettings(size=10.0, stride=stride),
        train=True,
    )
    assert held(tiles, np.empty((0, 3))) == []


@pytest.mark.parametrize(
    ("extent", "size"), [(1e300, 1.0), (20.0, 1e-9), (20.0, 5e-324), (0.0, 1e-300), (2.0**50, 1e6)]
)
def test_tiles_beyond_counting_are_refused(tmp_path: Path, extent: float, size: float) -> None:
    xyz = np.array([[7, 0, 0], [7 + extent, 0, 0]])
    with pytest.raises(DataError, match=r"too wide .*data\.tiles"):
        grid(tmp_path, xyz, TileSettings(size=size), train=False)


@pytest.mark.parametrize("stride", [1e-9, 5e-324, 0.0099])
def test_a_stride_far_below_the_size_is_refused(stride: float) -> None:
    with pytest.raises(ValueError, match="too many samples"):
        TileSettings(size=1.0, stride=stride)
    assert TileSettings(size=1.0, stride=0.01).stride == 0.01


def test_rows_of_overlapping_tiles_are_ascending() -> None:
    rng = np.random.default_rng(0)
    xyz = rng.uniform(0, 30, (500, 3))
    tiles = Grid(Axis.over(0, 30, 10, 5), Axis.over(0, 30, 10, 5))
    for tile, rows in held(tiles, xyz):
        i, j = divmod(tile, tiles.y.count)
        inside = [(xyz[:, a] >= 5 * t) & (xyz[:, a] < 5 * t + 10) for a, t in ((0, i), (1, j))]
        assert rows.tolist() == np.flatnonzero(inside[0] & inside[1]).tolist()
