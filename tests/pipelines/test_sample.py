"""What `tamis sample` writes: whole records, every field, positions where they were."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import laspy
import numpy as np
import pyarrow as pa
import pytest
from numpy.typing import NDArray
from pyarrow import parquet

from tamis.errors import DataError, UsageError
from tamis.pipelines.readers import Scan, read
from tamis.pipelines.sample import Method, sample
from tamis.samplers import farthest, random, voxel

SUFFIXES = (".npy", ".npz", ".arrow", ".parquet")


@pytest.fixture
def las_path(tmp_path: Path) -> Path:
    """3,000 points far from zero, with extra fields, colours and records, a point's row in one of them."""
    generator = np.random.default_rng(0)
    header = laspy.LasHeader(point_format=7, version="1.4")
    header.scales, header.offsets = [0.01, 0.01, 0.001], [600_000, 6_200_000, 0]
    for name, kind in (("row", "int32"), ("height", "float32"), ("pair", "2uint16")):
        header.add_extra_dim(laspy.ExtraBytesParams(name, kind))
    header.add_extra_dim(
        laspy.ExtraBytesParams("slope", "int16", scales=np.array([0.1]), offsets=np.array([5.0]))
    )
    header.vlrs.append(laspy.VLR("somebody", 7, "a note", b"kept"))
    las = laspy.LasData(header)
    place = generator.random((3000, 3)) * [20, 20, 5] + [699_000, 6_277_000, 100]
    las.x, las.y, las.z = place.T
    las.intensity, las.red, las.green, las.blue = generator.integers(0, 60_000, (4, 3000))
    las.classification = generator.integers(1, 7, 3000)
    las.return_number, las.user_data = generator.integers(1, 4, 3000), generator.integers(0, 256, 3000)
    las.gps_time, las.row = 4e9 + np.arange(3000) * 0.25, np.arange(3000)
    las.height, las.slope = generator.random(3000), generator.integers(-90, 90, 3000) / 10
    las.pair = generator.integers(0, 9, (3000, 2))
    path = tmp_path / "scan.laz"
    las.write(path)
    return path


