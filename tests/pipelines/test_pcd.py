from __future__ import annotations

import logging
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tamis.errors import DataError
from tamis.pipelines.readers import Scan, read
from tamis.pipelines.readers.pcd import KINDS_OF_DATA

Field = tuple[str, np.ndarray]


def lzf(data: bytes) -> bytes:
    """LZF by its definition, with matches found in a table of the last places of three bytes."""
    out, literal, seen, at = bytearray(), bytearray(), dict[bytes, int](), 0

    def flush() -> None:
        for start in range(0, len(literal), 32):
            run = literal[start : start + 32]
            out.extend(bytes([len(run) - 1]) + run)
        literal.clear()

    while at < len(data):
        key = data[at : at + 3]
        place = seen.get(key)
        seen[key] = at
        if len(key) < 3 or place is None or at - place > 8192:
            literal.append(data[at])
            at += 1
            continue
        length = 3
        while at + length < len(data) and length < 264 and data[place + length] == data[at + length]:
            length += 1
        flush()
        back, more = at - place - 1, length - 2
        out.append(min(more, 7) << 5 | back >> 8)
        if more >= 7:
            out.append(more - 7)
        out.append(back & 255)
        at += length
    flush()
    return bytes(out)


def header(fields: list[Field], data: str, **lines: Any) -> bytes:
    """A header, with ``lines`` changed, or left out where they are None."""
    widths = [values[0].size for _, values in fields]
    n = len(fields[0][1])
    kinds = {"f": "F", "i": "I", "u": "U"}
    whole: dict[str, Any] = {
        "VERSION": "0.7",
        "FIELDS": " ".join(name for name, _ in fields),
        "SIZE": " ".join(str(values.dtype.itemsize) for _, values in fields),
        "TYPE": " ".join(kinds[values.dtype.kind] for _, values in fields),
        "COUNT": " ".join(map(str, widths)),
        "WIDTH": n,
        "HEIGHT": 1,
        "VIEWPOINT": "0 0 0 1 0 0 0",
        "POINTS": n,
        "DATA": data,
    }
    whole |= lines
    text = "".join(f"{key} {value}\n" for key, value in whole.items() if value is not None)
    return b"# .PCD v0.7 - Point Cloud Data file format\n" + text.encode()


def payload(fields: list[Field], data: str) -> bytes:
    if data == "ascii":
        rows = zip(*(values.reshape(len(values), -1) for _, values in fields), strict=True)
        lines = (" ".join(str(number) for part in row for number in part.tolist()) for row in rows)
        return "".join(f"{line}\n" for line in lines).encode()
    if data == "binary":
        rows = zip(*(values for _, values in fields), strict=True)
        return b"".join(np.asarray(part).tobytes() for row in rows for part in row)
    raw = b"".join(values.tobytes() for _, values in fields)
    packed = lzf(raw)
    return struct.pack("<II", len(packed), len(raw)) + packed


def write(path: Path, fields: list[Field], data: str, **lines: Any) -> Path:
    path.write_bytes(header(fields, data, **lines) + payload(fields, data))
    return path


def points(n: int, seed: int, kind: Any = np.float32) -> list[Field]:
    rng = np.random.default_rng(seed)
    return [(axis, rng.normal(scale=50, size=n).astype(kind)) for axis in "xyz"]


def refused(path: Path) -> str:
    with pytest.raises(DataError) as caught:
        read(path)
    assert str(caught.value).startswith(f"{path}: ")
    assert "\n" not in str(caught.value)
    return str(caught.value)


def assert_holds(scan: Scan, fields: list[Field]) -> None:
    """Every field with its type and bits."""
    for place, axis in enumerate("xyz"):
        assert np.array_equal(scan.xyz[:, place], dict(fields)[axis].astype(np.float64), equal_nan=True)
    others = {name: values for name, values in fields if name not in ("x", "y", "z", "_")}
    assert scan.fields.keys() == others.keys()
    for name, values in others.items():
        assert scan.fields[name].dtype == values.dtype
        assert scan.fields[name].tobytes() == values.tobytes()


every_data = pytest.mark.parametrize("data", sorted(KINDS_OF_DATA))


@every_data
@pytest.mark.parametrize("seed", [1, 2])
def test_r03_every_field_of_every_type_is_read(tmp_path: Path, data: str, seed: int) -> None:
    rng = np.random.default_rng(seed)
    fields = points(70, seed, (np.float32, np.float64)[seed % 2])
    for code in ("u1", "i1", "u2", "i2", "u4", "i4", "i8", "u8"):
        info = np.iinfo(code)
        top = min(info.max, 2**63 - 1)
        fields.append((f"a{code}", rng.integers(info.min, top, 70, dtype=code, endpoint=True)))
    fields += [("intensity", rng.normal(size=70).astype("f4")), ("t", rng.uniform(0, 4e9, 70))]
    fields.insert(2, ("histogram", rng.normal(size=(70, 5)).astype("f4")))
    assert_holds(read(write(tmp_path / "a.pcd", fields, data)), fields)


