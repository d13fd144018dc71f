from __future__ import annotations

import logging
from collections import defaultdict
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from numpy.typing import NDArray

from tamis.errors import UsageError
from tamis.samplers import draw
from tamis.samplers.voxelise import Voxelised, voxelise

BOUNDS = (-1.0, -40.0, -3.0, 70.4, 40.0, 10.0)
SIZE = (0.2, 0.2, 0.4)  # 32.5 cells along z


def reference(
    xyz: NDArray[Any], bounds: Any, size: Any, max_points: int, max_voxels: int, seed: int
) -> dict[tuple[int, ...], list[int]]:
    """Rows of each kept voxel by its cell along z, y, x, by the definition."""
    low, high, edges, f32 = np.array(bounds[:3]), np.array(bounds[3:]), np.array(size), np.float32
    points = np.nan_to_num(xyz.astype(f32), nan=1e9)
    grid = np.maximum(np.ceil((high - low) / edges - 1e-9), 1)
    cell = np.clip(np.floor((points.astype(float) - low) / edges), 0, grid - 1).astype(int)[:, ::-1]
    voxels = defaultdict(list)
    for row in np.flatnonzero(
        ((points >= low.astype(f32)) & (points < high.astype(f32))).all(axis=1)
    ).tolist():
        voxels[tuple(cell[row].tolist())].append(row)
    rows, cells = draw.hashes(draw.key("rows", seed, 0), len(xyz)), draw.key("voxels", seed, 0)
    number = {c: (c[0] * int(grid[1]) + c[1]) * int(grid[0]) + c[2] for c in voxels}
    kept = sorted(voxels, key=lambda c: int(draw.hashes(cells, 1, number[c])[0]))[:max_voxels]
    return {c: sorted(sorted(voxels[c], key=lambda r: int(rows[r]))[:max_points]) for c in sorted(kept)}


def check(got: Voxelised, xyz: NDArray[Any], expected: dict[tuple[int, ...], list[int]]) -> None:
    assert got.coordinates.tolist() == [list(c) for c in expected]
    assert got.counts.tolist() == [len(rows) for rows in expected.values()]
    n, most = got.index.shape
    index, voxels = np.full((n, most), -1), np.zeros((n, most, 3), np.float32)
    for v, rows in enumerate(expected.values()):
        index[v, : len(rows)], voxels[v, : len(rows)] = rows, xyz[rows]
    np.testing.assert_array_equal(got.index, index)
    np.testing.assert_array_equal(got.voxels[:, :, :3], voxels)
    dropped = got.dropped
    lost = dropped.non_finite + dropped.outside + dropped.full + dropped.left_out
    assert lost + got.counts.sum() == len(xyz)
    kinds = [a.dtype for a in (got.voxels, got.coordinates, got.counts, got.index)]
    assert kinds == [np.float32, np.int32, np.int32, np.int64]


numbers = st.one_of(st.floats(-3, 3, width=32), st.integers(-12, 12).map(lambda i: i / 4), st.just(np.nan))


@settings(deadline=None, max_examples=150)
@given(
    hnp.arrays(
        st.sampled_from([np.float32, np.float64]), st.tuples(st.integers(0, 50), st.just(3)), elements=numbers
    ),
    st.sampled_from([(-2.0, -2.0, -2.0, 2.0, 2.0, 2.0), (-2.1, 0.3, -1.7, 2.6, 2.9, 1.1)]),
    st.sampled_from([(0.5, 0.5, 1.0), (0.7, 1.3, 9.0), (0.1, 0.1, 0.1)]),
    st.integers(1, 5),
    st.integers(1, 8),
    st.integers(0, 3),
)
def test_voxels_match_the_definition(
    xyz: NDArray[Any], bounds: Any, size: Any, max_points: int, max_voxels: int, seed: int
) -> None:
    got = voxelise(xyz, bounds, size, max_points=max_points, max_voxels=max_voxels, seed=seed)
    check(got, xyz, reference(xyz, bounds, size, max_points, max_voxels, seed))
    assert got.dropped.non_finite == np.isnan(xyz).any(axis=1).sum()
    assert bool(got.dropped.voxels) == bool(got.dropped.left_out)


