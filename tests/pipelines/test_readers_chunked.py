"""Files read in pieces: the pieces make up the cloud that reading them whole gives, bit by bit."""

from __future__ import annotations

import os
import struct
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import laspy
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given
from hypothesis import settings as with_settings
from hypothesis import strategies as st
from pyarrow import feather, parquet

from tamis.errors import DataError
from tamis.pipelines.readers import ReadSettings, Scan, chunked, columns, read, rows_of, text_numbers

ROOT = Path(__file__).resolve().parents[2]
Rng = np.random.Generator
POINTS = [
    ("x", "<f8"),
    ("y", "<f4"),
    ("z", "<i2"),
    ("red", "u1"),
    ("green", "u1"),
    ("blue", "u1"),
    ("t", "<f8"),
]


def las(path: Path, rng: Rng, n: int, point_format: int) -> None:
    header = laspy.LasHeader(point_format=point_format, version="1.4")
    header.scales, header.offsets = [0.001, 0.01, 0.1], [1000, 6_000_000, -50]
    steps = np.array([0.5, 0.25, 0.1])
    header.add_extra_dims(
        [
            laspy.ExtraBytesParams("plain", "u2"),
            laspy.ExtraBytesParams("pair", "2f4"),
            laspy.ExtraBytesParams("height", "i2", scales=steps[2:], offsets=np.array([100.0])),
            laspy.ExtraBytesParams("turn", "3i4", scales=steps, offsets=np.arange(3.0)),
        ]
    )
    points = laspy.ScaleAwarePointRecord.zeros(n, header=header)
    packed = points.array.view(np.uint8).reshape(n, points.array.itemsize)
    packed[:] = rng.integers(0, 256, packed.shape)
    points["pair"] = rng.normal(size=(n, 2))
    if point_format > 5:
        # lazrs writes what changes wave packets' channels wrong, and no time that is none.
        points["scanner_channel"][:] = 0
    for name in ("gps_time", "x_t", "y_t", "z_t", "return_point_wave_location"):
        if name in points.array.dtype.names:
            points[name] = rng.normal(size=n)
    laspy.LasData(header, points).write(str(path))


def table(rng: Rng, n: int) -> dict[str, Any]:
    vectors = pa.FixedSizeListArray.from_arrays(pa.array(rng.normal(size=3 * n)), 3)
    return {
        "xyz": vectors,
        "half": pa.array(rng.normal(size=n).astype(np.float16)),
        "on": pa.array(rng.integers(0, 2, n) > 0),
        "name": pa.array(["a"] * n),
        "when": pa.array(rng.integers(0, 10**9, n), pa.timestamp("us")),
        "kind": pa.array(rng.integers(0, 5, n)).dictionary_encode(),
    }


def write_parquet(path: Path, rng: Rng, n: int) -> None:
    parquet.write_table(pa.table(table(rng, n)), path, row_group_size=13)


def write_feather(path: Path, rng: Rng, n: int) -> None:
    feather.write_feather(pa.table(table(rng, n)), path, chunksize=9)


def structured(rng: Rng, n: int) -> np.ndarray:
    rows = np.empty(n, POINTS)
    rows.view(np.uint8)[:] = rng.integers(0, 256, rows.nbytes) & 0x7E  # finite numbers
    return rows


def ply(path: Path, rng: Rng, n: int, order: str) -> None:
    names = {"<f8": "double", "<f4": "float", "<i2": "short", "u1": "uchar"}
    lines = [f"format binary_{order}_endian 1.0", "element before 4", "property int a"]
    lines += [f"element vertex {n}", *(f"property {names[kind]} {name}" for name, kind in POINTS)]
    head = "\n".join(["ply", *lines, "element after 3", "property uchar b", "end_header", ""])
    rows = structured(rng, n)
    body = rows.astype(rows.dtype.newbyteorder(">" if order == "big" else "<")).tobytes()
    path.write_bytes(head.encode() + bytes(16) + body + bytes(3))


def pcd(path: Path, rng: Rng, n: int) -> None:
    head = f"""VERSION 0.7
FIELDS x y z _ rgba pair
SIZE 4 4 8 1 4 2
TYPE F F F U U I
COUNT 1 1 1 3 1 2
WIDTH {n}
HEIGHT 1
POINTS {n}
DATA binary
"""
    rows = np.empty(n, [("xy", "<f4", 2), ("z", "<f8"), ("gap", "u1", 3), ("c", "<u4"), ("p", "<i2", 2)])
    rows.view(np.uint8)[:] = rng.integers(0, 256, rows.nbytes) & 0x7E
    path.write_bytes(head.encode() + rows.tobytes())


