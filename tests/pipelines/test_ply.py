"""PLY files, by hand and by plyfile, whole and damaged."""

from __future__ import annotations

import logging
import struct
from pathlib import Path
from typing import Any

import numpy as np
import plyfile
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tamis.errors import DataError
from tamis.pipelines.readers import ReadSettings, Scan, read

XYZ = np.array([[1.5, 2.5, 3.5], [-4, 5, -6], [7e5, 8e6, 9]])
OLD = ("char", "uchar", "short", "ushort", "int", "uint", "float", "double")
NEW = ("int8", "uint8", "int16", "uint16", "int32", "uint32", "float32", "float64")
CODES = ("i1", "u1", "i2", "u2", "i4", "u4", "f4", "f8")
AXES = "property float x\nproperty float y\nproperty float z\n"
THREE = f"element vertex 3\n{AXES}"
LISTED = (
    "element vertex 3\nproperty float x\nproperty float y\nproperty list uchar float desc\n"
    "property float z\nproperty ushort intensity\n"
)
LISTS = ((1.0, 2.0), (), (3.0, 4.0, 5.0))
ORDERS = {"ascii": "", "binary_little_endian": "<", "binary_big_endian": ">"}


def write(path: Path, header: str, body: bytes, form: str = "ascii") -> Path:
    path.write_bytes(f"ply\nformat {form} 1.0\n{header}end_header\n".encode() + body)
    return path


def refused(path: Path, settings: ReadSettings | None = None) -> str:
    with pytest.raises(DataError) as caught:
        read(path, settings)
    assert str(caught.value).startswith(f"{path}: ")
    assert "\n" not in str(caught.value)
    return str(caught.value)


def rows(xyz: np.ndarray = XYZ) -> bytes:
    return "".join(f"{x:.17g} {y:.17g} {z:.17g}\n" for x, y, z in xyz).encode()


@pytest.mark.parametrize("form", ORDERS)
@pytest.mark.parametrize("names", [OLD, NEW], ids=["old", "new"])
def test_every_type_keeps_its_values(tmp_path: Path, form: str, names: tuple[str, ...]) -> None:
    values: list[tuple[Any, Any]] = [
        (np.iinfo(code).min, np.iinfo(code).max) if code[0] != "f" else (-0.1, 3e38) for code in CODES
    ]
    header = "element vertex 2\n" + "".join(f"property {name} p_{name}\n" for name in names)
    header += "".join(f"property {names[7]} {axis}\n" for axis in "xyz")
    if form == "ascii":
        body = "".join(
            " ".join(f"{pair[row]!r}" for pair in [*values, (0.1, 1e-300), (2, -3), (4, 5)]) + "\n"
            for row in range(2)
        ).encode()
    else:
        layout = ORDERS[form] + "bBhHiIfdddd"
        body = b"".join(
            struct.pack(layout, *(pair[row] for pair in values), (0.1, 1e-300)[row], (2, -3)[row], 4 + row)
            for row in range(2)
        )
    scan = read(write(tmp_path / "a.ply", header, body, form))
    assert scan.xyz.tolist() == [[0.1, 2, 4], [1e-300, -3, 5]]
    assert list(scan.fields) == [f"p_{name}" for name in names]
    for (name, array), code, pair in zip(scan.fields.items(), CODES, values, strict=True):
        assert array.dtype == np.dtype(code), name
        assert array.tolist() == np.array(pair, code).tolist()


@pytest.mark.parametrize("form", ORDERS)
def test_r05_a_list_among_the_properties_shifts_nothing(
    tmp_path: Path, form: str, caplog: pytest.LogCaptureFixture
) -> None:
    body, order = b"", ORDERS[form]
    for (x, y, z), own, grey in zip(XYZ, LISTS, (10, 20, 30), strict=True):
        if form == "ascii":
            body += f"{x} {y} {len(own)} {' '.join(map(str, own))} {z} {grey}\n".encode()
        else:
            body += struct.pack(f"{order}ffB{len(own)}ffH", x, y, len(own), *own, z, grey)
    path = write(tmp_path / "a.ply", LISTED, body, form)
    with caplog.at_level(logging.INFO):
        scan = read(path)
    assert scan.xyz.tolist() == XYZ.tolist()
    assert scan.fields.keys() == {"intensity"}
    assert scan.fields["intensity"].dtype == np.uint16
    assert scan.fields["intensity"].tolist() == [10, 20, 30]
    said = [(record.levelname, record.getMessage()) for record in caplog.records]
    assert said == [("WARNING", f"{path}: left out list 'desc' of the vertices")]


