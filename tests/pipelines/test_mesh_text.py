"""STL, OFF and OBJ files, by hand, whole and damaged."""

from __future__ import annotations

import logging
import struct
from pathlib import Path

import numpy as np
import pytest
import trimesh

from tamis.errors import DataError
from tamis.pipelines.readers import ReadSettings, read


def box(folder: Path) -> Path:
    """A cube around zero, in binary."""
    trimesh.creation.box().export(folder / "a.stl")
    return folder / "a.stl"


def outside(path: Path) -> None:
    """The points of the cube are on its sides, and normals point outwards."""
    scan = read(path)
    assert len(scan.xyz) == 10_000
    assert np.allclose(np.abs(scan.xyz).max(axis=1), 0.5)
    assert np.allclose((scan.xyz * scan.fields["normal"]).sum(axis=1), 0.5)


def refused(path: Path) -> str:
    with pytest.raises(DataError) as caught:
        read(path)
    assert str(caught.value).startswith(f"{path}: ")
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_a_binary_stl_file_may_begin_with_solid(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = box(tmp_path)
    data = bytearray(path.read_bytes())
    data[:80] = b"solid of some other program".ljust(80)
    path.write_bytes(data)
    outside(path)
    assert not caplog.records
    data[84 + 48] = 1
    path.write_bytes(data)
    outside(path)
    assert "left out the attributes" in caplog.text


FACET = (
    "facet normal 0 0 1\n  outer loop\n    vertex 0 0 0\n    vertex 1 0 0\n    vertex 0 1e0 0\n"
    "  endloop\nendfacet\n"
)


@pytest.mark.parametrize(
    "text",
    [
        f"solid\n{FACET}endsolid\n",
        f"solid a name of words\n{FACET}endsolid a name of words",
        f"solid a\n{FACET}endsolid a\n\nsolid b\n{FACET * 9}endsolid b\n",
        f"  solid\n{FACET.upper()}ENDSOLID\n",
        f"solid\n{FACET}endsolid\n".replace("\n", "\r\n"),
        f"solid\n{FACET}endsolid\n".replace(" ", "\t \t"),
        f"solid\n{FACET * 9000}endsolid\n",
        f"solid\n{FACET.replace('normal 0 0 1', 'normal nan nan nan')}endsolid\n",
    ],
    ids=range(8),
)
def test_ascii_stl(tmp_path: Path, text: str) -> None:
    (tmp_path / "a.stl").write_bytes(text.encode())
    scan = read(tmp_path / "a.stl", ReadSettings(surface=100))
    assert (scan.fields["normal"] == [0, 0, 1]).all()
    assert (scan.xyz.sum(axis=1) <= 1).all()


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (f"solid\n{FACET}".replace("1e0", "1,5"), "line 6: b'1,5' is no number, write decimals with a point"),
        (f"solid\n{FACET}endsolid".replace("1e0", "1 0"), "line 6: has 4 numbers behind 'vertex', not 3"),
        (f"solid\n{FACET}", "is cut: it ends in line 8, without 'endsolid'"),
        (f"solid\n{FACET}{FACET[:30]}\nendsolid\n", "line 11: 'endsolid' in the wrong place"),
        (f"solid\n{FACET}endsolid\n{FACET}", "line 10: b'facet normal 0 0 1' is outside of any solid"),
        (f"solid\n{FACET}solid\n", "line 9: 'solid' in the wrong place"),
        (f"solid\n{FACET}endsolid\n".replace("outer loop", "loop"), "line 3: b'loop' is not 'outer loop'"),
        (f"solid\n{FACET}endsolid\n".replace("endloop", "endloop 1"), "line 7: goes on with b'1'"),
    ],
    ids=range(8),
)  # fmt: skip
def test_ascii_stl_that_is_wrong_is_named(tmp_path: Path, text: str, said: str) -> None:
    if "1,5" in text:
        text += "endsolid\n"
    (tmp_path / "a.stl").write_text(text)
    assert said in refused(tmp_path / "a.stl")