def test_v10_nothing_in_range_vanishes() -> None:
    low, high = np.array(BOUNDS[:3]), np.array(BOUNDS[3:])
    points = np.array([[0.3] * 3, low, high, np.nextafter(high, low), [69, 39, 9.9], [0.3, 0.3, 10.1]])
    points = points.astype(np.float32)
    inside = ((points >= low.astype(np.float32)) & (points < high.astype(np.float32))).all(axis=1)
    got = voxelise(points, BOUNDS, SIZE, max_points=4, max_voxels=100)
    assert got.grid == (33, 400, 357)
    assert sorted(got.index[got.index >= 0].tolist()) == np.flatnonzero(inside).tolist() == [0, 1, 4]
    assert got.coordinates.tolist() == [[0, 0, 0], [8, 201, 6], [32, 395, 350]]
    # the last float below each upper edge lies in the last cell, of which only half is in range
    edge = np.nextafter(high.astype(np.float32), np.float32(-100))[None]
    assert voxelise(edge, BOUNDS, SIZE, max_points=1, max_voxels=1).coordinates.tolist() == [[32, 399, 356]]


@pytest.mark.parametrize(
    ("low", "high", "size", "cells"),
    [
        (0.0, 0.3, 0.1, 3),
        (0.0, 119.99999, 1.0, 120),
        (-0.1, 0.2, 0.1, 3),
        (0.0, 1.0, 5.0, 1),
        (0.0, 1e-12, 1.0, 1),
    ],
)
def test_v10_a_range_that_is_a_multiple_but_for_rounding(
    low: float, high: float, size: float, cells: int
) -> None:
    edges = np.array([low, np.nextafter(np.float32(high), np.float32(low))], np.float32)
    got = voxelise(
        np.repeat(edges[:, None], 3, axis=1),
        (low,) * 3 + (high,) * 3,
        (size,) * 3,
        max_points=2,
        max_voxels=9,
    )
    assert got.grid == (cells,) * 3
    assert got.counts.sum() == 2
    assert got.coordinates[[0, -1]].tolist() == [[0] * 3, [cells - 1] * 3]


@pytest.mark.slow
def test_v11_a_million_rows_with_edges_and_both_caps_reached() -> None:
    generator = np.random.default_rng()
    low, high = np.array(BOUNDS[:3], np.float32), np.array(BOUNDS[3:], np.float32)
    xyz = generator.uniform(low, high, (1_000_000, 3)).astype(np.float32)
    xyz[generator.integers(0, 1_000_000, 1000), 2] = low[2]
    xyz[generator.integers(0, 1_000_000, 1000), 0] = high[0]
    lattice = generator.integers(0, 357, 100_000)
    xyz[generator.permutation(1_000_000)[:100_000], 0] = (-1 + lattice * 0.2).astype(np.float32)
    seed, size = int(generator.integers(2**63)), (0.8, 0.8, 1.0)
    got = voxelise(xyz, BOUNDS, size, max_points=5, max_voxels=60_000, seed=seed)
    assert got.dropped.full > 0
    assert got.dropped.voxels > 0
    assert got.dropped.outside > 0
    check(got, xyz, reference(xyz, BOUNDS, size, 5, 60_000, seed))


def test_v13_results_own_their_memory() -> None:
    generator = np.random.default_rng(3)
    buffer, intensity = generator.random((500, 3), np.float32), generator.random(500, np.float32)
    arguments: Any = {"bounds": (0,) * 3 + (1,) * 3, "size": (0.2,) * 3, "max_points": 3, "max_voxels": 50}
    kept = voxelise(buffer, fields={"intensity": intensity}, **arguments)
    names = ("voxels", "coordinates", "counts", "index")
    before = [getattr(kept, name).tobytes() for name in names]
    buffer[:], intensity[:] = generator.random((500, 3)), -1  # the next frame comes into the same buffers
    voxelise(buffer, fields={"intensity": intensity}, **arguments)
    assert [getattr(kept, name).tobytes() for name in names] == before


