from __future__ import annotations

import csv
import logging
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, example, given
from hypothesis import settings as with_settings
from hypothesis import strategies as st

from tamis.errors import DataError, UsageError
from tamis.pipelines.readers import ReadSettings, Scan, read, text_numbers
from tamis.pipelines.readers.formats import format_of


def text(folder: Path, content: str | bytes, name: str = "a.txt") -> Path:
    path = folder / name
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return path


def refused(path: Path, settings: ReadSettings | None = None) -> str:
    with pytest.raises(DataError) as caught:
        read(path, settings)
    assert str(caught.value).startswith(f"{path}: ")
    assert "\n" not in str(caught.value)
    return str(caught.value)


def plain(scan: Scan) -> dict[str, Any]:
    return {"xyz": scan.xyz.tolist()} | {name: values.tolist() for name, values in scan.fields.items()}


EXPECTED = {"xyz": [[1.5, -2, 3], [4, 5.25, 6e3]], "intensity": [7, 8]}
LINES = ["x,y,z,intensity", "1.5,-2,3,7", "4,5.25,6e3,8"]


@pytest.mark.parametrize("name", ["a.csv", "a.TXT", "a.xyz", "a.pts", "a.asc"])
@pytest.mark.parametrize("end", ["\n", "\r\n"])
@pytest.mark.parametrize("bom", ["", "\ufeff"])
@pytest.mark.parametrize("delimiter", [",", ";", "\t", " ", "  ", " \t ", " , ", "; "])
def test_delimiters_ends_and_names(tmp_path: Path, name: str, end: str, bom: str, delimiter: str) -> None:
    content = bom + end.join(line.replace(",", delimiter) for line in LINES)
    for last in ("", end, end + end):
        assert plain(read(text(tmp_path, content + last, name))) == EXPECTED


@pytest.mark.parametrize(
    "content",
    [
        "# x y z intensity\n1.5 -2 3 7\n4 5.25 6e3 8",
        "//X Y Z intensity\n1.5 -2 3 7\n4 5.25 6e3 8\n",
        "#made by hand\n\n# x, y, z, intensity\n1.5, -2, 3, 7\n# between\n4, 5.25, 6e3, 8\n//end",
        "//X Y Z intensity\n2\n1.5 -2 3 7\n4 5.25 6e3 8\n",
        "2\nx y z intensity\n1.5 -2 3 7\n4 5.25 6e3 8\n",
        '"x","y","z","intensity"\n"1.5","-2","3","7"\n4,5.25,6e3,8\n',
        "Easting;Northing;Elevation;intensity\n1.5;-2;3;7\n4;5.25;6e3;8\n",
        "POINT_X\tPOINT_Y\tPOINT_Z\tintensity\n1.5\t-2\t3\t7\n4\t5.25\t6e3\t8\n",
        "intensity z y x\n7 3 -2 1.5\n8 6e3 5.25 4\n",
        "   x   y   z   intensity   \n   1.5   -2   3   7   \n\t4 5.25\t6e3 8\t\n",
        "x y z intensity\n+1.5 -2. +3 +7\n4 525.e-2 .6E+4 08\n",
        "x y z\tintensity\n1.5 -2\t3 7\n4 5.25 6e3 8\n",
    ],
)
def test_what_may_stand_beside_the_numbers(tmp_path: Path, content: str) -> None:
    assert plain(read(text(tmp_path, content))) == EXPECTED


def test_columns_without_names(tmp_path: Path) -> None:
    path = text(tmp_path, "1 2 3 40 0.5\n4 5 6 50 1\n", "a.xyz")
    scan = read(path)
    assert plain(scan) == {"xyz": [[1, 2, 3], [4, 5, 6]], "column_3": [40, 50], "column_4": [0.5, 1]}
    assert [values.dtype.name for values in scan.fields.values()] == ["int64", "float64"]
    named = read(path, ReadSettings(columns=["ring", "x", "y", "z", "t"]))
    assert plain(named) == {"xyz": [[2, 3, 40], [5, 6, 50]], "ring": [1, 4], "t": [0.5, 1]}


@pytest.mark.parametrize(
    "content",
    [
        "# x y z tower\n1 2 3 40 0.5\n4 5 6 50 1\n",
        "1\t2\t3\t40\t0.5\t\n4\t5\t6\t50\t1\t\n",
        "\t1\t2\t3\t40\t0.5\n\t4\t5\t6\t50\t1\n",
    ],
)
def test_a_comment_is_no_header_and_a_tab_at_the_end_no_column(tmp_path: Path, content: str) -> None:
    expected = {"xyz": [[1, 2, 3], [4, 5, 6]], "column_3": [40, 50], "column_4": [0.5, 1]}
    assert plain(read(text(tmp_path, content))) == expected