@pytest.mark.parametrize("count", [0, 11, 13, 2**32 - 1])
def test_binary_stl_of_another_number_is_refused(tmp_path: Path, count: int) -> None:
    path = box(tmp_path)
    data = bytearray(path.read_bytes())
    struct.pack_into("<I", data, 80, count)
    path.write_bytes(data)
    said = f"has 684 bytes, the {count} triangles that its header promises take {84 + 50 * count}"
    assert said in refused(path)


def test_no_triangle_is_a_legal_stl_file(tmp_path: Path) -> None:
    for content in (bytes(84), b"solid\nendsolid\n"):
        (tmp_path / "a.stl").write_bytes(content)
        assert read(tmp_path / "a.stl").xyz.shape == (0, 3)


# --- OFF

SQUARE = "0 0 0\n1 0 0\n1 1 0\n0 1 0\n"


@pytest.mark.parametrize(
    ("text", "left"),
    [
        (f"OFF\n4 1 0\n{SQUARE}4 0 1 2 3\n", ""),
        (f"OFF4 1 0\n{SQUARE}4 0 1 2 3\n", ""),  # as some files of ModelNet
        (f"OFF 4 1 0\n{SQUARE}4 0 1 2 3\n", ""),
        (f"4 1\n{SQUARE}4 0 1 2 3\n", ""),
        (f"# a\nOFF # b\n\n4 1 0 # c\n# d\n{SQUARE}  4  0 1 2 3 # e\n", ""),
        (f"OFF\n4 2 0\n{SQUARE}3 0 1 2 255 0 0\n3 0 2 3 0.5 0 0 1\n", "colours of faces"),
        (f"OFF\n4 3 0\n{SQUARE}2 0 1\n3 0 1 2\n3 0 2 3\n", ""),
        ("COFF\n4 1 0\n" + SQUARE.replace("\n", " 9 9 9 9\n") + "4 0 1 2 3\n", "behind z"),
        (f"OFF\r\n4 1 0\r\n{SQUARE}4 0 1 2 3\r\n", ""),
    ],
    ids=range(9),
)
def test_off(tmp_path: Path, text: str, left: str, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "a.off").write_text(text)
    xyz = read(tmp_path / "a.off", ReadSettings(surface=4000)).xyz
    assert np.allclose(xyz.mean(axis=0), [0.5, 0.5, 0], atol=0.03)
    assert left in caplog.text
    assert bool(left) == bool(caplog.records)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (f"OFF\n4 400000000000 0\n{SQUARE}4 0 1 2 3\n", "promises 400000000000 faces, it holds 1"),
        (f"OFF\n400000000000 1 0\n{SQUARE}4 0 1 2 3\n", "line 7: a vertex of 5 numbers, not 3"),
        ("OFF\n400000000000 1 0\n0 0 0\n", "promises 400000000000 vertices, it holds 1"),
        (f"OFF\n4 1 0\n{SQUARE}4 0 1 2 3\n3 0 1 2\n", "line 8: b'3 0 1 2' is behind the last face"),
        (f"OFF\n4 1 0\n{SQUARE}4 0 1 2 4\n", "face 0 (counted from 0) has vertex 4, there are 4"),
        (f"OFF\n4 1 0\n{SQUARE}4 0 1 2 -1\n", "face 0 (counted from 0) has vertex -1, there are 4"),
        (f"OFF\n4 1 0\n{SQUARE}4 0 1 2\n", "line 7: a face of 4 vertices names 3"),
        (f"OFF\n4 1 0\n{SQUARE}4 0 1 2 3.5\n", "line 7: b'3.5' is no whole number"),
        (f"OFF\n4 1 0\n{SQUARE}1e300 0 1 2\n", "line 7: b'1e300' is no whole number"),
        ("OFF\n4 1 0\n0 0 0\n1,5 0 0\n", "line 4: b'1,5' is no number, write decimals with a point"),
        ("4OFF\n1 0 0\n0 0 0 0\n", "line 1: '4OFF' has other than three dimensions"),
        ("OFF BINARY\n\0\0\0\0", "line 1: binary OFF files are not read"),
        ("OFF\n", "is not the number of vertices, faces and edges"),
        ("OFF\n3\n", "line 2: b'3' is not the number"),
        ("OFF\n" + "9" * 5000 + " 1 1\n", "is not the number"),
    ],
    ids=range(15),
)
def test_off_that_is_wrong_is_named(tmp_path: Path, text: str, said: str) -> None:
    (tmp_path / "a.off").write_text(text)
    assert said in refused(tmp_path / "a.off")


