from __future__ import annotations

import io
import logging
import pickle
import struct
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tamis.errors import DataError
from tamis.pipelines.readers import read

XYZ = np.random.default_rng(4).normal(size=(60, 3))
LABEL = np.arange(60, dtype=np.uint8)


def refused(path: Path) -> str:
    with pytest.raises(DataError) as caught:
        read(path)
    assert str(caught.value).startswith(f"{path}: ")
    assert "\n" not in str(caught.value)
    return str(caught.value)


@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
@pytest.mark.parametrize("name", ["xyz", "points", "pos"])
@pytest.mark.parametrize("dtype", ["<f8", ">f8", "<f4", "<f2"])
def test_v16_coordinates_in_one_array(tmp_path: Path, save: Any, name: str, dtype: str) -> None:
    """V16: every type and byte order reads the same."""
    xyz = np.asfortranarray(XYZ.astype(dtype))
    save(tmp_path / "a.npz", label=LABEL, normal=XYZ.astype("f4"), **{name: xyz})
    scan = read(tmp_path / "a.npz")
    assert scan.xyz.dtype == np.float64
    assert np.array_equal(scan.xyz, xyz.astype("f8"))
    assert list(scan.fields) == ["label", "normal"]
    assert scan.fields["label"].dtype == np.uint8
    assert np.array_equal(scan.fields["label"], LABEL)
    assert np.array_equal(scan.fields["normal"], XYZ.astype("f4"))


def test_coordinates_in_three_arrays(tmp_path: Path) -> None:
    x, y, z = XYZ.T
    np.savez(tmp_path / "a.npz", z=z, label=LABEL, y=y.astype("f4"), x=x, nx=x, ny=y, nz=z)
    scan = read(tmp_path / "a.npz")
    assert np.array_equal(scan.xyz, np.stack([x, y.astype("f4"), z], axis=1))
    assert set(scan.fields) == {"label", "normal"}
    assert np.array_equal(scan.fields["normal"], XYZ)


