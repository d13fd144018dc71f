from __future__ import annotations

import logging
import pickle
import sys
from collections import defaultdict
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from numpy.typing import NDArray

from tamis.errors import UsageError
from tamis.samplers import draw, voxel
from tamis.samplers.group import PICKS, Pick


def reference(
    xyz: NDArray[Any], size: float, origin: Any = 0.0, grid_origin: Any = None
) -> dict[Any, list[int]]:
    """Rows of each cell, cells sorted, by the definition."""
    grid_origin = -size / 1024 if grid_origin is None else grid_origin
    rows = defaultdict(list)
    for i, place in enumerate((xyz.astype(np.float64) + origin - grid_origin) / size):
        if np.isfinite(place).all():
            rows[tuple(int(c) for c in np.floor(place))].append(i)
    return dict(sorted(rows.items()))


@st.composite
def clouds(draw: st.DrawFn) -> NDArray[Any]:
    """Clouds dense enough to share cells, among them lattices, copies and non-finite rows."""
    element = draw(
        st.sampled_from(
            [
                st.floats(-3, 3, width=32),
                st.integers(-8, 8).map(lambda i: i / 4),
                st.floats(1e5, 1e5 + 3, width=32),
                st.sampled_from([0.5, -0.0, np.nan, np.inf]),
            ]
        )
    )
    dtype = draw(st.sampled_from([np.float32, np.float64]))
    return draw(hnp.arrays(dtype, st.tuples(st.integers(0, 60), st.just(3)), elements=element))


@settings(deadline=None)
@given(clouds(), st.sampled_from([0.1, 0.25, 1.0, 7.0]), st.sampled_from([0.0, (-4.5, 1e6, 0.1)]))
@example(np.zeros((0, 3), np.float32), 1.0, 0.0)
def test_cells_match_the_definition(xyz: NDArray[Any], size: float, origin: Any) -> None:
    voxels, rows = voxel(xyz, size, origin=origin), reference(xyz, size, origin)
    assert [tuple(c) for c in voxels.cell.tolist()] == list(rows)
    assert voxels.index.tolist() == [r[0] for r in rows.values()]
    assert voxels.count.tolist() == [len(r) for r in rows.values()]
    inverse = np.full(len(xyz), -1)
    for cell, members in enumerate(rows.values()):
        inverse[members] = cell
    assert voxels.inverse.tolist() == inverse.tolist()
    assert {a.dtype for a in (voxels.cell, voxels.index, voxels.count, voxels.inverse)} == {
        np.dtype(np.int64)
    }


@settings(deadline=None)
@given(
    st.floats(1e-3, 1e3),
    st.lists(st.tuples(*[st.integers(-(2**40), 2**40)] * 3), min_size=1, max_size=9),
    st.integers(0, 2**32 - 1),
)
def test_rows_a_few_ulps_from_a_border_match_the_definition(
    size: float, borders: list[Any], seed: int
) -> None:
    rng, edge = np.random.default_rng(seed), np.array(borders) * size
    xyz = np.repeat(edge, 6, axis=0) + rng.integers(-3, 4, (6 * len(edge), 3)) * np.spacing(
        np.abs(np.repeat(edge, 6, axis=0))
    )
    xyz = np.concatenate([xyz, rng.random((600, 3)) * size])
    rows = reference(xyz, size, grid_origin=0.0)
    voxels = voxel(xyz, size, grid_origin=0.0)
    assert [tuple(c) for c in voxels.cell.tolist()] == list(rows)
    for m in np.flatnonzero(voxels.count == 1)[:9]:  # whatever the company, its place in the cell is the same
        alone = voxel(xyz[voxels.index[m]][None], size, grid_origin=0.0)
        assert alone.xyz[0].tolist() == voxels.xyz[m].tolist()