@every_data
def test_padding_is_passed_over(tmp_path: Path, data: str) -> None:
    pad = np.arange(80, dtype=np.uint8).reshape(20, 4)
    x, y, z = points(20, 3)
    ring = ("ring", np.arange(20, dtype=np.uint16))
    fields = [x, y, z, ("_", pad), ring, ("_", pad[:, :1] + 1)]
    assert_holds(read(write(tmp_path / "a.pcd", fields, data)), fields)
    if data == "binary_compressed":  # PCL names padding that it left out of the payload
        kept = [x, y, z, ring]
        (tmp_path / "b.pcd").write_bytes(header(fields, data) + payload(kept, data))
        assert_holds(read(tmp_path / "b.pcd"), fields)


@every_data
def test_rows_that_are_not_finite_stay_in_an_organised_cloud(tmp_path: Path, data: str) -> None:
    fields = points(12, 4)
    fields[2][1][[0, 5, 11]] = np.nan
    fields[0][1][3] = -np.inf
    scan = read(write(tmp_path / "a.pcd", fields, data, WIDTH=4, HEIGHT=3))
    assert_holds(scan, fields)
    assert np.flatnonzero(np.isnan(scan.xyz[:, 2])).tolist() == [0, 5, 11]


def test_r02_organised_cloud_with_back_references(tmp_path: Path) -> None:
    """R02: 64 x 16 points, a field after the other, ring behind fields of odd sizes."""
    x = np.tile(np.arange(64, dtype="<f4"), 16)
    y = np.repeat(np.arange(16, dtype="<f4"), 64)
    z = np.zeros(1024, "<f4")
    z[::7] = np.nan
    fields = [("x", x), ("y", y), ("ring", y.astype("u1")), ("z", z), ("odd", y.astype("u1")[:, None])]
    fields += [("intensity", (np.arange(1024) % 251).astype("<u2"))]
    path = write(tmp_path / "a.pcd", fields, "binary_compressed", WIDTH=64, HEIGHT=16)
    assert path.stat().st_size < 2000
    scan = read(path)
    assert scan.xyz[65].tolist()[:2] == [1, 1]
    assert np.isnan(scan.xyz[:, 2]).sum() == 147
    assert (scan.fields["intensity"][260], scan.fields["ring"][1023]) == (9, 15)
    assert all(values.flags.aligned for values in scan.fields.values())


@pytest.mark.parametrize("seed", range(3))
def test_r02_what_could_not_be_compressed_is_stored_raw(tmp_path: Path, seed: int) -> None:
    fields = points(50, seed)
    raw = b"".join(values.tobytes() for _, values in fields)
    path = tmp_path / "a.pcd"
    path.write_bytes(header(fields, "binary_compressed") + struct.pack("<II", 600, 600) + raw)
    assert_holds(read(path), fields)


def test_r02_a_stream_three_bytes_off_is_refused(tmp_path: Path) -> None:
    """R02: PointCloudLibrary/pcl#2261."""
    fields = points(40, 9)
    raw = b"".join(values.tobytes() for _, values in fields)
    for changed in (raw[:-3], raw + b"abc"):
        packed = lzf(changed)
        sizes = struct.pack("<II", len(packed), len(raw))
        (tmp_path / "a.pcd").write_bytes(header(fields, "binary_compressed") + sizes + packed)
        assert "its LZF stream is damaged at byte" in refused(tmp_path / "a.pcd")


@pytest.mark.parametrize("encoding", ["ASCII", "BINARY", "BINARY_COMPRESSED"])
def test_files_of_another_writer(tmp_path: Path, encoding: str) -> None:
    pypcd4 = pytest.importorskip("pypcd4")
    rng = np.random.default_rng(5)
    columns = [*(values for _, values in points(300, 6)), rng.integers(0, 9, 300).astype("u2")]
    columns += [rng.normal(size=300)]
    names = ("x", "y", "z", "ring", "time")
    cloud = pypcd4.PointCloud.from_points(columns, names, [c.dtype.type for c in columns])
    path = tmp_path / "a.pcd"
    cloud.save(path, getattr(pypcd4.Encoding, encoding))
    if encoding == "ASCII":  # which this writer rounds
        scan = read(path)
        assert np.allclose(scan.xyz, np.stack(columns[:3], axis=1), rtol=1e-6)
        assert scan.fields["ring"].tolist() == columns[3].tolist()
    else:
        assert_holds(read(path), list(zip(names, columns, strict=True)))