@pytest.mark.parametrize("form", ORDERS)
def test_r03_every_property_is_read(tmp_path: Path, form: str) -> None:
    header = (
        f"element vertex 2\n{AXES}property ushort intensity\nproperty float reflectivity\n"
        "property uchar ring\nproperty double t\n"
    )
    lines = [(1, 2, 3, 65535, 0.5, 63, 1.7e9 + 1e-6), (4, 5, 6, 0, -1, 0, 4e9)]
    if form == "ascii":
        body = "".join(" ".join(map(repr, line)) + "\n" for line in lines).encode()
    else:
        body = b"".join(struct.pack(ORDERS[form] + "3fHfBd", *line) for line in lines)
    scan = read(write(tmp_path / "a.ply", header, body, form))
    assert scan.xyz.tolist() == [[1, 2, 3], [4, 5, 6]]
    assert {name: (values.dtype.str, values.tolist()) for name, values in scan.fields.items()} == {
        "intensity": ("<u2", [65535, 0]),
        "reflectivity": ("<f4", [0.5, -1]),
        "ring": ("|u1", [63, 0]),
        "t": ("<f8", [1.7e9 + 1e-6, 4e9]),
    }


def test_r06_a_short_big_endian_header(tmp_path: Path) -> None:
    header = "element vertex 3\nproperty double x\nproperty double y\nproperty double z\n"
    xyz = XYZ + np.array([1e-9, np.pi, 0])
    scan = read(write(tmp_path / "a.ply", header, xyz.astype(">f8").tobytes(), "binary_big_endian"))
    assert scan.xyz.tobytes() == xyz.tobytes()


@pytest.mark.parametrize("end", ["\n", "\r\n", "\r", "\r\r\n", " \n", " \r\n"])
@pytest.mark.parametrize("form", ORDERS)
def test_r07_lines_end_in_many_ways(tmp_path: Path, end: str, form: str) -> None:
    xyz = np.frombuffer(b"\n\r\n?" * 9, "<f4").reshape(3, 3)  # the payload looks like ends of lines too
    text = f"ply\nformat {form} 1.0\n{THREE}end_header\n".replace("\n", end).encode()
    body = rows(xyz).replace(b"\n", end.encode()) if form == "ascii" else xyz.tobytes()
    (tmp_path / "a.ply").write_bytes(text + body)
    wanted = xyz if form != "binary_big_endian" else xyz.view(">f4")
    assert read(tmp_path / "a.ply").xyz.tolist() == wanted.tolist()


def test_r07_mixed_ends_of_lines(tmp_path: Path) -> None:
    text = f"ply\r\nformat binary_little_endian 1.0\n{THREE}end_header\n".encode()
    (tmp_path / "a.ply").write_bytes(text + XYZ.astype("<f4").tobytes())
    assert read(tmp_path / "a.ply").xyz.tolist() == XYZ.tolist()


@pytest.mark.parametrize("form", ORDERS)
def test_r07_blank_lines_and_comments(tmp_path: Path, form: str) -> None:
    header = (
        "\ncomment scan of \u5317\u4eac, not the end_header yet\ncomment\ncomment end_header\n"
        "obj_info num_cols 3\nelement face 1\nproperty list uchar int vertex_indices\n\n"
        f"{THREE}comment element vertex 9\n \n"
    )
    order = ORDERS[form]
    faces = b"3 0 1 2\n" if form == "ascii" else struct.pack(f"{order}B3i", 3, 0, 1, 2)
    body = faces + (rows() if form == "ascii" else XYZ.astype(f"{order}f4").tobytes())
    path = write(tmp_path / "a.ply", header, body, form)
    path.write_bytes(path.read_bytes().replace(b"comment\n", b"comment \xff\xfe\n"))
    assert read(path).xyz.tolist() == XYZ.tolist()


