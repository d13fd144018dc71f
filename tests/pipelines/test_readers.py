from __future__ import annotations

import os
import struct
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

import laspy
import numpy as np
import pytest

from tamis.errors import DataError
from tamis.pipelines.readers import read, storable


def las(
    path: Path, xyz: np.ndarray, fields: Mapping[str, np.ndarray] = MappingProxyType({}), far: Any = (0, 0, 0)
) -> None:
    header = laspy.LasHeader(point_format=3, version="1.2")
    header.scales, header.offsets = [0.001] * 3, list(far)
    for name in fields.keys() - set(header.point_format.dimension_names):
        header.add_extra_dim(laspy.ExtraBytesParams(name, fields[name].dtype))
    data = laspy.LasData(header)
    data.x, data.y, data.z = xyz.T
    for name, values in fields.items():
        data[name] = values
    data.write(str(path))


def refused(path: Path) -> str:
    with pytest.raises(DataError) as caught:
        read(path)
    assert caught.value.exit_code == 1
    assert str(caught.value).startswith(f"{path}: ")
    assert "\n" not in str(caught.value)
    return str(caught.value)


@pytest.mark.parametrize("suffix", [".las", ".laz"])
def test_r03_las_keeps_every_dimension(tmp_path: Path, suffix: str) -> None:
    """R03, V15: all fields by default, each with its type."""
    rng = np.random.default_rng(1)
    xyz = (rng.uniform(0, 50, (400, 3)) + np.array([388096, 3948996, 40])).round(3)
    fields: dict[str, np.ndarray] = {
        "intensity": rng.integers(0, 65536, 400).astype(np.uint16),
        "classification": rng.integers(0, 32, 400).astype(np.uint8),
        "return_number": rng.integers(0, 8, 400).astype(np.uint8),
        "red": rng.integers(0, 65536, 400).astype(np.uint16),
        "green": rng.integers(0, 65536, 400).astype(np.uint16),
        "gps_time": rng.uniform(0, 4e9, 400),
        "reflectivity": rng.normal(size=400).astype(np.float32),
    }
    path = tmp_path / f"scan{suffix}"
    las(path, xyz, fields, far=(388096, 3948996, 40))
    scan = read(path)
    assert scan.xyz.dtype == np.float64
    assert np.abs(scan.xyz - xyz).max() < 1e-6
    for name in ("intensity", "classification", "return_number", "gps_time", "reflectivity"):
        assert scan.fields[name].dtype == fields[name].dtype
        assert np.array_equal(scan.fields[name], fields[name])
    assert scan.fields["rgb"].shape == (400, 3)
    assert np.array_equal(scan.fields["rgb"][:, 0], fields["red"])
    assert "red" not in scan.fields
    assert all(len(values) == 400 for values in scan.fields.values())


def test_shipped_scan(shipped_laz: Path) -> None:
    scan = read(shipped_laz)
    assert scan.xyz.shape == (37805, 3)
    assert {"rgb", "nir", "Deviation", "ExtraBytes", "classification"} <= scan.fields.keys()
    assert np.bincount(scan.fields["classification"])[[1, 2, 5]].tolist() == [355, 22859, 9974]


def test_empty_las_is_a_legal_scan(tmp_path: Path) -> None:
    las(tmp_path / "none.las", np.empty((0, 3)))
    scan = read(tmp_path / "none.las")
    assert scan.xyz.shape == (0, 3)
    assert len(scan.fields["classification"]) == 0


def test_content_decides_not_the_name(tmp_path: Path) -> None:
    np.save(tmp_path / "points", np.arange(12.0).reshape(4, 3))
    (tmp_path / "points.npy").rename(tmp_path / "points.las")
    assert read(tmp_path / "points.las").xyz.shape == (4, 3)


@pytest.mark.parametrize("share", [0.001, 0.05, 0.5, 0.9, 0.999])
def test_cut_laz_is_refused(tmp_path: Path, shipped_laz: Path, share: float) -> None:
    whole = shipped_laz.read_bytes()
    path = tmp_path / "cut.laz"
    path.write_bytes(whole[: int(len(whole) * share)])
    assert "copy it again" in refused(path)