@settings(deadline=None)
@given(st.integers(1, 51), st.integers(0, 51), st.integers(0, 2**32 - 1))
def test_means_lie_in_their_cells_in_boxes_of_up_to_2_to_the_51_cells(a: int, b: int, seed: int) -> None:
    """Also where a product stands for the quotient that tells a cell's numbers from its key."""
    first, second = sorted((min(a, 51), min(b, 51)))
    shape = 2.0 ** np.array([first, second - first, 51 - second])
    rng = np.random.default_rng(seed)
    cells = np.floor(rng.random((50, 3)) * shape)
    cells = np.concatenate([cells, [shape - 1, [0, 0, 0]], np.minimum(shape - 1, rng.integers(0, 3, (9, 3)))])
    voxels = voxel(cells + 0.5, 1.0, grid_origin=0.0)
    expected = np.unique(cells, axis=0)
    assert voxels.cell.tolist() == expected.tolist()
    np.testing.assert_allclose(voxels.xyz, expected + 0.5, rtol=2**-23, atol=2**-21)


def picked(xyz: NDArray[Any], size: float, pick: Pick, seed: int) -> list[int]:
    """The row that stands for each cell, by the definition."""
    moved = xyz.astype(np.float64) + size / 1024
    inside = moved * (1 / size) - np.floor(moved / size)  # as the kernel has it, to the last bit
    steps = np.clip(np.floor(inside * 2**21), 0, 2**21 - 1)
    weight = {
        "nearest": np.square(2 * steps + 1 - 2**21).sum(axis=1),
        "random": draw.hashes(draw.key("voxel", seed), len(xyz)) >> np.uint64(1),
    }.get(pick, np.zeros(len(xyz)))
    return [min(rows, key=lambda row: (weight[row], row)) for rows in reference(xyz, size).values()]


@settings(deadline=None, max_examples=300)
@given(clouds(), st.sampled_from([0.1, 0.25, 1.0, 7.0]), st.sampled_from(PICKS), st.integers(0, 9))
@pytest.mark.filterwarnings("ignore:invalid value")  # the reference's, of rows that are not finite
def test_picks_match_the_definition(xyz: NDArray[Any], size: float, pick: Pick, seed: int) -> None:
    voxels, right = voxel(xyz, size, pick=pick, seed=seed), picked(xyz, size, pick, seed)
    assert voxels.index.tolist() == right
    assert voxels.xyz.dtype == np.float32
    assert voxels.xyz.shape == (len(right), 3)
    if pick == "centroid":
        for got, members in zip(voxels.xyz, reference(xyz, size).values(), strict=True):
            exact = xyz[members].astype(np.float64).mean(axis=0)
            step = np.spacing(np.maximum(np.abs(exact), np.abs(got)).astype(np.float32))
            room = size * 2**-22 * (1 + 1e-9) + step
            assert (np.abs(got - exact) <= room).all()
    elif pick == "center":
        middle = (voxels.cell + 0.5) * size - size / 1024
        assert voxels.xyz.tolist() == middle.astype(np.float32).tolist()
    else:
        assert voxels.xyz.tolist() == xyz[right].astype(np.float32).tolist()


