from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tamis.errors import DataError
from tamis.pipelines import pieces
from tamis.pipelines.build import DataSettings
from tamis.pipelines.cut import Points
from tamis.pipelines.pieces import Pieces, annotations_of, columns_of, cut, extent, local
from tamis.pipelines.records import sample_id
from tamis.pipelines.splits import BlocksSplit
from tamis.pipelines.tiles import TileSettings
from tamis.samplers.farthest import farthest
from tamis.samplers.random import random

PATH = Path("scan.npy")


def points(xyz: np.ndarray) -> Points:
    return Points(xyz, {"row": np.arange(len(xyz))}, 0, 0)


def singles(samples: Pieces) -> Iterator[Pieces]:
    for i in range(len(samples)):
        yield samples.part(i, i + 1)


@pytest.mark.parametrize("seed", range(3))
def test_v02_far_origin_is_restored_to_half_a_millimetre(seed: int) -> None:
    rng = np.random.default_rng(seed)
    xyz = rng.uniform(-4000, 4000, (2000, 3)) + np.array([388096, 3948996, 40])
    (piece,) = cut(PATH, "a", points(xyz), DataSettings(), {})
    stored = local(PATH, xyz[piece.rows], piece.origin[0])
    assert stored.dtype == np.float32
    assert np.abs(stored.astype(np.float64) + piece.origin[0] - xyz).max() <= 0.5e-3


def test_v02_a_lattice_far_away_keeps_its_cells() -> None:
    """V02: 5 cm lattice in UTM; float32 coordinates without an origin give 300 voxels of 1,000."""
    lattice = np.stack(np.meshgrid(*[np.arange(20) * 0.05 + 0.025] * 3, indexing="ij"), -1).reshape(-1, 3)
    xyz = lattice + np.array([388096.0, 3948996.0, 40.0])
    settings = DataSettings(tiles=TileSettings(size=10.0))
    (piece,) = cut(PATH, "a", points(xyz), settings, {})
    stored = columns_of(PATH, "a", points(xyz), piece, "random")["xyz"]
    cells = np.floor((stored + piece.origin[0] - [388096, 3948996, 40]) / 0.1 + 1e-6)
    assert len(np.unique(cells, axis=0)) == 1000


@pytest.mark.parametrize(("extent", "fits"), [(8000, True), (32_000, True), (33_000, False), (1e30, False)])
def test_an_extent_too_wide_for_float32_is_refused(extent: float, fits: bool) -> None:
    xyz = np.array([[0, 0, 0], [extent, 0, 0]], float)
    (piece,) = cut(PATH, "a", points(xyz), DataSettings(), {})
    if fits:
        assert local(PATH, xyz, piece.origin[0])[1, 0] == extent / 2
    else:
        with pytest.raises(DataError, match=r"spans .* data\.tiles"):
            local(PATH, xyz, piece.origin[0])


def test_origins() -> None:
    xyz = np.array([[101, 202, 5], [104, 208, 3.0]])
    (whole,) = cut(PATH, "a", points(xyz), DataSettings(), {})
    assert whole.origin[0].tolist() == [102.5, 205, 3]
    (tile,) = cut(PATH, "a", points(xyz), DataSettings(tiles=TileSettings(size=10.0)), {})
    assert tile.origin[0].tolist() == [104, 205, 3]  # the centre, 105, moved into the box of the points
    (vast,) = cut(PATH, "a", points(xyz), DataSettings(tiles=TileSettings(size=1e300)), {})
    assert local(PATH, xyz, vast.origin[0]).max() <= 6
    (none,) = cut(PATH, "a", points(np.empty((0, 3))), DataSettings(), {})
    assert (len(none.rows), none.origin[0].tolist()) == (0, [0, 0, 0])
    assert not list(cut(PATH, "a", points(np.empty((0, 3))), DataSettings(tiles=TileSettings(size=1.0)), {}))


@pytest.mark.parametrize("seed", range(4))
def test_splits_share_no_ground_and_lose_no_evaluated_point(seed: int) -> None:
    rng = np.random.default_rng(seed)
    xyz = rng.integers(-300, 500, (1000, 3)) / 10  # a lattice: many points lie on the edges of tiles
    settings = DataSettings(
        tiles=TileSettings(size=10.0, stride=5.0, min_points=15),
        split=BlocksSplit(kind="blocks", size=[10, 0], of=4, test=[1], val=[3]),
    )
    found = [one for own in cut(PATH, "a", points(xyz), settings, {}) for one in singles(own)]
    block = np.floor(xyz[:, 0] / 10).astype(int) % 4
    for split, numbers in (("train", [0, 2]), ("test", [1]), ("val", [3])):
        rows = [row for piece in found if piece.split == split for row in piece.rows.tolist()]
        assert set(block[rows]) <= set(numbers)
        if split != "train":
            assert sorted(rows) == np.flatnonzero(np.isin(block, numbers)).tolist()
    assert min(len(piece.rows) for piece in found if piece.split == "train") >= 15
    assert min(len(piece.rows) for piece in found if piece.split != "train") < 15
    assert len({int(piece.tile[0]) for piece in found}) == len(found)