def test_given_names_go_before_those_of_the_file(tmp_path: Path) -> None:
    path = text(tmp_path, ",a b,c,d\n0,1,2,3\n1,4,5,6\n", "a.csv")
    assert "has no columns x, y and z among column_0, a b, c, d" in refused(path)
    assert plain(read(path, ReadSettings(columns=["id", "x", "y", "z"]))) == {
        "xyz": [[1, 2, 3], [4, 5, 6]],
        "id": [0, 1],
    }
    assert "line 2 has 4 columns, 3 are named (x, y, z)" in refused(
        path, ReadSettings(columns=["x", "y", "z"])
    )
    with pytest.raises(UsageError, match="names no x, y and z"):
        read(path, ReadSettings(columns=["id", "a", "b", "c"]))


def test_normals_and_colours(tmp_path: Path) -> None:
    content = "//X Y Z R G B Nx Ny Nz Scalar_field\n1 2 3 255 0 7 0 0.6 0.8 9\n4 5 6 1 2 3 1 0.0 0.0 9\n"
    scan = read(text(tmp_path, content))
    assert list(scan.fields) == ["rgb", "normal", "Scalar_field"]
    assert scan.fields["rgb"].tolist() == [[255, 0, 7], [1, 2, 3]]
    assert scan.fields["normal"].tolist() == [[0, 0.6, 0.8], [1, 0, 0]]
    flat = read(text(tmp_path, "x y z nx ny nz\n1 2 3 0 0 1\n"))
    assert flat.fields["normal"].dtype == np.float64


def test_names_may_hold_blanks_and_delimiters(tmp_path: Path) -> None:
    path = text(tmp_path, 'x,y,z,"range, in m"\n1,2,3,4\n', "a.csv")
    assert plain(read(path))["range, in m"] == [4]
    assert plain(read(text(tmp_path, "Point ID\tX\tY\tZ\n9\t1\t2\t3\n")))["Point ID"] == [9]
    assert plain(read(text(tmp_path, "x y z H\xf6he\n1 2 3 4\n".encode("latin-1"))))["H\xf6he"] == [4]
    assert plain(read(text(tmp_path, "x y z H\xf6he\n1 2 3 4\n")))["H\xf6he"] == [4]