def csv(path: Path, rng: Rng, n: int) -> None:
    """A column of whole numbers up to its last row, cells that are empty, normals, and long numbers."""
    cells = [
        [f"{x:.17g}", f"{y:.2f}", str(z), str(z), "" if z % 5 == 0 else "nan", str(2**60 + z), "0", "0", "1"]
        for x, y, z in zip(rng.normal(size=n), rng.normal(size=n), rng.integers(-99, 99, n), strict=True)
    ]
    if cells:
        cells[-1][3] = "0.5"
    lines = ["x,y,z,late,some,long,nx,ny,nz", *(",".join(row) for row in cells)]
    path.write_text("\n".join(lines) + "\n")


def binary(path: Path, rng: Rng, n: int, width: int = 4) -> None:
    path.write_bytes(rng.normal(size=(n, width)).astype("<f4").tobytes())


WRITERS: dict[str, Callable[[Path, Rng, int], None]] = {
    **{f"{i}.{kind}": partial(las, point_format=i) for i in range(11) for kind in ("las", "laz")},
    "a.bin": binary,
    "a.pcd.bin": lambda path, rng, n: binary(path, rng, n, 5),
    "rows.npy": lambda path, rng, n: np.save(path, rng.normal(size=(n, 5))),
    "columns.npy": lambda path, rng, n: np.save(path, np.asfortranarray(rng.normal(size=(n, 4)))),
    "named.npy": lambda path, rng, n: np.save(path, structured(rng, n)),
    "little.ply": lambda path, rng, n: ply(path, rng, n, "little"),
    "big.ply": lambda path, rng, n: ply(path, rng, n, "big"),
    "a.pcd": pcd,
    "a.csv": csv,
    "a.parquet": write_parquet,
    "a.feather": write_feather,
}


def bits(scan: Scan) -> list[tuple[str, Any, Any, bytes]]:
    arrays = {"xyz": scan.xyz} | {f"field {name}": array for name, array in scan.fields.items()}
    return [(name, array.dtype, array.shape, array.tobytes()) for name, array in arrays.items()]


def joined(path: Path, settings: ReadSettings | None, rows: int) -> Scan:
    pieces = chunked(path, settings, rows)
    assert pieces is not None
    scans, at = [], 0
    for scan in pieces:
        assert scan.first == at
        assert len(scan.xyz) <= rows
        at += len(scan.xyz)
        scans.append(scan)
    assert len({tuple(scan.fields) for scan in scans}) == 1
    fields = {name: np.concatenate([scan.fields[name] for scan in scans]) for name in scans[0].fields}
    return Scan(np.concatenate([scan.xyz for scan in scans]), fields)


def outcome(what: Callable[[], Scan]) -> Any:
    try:
        return bits(what())
    except DataError as error:
        return str(error)


@pytest.mark.parametrize("name", WRITERS)
@pytest.mark.parametrize("n", [0, 1, 57])
def test_pieces_make_up_the_whole(tmp_path: Path, name: str, n: int) -> None:
    if not n and name.endswith(".bin"):
        return  # no byte is no file
    path = tmp_path / name
    WRITERS[name](path, np.random.default_rng([n, *name.encode()]), n)
    whole = read(path)
    assert len(whole.xyz) == n
    counts = name != "a.feather" or hasattr(pa.ipc.RecordBatchFileReader, "count_rows")
    assert rows_of(path) == (n if counts else None)
    for rows in (1, 7, 13, 1000):
        assert bits(joined(path, None, rows)) == bits(whole), rows