@given(st.lists(st.integers(0, 50), max_size=30), st.integers(1, 60))
def test_groups_hold_all_and_no_more_than_they_may(sizes: list[int], most: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pieces, "GROUP_ROWS", most)
        groups = [*pieces.grouped(np.array(sizes, np.int64))]
    assert [i for first, stop in groups for i in range(first, stop)] == [*range(len(sizes))]
    for first, stop in groups:
        assert sum(sizes[first:stop]) <= most or stop == first + 1
    for (first, stop), (_, end) in itertools.pairwise(groups):
        assert sum(sizes[first : stop + 1]) > most, "the next one would have had room"
        assert end > stop


@pytest.mark.parametrize("row_order", ["farthest", "random", "source"])
def test_many_samples_at_once_are_each_one_alone(row_order: str) -> None:
    """The columns of a sample, by the definition, and whatever it is written with."""
    rng = np.random.default_rng(len(row_order))
    xyz = rng.uniform(0, 40, (3000, 3)) + np.array([5e5, 6e6, 100])
    cloud = Points(xyz, {"row": np.arange(3000), "rgb": rng.integers(0, 255, (3000, 3), np.uint8)}, 0, 0)
    (samples,) = cut(PATH, "a", cloud, DataSettings(tiles=TileSettings(size=8.0)), {})
    assert len(samples) == 25 == len({*samples.tile.tolist()})
    together = columns_of(PATH, "a", cloud, samples, row_order)
    for i, piece in enumerate(singles(samples)):
        rows = np.flatnonzero(((xyz[:, :2] - [5e5, 6e6]) // 8 == divmod(i, 5)).all(axis=1))
        shifted = (xyz[rows] - samples.origin[i]).astype(np.float32)
        n, tile = len(rows), int(piece.tile[0])
        order = np.arange(n)
        if row_order == "farthest":
            order = farthest(shifted, n)
        elif row_order == "random":
            order = random(n, n, id=sample_id("a", tile))
        own = slice(samples.starts[i], samples.starts[i + 1])
        assert np.array_equal(together["xyz"][own], shifted[order])
        assert np.array_equal(together["row"][own], rows[order])
        assert np.array_equal(together["rgb"][own], cloud.columns["rgb"][rows[order]])
        alone = columns_of(PATH, "a", cloud, piece, row_order)
        assert all(np.array_equal(values, together[name][own]) for name, values in alone.items())
        assert np.array_equal(samples.bounds[i], [xyz[rows].min(axis=0), xyz[rows].max(axis=0)])
    assert np.array_equal(extent(xyz), [xyz.min(axis=0), xyz.max(axis=0)])


@pytest.mark.parametrize("size", [10.0, 20.0])
def test_boxes_of_one_block_alone(size: float) -> None:
    """Boxes on the edges of tiles and blocks are each in one sample; a split without a box has empty ones."""
    xyz = np.array([[x + 0.5, y + 0.5, 0] for x in range(0, 40, 10) for y in (0, 10)], float)
    boxes = np.zeros((4, 7))
    boxes[:, :2] = [[0, 0], [10, 0], [20, 10], [30, 10]]  # in blocks of test (even) alone
    boxes[1, 0], boxes[3, 0] = 9.75, 25
    scan = Points(xyz, {"row": np.arange(len(xyz))}, 0, 0, {"boxes": boxes})
    settings = DataSettings(
        tiles=TileSettings(size=size), split=BlocksSplit(kind="blocks", size=[10, 0], of=2, test=[0])
    )
    found: dict[str, list[list[float]]] = {"train": [], "test": []}
    for samples in cut(PATH, "a", scan, settings, {}):
        for own, origin in zip(annotations_of(scan, samples, settings, PATH), samples.origin, strict=True):
            found[samples.split] += (own["boxes"][:, :3] + origin).tolist()
    assert found["train"] == []
    assert sorted(found["test"]) == sorted(boxes[:, :3].tolist())