@pytest.mark.parametrize("seed", range(3))
def test_integers_stay_integers(tmp_path: Path, seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also those that a float does not hold, whichever part of the file shows what a column is."""
    monkeypatch.setattr(text_numbers, "CHUNK", 4096)
    rng = np.random.default_rng(seed)
    n = 900
    whole = rng.integers(-(2**63) + 1, 2**63 - 1, n, endpoint=True)
    mixed = rng.integers(-(10**6), 10**6, n).tolist()
    late = int(rng.integers(0, n))
    rows = [
        [*point, w, m, f"{m}.5" if i == late else m]
        for i, (point, w, m) in enumerate(zip(rng.normal(size=(n, 3)).tolist(), whole, mixed, strict=True))
    ]
    path = tmp_path / "a.csv"
    with path.open("w", newline="") as file:
        csv.writer(file).writerows([["x", "y", "z", "stamp", "whole", "late"], *rows])
    scan = read(path)
    assert scan.xyz.tolist() == [row[:3] for row in rows]
    assert scan.fields["stamp"].dtype == scan.fields["whole"].dtype == np.int64
    assert scan.fields["stamp"].tolist() == whole.tolist()
    assert scan.fields["whole"].tolist() == mixed
    assert scan.fields["late"].tolist() == [float(row[5]) for row in rows]


number = st.floats(width=64) | st.floats(width=32) | st.integers(-(10**25), 10**25) | st.integers(-9, 9)
forms = st.sampled_from(["{!r}", "{:.18e}", "{:.3f}", "{:+.9E}", "{:.0f}", "{:.40f}", "{:g}"])


@with_settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(values=st.lists(st.tuples(number, forms), min_size=1, max_size=40))
@example([(9007199254740993, "{!r}"), (1.0, "{!r}")])
@example([(1e22, "{:.0f}"), (1e23, "{!r}"), (5e-324, "{!r}"), (1.7976931348623157e308, "{!r}")])
@example([(-0.0, "{:.0f}"), (2**63, "{!r}"), (-(2**63), "{!r}"), (2**63 - 1, "{!r}")])
def test_numbers_are_read_as_python_reads_them(tmp_path: Path, values: list[tuple[Any, str]]) -> None:
    tokens = [form.format(value) if form == "{!r}" else form.format(float(value)) for value, form in values]
    scan = read(text(tmp_path, "".join(f"0.5 1 2 {token}\n" for token in tokens)))
    found = scan.fields["column_3"]
    if found.dtype == np.int64:
        assert found.tolist() == [int(token) for token in tokens]
    else:
        expected = np.array([float(token) for token in tokens])
        assert np.array_equal(found, expected, equal_nan=True)
        assert np.array_equal(np.signbit(found), np.signbit(expected)) or np.isnan(expected).any()


@pytest.mark.parametrize("token", ["1e400", "-1e400", "1e-400", "0e999999999999", "1" + "0" * 400])
def test_numbers_beyond_a_float(tmp_path: Path, token: str) -> None:
    scan = read(text(tmp_path, f"1 2 3 {token}\n1 2 3 0.1234567890123456789\n"))
    assert scan.fields["column_3"].tolist() == [float(token), 0.1234567890123456789]


@pytest.mark.parametrize("token", ["nan", "NaN", "-nan", "nan(ind)", "-NAN(snan)"])
def test_words_for_no_number(tmp_path: Path, token: str) -> None:
    scan = read(text(tmp_path, f"1 2 {token} 4\n1 2 3 4\n"))
    assert math.isnan(scan.xyz[0, 2])
    assert scan.xyz[1, 2] == 3


@pytest.mark.parametrize(
    ("token", "value"), [("inf", math.inf), ("-Inf", -math.inf), ("+INFINITY", math.inf)]
)
def test_words_for_infinity(tmp_path: Path, token: str, value: float) -> None:
    assert read(text(tmp_path, f"{token} 2 3\n")).xyz.tolist() == [[value, 2, 3]]


def test_an_empty_cell_is_nan_and_told_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    scan = read(text(tmp_path, 'x,y,z,a,b\n1,2,3,,5\n,2,3,4,""\n1,2,3,4,\n', "a.csv"))
    assert np.isnan(scan.xyz).tolist() == [[False] * 3, [True, False, False], [False] * 3]
    assert np.array_equal(scan.fields["a"], [math.nan, 4, 4], equal_nan=True)
    assert np.array_equal(scan.fields["b"], [5, math.nan, math.nan], equal_nan=True)
    assert [record.getMessage() for record in caplog.records] == [
        f"{tmp_path / 'a.csv'}: 4 empty cells are read as NaN"
    ]


BAD = [
    ("1,5;2,5;3,5\n", "line 1: '1,5' in column 1 is no number; write decimal points, not commas"),
    ("x;y;z\n1;2,5;3\n", "line 2: '2,5' in column 2 is no number; write decimal points"),
    ("1,5 2,5 3,5\n", "line 1: '5 2' in column 2 is no number"),
    ("1,5\t2,5\t3,5\n", "line 1: '1,5' in column 1 is no number; write decimal points"),
    ("x y z\n1 2 3\n1 2 three\n", "line 3: 'three' in column 3 is no number"),
    ("1 2 3\n\n# one\n1 2 3 4\n", "line 4 has 4 columns, not 3 ('1 2 3 4')"),
    ("1 2 3\n1 2\n", "line 2 has 2 columns, not 3"),
    ("x y z\n1 2 3 4\n", "line 2 has 4 columns, 3 are named (x, y, z)"),
    ("1 2\n3 4\n", "line 1 has 2 columns ('1 2'), a point has three"),
    ("5\n", "promises 5 points, it holds 0"),
    ("3\n1 2 3\n1 2 3\n", "promises 3 points, it holds 2"),
    ("1\n1 2 3\n1 2 3\n", "promises 1 points, it holds 2"),
    ("1 2 0x1f\n", "'0x1f' in column 3"),
    ("1 2 1_000\n", "'1_000' in column 3"),
    ("1 2 3e\n", "'3e' in column 3"),
    ("1 2 3e+\n", "'3e+' in column 3"),
    ("1 2 .\n", "'.' in column 3"),
    ("1 2 -\n", "'-' in column 3"),
    ("1 2 1.2.3\n", "'1.2.3' in column 3"),
    ("1 2 --3\n", "'--3' in column 3"),
    ("1 2 nano\n", "'nano' in column 3"),
    ("1 2 infin\n", "'infin' in column 3"),
    ("1 2 .nan\n", "'.nan' in column 3"),
    ("1 2 ٣\n", "'٣' in column 3"),
    ("1 2 3\x105\n", r"'3\x105' in column 3"),
    ("a b c\n1 2 3\n", "has no columns x, y and z among a, b, c"),
    ("x y z z\n1 2 3 4\n", "has two columns 'z'"),
    ("# only\n\n//comments\n", "holds no line of numbers"),
    ("\n", "holds no line of numbers"),
    ("\ufeff", "holds no line of numbers"),
    ("x y \x00z\n", "line 1 is no text"),
    ("ncols 4\nnrows 2\n", "line 1 has 2 columns"),
    ("x y z\n" + "9" * 99 + "a 2 3\n", "line 2: '" + "9" * 37 + "...' in column 1"),
]


@pytest.mark.parametrize(("content", "message"), BAD)
def test_what_is_no_table_is_named_by_line_and_token(tmp_path: Path, content: str, message: str) -> None:
    assert message in refused(text(tmp_path, content))


@pytest.mark.parametrize("encoding", ["utf-16", "utf-16-be"])
def test_other_encodings(tmp_path: Path, encoding: str) -> None:
    message = refused(text(tmp_path, "1 2 3\n".encode(encoding)))
    assert "is UTF-16 text" in message or "is no text" in message


@pytest.mark.parametrize("seed", range(3))
def test_the_line_is_right_far_into_the_file(
    tmp_path: Path, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(text_numbers, "CHUNK", 1000)
    rng = np.random.default_rng(seed)
    lines = [("1 2 3", "", "# no")[kind] for kind in rng.integers(0, 3, 2000)]
    lines[0] = "1 2 3"
    at = int(rng.integers(1, 2000))
    lines[at] = "1 2 3,4"
    assert f"line {at + 1}: '3,4'" in refused(text(tmp_path, "\n".join(lines)))


def test_lines_without_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(text_numbers, "CHUNK", 1 << 12)
    assert "has more than 4096 characters" in refused(text(tmp_path, b"1 2 3\n" + b"5" * 20_000))
    assert "line 1 has" in refused(text(tmp_path, b"5" * (1 << 23)))
    many = b"1 2 3" + b"\n" * 50_000 + b"4 5 6"
    assert read(text(tmp_path, many)).xyz.tolist() == [[1, 2, 3], [4, 5, 6]]


@pytest.mark.parametrize("content", ["x,y,z,i\n", "#x y z i\n0\n", "0\nx y z i\n"])
def test_no_points_are_a_legal_scan(tmp_path: Path, content: str) -> None:
    scan = read(text(tmp_path, content))
    assert scan.xyz.shape == (0, 3)
    assert list(scan.fields) == ["i"]
    assert read(text(tmp_path, "0\n")).xyz.shape == (0, 3)


def test_real_csv_against_numpy(data_folder: Path) -> None:
    path = data_folder / "reader" / "lpm_car_cloud400.csv"
    expected = np.loadtxt(path, delimiter=",", skiprows=1)
    scan = read(path)
    assert len(expected) == 24_989
    assert np.array_equal(scan.xyz, expected[:, :3])
    assert np.array_equal(scan.fields["normal"], expected[:, 3:])


def test_content_decides_before_the_name(tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", np.eye(3))
    (tmp_path / "a.npy").rename(tmp_path / "a.csv")
    assert format_of(tmp_path / "a.csv").name == "NPY"
    assert plain(read(text(tmp_path, "OFFSET,x,y,z\n1,2,3,4\n", "b.csv"))) == {
        "xyz": [[2, 3, 4]],
        "OFFSET": [1],
    }


@with_settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(
    places=st.lists(st.tuples(st.integers(0, 10**6), st.integers(0, 255)), max_size=4),
    size=st.integers(1, 100),
    name=st.sampled_from(["a.csv", "a.pts"]),
)
def test_changed_or_cut_text_is_read_or_refused(
    tmp_path: Path, places: list[tuple[int, int]], size: int, name: str
) -> None:
    contents = {"a.csv": b"\xef\xbb\xbf# made\nx,y,z,nx,ny,nz\r\n1,2,3,0.0,0.6,0.8\r\n4,5,6,1.0,nan,0.0\r\n"}
    contents["a.pts"] = b"3\n-1.5 2 3 -120 255 0 0\n4 5 6 90 1 2 3\n7e2 8 9 0 0 1 0\n"
    content = bytearray(contents[name])
    for at, value in places:
        content[at % len(content)] = value
    path = text(tmp_path, bytes(content[:size]), name)
    try:
        scan = read(path)
    except DataError as error:
        assert "\n" not in str(error)  # noqa: PT017
    else:
        assert scan.xyz.shape[1] == 3
        assert all(len(values) == len(scan.xyz) for values in scan.fields.values())


@with_settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(content=st.binary(min_size=1, max_size=200))
def test_any_bytes_are_read_or_refused(tmp_path: Path, content: bytes) -> None:
    path = text(tmp_path, content)
    try:
        assert read(path).xyz.shape[1] == 3
    except DataError as error:
        assert "\n" not in str(error)  # noqa: PT017