def test_more_columns_are_named(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", points=np.arange(10.0).reshape(2, 5))
    scan = read(tmp_path / "a.npz")
    assert scan.xyz.tolist() == [[0, 1, 2], [5, 6, 7]]
    assert {name: values.tolist() for name, values in scan.fields.items()} == {
        "column_3": [3, 8],
        "column_4": [4, 9],
    }


def test_an_archive_of_one_array_is_read_as_that(tmp_path: Path) -> None:
    np.savez(tmp_path / "plain.npz", XYZ)
    assert np.array_equal(read(tmp_path / "plain.npz").xyz, XYZ)
    rows = np.zeros(3, [("x", "f4"), ("y", "f4"), ("z", "f4"), ("label", "i4")])
    rows["label"] = [4, 5, 6]
    np.savez(tmp_path / "rows.npz", cloud=rows)
    assert read(tmp_path / "rows.npz").fields["label"].tolist() == [4, 5, 6]


def test_what_has_no_number_a_point_is_left_out_with_a_notice(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """As in the point clouds of Occupancy Networks, which have a scale and a place."""
    np.savez(
        tmp_path / "a.npz",
        points=XYZ,
        scale=1.5,
        loc=np.zeros(3),
        names=np.array(["a"] * 60),
        inside=LABEL > 9,
    )
    with zipfile.ZipFile(tmp_path / "a.npz", "a") as archive:
        archive.writestr("readme.txt", "hello")
    with caplog.at_level(logging.WARNING):
        scan = read(tmp_path / "a.npz")
    assert "left out loc, names, scale, which have no number a point" in caplog.text
    assert "left out readme.txt" in caplog.text
    assert list(scan.fields) == ["inside"]
    assert np.array_equal(scan.fields["inside"], LABEL > 9)


def test_no_points_are_legal(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", xyz=np.zeros((0, 3), "f4"), label=np.zeros(0, "u1"))
    scan = read(tmp_path / "a.npz")
    assert scan.xyz.shape == (0, 3)
    assert scan.fields["label"].dtype == np.uint8


class Trap:
    """Unpickled, it writes a file."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return Path.touch, (self.path,)


def test_pickles_are_never_opened(tmp_path: Path) -> None:
    trap = np.array([Trap(tmp_path / "sprung")] * 60, object)
    np.savez(tmp_path / "a.npz", xyz=XYZ, label=trap)
    assert read(tmp_path / "a.npz").fields == {}
    np.savez(tmp_path / "b.npz", xyz=trap)
    assert "has no arrays x, y and z" in refused(tmp_path / "b.npz")
    with zipfile.ZipFile(tmp_path / "c.npz", "w") as archive:
        archive.writestr("xyz.npy", pickle.dumps(Trap(tmp_path / "sprung")))
    assert "damaged or cut NPZ" in refused(tmp_path / "c.npz")
    assert not (tmp_path / "sprung").exists()


@pytest.mark.parametrize(
    ("arrays", "cause"),
    [
        ({"label": LABEL, "other": LABEL}, "has no arrays x, y and z (it has label, other)"),
        ({"x": LABEL, "y": LABEL, "label": LABEL}, "has no arrays x, y and z"),
        ({"x": XYZ, "y": XYZ, "z": XYZ}, "array 'x' has rows of shape (3,)"),
        ({"X": LABEL, "Y": LABEL[:9], "Z": LABEL}, "has no arrays x, y and z (it has X, Z)"),
        ({"x": np.float64(1), "y": LABEL, "z": LABEL}, "has no arrays x, y and z (it has"),
        ({"xyz": np.zeros((60, 4)), "column_3": LABEL}, "has an array 'column_3'"),
        ({"xyz": XYZ.astype(complex), "label": LABEL}, "has no arrays x, y and z"),
        ({"xyz": XYZ > 0, "label": LABEL}, "array 'xyz' has type bool"),
        ({"xyz": XYZ[:, :2], "label": LABEL}, "has no arrays x, y and z"),
    ],
)
def test_what_is_no_cloud_is_named(tmp_path: Path, arrays: Any, cause: str) -> None:
    np.savez(tmp_path / "a.npz", **arrays)
    assert cause in refused(tmp_path / "a.npz")


def archive(path: Path, **members: bytes) -> None:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as file:
        for name, data in members.items():
            file.writestr(f"{name}.npy", data)


def npy(shape: tuple[int, ...], data: bytes = b"", dtype: str = "<f8") -> bytes:
    file = io.BytesIO()
    np.lib.format.write_array_header_1_0(file, {"descr": dtype, "fortran_order": False, "shape": shape})
    return file.getvalue() + data


@pytest.mark.parametrize("shape", [(61, 3), (59, 3), (2**40, 3), (60, -3), (0, 3)])
def test_a_shape_that_the_bytes_do_not_fill(tmp_path: Path, shape: tuple[int, int]) -> None:
    archive(tmp_path / "a.npz", xyz=npy(shape, XYZ.tobytes()))
    assert "bytes for" in refused(tmp_path / "a.npz")


def test_a_bomb_is_refused_before_it_goes_off(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "a.npz"
    archive(path, xyz=npy((200_000, 3), bytes(4_800_000)))
    assert path.stat().st_size < 10_000
    assert len(read(path).xyz) == 200_000
    monkeypatch.setattr("tamis.pipelines.readers.npz._MEMORY", 4_000_000)
    assert "unpacks to 0.0 GB, this machine has 0.0" in refused(path)


def test_a_size_that_deflate_cannot_reach(tmp_path: Path) -> None:
    """The size in both of the archive's lists says 3 GB."""
    path = tmp_path / "a.npz"
    archive(path, xyz=npy((60, 3), XYZ.tobytes()))
    data = path.read_bytes()
    size = struct.pack("<I", len(npy((60, 3))) + XYZ.nbytes)
    assert data.count(size) == 2
    path.write_bytes(data.replace(size, struct.pack("<I", 3_000_000_000)))
    assert "would unpack to 3000000000" in refused(path)


def test_two_arrays_of_one_name(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "a.npz", "w") as file:
        file.writestr("xyz.npy", npy((60, 3), XYZ.tobytes()))
        with pytest.warns(UserWarning, match="Duplicate name"):
            file.writestr("xyz.npy", npy((60, 3), XYZ.tobytes()))
    assert "holds two arrays 'xyz'" in refused(tmp_path / "a.npz")


def written(path: Path) -> bytes:
    np.savez_compressed(path, xyz=XYZ, label=LABEL)
    return path.read_bytes()


@pytest.mark.parametrize("share", [0.002, 0.05, 0.3, 0.7, 0.95, 0.99, 0.999])
def test_a_cut_archive_is_refused(tmp_path: Path, share: float) -> None:
    data = written(tmp_path / "a.npz")
    (tmp_path / "a.npz").write_bytes(data[: max(4, int(len(data) * share))])
    assert "damaged or cut NPZ" in refused(tmp_path / "a.npz")


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(changes=st.lists(st.tuples(st.integers(0, 10**6), st.integers(1, 255)), min_size=1, max_size=4))
def test_changed_bytes_are_noticed(tmp_path: Path, changes: list[tuple[int, int]]) -> None:
    data = bytearray(written(tmp_path / "whole.npz"))
    for at, flip in changes:
        data[4 + at % (len(data) - 4)] ^= flip
    path = tmp_path / "changed.npz"
    path.write_bytes(data)
    try:
        scan = read(path)
    except DataError as error:
        assert str(error).startswith(str(path))  # noqa: PT017
    else:
        assert np.array_equal(scan.xyz, XYZ)
