from __future__ import annotations

import logging
from pathlib import Path

import numpy as np
import pytest

from tamis.errors import DataError
from tamis.pipelines.build import DataSettings
from tamis.pipelines.cut import Points, class_numbers, columns_of, cut, local, select
from tamis.pipelines.readers import Scan
from tamis.pipelines.splits import BlocksSplit
from tamis.pipelines.tiles import TileSettings

PATH = Path("scan.npy")


def points(xyz: np.ndarray) -> Points:
    return Points(xyz, {"row": np.arange(len(xyz))}, 0, 0)


def test_gate_drops_and_counts_rows_that_are_not_finite(caplog: pytest.LogCaptureFixture) -> None:
    xyz = np.arange(18.0).reshape(6, 3)
    xyz[1, 2], xyz[4, 0] = np.nan, -np.inf
    scan = Scan(xyz, {"intensity": np.arange(6, dtype=np.uint16)})
    with caplog.at_level(logging.WARNING):
        kept = select(PATH, scan, DataSettings(bounds=[0.0, 0.0, 15.0, 100.0]))
    assert (kept.dropped, kept.outside) == (2, 1)
    assert kept.columns["row"].tolist() == [0, 2, 3]
    assert kept.columns["intensity"].tolist() == [0, 2, 3]
    assert "dropped 2 rows" in caplog.text


def test_bounds_are_half_open() -> None:
    xyz = np.array([[0, 0, 0], [1, 0, 0], [0, 1, 0], [0.999, 0.999, 0]])
    assert select(PATH, Scan(xyz, {}), DataSettings(bounds=[0.0, 0.0, 1.0, 1.0])).columns["row"].tolist() == [
        0,
        3,
    ]


def test_classes_take_their_numbers_from_the_order() -> None:
    classes = {"ground": [2], "vegetation": [3, 4, 5]}
    assert class_numbers(np.array([1, 2, 3, 5, 64], np.uint8), classes).tolist() == [-1, 0, 1, 1, -1]
    assert class_numbers(np.array([2.0, 2.5, np.nan]), classes).tolist() == [0, -1, -1]
    assert class_numbers(np.array([2], np.uint8), classes).dtype == np.int32


def test_v15_fields_are_kept_chosen_or_refused() -> None:
    """V15, R03: every field is there with its type; a missing one is named with those that are there."""
    fields: dict[str, np.ndarray] = {
        "intensity": np.zeros(4, np.uint16),
        "normal": np.zeros((4, 3), np.float32),
        "t": np.zeros(4),
    }
    scan = Scan(np.zeros((4, 3)), fields)
    schema = select(PATH, scan, DataSettings()).schema
    assert {name: (field.dtype.str, field.width, field.kind) for name, field in schema.items()} == {
        "xyz": ("<f4", 3, "point"),
        "row": ("<i8", 1, "none"),
        "intensity": ("<u2", 1, "colour"),
        "normal": ("<f4", 3, "vector"),
        "t": ("<f8", 1, "time"),
    }
    assert list(select(PATH, scan, DataSettings(fields=["t"])).schema) == ["xyz", "row", "t"]
    for wrong in (DataSettings(fields=["ring"]), DataSettings(classes={"a": [1]})):
        with pytest.raises(DataError, match="it has intensity, normal, t"):
            select(PATH, scan, wrong)


def test_two_fields_of_one_stored_name_are_refused_with_both() -> None:
    scan = Scan(np.zeros((1, 3)), {"source_row": np.array([1]), "row": np.array([2])})
    with pytest.raises(DataError, match="'source_row' and 'row' would both be stored as 'source_row'"):
        select(PATH, scan, DataSettings())
    assert select(PATH, scan, DataSettings(fields=["row"])).columns["source_row"].tolist() == [2]
    with pytest.raises(ValueError, match="row is listed twice"):
        DataSettings(fields=["row", "row"])


def test_a_field_that_cannot_be_stored_is_refused_if_it_is_kept() -> None:
    scan = Scan(np.zeros((2, 3)), {"name": np.array(["a", "b"]), "ring": np.array([1, 2], ">i4")})
    with pytest.raises(DataError, match="field 'name' has type <U1"):
        select(PATH, scan, DataSettings())
    assert select(PATH, scan, DataSettings(fields=["ring"])).columns["ring"].dtype.str == "<i4"


def test_a_label_has_one_number_a_row() -> None:
    scan = Scan(np.zeros((2, 3)), {"rgb": np.zeros((2, 3), np.uint8)})
    with pytest.raises(DataError, match=r"'rgb' has 3 numbers a row; .*data\.label"):
        select(PATH, scan, DataSettings(label="rgb", classes={"a": [1]}))


@pytest.mark.parametrize("value", [2.0**53, -1e300, 1.7e308])
def test_coordinates_that_float64_counts_in_steps_are_refused(value: float) -> None:
    xyz = np.zeros((4, 3))
    xyz[2, 0] = value
    with pytest.raises(DataError, match=r"row 2: x is .*2\^53"):
        select(PATH, Scan(xyz, {}), DataSettings())
    kept = select(PATH, Scan(xyz, {}), DataSettings(bounds=[-1.0, -1.0, 1.0, 1.0]))
    assert (len(kept.xyz), kept.outside) == (3, 1)