def scan(seed: int, n: int) -> NDArray[np.float32]:
    """Flat, dense in the middle, partly on a lattice, with copies."""
    generator = np.random.default_rng(seed)
    xyz = (generator.normal(0, 1, (n, 3)) ** 3 * [9, 5, 0.4]).astype(np.float32)
    xyz[::7] = np.round(xyz[::7], 1)
    xyz[n // 2 : n // 2 + n // 10] = xyz[: n // 10]
    return xyz


@pytest.mark.parametrize("pick", PICKS)
@pytest.mark.parametrize(("seed", "n"), [(0, 30_000), (1, 250_000), (2, 301_234)])
def test_any_number_of_threads_gives_the_same(seed: int, n: int, pick: Pick) -> None:
    xyz = scan(seed, n)
    fields = {"height": xyz[:, 2] * np.float32(1e3), "rgb": np.arange(3 * n, dtype=np.uint16).reshape(n, 3)}
    one, many = (voxel(xyz, 0.21, pick=pick, fields=fields, seed=seed, threads=t) for t in (1, 3))
    for name in ("xyz", "index", "inverse", "count", "cell"):
        assert getattr(one, name).tobytes() == getattr(many, name).tobytes(), name
    assert {k: v.tobytes() for k, v in one.fields.items()} == {k: v.tobytes() for k, v in many.fields.items()}


@pytest.mark.parametrize("seed", range(6))
def test_many_rows_match_numpy_unique(seed: int) -> None:
    xyz = scan(seed, 30_000 * (seed + 1))
    size = (0.02, 0.3, 5.0)[seed % 3]
    cells = np.floor((xyz.astype(np.float64) + size / 1024) / size).astype(np.int64)
    cell, index, inverse, count = np.unique(
        cells, axis=0, return_index=True, return_inverse=True, return_counts=True
    )
    voxels = voxel(xyz, size)
    assert voxels.cell.tolist() == cell.tolist()
    assert voxels.index.tolist() == index.tolist()
    assert voxels.count.tolist() == count.tolist()
    assert voxels.inverse.tolist() == inverse.tolist()


@pytest.mark.parametrize("step", [1, 75_025, 3_524_578, 165_580_141])
def test_regular_clouds_whose_keys_crowd_a_hash_table_match_the_definition(step: int) -> None:
    """Their keys lie a Fibonacci number apart: products with the golden ratio are close to each other."""
    n = 20_000
    xyz = np.zeros((n, 3))
    xyz[:, 0], xyz[-1, 2] = np.random.default_rng(step).permutation(n), step - 1
    voxels = voxel(xyz, 1.0, pick="nearest")
    assert voxels.index.tolist() == np.argsort(xyz[:, 0]).tolist()
    assert voxels.inverse.tolist() == xyz[:, 0].tolist()
    assert voxels.count.tolist() == [1] * n


def test_one_far_row_changes_no_other_cell() -> None:
    """With it the box of cells has more than 2^63, which takes another way to number them."""
    xyz = scan(4, 20_000)
    far = np.concatenate([xyz, [[3e7, -3e7, 3e7]]]).astype(np.float32)
    near, wide = voxel(xyz, 0.01), voxel(far, 0.01)
    assert wide.xyz[:-1].tobytes() == near.xyz.tobytes()
    assert wide.cell[:-1].tobytes() == near.cell.tobytes()
    assert wide.inverse.tolist() == [*near.inverse.tolist(), len(near.xyz)]
    assert (
        voxel(far, 0.01, pick="nearest").index.tolist()[:-1]
        == voxel(xyz, 0.01, pick="nearest").index.tolist()
    )


def test_a_row_just_under_an_edge_stays_inside() -> None:
    """-1e-20 is in cell -1, at a place that rounds to 1: it must not carry over into another axis."""
    xyz = np.array([[-1e-20, 0.5, 0.5], [-0.5, -1e-20, 0.5]], np.float32)
    voxels = voxel(xyz, 1.0, grid_origin=0.0)
    assert voxels.cell.tolist() == [[-1, -1, 0], [-1, 0, 0]]
    np.testing.assert_allclose(voxels.xyz, xyz[[1, 0]], atol=2**-21)


@settings(deadline=None)
@given(
    st.integers(0, 2**32 - 1),
    st.integers(1, 2500),
    st.sampled_from([0.02, 0.21, 0.9, 40.0]),  # every row a cell, to all rows one
    st.sampled_from([0.0, 1e3, 3e7]),
    st.sampled_from(PICKS),
    st.sampled_from([1, 2, 3]),
)
def test_partitions_change_nothing(
    seed: int, n: int, size: float, outlier: float, pick: Pick, threads: int
) -> None:
    """Those of large clouds on small ones: dense, sparse and empty, beside one that an outlier has alone."""
    generator = np.random.default_rng(seed)
    xyz = generator.random((n, 3)) * generator.choice([1.0, 3.0], 3)
    xyz[generator.integers(0, n, n // 50)] = np.nan
    if outlier:
        xyz[generator.integers(0, n)] = outlier
    fields = {"intensity": generator.random(n, np.float32), "label": generator.integers(0, 3, n)}

    def found(threads: int) -> list[Any]:
        voxels = voxel(xyz, size, pick=pick, fields=fields, seed=seed, threads=threads)
        bare = voxel(xyz, size, pick=pick, seed=seed, threads=threads)
        told = bare.xyz, bare.index, bare.count, bare.cell, bare.inverse, voxels.inverse
        return [*(array.tobytes() for array in told), *(f.tobytes() for f in voxels.fields.values())]

    whole = found(1)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("tamis.samplers.group._DIRECT", 0)
        patch.setattr("tamis.samplers.group._DIRECT_SPARSE", 0)
        patch.setattr("tamis.samplers.group._ROWS_A_PARTITION", 16)
        patch.setattr(sys.modules["tamis.samplers.voxel"], "_ROWS_A_THREAD", 1)
        assert found(threads) == whole


@settings(deadline=None, max_examples=30)
@given(st.integers(0, 2**32 - 1))
def test_neither_order_nor_split_of_rows_changes_the_result(seed: int) -> None:
    generator = np.random.default_rng(seed)
    xyz = generator.normal(0, 4, (3000, 3)).astype(np.float32)
    shuffled = voxel(xyz[generator.permutation(3000)], 1.3)
    assert shuffled.xyz.tobytes() == voxel(xyz, 1.3).xyz.tobytes()
    assert shuffled.cell.tobytes() == voxel(xyz, 1.3).cell.tobytes()


def test_a_million_rows_of_one_cell_keep_their_mean() -> None:
    xyz = np.random.default_rng(0).random((1_000_000, 3), dtype=np.float32)
    voxels = voxel(xyz, 1.0, grid_origin=0.0)
    assert voxels.count.tolist() == [1_000_000]
    assert np.abs(voxels.xyz[0] - xyz.mean(axis=0, dtype=np.float64)).max() < 1e-7


def test_tiles_share_the_grid() -> None:
    xyz = np.random.default_rng(1).random((4000, 3)) * 10
    whole = {tuple(c) for c in voxel(xyz, 0.7).cell.tolist()}
    tiles = [xyz[xyz[:, 0] < 5], xyz[xyz[:, 0] >= 5] - [5, 5, 5]]
    parts = [voxel(t, 0.7, origin=o).cell.tolist() for t, o in zip(tiles, (0.0, (5, 5, 5)), strict=True)]
    assert {tuple(c) for part in parts for c in part} == whole


def test_v02_far_origin_keeps_its_voxels() -> None:
    corner = np.array([388096.0, 3948996.0, 40.0])
    steps = np.stack(np.meshgrid(*[np.arange(20) * 50 + 25] * 3, indexing="ij"), -1).reshape(-1, 3)
    world = steps * 0.001 + corner  # as LAS stores it
    for origin in (corner, world.min(axis=0), world.mean(axis=0)):
        voxels = voxel((world - origin).astype(np.float32), 0.1, origin=origin)
        assert len(voxels.xyz) == 1000
        assert set(voxels.count.tolist()) == {8}
        centre = voxels.xyz.astype(np.float64) + origin
        exact = np.floor((world - corner) / 0.1 + 1e-6)[voxels.index] * 0.1 + 0.05 + corner
        assert np.abs(centre - exact).max() < 0.0005


def test_v02_coordinates_too_coarse_for_the_cells_are_told(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        voxel(np.array([[388096.0, 3948996.0, 40.0]]), 0.1)
    assert "subtract an origin" in caplog.text


def test_v05_negative_coordinates_floor() -> None:
    corners = [[x, y, z] for x in (-0.3, 0.3) for y in (-0.3, 0.3) for z in (-0.3, 0.3)]
    xyz = np.array([*corners, [-1.0, 0, 0], [1.0, 0, 0], [-0.0, 0, 0]])
    voxels = voxel(xyz, 1.0, grid_origin=0.0)
    assert len(voxels.xyz) == 9
    assert voxels.cell[voxels.inverse[8]].tolist() == [-1, 0, 0]
    assert voxels.cell[voxels.inverse[10]].tolist() == [0, 0, 0]  # -0.0 lies where 0.0 does


def test_v05_cells_are_half_open() -> None:
    xyz = np.array([[0.0, 0, 0], [np.nextafter(1, 0), 0, 0], [1.0, 0, 0], [2.0, 0, 0]])
    assert voxel(xyz, 1.0, grid_origin=0.0).cell[:, 0].tolist() == [0, 1, 2]


def test_v07_each_pick_says_what_it_gives() -> None:
    xyz = np.array([[0.02, 0, 0], [0.01, 0, 0]])
    assert voxel(xyz, 0.05, pick="centroid").xyz[0, 0] == pytest.approx(0.015, abs=1e-7)
    assert voxel(xyz, 0.05, pick="first").xyz[0, 0] == np.float32(0.02)
    assert voxel(xyz, 0.05, pick="nearest").xyz[0, 0] == np.float32(0.02)
    assert voxel(xyz, 0.05, pick="center").xyz[0, 0] == pytest.approx(0.025 - 0.05 / 1024, abs=1e-8)
    with pytest.raises(UsageError, match="choose one of centroid, first, nearest, random, center"):
        voxel(xyz, 0.05, pick="mean")  # type: ignore[arg-type]


def test_random_picks_differ_by_seed_and_are_even() -> None:
    xyz = np.zeros((4, 3), np.float32)
    drawn = [int(voxel(xyz, 1.0, pick="random", seed=seed).index[0]) for seed in range(400)]
    assert all(60 < drawn.count(row) < 140 for row in range(4))


@pytest.mark.parametrize(
    ("size", "said"), [(0.05, "removed no point"), (1e6, r"removed 99.95%"), (400.0, None)]
)
def test_v07_sizes_in_another_unit_are_told(
    size: float, said: str | None, caplog: pytest.LogCaptureFixture
) -> None:
    xyz = np.random.default_rng(2).random((2000, 3)) * 2000
    with caplog.at_level(logging.INFO):
        m = len(voxel(xyz, size, grid_origin=0.0).xyz)
    assert f"2000 -> {m} points" in caplog.text
    warned = [r.message for r in caplog.records if r.levelno == logging.WARNING]
    assert len(warned) == (said is not None)
    assert said is None or said in warned[0]


def test_v09_labels_are_voted_and_never_averaged() -> None:
    xyz = np.array([[x, 0, 0] for x in (1.1, 1.2, 2.1, 2.2, 3.1, 3.2, 3.3)])
    fields = {
        "label": np.array([11, 11, 20, 21, 5, 5, 9], np.int32),
        "classification": np.array([-1, 7, -1, -1, 3, -1, -1], np.int8),
        "intensity": np.array([1.0, 3, 10, 20, 0, 0, 9], np.float32),
    }
    voxels = voxel(xyz, 1.0, fields=fields)
    assert voxels.inverse.tolist() == [0, 0, 1, 1, 2, 2, 2]
    assert voxels.fields["label"].tolist() == [11, 20, 5]
    assert voxels.fields["label"].dtype == np.int32
    assert voxels.fields["classification"].tolist() == [7, -1, 3]
    assert voxels.fields["intensity"].tolist() == [2, 15, 3]


@settings(deadline=None)
@given(hnp.arrays(np.int32, st.integers(1, 60), elements=st.integers(-2, 3)), st.integers(0, 2**32 - 1))
def test_v09_majority_matches_the_definition(labels: NDArray[np.int32], seed: int) -> None:
    xyz = np.random.default_rng(seed).integers(0, 3, (len(labels), 3)).astype(np.float32)
    voxels = voxel(xyz, 2.0, fields={"label": labels})
    for got, rows in zip(voxels.fields["label"], reference(xyz, 2.0).values(), strict=True):
        votes = [v for v in labels[rows].tolist() if v != -1]
        assert got == (min(set(votes), key=lambda v: (-votes.count(v), v)) if votes else -1)


@pytest.mark.parametrize("dtype", ["i1", "u2", "i8", "u8", "f2", "f4", "?", ">i4"])
def test_v09_labels_of_any_dtype_are_voted(dtype: str) -> None:
    labels = np.array([0, 1, 1, 0, 1], dtype)
    voxels = voxel(np.zeros((5, 3)), 1.0, fields={"label": labels})
    assert voxels.fields["label"].tolist() == labels[1:2].tolist()
    assert voxels.fields["label"].dtype == labels.dtype


@pytest.mark.parametrize("pick", PICKS)
def test_v13_results_own_their_memory(pick: Pick) -> None:
    buffer, labels = np.random.default_rng(3).random((500, 3)), np.arange(500, dtype=np.int32)
    expected = voxel(buffer.copy(), 0.3, pick=pick, fields={"label": labels.copy()})
    names = ("xyz", "index", "inverse", "count", "cell")
    right = [getattr(expected, name).tobytes() for name in names] + [expected.fields["label"].tobytes()]
    kept = voxel(buffer, 0.3, pick=pick, fields={"label": labels})
    buffer[:], labels[:] = 0.5, -1  # the next frame comes into the same buffers
    voxel(buffer, 0.3, pick=pick, fields={"label": labels})
    assert [getattr(kept, name).tobytes() for name in names] + [kept.fields["label"].tobytes()] == right


@pytest.mark.parametrize("n", [0, 500, 70_000])
def test_results_can_be_sent_to_another_process(n: int) -> None:
    xyz = np.random.default_rng(n).random((n, 3))
    voxels = voxel(xyz, 0.2, pick="nearest")
    sent = pickle.loads(pickle.dumps(voxels))
    for name in ("xyz", "index", "inverse", "count", "cell"):
        assert getattr(sent, name).tobytes() == getattr(voxels, name).tobytes()


def test_v15_every_field_comes_back_with_its_dtype(caplog: pytest.LogCaptureFixture) -> None:
    generator = np.random.default_rng(4)
    xyz = generator.random((1000, 3))
    normal = generator.normal(size=(1000, 3)).astype(np.float32)
    fields: dict[str, NDArray[Any]] = {
        "intensity": generator.integers(0, 65536, 1000).astype(np.uint16),
        "label": generator.integers(0, 5, 1000).astype(np.int32),
        "normal": normal / np.linalg.norm(normal, axis=1, keepdims=True),
        "gps_time": 4e9 + generator.random(1000),
        "rgb": generator.integers(0, 256, (1000, 3)).astype(np.uint8),
        "height": generator.random(1000).astype(np.float16),
        "scanner_ring_v15": generator.integers(0, 64, 1000).astype(">u2"),
        "name": np.array([f"p{i}" for i in range(1000)]),
        "covariance": generator.random((1000, 3, 3)),
    }
    with caplog.at_level(logging.WARNING):
        voxels = voxel(xyz, 0.25, fields=fields)
        assert voxel(xyz, 0.25, fields=fields).fields.keys() == fields.keys()
    rows = list(reference(xyz, 0.25).values())
    assert {k: v.dtype for k, v in voxels.fields.items()} == {k: v.dtype for k, v in fields.items()}
    assert {k: v.shape for k, v in voxels.fields.items()} == {
        k: (len(rows), *v.shape[1:]) for k, v in fields.items()
    }
    assert caplog.text.count("field 'scanner_ring_v15'") == 1  # said once, not at every cloud

    merged, first = voxels.fields, [r[0] for r in rows]
    for name in ("intensity", "rgb"):
        exact = np.array([np.floor(fields[name][r].astype(float).mean(axis=0) + 0.5) for r in rows])
        assert merged[name].tolist() == exact.tolist()
    sums = np.array([fields["normal"][r].astype(float).sum(axis=0) for r in rows])
    np.testing.assert_allclose(
        merged["normal"], sums / np.linalg.norm(sums, axis=1, keepdims=True), atol=1e-7
    )
    means = np.array([fields["covariance"][r].mean(axis=0) for r in rows])
    np.testing.assert_allclose(merged["covariance"], means, rtol=1e-15)
    for name in ("gps_time", "scanner_ring_v15", "name"):
        assert merged[name].tolist() == fields[name][first].tolist()


@settings(deadline=None)
@given(st.integers(0, 2**32 - 1), st.sampled_from(["u1", "i2", "u2", "f2", "f4", ">f4", "i4", "f8"]))
def test_fields_that_ride_match_the_definition(seed: int, dtype: str) -> None:
    """Narrow fields are summed as lanes of the records, wide ones are gathered: the same means."""
    generator = np.random.default_rng(seed)
    xyz = generator.integers(0, 4, (300, 3)).astype(np.float32)
    xyz[generator.integers(0, 300, 5)] = np.nan
    fields = {
        "ring": generator.integers(0, 100, (300, 2)).astype(dtype),
        "label": generator.integers(0, 9, 300),
        "normal": generator.normal(size=(300, 3)).astype(np.float32),
        "nothing": np.zeros((300, 0), np.float32),
    }
    merged = voxel(xyz, 2.0, fields=fields, reduce={"ring": "mean"}).fields
    rows = list(reference(xyz, 2.0).values())
    means = np.array([fields["ring"][r].astype(np.float64).mean(axis=0) for r in rows])
    right = means.astype(dtype) if dtype[-2] == "f" else np.floor(means + 0.5)
    assert merged["ring"].tolist() == right.tolist()
    sums = np.array([fields["normal"][r].astype(float).sum(axis=0) for r in rows])
    np.testing.assert_allclose(merged["normal"], sums / np.linalg.norm(sums, axis=1)[:, None], atol=1e-7)
    assert merged["nothing"].shape == (len(rows), 0)


def test_fields_that_keep_a_row_keep_the_one_picked() -> None:
    xyz = np.array([[0.1, 0, 0], [0.5, 0.5, 0.5], [0.9, 0, 0]])
    time = np.array([1.0, 2.0, 3.0])
    assert voxel(xyz, 1.0, pick="nearest", fields={"gps_time": time}).fields["gps_time"].tolist() == [2.0]
    assert voxel(xyz, 1.0, fields={"gps_time": time}).fields["gps_time"].tolist() == [1.0]


def test_infinite_values_of_a_field_stay_infinite() -> None:
    values = np.array([np.inf, 1.0, np.nan, 2.0], np.float32)
    xyz = np.array([[0, 0, 0], [0, 0, 0], [5, 0, 0], [5, 0, 0]], np.float32)
    assert str(voxel(xyz, 1.0, fields={"height": values}).fields["height"].tolist()) == "[inf, nan]"


def test_normals_that_cancel_out_leave_the_first() -> None:
    normals = np.array([[0, 0, 1], [0, 0, -1]], np.float32)
    voxels = voxel(np.zeros((2, 3)), 1.0, fields={"normal": normals})
    assert voxels.fields["normal"].tolist() == [[0, 0, 1]]


def test_float_means_are_right_to_the_last_place() -> None:
    values = np.array([1e16, 1.0, 1.0, -1e16, 3.0])
    voxels = voxel(np.zeros((5, 3)), 1.0, fields={"height": values})
    assert voxels.fields["height"].tolist() == [1.0]


@pytest.mark.parametrize(("how", "merged"), [("mean", 4), ("majority", 7), ("rounded", 4), ("first", -1)])
def test_reduce_overrides_the_kind(how: Any, merged: int) -> None:
    values = np.array([-1, 7, 7, 1], np.int16)  # their mean is 3.5
    voxels = voxel(np.zeros((4, 3)), 1.0, fields={"ring": values}, reduce={"ring": how})
    assert voxels.fields["ring"].tolist() == [merged]
    assert voxels.fields["ring"].dtype == np.int16


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"fields": [np.zeros(4)]}, "fields is list; give a mapping"),
        ({"fields": {3: np.zeros(4)}}, "fields is dict; give a mapping from names"),
        ({"reduce": ["mean"]}, "reduce is list"),
        ({"seed": 1.5}, "seed: is 1.5; give a whole number"),
        ({"seed": None, "pick": "random"}, "seed: is None"),
    ],
)
def test_arguments_of_another_type_are_refused(arguments: Any, said: str) -> None:
    with pytest.raises(UsageError, match=said):
        voxel(np.zeros((4, 3)), 1.0, **arguments)