def test_r07_a_decimal_comma_is_named(tmp_path: Path) -> None:
    message = refused(write(tmp_path / "a.ply", THREE, b"0 0 0\n1,5 2,5 3,5\n1 1 1\n"))
    assert "line 9: b'1,5' is no number, write decimals with a point" in message


@pytest.mark.parametrize(
    ("line", "said"),
    [
        (b"1 2", "line 10: ends before its 'z', it has 2 values"),
        (b"1 2 3 4", "line 10: goes on with b'4' after its 3 values"),
        (b"1_0 2 3", "line 10: b'1_0' is no number"),
        (b"0x10 2 3", "line 10: b'0x10' is no number"),
        (b"1 2 1e39", "line 10: b'1e39' is no value of 'z', which is float32"),
        (b"1 2 3\0", "line 10: b'3\\x00' is no number"),
        (b"1 two 3", "line 10: b'two' is no number"),
    ],
)
def test_a_line_that_is_wrong_is_named(tmp_path: Path, line: bytes, said: str) -> None:
    body = b"0 0 0\n\n" + line + b"\n1 1 1\n"  # a blank line is counted but is no row
    assert said in refused(write(tmp_path / "a.ply", THREE, body))


@pytest.mark.parametrize("token", ["256", "-1", "1.5", "nan", "inf", "1e3"])
def test_a_value_that_is_not_of_its_type_is_named(tmp_path: Path, token: str) -> None:
    header = f"element vertex 1\n{AXES}property uchar red\n"
    message = refused(write(tmp_path / "a.ply", header, f"0 0 0 {token}\n".encode()))
    assert f"line 9: b'{token}' is no value of 'red', which is uint8" in message
    assert read(write(tmp_path / "a.ply", header, b"0 0 0 255.0\n")).fields["red"].tolist() == [255]


def test_what_is_not_a_number_may_be_written_in_many_ways(tmp_path: Path) -> None:
    body = b"nan -nan 1\n-nan(ind) NaN 2\ninf -inf 3\n"
    xyz = read(write(tmp_path / "a.ply", THREE, body)).xyz
    assert np.isnan(xyz[:2, :2]).all()
    assert xyz[2].tolist() == [np.inf, -np.inf, 3]


def test_v02_ascii_coordinates_keep_all_their_digits(tmp_path: Path) -> None:
    header = f"element vertex 1\n{AXES}property float time\n"
    scan = read(write(tmp_path / "a.ply", header, b"388096.123456 3948996.05 0.1 388096.123456\n"))
    assert scan.xyz.tolist() == [[388096.123456, 3948996.05, 0.1]]
    assert scan.fields["time"].tolist() == [388096.125]


def test_normals_and_colours_are_joined(tmp_path: Path) -> None:
    header = (
        f"element vertex 1\nproperty float nx\nproperty float ny\nproperty float nz\n{AXES}"
        "property uchar red\nproperty uchar green\nproperty uchar blue\nproperty uchar alpha\n"
    )
    body = struct.pack("<6f4B", 0, 0, 1, 5, 6, 7, 1, 2, 3, 4)
    scan = read(write(tmp_path / "a.ply", header, body, "binary_little_endian"))
    assert scan.xyz.tolist() == [[5, 6, 7]]
    found = {name: (array.dtype.str, array.tolist()) for name, array in scan.fields.items()}
    assert found == {"normal": ("<f4", [[0, 0, 1]]), "rgb": ("|u1", [[1, 2, 3]]), "alpha": ("|u1", [4])}


@pytest.mark.parametrize("form", ORDERS)
def test_no_vertex_is_a_legal_scan(tmp_path: Path, form: str) -> None:
    header = f"element vertex 0\n{AXES}property uchar grey\nproperty list uchar int more\nelement odd 0\n"
    scan = read(write(tmp_path / "a.ply", header, b"", form))
    assert scan.xyz.shape == (0, 3)
    assert scan.fields["grey"].dtype == np.uint8