def test_a_source_may_use_our_names() -> None:
    scan = Scan(
        np.zeros((2, 3)), {"label": np.array([7, 2]), "row": np.array([5, 6]), "xyz": np.array([1, 2])}
    )
    columns = select(PATH, scan, DataSettings(label="label", classes={"a": [2]})).columns
    assert {name: values.tolist() for name, values in columns.items()} == {
        "label": [-1, 0],
        "row": [0, 1],
        "source_label": [7, 2],
        "source_row": [5, 6],
        "source_xyz": [1, 2],
    }


@pytest.mark.parametrize("seed", range(3))
def test_v02_far_origin_is_restored_to_half_a_millimetre(seed: int) -> None:
    rng = np.random.default_rng(seed)
    xyz = rng.uniform(-4000, 4000, (2000, 3)) + np.array([388096, 3948996, 40])
    (piece,) = cut(PATH, "a", points(xyz), DataSettings(), {})
    stored = local(PATH, xyz[piece.rows], piece.origin)
    assert stored.dtype == np.float32
    assert np.abs(stored.astype(np.float64) + piece.origin - xyz).max() <= 0.5e-3


def test_v02_a_lattice_far_away_keeps_its_cells() -> None:
    """V02: 5 cm lattice in UTM; float32 coordinates without an origin give 300 voxels of 1,000."""
    lattice = np.stack(np.meshgrid(*[np.arange(20) * 0.05 + 0.025] * 3, indexing="ij"), -1).reshape(-1, 3)
    xyz = lattice + np.array([388096.0, 3948996.0, 40.0])
    settings = DataSettings(tiles=TileSettings(size=10.0))
    (piece,) = cut(PATH, "a", points(xyz), settings, {})
    stored = columns_of(PATH, "a", points(xyz), piece, "random")["xyz"]
    cells = np.floor((stored + piece.origin - [388096, 3948996, 40]) / 0.1 + 1e-6)
    assert len(np.unique(cells, axis=0)) == 1000


@pytest.mark.parametrize(("extent", "fits"), [(8000, True), (32_000, True), (33_000, False), (1e30, False)])
def test_an_extent_too_wide_for_float32_is_refused(extent: float, fits: bool) -> None:
    xyz = np.array([[0, 0, 0], [extent, 0, 0]], float)
    (piece,) = cut(PATH, "a", points(xyz), DataSettings(), {})
    if fits:
        assert local(PATH, xyz, piece.origin)[1, 0] == extent / 2
    else:
        with pytest.raises(DataError, match=r"spans .* data\.tiles"):
            local(PATH, xyz, piece.origin)


def test_origins() -> None:
    xyz = np.array([[101, 202, 5], [104, 208, 3.0]])
    (whole,) = cut(PATH, "a", points(xyz), DataSettings(), {})
    assert whole.origin.tolist() == [102.5, 205, 3]
    (tile,) = cut(PATH, "a", points(xyz), DataSettings(tiles=TileSettings(size=10.0)), {})
    assert tile.origin.tolist() == [104, 205, 3]  # the centre, 105, moved into the box of the points
    (vast,) = cut(PATH, "a", points(xyz), DataSettings(tiles=TileSettings(size=1e300)), {})
    assert local(PATH, xyz, vast.origin).max() <= 6
    (none,) = cut(PATH, "a", points(np.empty((0, 3))), DataSettings(), {})
    assert (len(none.rows), none.origin.tolist()) == (0, [0, 0, 0])
    assert not list(cut(PATH, "a", points(np.empty((0, 3))), DataSettings(tiles=TileSettings(size=1.0)), {}))


@pytest.mark.parametrize("seed", range(4))
def test_splits_share_no_ground_and_lose_no_evaluated_point(seed: int) -> None:
    rng = np.random.default_rng(seed)
    xyz = rng.integers(-300, 500, (1000, 3)) / 10  # a lattice: many points lie on the edges of tiles
    settings = DataSettings(
        tiles=TileSettings(size=10.0, stride=5.0, min_points=15),
        split=BlocksSplit(kind="blocks", size=[10, 0], of=4, test=[1], val=[3]),
    )
    pieces = list(cut(PATH, "a", points(xyz), settings, {}))
    block = np.floor(xyz[:, 0] / 10).astype(int) % 4
    for split, numbers in (("train", [0, 2]), ("test", [1]), ("val", [3])):
        rows = [row for piece in pieces if piece.split == split for row in piece.rows.tolist()]
        assert set(block[rows]) <= set(numbers)
        if split != "train":
            assert sorted(rows) == np.flatnonzero(np.isin(block, numbers)).tolist()
    assert min(len(piece.rows) for piece in pieces if piece.split == "train") >= 15
    assert min(len(piece.rows) for piece in pieces if piece.split != "train") < 15
    assert len({piece.tile for piece in pieces}) == len(pieces)


@pytest.mark.parametrize("dtype", [np.uint8, np.int16, np.int64, np.float32])
def test_class_numbers_are_those_of_a_search_class_by_class(dtype: type) -> None:
    rng = np.random.default_rng(np.dtype(dtype).itemsize)
    codes: np.ndarray = rng.integers(0, 12, 200).astype(dtype)
    if dtype is np.float32:
        codes[::7] += 0.5
        codes[3] = np.nan
    classes = {"b": [9, 2], "a": [5], "far": [2**40, -7], "c": [11, 0]}
    expected = np.full(len(codes), -1, np.int32)
    for number, wanted in enumerate(classes.values()):
        expected[np.isin(codes, wanted)] = number
    found = class_numbers(codes, classes)
    assert found.dtype == np.int32
    assert np.array_equal(found, expected)
    assert class_numbers(codes[:0], classes).shape == (0,)