@pytest.mark.parametrize(("name", "finite"), [("pcl_car6", 10_031), ("pcl_five_people", 239_075)])
def test_real_files_against_another_reader(data_folder: Path, name: str, finite: int) -> None:
    """Both end with zeros up to a page, as PCL leaves them."""
    pypcd4 = pytest.importorskip("pypcd4")
    path = data_folder / "reader" / f"{name}.pcd"
    scan, other = read(path), pypcd4.PointCloud.from_path(path).pc_data
    xyz = np.stack([other[axis] for axis in "xyz"], axis=1)
    assert scan.xyz.tobytes() == xyz.astype(np.float64).tobytes()
    assert np.isfinite(scan.xyz).all(axis=1).sum() == finite
    if "rgba" in other.dtype.names:
        assert scan.fields["rgb"].dtype == scan.fields["alpha"].dtype == np.uint8
        packed = scan.fields["alpha"].astype(np.uint32) << 24
        for place, shift in enumerate((16, 8, 0)):
            packed |= scan.fields["rgb"][:, place].astype(np.uint32) << shift
        assert np.array_equal(packed, other["rgba"])


@every_data
@pytest.mark.parametrize("name", ["rgb", "rgba"])
@pytest.mark.parametrize("code", ["u4", "i4", "f4"])
def test_packed_colours_are_taken_apart(tmp_path: Path, data: str, name: str, code: str) -> None:
    rgb = np.array([[1, 2, 3], [255, 0, 128], [0, 255, 255], [64, 65, 66]], np.uint8)
    alpha = np.array([0, 1, 2, 66], np.uint8)
    if data != "ascii" or code != "f4":
        alpha[:2] = 255  # which makes a float NaN or negative
    packed = np.column_stack([rgb[:, ::-1], alpha]).copy().view(f"<{code}")[:, 0]
    ring = ("ring", np.arange(4, dtype=np.uint8))
    scan = read(write(tmp_path / "a.pcd", [*points(4, 1), (name, packed), ring], data))
    assert scan.fields["rgb"].dtype == np.uint8
    assert scan.fields["rgb"].tolist() == rgb.tolist()
    assert scan.fields["ring"].tolist() == [0, 1, 2, 3]
    assert scan.fields.keys() == {"rgb", "ring", *(["alpha"] if name == "rgba" else [])}
    if name == "rgba":
        assert scan.fields["alpha"].tolist() == alpha.tolist()


def test_colours_that_are_not_packed_keep_their_values(tmp_path: Path) -> None:
    wide = np.arange(12, dtype=np.uint8).reshape(4, 3)
    scan = read(write(tmp_path / "a.pcd", [*points(4, 1), ("rgb", wide)], "binary"))
    assert scan.fields["rgb"].tolist() == wide.tolist()
    both = [*points(4, 1), ("rgb", np.arange(4, dtype="u4")), ("rgba", np.arange(4, dtype="u4"))]
    scan = read(write(tmp_path / "a.pcd", both, "binary"))
    assert scan.fields["rgba"].tolist() == [0, 1, 2, 3]
    assert scan.fields["rgb"][:, 2].tolist() == [0, 1, 2, 3]


@every_data
def test_normals_become_one_field(tmp_path: Path, data: str) -> None:
    normals = [(f"normal_{name}", values) for name, values in points(9, 8)]
    curvature = ("curvature", points(9, 7)[0][1])
    scan = read(write(tmp_path / "a.pcd", [*points(9, 1), *normals, curvature], data))
    assert scan.fields["normal"].dtype == np.float32
    assert np.array_equal(scan.fields["normal"], np.stack([values for _, values in normals], axis=1))
    assert scan.fields.keys() == {"normal", "curvature"}