# --- OBJ

CORNERS = "v 0 0 0\nv 1 0 0\nv 1 1 0\nv 0 1 0\n"


@pytest.mark.parametrize(
    ("text", "left"),
    [
        (f"{CORNERS}f 1 2 3 4\n", ""),
        (f"{CORNERS}f 1/1/1 2/2/1 3//1 4/4\n", ""),
        (f"{CORNERS}f 1 2 3\nf 1//1 3//1 4//1\n", ""),
        (f"v 9 9 9\n{CORNERS}f -4 -3 -2 -1\nv 7 7 7\n", ""),
        (f"{CORNERS}f 1 2 \\\n3\\\n 4\n", ""),
        (f"# f 1 2 3\nmtllib a.mtl\no a\n{CORNERS}g b\nusemtl c\ns off\nf 1 2 3 4 # d\n", ""),
        (f"{CORNERS}f 1 2 3 4\n".replace(" ", "\t"), ""),
        (f"{CORNERS}f 1 2 3 4\n".replace("\n", "\r\n"), ""),
        (f"{CORNERS}f 1 2 3 4\n".replace("\n", "\r"), ""),
        (CORNERS.replace("\n", " 1.0\n") + "f 1 2 3 4\n", ""),
        (CORNERS.replace("\n", " .5 .5 1\n") + "f 1 2 3 4\n", "colours of its vertices"),
        (f"vt 0 0\nvt 1 1\nvn 0 0 1\n{CORNERS}f 1 2 3 4\nl 1 2\n", "2 lines 'vt', 1 lines 'vn', 1 lines 'l'"),
    ],
    ids=range(12),
)
def test_obj(tmp_path: Path, text: str, left: str, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "a.obj").write_bytes(text.encode())
    caplog.set_level(logging.INFO)
    scan = read(tmp_path / "a.obj", ReadSettings(surface=4000))
    assert np.allclose(scan.xyz.mean(axis=0), [0.5, 0.5, 0], atol=0.03)
    assert (scan.fields["normal"] == [0, 0, 1]).all()
    assert left in caplog.text
    assert bool(left) == bool(caplog.records)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (f"{CORNERS}f 1 2 9\n", "line 5: a face has vertex 9, there are 4, counted from 1"),
        (f"{CORNERS}f 1 2 3\nf 0 1 2 3\n", "line 6: a face has vertex 0, there are 4, counted from 1"),
        (f"{CORNERS}f -1 -2 -5\n", "line 5: a face has vertex -5"),
        (f"{CORNERS}f 1 2 x/3\n", "line 5: b'x/3' names no vertex"),
        (f"{CORNERS}f 1 2 1.5\n", "line 5: b'1.5' names no vertex"),
        (f"{CORNERS}f 1 2 {'9' * 400}\n", "line 5: a face has vertex"),
        ("v 0 0 0\nv 0,5 0 0\n", "line 2: b'0,5' is no number, write decimals with a point"),
        ("v 0 0 0\nv 0 0\n", "line 2: a vertex of 2 numbers"),
        ("v 0 0 0\nv\n", "line 2: a vertex of 0 numbers"),
        ("hello world\n", "has no line of a vertex"),
    ],
    ids=range(10),
)
def test_obj_that_is_wrong_is_named(tmp_path: Path, text: str, said: str) -> None:
    (tmp_path / "a.obj").write_text(text)
    assert said in refused(tmp_path / "a.obj")