@pytest.mark.parametrize(
    ("values", "reduce", "said"),
    [
        (np.zeros(3), {}, "give 4 rows"),
        (np.float64(3), {}, "give 4 rows"),
        (np.zeros(4), {"heigth": "mean"}, "did you mean 'height'"),
        (np.zeros(4), {"height": "median"}, "choose one of mean"),
        (np.zeros(4, np.int32), {"height": "unit"}, "int32"),
        (np.zeros(4, "U3"), {"height": "mean"}, "<U3"),
        (np.zeros(4, bool), {"height": "rounded"}, "bool"),
    ],
)
def test_fields_that_cannot_be_merged_are_refused(values: Any, reduce: Any, said: str) -> None:
    with pytest.raises(UsageError, match=said):
        voxel(np.zeros((4, 3)), 1.0, fields={"height": values}, reduce=reduce)


def test_whole_numbers_too_large_to_average_are_refused() -> None:
    with pytest.raises(UsageError, match="too large to average"):
        _ = voxel(np.zeros((2, 3)), 1.0, fields={"intensity": np.full(2, 2**62)}).fields


def test_cells_beyond_any_packing() -> None:
    xyz = np.array(
        [[-(2.0**52), 2.0**52, 0.5], [2.0**52, -(2.0**52), 0.5], [0.5, 0.5, -(2.0**52)], [0.5] * 3]
    )
    voxels = voxel(xyz, 1.0, grid_origin=0.0)
    assert voxels.cell.tolist() == np.floor(xyz[[0, 2, 3, 1]]).tolist()