@every_data
@pytest.mark.parametrize(
    "change",
    [
        lambda head: head.replace(b"\n", b"\r\n"),
        lambda head: b"# by hand\n\n" + head.replace(b"SIZE", b"# a comment\nSIZE"),
        lambda head: head.split(b"\n", 1)[1],
        lambda head: b"\xef\xbb\xbf" + head,
        lambda head: head.replace(b"VERSION 0.7", b"VERSION .5").replace(b"FIELDS", b"COLUMNS"),
        lambda head: head.replace(b"WIDTH 8\n", b"").replace(b"HEIGHT 1\n", b""),
        lambda head: head.replace(b"POINTS 8\n", b""),
        lambda head: head.replace(b"COUNT 1 1 1 1\n", b"").replace(b"VIEWPOINT 0 0 0 1 0 0 0\n", b""),
        lambda head: head.replace(b"FIELDS x", b"FIELDS\tx ").replace(b"DATA ", b"DATA  "),
    ],
)
def test_headers_as_they_come(tmp_path: Path, data: str, change: Callable[[bytes], bytes]) -> None:
    fields = [*points(8, 2), ("intensity", np.arange(8, dtype=np.float32))]
    fields[0][1].view(np.uint8)[0] = 10  # so that the payload starts with a line end
    head = header(fields, data)
    changed = change(head)
    assert changed != head
    path = tmp_path / "a.pcd"
    path.write_bytes(changed + payload(fields, data))
    assert_holds(read(path), fields)


def test_the_viewpoint_is_noted(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    read(write(tmp_path / "a.pcd", points(3, 1), "binary"))
    assert not caplog.records
    fields = points(3, 1)
    scan = read(write(tmp_path / "a.pcd", fields, "binary", VIEWPOINT="1.5 0 -2 0.5 0.5 0.5 0.5"))
    assert "its VIEWPOINT 1.5 0 -2 0.5 0.5 0.5 0.5 is not applied" in caplog.text
    assert_holds(scan, fields)


@every_data
def test_no_points_are_a_legal_scan(tmp_path: Path, data: str) -> None:
    fields = [*points(1, 1), ("normal", np.zeros((1, 3), "f4"))]
    head = header(fields, data, WIDTH=0, POINTS=0)
    ends = [b"", struct.pack("<II", 0, 0)] if data == "binary_compressed" else [b""]
    for end in ends:
        (tmp_path / "a.pcd").write_bytes(head + end)
        scan = read(tmp_path / "a.pcd")
        assert scan.xyz.shape == (0, 3)
        assert scan.fields["normal"].shape == (0, 3)
        assert scan.fields["normal"].dtype == np.float32


@every_data
@pytest.mark.parametrize(
    ("lines", "message"),
    [
        ({"POINTS": 7}, "POINTS is 7, WIDTH x HEIGHT is 8 x 1 = 8"),
        ({"HEIGHT": 2}, "POINTS is 8, WIDTH x HEIGHT is 8 x 2 = 16"),
        ({"WIDTH": 9, "POINTS": 9}, "9 points"),
        ({"WIDTH": 10**17, "POINTS": 10**17}, "100000000000000000 points"),
        ({"WIDTH": -8, "POINTS": -8}, "WIDTH is '-8'"),
        ({"WIDTH": None, "POINTS": None}, "neither POINTS nor WIDTH"),
        ({"FIELDS": None}, "no line FIELDS"),
        ({"SIZE": "4 4 4 4"}, "SIZE has 4 values for 3 fields"),
        ({"TYPE": "F F"}, "TYPE has 2 values for 3 fields"),
        ({"COUNT": "1 1"}, "COUNT has 2 values for 3 fields"),
        ({"COUNT": "1 0 1"}, "field 'y' has COUNT 0"),
        ({"COUNT": "1 1 999999999"}, "1000000001 numbers a point"),
        ({"SIZE": "4 3 4"}, "field 'y' has TYPE F and SIZE 3"),
        ({"TYPE": "F F Q"}, "field 'z' has TYPE Q and SIZE 4"),
        ({"FIELDS": "x y w"}, "has no columns x, y and z among x, y, w"),
        ({"FIELDS": "x y y"}, "has two columns 'y'"),
        ({"FIELDS": "_ _ _"}, "has no columns x, y and z"),
        ({"FIELDS": "x y \x1bz"}, r"a field is named '\x1bz'"),
        ({"VIEWPOINT": "0 0 0 1"}, "VIEWPOINT is '0 0 0 1', not seven numbers"),
        ({"DATA": "zipped"}, "DATA is 'zipped'"),
        ({"DATA": "binary 3"}, "DATA on line 11 has 2 values"),
        ({"WIDHT": 8}, "starts with 'WIDHT'"),
    ],
)
def test_a_header_that_cannot_be_is_named(
    tmp_path: Path, data: str, lines: dict[str, Any], message: str
) -> None:
    if "WIDHT" in lines:  # before DATA
        lines = {"WIDTH": "8\nWIDHT 8"}
    assert message in refused(write(tmp_path / "a.pcd", points(8, 1), data, **lines))


@every_data
def test_fewer_or_more_bytes_than_promised(tmp_path: Path, data: str) -> None:
    """A file cut at any place: but for the digits of the last number of text, nothing is lost unseen."""
    fields = [*points(6, 3), ("ring", np.arange(1000, 1006, dtype=np.uint16))]
    path = write(tmp_path / "a.pcd", fields, data)
    whole = path.read_bytes()
    last = len(b"005\n") if data == "ascii" else 0
    start = len(header(fields, data)) - 8
    for size in (*range(1, start, 7), *range(start, len(whole) - last)):
        path.write_bytes(whole[:size])
        refused(path)
    path.write_bytes(whole + (b"1 2 3 4\n" if data == "ascii" else b"more"))
    assert "holds 7" in refused(path) if data == "ascii" else "has 4 bytes beyond its" in refused(path)
    if data != "ascii":
        path.write_bytes(whole + bytes(4096))
        assert_holds(read(path), fields)
        path.write_bytes(whole + bytes(4097))
        assert "has 4097 bytes beyond its" in refused(path)


def test_promised_bytes_are_checked_before_memory_is_taken(tmp_path: Path) -> None:
    head = header(points(1, 1), "binary_compressed", WIDTH=10**8, POINTS=10**8)
    (tmp_path / "a.pcd").write_bytes(head + struct.pack("<II", 4, 1_200_000_000) + b"\0" * 4)
    assert "4 bytes cannot hold 1200000000" in refused(tmp_path / "a.pcd")


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ("1 2 3 4\n1 2 3\n", "line 13 has 3 columns, not 4 ('1 2 3')"),
        ("1 2 3 4\n\n1 2 3 4 5\n", "line 14 has 5 columns, not 4"),
        ("1 2,5 3 4\n1 2 3 4\n", "line 12: '2,5' in column 2 is no number; write decimal points"),
        ("1 2 3 4\n1 2 3 300\n", "field 'ring' of point 1 is 300, which is no uint8"),
        ("1 2 3 4\n1 2 3 -1\n", "field 'ring' of point 1 is -1"),
        ("1 2 3 4.5\n1 2 3 4\n", "field 'ring' of point 0 is 4.5"),
        ("1 2 3 nan\n1 2 3 4\n", "field 'ring' of point 0 is nan"),
        ("1 2 3 4\n", "promises 2 points, it holds 1"),
    ],
)
def test_ascii_that_is_no_table_of_its_types(tmp_path: Path, rows: str, message: str) -> None:
    fields = [*points(2, 1), ("ring", np.zeros(2, np.uint8))]
    (tmp_path / "a.pcd").write_bytes(header(fields, "ascii") + rows.encode())
    assert message in refused(tmp_path / "a.pcd")


