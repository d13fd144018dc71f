from __future__ import annotations

import struct
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, assume, given
from hypothesis import settings as with_settings
from hypothesis import strategies as st

from tamis.errors import DataError, UsageError
from tamis.pipelines.readers import ReadSettings, raw, read
from tamis.pipelines.readers.formats import format_of

NAMED = {"000000.bin": 4, "sweep__LIDAR_TOP__1532402927647951.pcd.bin": 5}


def rows(n: int, width: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).normal(scale=40, size=(n, width)).astype("<f4")


@pytest.mark.parametrize("name", NAMED)
@pytest.mark.parametrize("seed", [1, 2])
def test_rows_of_kitti_and_nuscenes(tmp_path: Path, name: str, seed: int) -> None:
    values = rows(1000, NAMED[name], seed)
    values[7, 1] = np.nan
    (tmp_path / name).write_bytes(b"".join(struct.pack(f"<{NAMED[name]}f", *row) for row in values.tolist()))
    scan = read(tmp_path / name)
    assert np.array_equal(scan.xyz, values[:, :3].astype(np.float64), equal_nan=True)
    assert list(scan.fields) == ["intensity", "ring"][: NAMED[name] - 3]
    for place, own in enumerate(scan.fields.values(), 3):
        assert own.dtype == np.float32
        assert own.tobytes() == values[:, place].tobytes()


def test_more_rows_than_are_read_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(raw, "_ROWS", 64)
    for n in (63, 64, 65, 200):
        values = rows(n, 4, n)
        (tmp_path / "a.bin").write_bytes(values.tobytes())
        scan = read(tmp_path / "a.bin")
        assert scan.xyz.tolist() == values[:, :3].tolist()
        assert scan.fields["intensity"].tolist() == values[:, 3].tolist()


def test_columns_may_be_named(tmp_path: Path) -> None:
    values = rows(30, 8)
    (tmp_path / "a.bin").write_bytes(values.tobytes())
    names = ["t", "y", "x", "z", "nx", "ny", "nz", "ring"]
    scan = read(tmp_path / "a.bin", ReadSettings(columns=names))
    assert scan.xyz.tolist() == values[:, [2, 1, 3]].tolist()
    assert scan.fields["normal"].tolist() == values[:, 4:7].tolist()
    assert scan.fields["t"].tolist() == values[:, 0].tolist()
    assert list(scan.fields) == ["t", "normal", "ring"]


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        (["x", "y", "intensity"], "names no x, y and z among x, y, intensity"),
        (["x", "y", "z", "x"], "names 'x' twice"),
        ([], "names no x, y and z"),
    ],
)
def test_columns_that_cannot_be(tmp_path: Path, columns: list[str], message: str) -> None:
    (tmp_path / "a.bin").write_bytes(bytes(48))
    with pytest.raises(UsageError, match=rf"data\.read\.columns: {message}"):
        read(tmp_path / "a.bin", ReadSettings(columns=columns))


@pytest.mark.parametrize("name", NAMED)
def test_every_cut_inside_a_row_is_refused(tmp_path: Path, name: str) -> None:
    row = 4 * NAMED[name]
    whole = rows(6, NAMED[name]).tobytes()
    for size in range(1, len(whole) + 1):
        (tmp_path / name).write_bytes(whole[:size])
        if size % row == 0:
            assert len(read(tmp_path / name).xyz) == size // row
            continue
        with pytest.raises(DataError, match=rf"has {size} bytes, no multiple of {row} \(x, y, z, intensity"):
            read(tmp_path / name)


def test_a_signalling_nan_is_no_fault(tmp_path: Path) -> None:
    (tmp_path / "a.bin").write_bytes(struct.pack("<4I", 0x7F800001, 0, 0, 0xFFBFFFFF))
    scan = read(tmp_path / "a.bin")
    assert np.isnan(scan.xyz).tolist() == [[True, False, False]]
    assert scan.fields["intensity"].view(np.uint32).tolist() == [0xFFBFFFFF]


@pytest.mark.parametrize("x", [8.5, 2.125, -34.0])
def test_a_first_number_that_begins_as_another_format_does(tmp_path: Path, x: float) -> None:
    """Its bytes are those of IDX: two zeros and an eight."""
    values = rows(5, 4)
    values[0, 0] = x
    assert values.tobytes()[:3] == b"\0\0\x08"
    (tmp_path / "a.bin").write_bytes(values.tobytes())
    assert read(tmp_path / "a.bin").xyz.tolist() == values[:, :3].tolist()


def test_a_longer_magic_tells_more_than_the_name(tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", rows(4, 4))
    (tmp_path / "a.npy").rename(tmp_path / "a.bin")
    assert format_of(tmp_path / "a.bin").name == "NPY"


@with_settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(data=st.binary(min_size=1, max_size=100))
def test_any_bytes_are_rows_or_refused(tmp_path: Path, data: bytes) -> None:
    path = tmp_path / "a.bin"
    path.write_bytes(data)
    assume(format_of(path).module == "raw")
    if len(data) % 16:
        with pytest.raises(DataError, match="no multiple of 16"):
            read(path)
    else:
        expected = np.frombuffer(data, "<f4").reshape(-1, 4)
        assert np.array_equal(read(path).xyz, expected[:, :3].astype(float), equal_nan=True)