def near(scan: Scan) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Positions as voxel gets them, and their origin."""
    low, high = scan.xyz.min(axis=0), scan.xyz.max(axis=0)
    origin = np.floor([*((low + high) / 2)[:2], low[2]])
    return scan.xyz - origin, origin


def picked(path: Path, method: str, amount: float, pick: Any, seed: int) -> NDArray[np.int64]:
    """The rows that the samplers themselves give."""
    xyz, origin = near(read(path))
    index: NDArray[np.int64]
    if method == "voxel":
        index = voxel(xyz, amount, pick=pick, origin=origin, seed=seed).index
    elif method == "random":
        index = random(len(xyz), round(amount * len(xyz)) if amount <= 1 else int(amount), seed=seed)
    else:
        index = farthest(xyz.astype(np.float32), int(amount))
    return index


WHOLE: list[tuple[Method, float, str | None]] = [
    ("farthest", 200, None),
    ("adaptive", 200, None),
    ("random", 0.1, None),
    ("random", 250, None),
    ("random", 1, None),
    ("voxel", 2.0, "first"),
    ("voxel", 2.0, "nearest"),
    ("voxel", 2.0, "random"),
]


@pytest.mark.parametrize("suffix", [".las", ".laz"])
@pytest.mark.parametrize(("method", "amount", "pick"), WHOLE)
def test_records_of_a_las_file_come_whole(
    las_path: Path, tmp_path: Path, method: Method, amount: float, pick: str | None, suffix: str
) -> None:
    out = tmp_path / f"out{suffix}"
    told = sample(las_path, out, method, amount, pick=pick, seed=5)
    old, new = laspy.read(las_path), laspy.read(out)
    index = picked(las_path, method, amount, pick, 5)
    assert told.startswith(f"{out}: 3,000 -> {len(index):,} points")
    assert new.points.array.tobytes() == old.points.array[index].tobytes()
    assert (new.header.version, new.point_format) == (old.header.version, old.point_format)
    assert new.header.scales.tolist() == old.header.scales.tolist()
    assert new.header.offsets.tolist() == old.header.offsets.tolist()
    assert new.header.point_count == len(index)
    xyz = read(las_path).xyz[index]
    np.testing.assert_allclose(new.header.mins, xyz.min(axis=0), atol=1e-6)
    np.testing.assert_allclose(new.header.maxs, xyz.max(axis=0), atol=1e-6)

    def records(las: laspy.LasData) -> list[Any]:
        kept = [v for v in las.header.vlrs if v.user_id != "laszip encoded"]
        return [(v.user_id, v.record_id, v.description, v.record_data_bytes()) for v in kept]

    assert records(new) == records(old)
    with laspy.open(out) as reader:
        assert reader.header.are_points_compressed == (suffix == ".laz")
    assert not list(tmp_path.glob(".*.tmp"))


def test_a_centroid_merges_fields_by_kind(
    las_path: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tamis.samplers.fields._noticed", set())
    sample(las_path, tmp_path / "out.las", "voxel", 4.0)
    scan, old, new = read(las_path), laspy.read(las_path), laspy.read(tmp_path / "out.las")
    xyz, origin = near(scan)
    names = ("intensity", "rgb", "classification", "height", "slope")
    merged = voxel(xyz, 4.0, origin=origin, fields={name: scan.fields[name] for name in names})
    assert len(new.points) == len(merged.xyz) < 200
    off = np.stack([new.x, new.y, new.z], axis=1) - (merged.xyz.astype(np.float64) + origin)
    assert (np.abs(off) <= new.header.scales / 2 + 1e-6).all()
    for name in ("intensity", "classification", "height"):
        np.testing.assert_array_equal(np.array(new[name]), merged.fields[name])
    np.testing.assert_array_equal(np.stack([new.red, new.green, new.blue], axis=1), merged.fields["rgb"])
    np.testing.assert_allclose(np.array(new.slope), merged.fields["slope"], atol=0.05 + 1e-9)
    for name in ("row", "gps_time", "return_number", "user_data", "pair"):
        np.testing.assert_array_equal(np.array(new[name]), np.array(old[name])[merged.index])
    unknown = {name for name in scan.fields if f"'{name}' is of no known kind" in caplog.text}
    assert unknown == {"row", "pair", "height", "slope"}


def test_a_centre_moves_positions_only(las_path: Path, tmp_path: Path) -> None:
    sample(las_path, tmp_path / "out.laz", "voxel", 4.0, pick="center")
    old, new = laspy.read(las_path), laspy.read(tmp_path / "out.laz")
    rows = np.array(new.row)
    np.testing.assert_array_equal(np.array(new.intensity), np.array(old.intensity)[rows])
    x = np.array(new.x) + 4 / 1024  # where the grid begins
    np.testing.assert_allclose((x / 4) % 1, 0.5, atol=0.01)
    assert (np.abs(np.array(new.x) - np.array(old.x)[rows]) <= 2 + 0.01).all()


def columns(path: Path) -> tuple[NDArray[np.float64], dict[str, NDArray[Any]]]:
    """Global positions and fields of a file that is no LAS."""
    if path.suffix == ".npy":
        scan = read(path)
        return scan.xyz, scan.fields
    if path.suffix == ".npz":
        with np.load(path) as archive:
            found = dict(archive)
        xyz = found.pop("xyz")
        assert xyz.dtype == np.float32
        return xyz + found.pop("origin"), found
    table = parquet.read_table(path) if path.suffix == ".parquet" else pa.ipc.open_file(path).read_all()
    found = {}
    for name in table.column_names:
        column = table.column(name).combine_chunks()
        flat = column.flatten() if pa.types.is_fixed_size_list(column.type) else column
        found[name] = flat.to_numpy(zero_copy_only=False).reshape(len(table), -1).squeeze()
    return np.stack([found.pop(axis) for axis in "xyz"], axis=1), found


@pytest.mark.parametrize("suffix", SUFFIXES)
@pytest.mark.parametrize("method", ["random", "voxel"])
def test_other_files_hold_every_field(las_path: Path, tmp_path: Path, method: Method, suffix: str) -> None:
    sample(las_path, tmp_path / f"out{suffix}", method, 50 if method == "random" else 4.0)
    sample(las_path, tmp_path / "out.las", method, 50 if method == "random" else 4.0)
    xyz, fields = columns(tmp_path / f"out{suffix}")
    expected = read(tmp_path / "out.las")
    np.testing.assert_allclose(xyz, expected.xyz, atol=5e-3 if method == "voxel" else 1e-6)
    assert fields.keys() == expected.fields.keys()
    for name, values in expected.fields.items():
        assert fields[name].dtype == values.dtype, name
        np.testing.assert_allclose(fields[name], values, atol=0.051 if name == "slope" else 0, err_msg=name)


@pytest.mark.parametrize("dtype", ["f4", "f8", "i4", ">f8"])
@pytest.mark.parametrize(("method", "amount"), [("farthest", 30), ("voxel", 2.5)])
def test_v16_a_plain_array_stays_one(tmp_path: Path, dtype: str, method: Method, amount: float) -> None:
    table = np.random.default_rng(1).integers(0, 9, (400, 5)).astype(dtype)
    np.save(tmp_path / "in.npy", np.asfortranarray(table))
    sample(tmp_path / "in.npy", tmp_path / "out.npy", method, amount)
    new, (xyz, origin) = np.load(tmp_path / "out.npy"), near(read(tmp_path / "in.npy"))
    assert new.dtype == table.dtype
    if method == "farthest":
        assert new.tolist() == table[farthest(xyz.astype(np.float32), 30)].tolist()
    else:
        merged = voxel(
            xyz, amount, origin=origin, fields={"a": table[:, 3].astype(table.dtype.newbyteorder("="))}
        )
        exact = merged.xyz + origin
        assert new[:, :3].tolist() == (np.rint(exact) if dtype == "i4" else exact).astype(dtype).tolist()
        assert new[:, 3].tolist() == merged.fields["a"].tolist()


def test_v15_a_structured_array_keeps_its_fields(tmp_path: Path, scan_writer: Callable[..., Any]) -> None:
    table = scan_writer(tmp_path / "in.npy", 1000)
    sample(tmp_path / "in.npy", tmp_path / "some.npy", "random", 0.2)
    assert np.load(tmp_path / "some.npy").tobytes() == table[random(1000, 200)].tobytes()
    sample(tmp_path / "in.npy", tmp_path / "merged.npy", "voxel", 5.0)
    merged = np.load(tmp_path / "merged.npy")
    assert merged.dtype == table.dtype
    np.testing.assert_allclose(np.linalg.norm(merged["normal"], axis=1), 1, atol=1e-6)
    assert set(merged["classification"].tolist()) <= set(range(1, 7))
    assert set(merged["gps_time"].tolist()) <= set(table["gps_time"].tolist())


def test_colours_in_columns_of_their_own_stay_so(tmp_path: Path) -> None:
    names = [("xyz", "f4", 3), ("red", "u1"), ("green", "u1"), ("blue", "u1"), ("flag", "?"), ("name", "U3")]
    table = np.zeros(4, names)
    table["red"], table["name"] = [1, 2, 3, 6], "abc"
    np.save(tmp_path / "in.npy", table)
    sample(tmp_path / "in.npy", tmp_path / "out.npy", "voxel", 1.0)
    assert np.load(tmp_path / "out.npy")["red"].tolist() == [3]
    sample(tmp_path / "in.npy", tmp_path / "out.arrow", "random", 2)
    assert columns(tmp_path / "out.arrow")[1]["name"].tolist() == ["abc", "abc"]


def test_v02_a_lattice_far_away_has_its_voxels(tmp_path: Path) -> None:
    lattice = np.stack(np.meshgrid(*[np.arange(20) * 0.05] * 3, indexing="ij"), -1).reshape(-1, 3)
    las = laspy.LasData(laspy.LasHeader(point_format=0, version="1.2"))
    las.header.scales, las.header.offsets = [0.001] * 3, [388_000, 3_948_000, 0]
    las.x, las.y, las.z = (lattice + np.array([388096, 3948996, 40])).T
    las.write(tmp_path / "in.las")
    assert "8,000 -> 1,000 points" in sample(tmp_path / "in.las", tmp_path / "out.las", "voxel", 0.1)
    new = laspy.read(tmp_path / "out.las")
    np.testing.assert_allclose(sorted(set(np.array(new.x))), 388096.025 + np.arange(10) * 0.1, atol=5.1e-4)


def test_v07_a_size_in_another_unit_is_told(
    las_path: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    assert "3,000 -> 1 points" in sample(las_path, tmp_path / "out.las", "voxel", 1e6)
    assert "is the size in the unit of the cloud?" in caplog.text


def test_rows_that_are_not_finite_are_left_out(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    table = np.random.default_rng(2).random((50, 4))
    table[[3, 7], 1] = np.nan, np.inf
    np.save(tmp_path / "in.npy", table)
    told = sample(tmp_path / "in.npy", tmp_path / "out.npy", "random", 1)
    assert "50 -> 48 points" in told
    assert "left out 2 rows" in caplog.text
    assert sorted(np.load(tmp_path / "out.npy")[:, 3]) == sorted(np.delete(table, [3, 7], 0)[:, 3])
    with pytest.raises(UsageError, match="has 48 finite points, --farthest asks for 49"):
        sample(tmp_path / "in.npy", tmp_path / "out.npy", "farthest", 49)


@pytest.mark.parametrize("suffix", [".las", *SUFFIXES])
@pytest.mark.parametrize(("method", "amount"), [("random", 0.5), ("voxel", 1.0)])
def test_no_points_give_none(
    las_path: Path, tmp_path: Path, method: Method, amount: float, suffix: str
) -> None:
    las = laspy.read(las_path)
    las.points = las.points[:0]
    las.write(tmp_path / "in.las")
    assert "0 -> 0 points" in sample(tmp_path / "in.las", tmp_path / f"out{suffix}", method, amount)
    assert (tmp_path / f"out{suffix}").exists()


def test_what_a_format_cannot_hold_is_refused(tmp_path: Path) -> None:
    np.save(tmp_path / "twice.npy", np.zeros(3, [("xyz", "f8", 3), ("x", "f4"), ("origin", "f4")]))
    np.save(tmp_path / "wide.npy", np.array([[0.0, 0, 0], [1e6, 0, 0]]))
    np.save(tmp_path / "far.npy", np.array([[0.0, 0, 0], [1e300, 0, 0]]))
    np.save(tmp_path / "complex.npy", np.zeros(2, [("xyz", "f8", 3), ("wave", "c16")]))
    np.save(tmp_path / "none.npy", np.zeros(2, [("xyz", "f8", 3), ("wave", "f4", (2, 0))]))
    for name, out, said in [
        ("none", "out.arrow", r"field 'wave' has rows of shape \(2, 0\)"),
        ("twice", "out.arrow", "a field is called 'x'"),
        ("twice", "out.npz", "a field is called 'origin'"),
        ("wide", "out.npz", "float32 would be off by up to 0.016; write .npy"),
        ("far", "out.npy", "a coordinate is 1e+300, none may reach 2"),
        ("complex", "out.parquet", "field 'wave' has type complex128, which Arrow has not"),
    ]:
        with pytest.raises(DataError, match=said.replace("+", r"\+")):
            sample(tmp_path / f"{name}.npy", tmp_path / out, "random", 1)
        assert not (tmp_path / out).exists()


@pytest.mark.parametrize(
    "name",
    ["laspy_append-bug.laz", "laspy_extrabytes.las", "laspy_vegetation_1_3.las", "laspy_simple.copc.laz"],
)
def test_real_files_keep_their_fields(
    data_folder: Path, tmp_path: Path, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    file = data_folder / "reader" / name
    sample(file, tmp_path / "some.laz", "random", 0.3)
    old, new = laspy.read(file), laspy.read(tmp_path / "some.laz")
    index = random(len(old.points), len(new.points))
    assert new.points.array.tobytes() == old.points.array[index].tobytes()
    assert caplog.text.count("is no cloud-optimised file") == (".copc." in name)
    sample(file, tmp_path / "merged.las", "voxel", 3.0)
    merged = laspy.read(tmp_path / "merged.las")
    assert merged.point_format == old.point_format
    assert 0 < len(merged.points) <= len(old.points)


EXTRA = ["Deviation", "ExtraBytes"]


def test_centroids_log_nothing_of_what_las_itself_has(
    shipped_laz: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tamis.samplers.fields._noticed", set())
    with caplog.at_level(logging.WARNING):
        sample(shipped_laz, tmp_path / "out.laz", "voxel", 1.0)
    assert [record.args[0] for record in caplog.records if isinstance(record.args, tuple)] == EXTRA


def test_voxels_of_a_wide_scan_are_those_of_its_own_numbers(tmp_path: Path) -> None:
    xyz = np.full((2000, 3), 0.003)
    xyz[:, 0] += np.repeat([0.0, 1e6], 1000) + np.tile(np.arange(1000), 2) * 0.01
    np.save(tmp_path / "in.npy", xyz)
    assert "2,000 -> 2,000 points" in sample(tmp_path / "in.npy", tmp_path / "out.npy", "voxel", 0.01)
    sample(tmp_path / "in.npy", tmp_path / "out.npy", "voxel", 0.05, pick="first")
    np.testing.assert_array_equal(np.load(tmp_path / "out.npy"), xyz[voxel(xyz, 0.05, pick="first").index])


def test_fields_merge_as_asked(tmp_path: Path) -> None:
    table = np.zeros(300, [("xyz", "f8", 3), ("species", "f4"), ("age", "i4"), ("height", "f8")])
    generator = np.random.default_rng(4)
    table["xyz"], table["species"] = generator.random((300, 3)) * 3, generator.integers(0, 5, 300)
    table["age"], table["height"] = generator.integers(0, 90, 300), generator.random(300)
    np.save(tmp_path / "in.npy", table)
    asked: dict[str, Any] = {"species": "majority", "age": "rounded"}
    xyz, origin = near(read(tmp_path / "in.npy"))
    fields = {name: table[name] for name in ("species", "age", "height")}
    for pick in ("centroid", "first"):
        sample(tmp_path / "in.npy", tmp_path / "out.npy", "voxel", 1.0, pick=pick, reduce=asked)
        new = np.load(tmp_path / "out.npy")
        how = asked if pick == "centroid" else {**asked, "height": "first"}
        merged = voxel(xyz, 1.0, pick="first", fields=fields, reduce=how, origin=origin)
        for name, values in merged.fields.items():
            np.testing.assert_array_equal(new[name], values, err_msg=name)
        assert set(new["species"]) <= set(range(5))
    with pytest.raises(UsageError, match=r"names 'specie', .*in\.npy has species, age, height"):
        sample(tmp_path / "in.npy", tmp_path / "out.npy", "voxel", 1.0, reduce={"specie": "first"})


@pytest.mark.parametrize(
    ("array", "said"),
    [
        (np.zeros((3, 40)), "has shape (3, 40): these are 3 points; for 40 save array.T"),
        (
            np.zeros(5, [("xyz", "f8", 3), ("x", "f4"), ("y", "f4"), ("z", "f4")]),
            "are those of its field xyz",
        ),
        (np.full((5, 3), np.nan), "has no row with a finite position"),
        (np.zeros((3, 3)), ""),
        (np.zeros(5, [("x", "f4"), ("y", "f4"), ("z", "f4")]), ""),
    ],
)
def test_what_may_be_meant_otherwise_is_told(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, array: NDArray[Any], said: str
) -> None:
    np.save(tmp_path / "in.npy", array)
    sample(tmp_path / "in.npy", tmp_path / "out.npy", "voxel", 1.0, pick="first")
    assert said in caplog.text
    assert bool(said) == bool(caplog.text)


def test_a_las_file_of_an_array_is_refused_before_it_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    np.save(tmp_path / "in.npy", np.zeros((3, 3)))
    monkeypatch.setattr("tamis.pipelines.sample.read", lambda _: 1 / 0)
    with pytest.raises(UsageError, match=r"a LAS file is made of a LAS file only, not of in\.npy"):
        sample(tmp_path / "in.npy", tmp_path / "out.laz", "random", 1)