def test_ascii_integers_are_exact_or_refused(tmp_path: Path) -> None:
    fields = [*points(1, 1), ("stamp", np.zeros(1, np.uint64))]
    for token, value in (("9223372036854775807", 2**63 - 1), ("1e3", 1000), ("7.0", 7)):
        (tmp_path / "a.pcd").write_bytes(header(fields, "ascii") + f"1 2 3 {token}\n".encode())
        assert read(tmp_path / "a.pcd").fields["stamp"].tolist() == [value]
    for token in ("9223372036854775809", "1e18", "18446744073709551616", "-1", "inf"):
        (tmp_path / "a.pcd").write_bytes(header(fields, "ascii") + f"1 2 3 {token}\n".encode())
        assert "field 'stamp' of point 0 is" in refused(tmp_path / "a.pcd")


@every_data
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(places=st.lists(st.tuples(st.integers(0, 10**6), st.integers(1, 255)), min_size=1, max_size=3))
def test_changed_bytes_never_escape_as_another_error(
    tmp_path: Path, data: str, places: list[tuple[int, int]]
) -> None:
    fields = [*points(6, 3), ("rgb", np.arange(6, dtype=np.float32)), ("a", np.ones((6, 2), "u2"))]
    whole = bytearray(header(fields, data) + payload(fields, data))
    for at, change in places:
        whole[at % len(whole)] ^= change
    path = tmp_path / "a.pcd"
    path.write_bytes(whole)
    try:
        scan = read(path)
    except DataError as error:
        assert "\n" not in str(error)  # noqa: PT017
    else:
        assert all(len(values) == len(scan.xyz) for values in scan.fields.values())


def test_a_long_header_is_not_read_to_the_end(tmp_path: Path) -> None:
    (tmp_path / "a.pcd").write_bytes(b"# .PCD v0.7\n" + b"# more\n" * 200_000)
    assert "without a line DATA" in refused(tmp_path / "a.pcd")
    (tmp_path / "a.pcd").write_bytes(b"# .PCD v0.7\n" + b"x" * 2_000_000)
    assert "without a line DATA" in refused(tmp_path / "a.pcd")