@pytest.mark.parametrize("far", [2.0**53, -(2.0**54), 1e30, 1e300])
def test_cells_beyond_float64_are_refused(far: float) -> None:
    with pytest.raises(UsageError, match="beyond"):
        voxel(np.array([[0.0, 0, 0], [0, far, 0]]), 1.0)


def test_the_smallest_size_tells_cells_apart() -> None:
    size = float(np.finfo(np.float64).tiny)
    xyz = np.arange(1000)[:, None] * np.full(3, size)
    assert len(voxel(xyz, size, grid_origin=0.0).count) == 1000


@pytest.mark.parametrize("pick", PICKS)
def test_voxels_beyond_float32_are_refused(pick: Pick) -> None:
    with pytest.raises(UsageError, match="beyond float32"):
        voxel(np.full((3, 3), 3.4e38), 1e38, pick=pick)


@pytest.mark.parametrize("size", ["a", None, True, 0.0, 5e-309, -1.0, np.nan, np.inf, [1.0, 2.0, 3.0]])
def test_impossible_sizes_are_refused(size: Any) -> None:
    with pytest.raises(UsageError, match="size"):
        voxel(np.zeros((4, 3)), size)


@pytest.mark.parametrize("origin", [(1, 2), (np.nan, 0, 0), np.inf, True, "far", np.zeros((1, 3))])
def test_impossible_origins_are_refused(origin: Any) -> None:
    with pytest.raises(UsageError, match="origin"):
        voxel(np.zeros((4, 3)), 1.0, origin=origin)
    with pytest.raises(UsageError, match="grid_origin"):
        voxel(np.zeros((4, 3)), 1.0, grid_origin=origin)


def test_non_finite_rows_belong_to_no_cell(caplog: pytest.LogCaptureFixture) -> None:
    xyz = np.zeros((5, 3), np.float32)
    xyz[[0, 3], [1, 2]] = np.nan, np.inf
    with caplog.at_level(logging.WARNING):
        voxels = voxel(xyz, 1.0, fields={"label": np.array([9, 1, 1, 9, 2])})
    assert "2 of 5 rows" in caplog.text
    assert voxels.inverse.tolist() == [-1, 0, 0, -1, 0]
    assert voxels.index.tolist() == [1]
    assert voxels.fields["label"].tolist() == [1]
    assert len(voxel(np.full((3, 3), np.nan), 1.0, fields={"label": np.ones(3)}).fields["label"]) == 0