def random_file(path: Path, seed: int, form: str) -> np.ndarray:
    """By plyfile: vertices between two elements with lists of many lengths and types."""
    rng = np.random.default_rng(seed)
    n = int(rng.integers(1, 60))
    names = [f"p{i}" for i in range(rng.integers(0, 6))]
    types = rng.choice(CODES, len(names))
    spec = [("x", "f8"), ("y", "f4"), ("z", "i4"), *zip(names, types, strict=True)]
    order = rng.permutation(len(spec))
    vertices = np.zeros(n, [spec[i] for i in order])
    for name, code in spec:
        high = 100 if code[0] != "f" else 1e6
        vertices[name] = rng.uniform(0, high, n) - (0 if code[0] == "u" else high / 2)
    elements = []
    for name in ("before", "after"):
        m = int(rng.integers(0, 40))
        ragged = np.zeros(m, [("a", "i2"), ("lists", object), ("b", "f8"), ("more", object)])
        most = int(rng.integers(1, 6))
        for row in range(m):
            ragged["lists"][row] = rng.integers(-9, 9, rng.integers(most)).astype("i4")
            ragged["more"][row] = rng.normal(size=2).astype("f8")
        kinds = {"lists": "i4", "more": "f8"}
        lengths = {"lists": "u1", "more": "i4"}
        elements.append(plyfile.PlyElement.describe(ragged, name, val_types=kinds, len_types=lengths))
    own = plyfile.PlyElement.describe(vertices, "vertex")
    text, byte_order = form == "ascii", ORDERS[form] or "="
    plyfile.PlyData([elements[0], own, elements[1]], text=text, byte_order=byte_order).write(path)
    return vertices


@pytest.mark.parametrize("form", ORDERS)
@pytest.mark.parametrize("seed", range(8))
def test_what_plyfile_writes(tmp_path: Path, seed: int, form: str) -> None:
    wanted = random_file(tmp_path / "a.ply", seed, form)
    scan = read(tmp_path / "a.ply")
    for i, axis in enumerate("xyz"):
        assert np.array_equal(scan.xyz[:, i].astype(wanted[axis].dtype), wanted[axis])
    assert list(scan.fields) == [name for name in wanted.dtype.names or () if name not in "xyz"]
    for name, values in scan.fields.items():
        assert values.dtype == wanted[name].dtype
        assert np.array_equal(values, wanted[name])


@pytest.mark.parametrize("form", ["binary_little_endian", "binary_big_endian"])
@pytest.mark.parametrize("seed", [1, 2])
def test_a_binary_file_cut_anywhere_is_refused(tmp_path: Path, seed: int, form: str) -> None:
    random_file(tmp_path / "a.ply", seed, form)
    whole = (tmp_path / "a.ply").read_bytes()
    for end in (*range(3 + seed, len(whole), 23), *range(len(whole) - 20, len(whole))):
        (tmp_path / "a.ply").write_bytes(whole[:end])
        refused(tmp_path / "a.ply")


@pytest.mark.parametrize("seed", [1, 3])
def test_an_ascii_file_cut_anywhere_is_refused_or_right(tmp_path: Path, seed: int) -> None:
    wanted = random_file(tmp_path / "a.ply", seed, "ascii")
    whole = (tmp_path / "a.ply").read_bytes()
    kept = 0
    for end in (*range(3, len(whole) - 60, 31), *range(len(whole) - 60, len(whole))):
        (tmp_path / "a.ply").write_bytes(whole[:end])
        try:
            scan = read(tmp_path / "a.ply")
        except DataError:
            continue
        kept += 1
        assert np.array_equal(scan.xyz[:, 0], wanted["x"])
    assert kept < 30  # those cut within the last number of the last element