def test_fields_follow_the_coordinates() -> None:
    generator = np.random.default_rng(4)
    xyz = generator.random((300, 3))
    fields = {
        "intensity": generator.integers(0, 9, 300).astype(">u2"),
        "normal": generator.normal(size=(300, 3)),
        "flag": generator.random(300) < 0.5,
    }
    got = voxelise(xyz, (0,) * 3 + (1,) * 3, (0.25,) * 3, max_points=4, max_voxels=99, fields=fields)
    columns = np.column_stack([xyz, *fields.values()]).astype(np.float32)
    expected = np.where(got.index[:, :, None] >= 0, columns[got.index], 0)
    np.testing.assert_array_equal(got.voxels, expected)


def test_v16_any_layout_gives_the_same() -> None:
    xyz = np.random.default_rng(5).integers(0, 8, (200, 3))
    arguments: Any = {"bounds": (0, 0, 0, 7, 7, 7), "size": (2, 2, 2), "max_points": 3, "max_voxels": 20}
    expected = voxelise(xyz.astype(np.float32), **arguments)
    wide = np.zeros((400, 6), np.float64)
    wide[::2, ::2] = xyz
    for other in (xyz, xyz.astype(np.float16), xyz.astype(">f8"), np.asfortranarray(xyz), wide[::2, ::2]):
        got = voxelise(other, **arguments)
        for name in ("voxels", "coordinates", "counts", "index"):
            np.testing.assert_array_equal(getattr(got, name), getattr(expected, name))


def test_tensors_give_tensors() -> None:
    xyz = torch.rand(100, 3)
    got = voxelise(
        xyz, (0,) * 3 + (1,) * 3, (0.5,) * 3, max_points=100, max_voxels=8, fields={"i": torch.ones(100)}
    )
    assert isinstance(got.voxels, torch.Tensor)
    assert got.voxels.shape == (8, 100, 4)
    assert got.voxels[..., 3].sum() == 100


def test_rows_left_out_are_counted(caplog: pytest.LogCaptureFixture) -> None:
    xyz = np.zeros((6, 3))
    xyz[1, 2], xyz[2, 0], xyz[3] = np.nan, -np.inf, 1e300
    with caplog.at_level(logging.WARNING):
        got = voxelise(xyz, (-1,) * 3 + (1,) * 3, (1,) * 3, max_points=2, max_voxels=1)
    assert "2 of 6 rows" in caplog.text
    assert got.dropped.__dict__ == {"non_finite": 2, "outside": 1, "full": 1, "left_out": 0, "voxels": 0}
    empty = voxelise(
        np.zeros((0, 3)),
        (-1,) * 3 + (1,) * 3,
        (1,) * 3,
        max_points=2,
        max_voxels=1,
        fields={"a": np.zeros((0, 2))},
    )
    assert [a.shape for a in (empty.voxels, empty.coordinates, empty.counts)] == [(0, 2, 5), (0, 3), (0,)]


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"bounds": (0, 0, 0, 1, 1)}, "give 6 numbers"),
        ({"bounds": (0, 0, 0, 1, 1, 0)}, "each low below its high"),
        ({"bounds": (0, 0, 0, 1, 1, np.inf)}, "give 6 numbers"),
        ({"bounds": (0, 0, 0, 1, 1, 1e39)}, "float32 holds"),
        ({"size": 0.5}, "give 3 numbers"),
        ({"size": (1, 1, 0)}, "lengths above 0"),
        ({"size": (1e-10, 1, 1)}, "choose larger voxels"),
        ({"max_points": 0}, "max_points: is 0"),
        ({"max_voxels": 1.0}, "whole number"),
        ({"fields": {"i": np.zeros(4)}}, "field i: has shape"),
        ({"fields": {"i": np.array(["a", "b", "c"])}}, "dtype <U1"),
        ({"xyz": np.zeros((3, 2))}, r"shape \(3, 2\)"),
        ({"max_points": 10**12, "max_voxels": 10**9}, "would take 20,000 GB"),
        ({"max_points": 10**30}, "lower max_points"),
        ({"seed": 1.5}, "seed: is 1.5"),
        ({"id": None}, "id: is None"),
    ],
)
def test_what_does_not_fit_is_refused(changed: dict[str, Any], said: str) -> None:
    arguments: dict[str, Any] = {
        "xyz": np.zeros((3, 3)),
        "bounds": (0, 0, 0, 1, 1, 1),
        "size": (1, 1, 1),
        "max_points": 1,
        "max_voxels": 1,
        **changed,
    }
    with pytest.raises(UsageError, match=said):
        voxelise(**arguments)