@pytest.mark.parametrize("name", WRITERS)
def test_pieces_of_few_rows_are_as_large_as_asked_for(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    WRITERS[name](path, np.random.default_rng(5), 57)
    pieces = chunked(path, None, 20)
    assert pieces is not None
    assert [(len(scan.xyz), scan.first) for scan in pieces] == [(20, 0), (20, 20), (17, 40)]


@pytest.mark.parametrize("name", ["7.las", "3.laz", "8.laz"])
def test_more_points_than_a_chunk_has_against_laspy(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    WRITERS[name](path, np.random.default_rng(3), 51_001)
    data, whole = laspy.read(path), read(path)
    assert whole.xyz.tobytes() == np.stack([np.asarray(data[axis]) for axis in "xyz"], axis=1).tobytes()
    for field in {*data.point_format.dimension_names} - {"X", "Y", "Z", "red", "green", "blue"}:
        wanted = np.array(data[field])
        assert whole.fields[field].dtype == wanted.dtype
        assert whole.fields[field].tobytes() == wanted.tobytes(), field
    if "rgb" in whole.fields:
        wanted = np.stack([np.array(data[field]) for field in ("red", "green", "blue")], axis=1)
        assert whole.fields["rgb"].tobytes() == wanted.tobytes()
    for rows in (30_000, 50_000):
        assert bits(joined(path, None, rows)) == bits(whole)


@pytest.mark.parametrize(
    "name",
    [
        *["laspy_simple.copc.laz", "laspy_extrabytes.las", "laspy_append-bug.laz", "laspy_autzen_trim.laz"],
        *["laspy_file_with_both_wkt_and_geotiff_vlrs.las", "source.ply", "lpm_car_cloud400.csv"],
    ],
)
def test_pieces_of_real_files(data_folder: Path, name: str) -> None:
    path = data_folder / "reader" / name
    settings = ReadSettings(unit="metre" if "geotiff" in name else "source")
    assert bits(joined(path, settings, 10_007)) == bits(read(path, settings))


def test_what_is_read_whole_alone(tmp_path: Path, data_folder: Path) -> None:
    np.savez(tmp_path / "a.npz", xyz=np.zeros((3, 3)))
    (tmp_path / "a.ply").write_text(
        "ply\nformat ascii 1.0\nelement vertex 1\nproperty float x\nproperty float y\nproperty float z\n"
        "end_header\n1 2 3\n"
    )
    head = "FIELDS x y z\nSIZE 4 4 4\nTYPE F F F\nWIDTH 1\nHEIGHT 1\nDATA ascii\n1 2 3\n"
    (tmp_path / "a.pcd").write_text(head)
    lists = pa.array([[1.0, 2, 3]] * 4)
    parquet.write_table(pa.table({"xyz": lists}), tmp_path / "a.parquet")
    mesh = data_folder / "reader" / "trimesh_bunny.ply"
    for path in [*tmp_path.iterdir(), mesh]:
        assert chunked(path, None, 2) is None, path
        assert len(read(path).xyz) > 0
        assert rows_of(path) is None
    assert chunked(tmp_path / "a.ply", ReadSettings(surface=3), 2) is None


def test_lines_of_text_are_counted(tmp_path: Path) -> None:
    path = tmp_path / "a.xyz"
    for text, n in (("1 2 3", 1), ("1 2 3\n", 1), ("# x y z\n1 2 3\n\n4 5 6\n", 3), ("2\n1 2 3\n\n4 5 6", 2)):
        path.write_text(text)
        assert rows_of(path) == n
    path.write_text("x,y,z\n")
    assert rows_of(path) == len(read(path).xyz) == 0


def test_text_that_is_read_in_parts_of_a_few_lines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    csv(tmp_path / "a.csv", np.random.default_rng(8), 200)
    whole = bits(read(tmp_path / "a.csv"))
    monkeypatch.setattr(text_numbers, "CHUNK", 300)
    monkeypatch.setattr(columns, "CHUNK", 300)
    for rows in (1, 3, 50, 199, 200, 201):
        assert bits(joined(tmp_path / "a.csv", None, rows)) == whole


@pytest.mark.parametrize("name", [name for name in WRITERS if name != "a.csv"])
@pytest.mark.parametrize("share", [0.2, 0.7, 0.99])
def test_a_cut_file_is_refused_in_the_same_words(tmp_path: Path, name: str, share: float) -> None:
    path = tmp_path / name
    WRITERS[name](path, np.random.default_rng(2), 300)
    data = path.read_bytes()
    path.write_bytes(data[: int(len(data) * share) | 1])
    whole = outcome(lambda: read(path))
    assert isinstance(whole, str)
    assert outcome(lambda: joined(path, None, 40)) == whole
    if "table" not in whole:
        with pytest.raises(DataError):
            rows_of(path)


@pytest.mark.parametrize(("row", "share"), [(3, 0.0), (250, 0.9)])
def test_damage_far_down_is_told_with_its_place(tmp_path: Path, row: int, share: float) -> None:
    rng = np.random.default_rng(4)
    csv(tmp_path / "a.csv", rng, 300)
    lines = (tmp_path / "a.csv").read_text().splitlines()
    lines[row + 1] = lines[row + 1].replace(",", ";", 1)
    (tmp_path / "a.csv").write_text("\n".join(lines) + "\n")
    numbers = [float(i) for i in range(300)]
    missing: list[float | None] = [*numbers]
    missing[row] = None
    parquet.write_table(pa.table({"x": numbers, "y": missing, "z": numbers}), tmp_path / "a.parquet")
    las(tmp_path / "a.laz", rng, 60_000, 6)
    data = bytearray((tmp_path / "a.laz").read_bytes())
    start = struct.unpack_from("<I", data, 96)[0]
    (table,) = struct.unpack_from("<q", data, start)
    # A chunk's first point is stored as it is, behind it the number of points, which the decoder compares.
    at = start + 8 + int(share * (table - start))
    data[at : at + 40_000] = bytes(len(data[at : at + 40_000]))
    (tmp_path / "a.laz").write_bytes(data)
    for path, place in ((tmp_path / "a.csv", f"line {row + 2}:"), (tmp_path / "a.parquet", f"row {row};")):
        whole = outcome(partial(read, path))
        assert place in whole
        assert outcome(partial(joined, path, None, 40)) == whole
    assert outcome(lambda: joined(tmp_path / "a.laz", None, 7000)) == outcome(
        lambda: read(tmp_path / "a.laz")
    )


@pytest.mark.parametrize("name", ["3.laz", "8.laz"])
def test_parts_of_a_point_have_the_size_of_their_kind(tmp_path: Path, name: str) -> None:
    """Kind, size and version of each stand in the LASzip record; another kind would leave bytes unwritten."""
    path = tmp_path / name
    WRITERS[name](path, np.random.default_rng(7), 57)
    data = bytearray(path.read_bytes())
    data[data.index(b"laszip encoded") - 2 + 54 + 34] = 7  # a time, of 8 bytes
    path.write_bytes(data)
    for what in (partial(read, path), partial(joined, path, None, 9)):
        assert "bytes for a part of kind 7" in outcome(what)


def test_lists_that_are_longer_than_all_their_numbers(tmp_path: Path) -> None:
    """How many numbers there are stands beside their bytes (Arrow's FieldNode): one is taken off here."""
    path = tmp_path / "a.feather"
    rows = pa.FixedSizeListArray.from_arrays(pa.array(np.arange(15.0)), 3)
    feather.write_feather(pa.table({"xyz": rows}), path, compression="uncompressed")
    data = path.read_bytes()
    assert data.count(struct.pack("<qq", 15, 0)) == 1
    path.write_bytes(data.replace(struct.pack("<qq", 15, 0), struct.pack("<qq", 14, 0)))
    assert "is a damaged or cut table" in outcome(partial(read, path))
    assert "column 'xyz' is damaged: 2 numbers in 1 rows of 3" in outcome(partial(joined, path, None, 2))


@pytest.mark.parametrize("name", [name for name in WRITERS if name[0] in "a" or name[:2] in ("3.", "8.")])
@with_settings(max_examples=20, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    changes=st.lists(st.tuples(st.integers(0, 10**6), st.integers(1, 255)), min_size=1, max_size=3),
    rows=st.integers(1, 60),
)
def test_damaged_bytes_are_read_alike_or_refused(
    tmp_path: Path, name: str, changes: list[tuple[int, int]], rows: int
) -> None:
    whole = tmp_path / f"whole {name}"
    if not whole.exists():
        WRITERS[name](whole, np.random.default_rng(6), 57)
    data = bytearray(whole.read_bytes())
    for at, flip in changes:
        data[6 + at % (len(data) - 6)] ^= flip
    path = tmp_path / f"changed {name}"
    path.write_bytes(data)
    wanted = outcome(lambda: read(path))
    try:
        found = outcome(lambda: joined(path, None, rows))
    except AssertionError:
        assert chunked(path, None, rows) is None  # a list where there was none
        return
    if isinstance(wanted, str):
        assert isinstance(found, str)
    elif not (
        name == "a.parquet" and isinstance(found, str)
    ):  # pyarrow checks more of it than of a whole one
        assert found == wanted


@pytest.mark.slow
@pytest.mark.parametrize("suffix", ["las", "laz"])
def test_a_large_file_takes_memory_for_a_piece_alone(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"a.{suffix}"
    header = laspy.LasHeader(point_format=6, version="1.4")
    piece = laspy.ScaleAwarePointRecord.zeros(1_000_000, header=header)
    for axis in "XYZ":
        piece[axis] = np.random.default_rng(1).integers(0, 10**6, len(piece)).cumsum() % 10**6
    with laspy.open(path, "w", header=header) as file:
        for _ in range(12):
            file.write_points(piece)
    code = """
import sys
from pathlib import Path
from tamis.pipelines.readers import chunked
from tamis.processes import peak_bytes

points, total = 0, 0.0
for scan in chunked(Path(sys.argv[1]), None, 500_000):
    points, total = points + len(scan.xyz), total + scan.xyz.sum()
print(points, peak_bytes())
"""
    environment = {**os.environ, "PYTHONPATH": str(ROOT / ".links"), "RAYON_NUM_THREADS": "2"}
    command = [sys.executable, "-c", code, str(path)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    points, peak = map(int, done.stdout.split())
    assert points == 12_000_000
    assert points * 30 > 350e6
    assert peak < 300e6