@pytest.mark.parametrize("missing", [1, 35, 3000])
def test_cut_las_names_both_counts(tmp_path: Path, missing: int) -> None:
    path = tmp_path / "cut.las"
    las(path, np.arange(3000.0).reshape(1000, 3))
    path.write_bytes(path.read_bytes()[:-missing])
    held = 1000 - -(-missing // 34)
    assert f"promises 1000 points, it holds {held}" in refused(path)


@pytest.mark.parametrize("promised", [1001, 2**32 - 1])
def test_header_that_promises_more_points(tmp_path: Path, promised: int) -> None:
    for suffix, held in ((".las", 1000), (".laz", 50_000)):
        path = tmp_path / f"more{suffix}"
        las(path, np.arange(3000.0).reshape(1000, 3))
        data = bytearray(path.read_bytes())
        struct.pack_into("<I", data, 107, promised)
        path.write_bytes(data)
        message = refused(path)
        if promised > held:
            bound = "at most " if suffix == ".laz" else ""
            assert f"promises {promised} points, it holds {bound}{held}" in message


def test_absurd_record_count_does_not_hang(tmp_path: Path) -> None:
    path = tmp_path / "records.las"
    las(path, np.arange(30.0).reshape(10, 3))
    data = bytearray(path.read_bytes())
    struct.pack_into("<I", data, 100, 2**31)
    path.write_bytes(data)
    refused(path)


@pytest.mark.parametrize(
    "content", [b"", b"LAS", b"LASF", b"hello world" * 50, b"PK\x03\x04", b"\x93NUMPY\x01\x00"]
)
def test_what_is_no_scan(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "file.laz"
    path.write_bytes(content)
    refused(path)


def test_what_cannot_be_read(tmp_path: Path) -> None:
    assert "No such file" in refused(tmp_path / "missing.laz")
    (tmp_path / "folder.laz").mkdir()
    refused(tmp_path / "folder.laz")


@pytest.mark.parametrize("seed", range(12))
def test_changed_bytes_never_escape_as_another_error(tmp_path: Path, shipped_laz: Path, seed: int) -> None:
    data = bytearray(shipped_laz.read_bytes())
    rng = np.random.default_rng(seed)
    for at in rng.integers(4, (400, 6000, len(data))[seed % 3], 3):
        data[at] = rng.integers(256)
    path = tmp_path / "changed.laz"
    path.write_bytes(data)
    try:
        scan = read(path)
    except DataError as error:
        assert str(error).startswith(str(path))  # noqa: PT017
    else:
        assert all(len(values) == len(scan.xyz) for values in scan.fields.values())


XYZ = np.random.default_rng(3).integers(-40, 40, (50, 3))


@pytest.mark.parametrize(
    "array",
    [
        XYZ.astype("f8"),
        XYZ.astype("f4"),
        XYZ.astype("f2"),
        XYZ.astype("i4"),
        XYZ.astype("i1"),
        XYZ.astype(">f8"),
        XYZ.astype(">i2"),
        np.asfortranarray(XYZ.astype("f4")),
        np.repeat(XYZ, 2, axis=0)[::2],
    ],
    ids=lambda array: f"{array.dtype.str}{'F' * array.flags.f_contiguous}",
)
def test_v16_every_number_type_reads_the_same(tmp_path: Path, array: np.ndarray) -> None:
    np.save(tmp_path / "a.npy", array)
    scan = read(tmp_path / "a.npy")
    assert scan.xyz.dtype == np.float64
    assert scan.xyz.flags.c_contiguous
    assert np.array_equal(scan.xyz, XYZ)


def test_v16_fields_become_storable(tmp_path: Path) -> None:
    dtype = [
        ("x", ">f4"),
        ("y", "i2"),
        ("z", "f8"),
        ("half", "f2"),
        ("big", ">i4"),
        ("yes", "?"),
        ("one", "u1", (1,)),
    ]
    array = np.zeros(3, dtype)
    array["half"], array["big"], array["yes"], array["one"] = (
        [0.5, 1, 2],
        [1, -2, 70000],
        [1, 0, 1],
        [[7], [8], [9]],
    )
    np.save(tmp_path / "a.npy", array)
    found = read(tmp_path / "a.npy").fields
    fields = {name: storable(tmp_path, name, values) for name, values in found.items()}
    assert {name: values.dtype.str for name, values in fields.items()} == {
        "half": "<f4",
        "big": "<i4",
        "yes": "|u1",
        "one": "|u1",
    }
    assert {name: values.tolist() for name, values in fields.items()} == {
        "half": [0.5, 1, 2],
        "big": [1, -2, 70000],
        "yes": [1, 0, 1],
        "one": [7, 8, 9],
    }


def test_one_field_may_hold_all_coordinates(tmp_path: Path) -> None:
    array = np.zeros(4, [("cls", "u1"), ("xyz", "f4", 3)])
    array["xyz"], array["cls"] = np.arange(12).reshape(4, 3), [1, 2, 3, 4]
    np.save(tmp_path / "a.npy", array)
    scan = read(tmp_path / "a.npy")
    assert scan.xyz.tolist() == np.arange(12.0).reshape(4, 3).tolist()
    assert {name: values.tolist() for name, values in scan.fields.items()} == {"cls": [1, 2, 3, 4]}


def test_more_columns_are_named(tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", np.arange(10, dtype=np.float32).reshape(2, 5))
    scan = read(tmp_path / "a.npy")
    assert scan.xyz.tolist() == [[0, 1, 2], [5, 6, 7]]
    assert {name: values.tolist() for name, values in scan.fields.items()} == {
        "column_3": [3, 8],
        "column_4": [4, 9],
    }


@pytest.mark.parametrize(
    "array",
    [
        np.zeros(9),
        np.zeros((4, 2)),
        np.zeros((2, 2, 3)),
        np.zeros((4, 3), complex),
        np.zeros((4, 3), "U3"),
        np.zeros(4, [("x", "f4"), ("y", "f4")]),
        np.zeros((4, 4), [("x", "f4"), ("y", "f4"), ("z", "f4")]),
        np.zeros(4, [("x", "f4", 2), ("y", "f4"), ("z", "f4")]),
        np.zeros((4, 3), np.longdouble),
    ],
    ids=lambda array: f"{array.shape}{array.dtype}",
)
def test_v16_wrong_shape_or_type_is_named(tmp_path: Path, array: np.ndarray) -> None:
    np.save(tmp_path / "a.npy", array)
    refused(tmp_path / "a.npy")


@pytest.mark.parametrize("values", [np.zeros(2, "U4"), np.zeros((2, 2, 2)), np.zeros(2, complex)])
def test_v16_a_field_that_cannot_be_stored_is_named(tmp_path: Path, values: np.ndarray) -> None:
    with pytest.raises(DataError, match="field 'deep' has"):
        storable(tmp_path, "deep", values)


@pytest.mark.parametrize(
    "header", [b"{'descr': (", b"{'descr'", b"'" * 9, b"((((", b"-" * 60, b"{1: 2}", b"\x00\xff", b"[" * 60]
)
def test_a_damaged_npy_header_is_refused(tmp_path: Path, header: bytes) -> None:
    text = header.ljust(117) + b"\n"
    path = tmp_path / "a.npy"
    path.write_bytes(b"\x93NUMPY\x01\x00" + struct.pack("<H", len(text)) + text + bytes(240))
    assert "is not a whole NPY file" in refused(path)


@pytest.mark.parametrize("missing", [1, 10, 60, 500, 560])
def test_a_file_cut_in_its_extended_records_is_refused(tmp_path: Path, missing: int) -> None:
    header = laspy.LasHeader(point_format=6, version="1.4")
    data = laspy.LasData(header)
    data.x = data.y = data.z = np.arange(10.0)
    data.evlrs = laspy.vlrs.vlrlist.VLRList([laspy.VLR("me", i, "", bytes(250)) for i in (1, 2)])
    path = tmp_path / "a.las"
    data.write(str(path))
    assert len(read(path).xyz) == 10
    path.write_bytes(path.read_bytes()[:-missing])
    assert "its 2 extended records end past byte" in refused(path)


@pytest.mark.parametrize("chunks", [1000, 2**31, 2**32 - 1])
def test_more_chunks_than_bytes_are_refused_before_memory_is_taken(tmp_path: Path, chunks: int) -> None:
    path = tmp_path / "a.laz"
    las(path, np.arange(3000.0).reshape(1000, 3))
    data = bytearray(path.read_bytes())
    (table,) = struct.unpack_from("<q", data, struct.unpack_from("<I", data, 96)[0])
    struct.pack_into("<I", data, table + 4, chunks)
    path.write_bytes(data)
    assert f"{chunks} chunks have no room" in refused(path)


@pytest.mark.parametrize("point_format", [6, 7, 8])
@pytest.mark.parametrize("extra", [0, 2])
def test_a_layer_larger_than_its_chunk_is_refused(tmp_path: Path, point_format: int, extra: int) -> None:
    header = laspy.LasHeader(point_format=point_format, version="1.4")
    for number in range(extra):
        header.add_extra_dim(laspy.ExtraBytesParams(f"extra{number}", np.float32))
    data = laspy.LasData(header)
    data.x = data.y = data.z = np.arange(60_000.0)
    path = tmp_path / "a.laz"
    data.write(str(path))
    assert len(read(path).xyz) == 60_000
    changed = bytearray(path.read_bytes())
    first = struct.unpack_from("<I", changed, 96)[0] + 8 + header.point_format.size + 4
    struct.pack_into("<I", changed, first + 4, 2**31 - 1)
    path.write_bytes(changed)
    assert "layers of 2147" in refused(path)


def test_a_pipe_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.laz")
    assert "is no file" in refused(tmp_path / "pipe.laz")


def test_pickles_are_never_opened(tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", np.array([[{}, 1, 2]], object), allow_pickle=True)
    refused(tmp_path / "a.npy")


@pytest.mark.parametrize("drop", [1, 100, 2000])
def test_cut_npy_is_refused(tmp_path: Path, drop: int) -> None:
    path = tmp_path / "a.npy"
    np.save(path, np.zeros((100, 3)))
    path.write_bytes(path.read_bytes()[:-drop])
    refused(path)


def test_empty_npy_is_a_legal_scan(tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", np.zeros((0, 4), np.float32))
    scan = read(tmp_path / "a.npy")
    assert scan.xyz.shape == (0, 3)
    assert scan.fields["column_3"].dtype == np.float32