def test_a_last_line_without_an_end_is_doubted(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = write(tmp_path / "a.ply", THREE, rows()[:-1])
    assert read(path).xyz.tolist() == XYZ.tolist()
    assert "its last line has no end" in caplog.text


@pytest.mark.parametrize("form", ORDERS)
@pytest.mark.parametrize("count", [2, 4, 10**6, 2**32, 10**17])
def test_a_wrong_number_of_rows_is_refused_before_memory_is_taken(
    tmp_path: Path, form: str, count: int
) -> None:
    body = rows() if form == "ascii" else XYZ.astype(ORDERS[form] + "f4").tobytes()
    message = refused(write(tmp_path / "a.ply", THREE.replace("3", str(count), 1), body, form))
    if count > 3:
        assert f"promises {count} rows of element 'vertex', it holds 3" in message
    else:
        assert "behind" in message


@pytest.mark.parametrize("count", [4, 10**6, 10**17])
@pytest.mark.parametrize("form", ORDERS)
def test_a_wrong_number_of_rows_with_lists_is_refused(tmp_path: Path, form: str, count: int) -> None:
    header = f"{THREE}element face {count}\nproperty list uchar int vertex_indices\n"
    order = ORDERS[form]
    faces = b"3 0 1 2\n" * 3 if form == "ascii" else struct.pack(f"{order}B3i", 3, 0, 1, 2) * 3
    body = (rows() if form == "ascii" else XYZ.astype(f"{order}f4").tobytes()) + faces
    assert f"promises {count} rows of element 'face'" in refused(
        write(tmp_path / "a.ply", header, body, form)
    )


@pytest.mark.parametrize("length", [-1, 2**31 - 1])
def test_a_list_of_an_impossible_length_is_refused(tmp_path: Path, length: int) -> None:
    header = "element vertex 1\nproperty list int int a\n" + AXES
    body = struct.pack("<i4i3f", length, *range(4), 1, 2, 3)
    refused(write(tmp_path / "a.ply", header, body, "binary_little_endian"))
    refused(write(tmp_path / "a.ply", header, f"{length} 0 1 2 3 1 2 3\n".encode()))


@pytest.mark.parametrize("padding", [b"\n", b"\r\n", b"\0" * 9, b"\x1a"])
def test_padding_behind_the_last_row_is_no_damage(tmp_path: Path, padding: bytes) -> None:
    for form, body in (("ascii", rows()), ("binary_little_endian", XYZ.astype("<f4").tobytes())):
        assert len(read(write(tmp_path / "a.ply", THREE, body + padding, form)).xyz) == 3
        refused(write(tmp_path / "a.ply", THREE, body + padding + b"1", form))


def test_the_content_tells_a_ply_file(tmp_path: Path) -> None:
    write(tmp_path / "a.ply", THREE, rows()).rename(tmp_path / "a.las")
    assert read(tmp_path / "a.las").xyz.tolist() == XYZ.tolist()


@pytest.mark.parametrize("name", ["source.ply", "target.ply", "trimesh_bunny.ply"])
def test_real_files_read_as_plyfile_reads_them(data_folder: Path, name: str) -> None:
    path = data_folder / "reader" / name
    wanted = plyfile.PlyData.read(path)["vertex"].data
    scan = read(path)
    assert np.array_equal(scan.xyz.astype("f4"), np.stack([wanted[axis] for axis in "xyz"], axis=1))
    assert ("x", "y", "z", *scan.fields) == wanted.dtype.names
    assert all(np.array_equal(values, wanted[name]) for name, values in scan.fields.items())


@settings(max_examples=80, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    seed=st.integers(0, 5),
    form=st.sampled_from(sorted(ORDERS)),
    changes=st.lists(
        st.tuples(st.floats(0, 1, exclude_max=True), st.integers(0, 255)), min_size=1, max_size=4
    ),
    surface=st.sampled_from([None, 20]),
)
def test_changed_bytes_never_escape_as_another_error(
    tmp_path: Path, seed: int, form: str, changes: list[tuple[float, int]], surface: int | None
) -> None:
    path = tmp_path / "changed.ply"
    random_file(path, seed, form)
    data = bytearray(path.read_bytes().replace(b"before", b"face").replace(b"lists", b"vertex_index"))
    for at, value in changes:
        data[3 + int(at**3 * (len(data) - 3))] = value  # most of them in the header
    path.write_bytes(data)
    try:
        scan: Scan = read(path, ReadSettings(surface=surface))
    except DataError as error:
        assert str(error).startswith(str(path))  # noqa: PT017
    else:
        assert scan.xyz.shape == (len(scan.xyz), 3)
        assert all(len(values) == len(scan.xyz) for values in scan.fields.values())
