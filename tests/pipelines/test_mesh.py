"""Points drawn from meshes, and the files that meshes come in, whole and damaged."""

from __future__ import annotations

import logging
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import trimesh
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tamis.errors import DataError
from tamis.pipelines.build import build
from tamis.pipelines.readers import ReadSettings, Scan, read
from tamis.pipelines.settings import DataSettings

SIZE = np.array([1.0, 2.0, 4.0])
AREAS = np.array([8.0, 4.0, 2.0])  # of the sides across x, y and z
FORMATS = ("obj", "off", "stl", "stl_ascii", "glb", "ply", "ply_ascii")


def box(path: Path, kind: str, shape: Any = None) -> Path:
    """A box around zero, or another mesh, as trimesh writes it."""
    mesh = trimesh.creation.box(SIZE) if shape is None else shape
    name = kind.partition("_")[0]
    extra = {"encoding": "ascii"} if kind == "ply_ascii" else {}
    data = mesh.export(file_type=kind if name == "stl" else name, **extra)
    path = path.with_suffix(f".{name}")
    path.write_bytes(data.encode() if isinstance(data, str) else data)
    return path


def refused(path: Path, settings: ReadSettings | None = None) -> str:
    with pytest.raises(DataError) as caught:
        read(path, settings)
    assert str(caught.value).startswith(f"{path}: ")
    assert "\n" not in str(caught.value)
    return str(caught.value)


def sides(scan: Scan, size: np.ndarray = SIZE) -> np.ndarray:
    """The axis across which the side of each point lies, and that its normal points outwards."""
    normal = scan.fields["normal"]
    assert normal.dtype == np.float32
    axis = np.abs(normal).argmax(axis=1)
    rows = np.arange(len(axis))
    assert np.allclose(np.abs(normal[rows, axis]), 1, atol=1e-6)
    assert np.allclose(scan.xyz[rows, axis], normal[rows, axis] * size[axis] / 2, atol=1e-6)
    assert (np.abs(scan.xyz) <= size / 2 + 1e-6).all()
    return np.asarray(axis)


@pytest.mark.parametrize("seed", [0, 1, 2**63])
@pytest.mark.parametrize("kind", FORMATS)
def test_points_are_spread_evenly_by_area(tmp_path: Path, kind: str, seed: int) -> None:
    n = 20_000
    scan = read(box(tmp_path / "a", kind), ReadSettings(surface=n, seed=seed))
    assert scan.xyz.shape == (n, 3)
    assert scan.xyz.dtype == np.float64
    axis = sides(scan)
    share = AREAS / AREAS.sum()
    off = np.bincount(axis, minlength=3) - n * share
    assert (np.abs(off) < 5 * np.sqrt(n * share * (1 - share))).all()
    # Within the sides: each half, quarter and eighth holds its part, and so do the two triangles of a side.
    for across in range(3):
        a, b = (scan.xyz[axis == across][:, i] / SIZE[i] + 0.5 for i in range(3) if i != across)
        cells = np.bincount(np.minimum((a * 4).astype(int), 3) * 4 + np.minimum((b * 4).astype(int), 3))
        wanted = len(a) / 16
        assert ((cells - wanted) ** 2 / wanted).sum() < 50  # of 15 degrees of freedom: 1 in 100,000


@pytest.mark.parametrize("seed", range(3))
def test_draws_depend_on_the_seed_alone(tmp_path: Path, seed: int) -> None:
    first = read(box(tmp_path / "a", "off"), ReadSettings(surface=500, seed=seed))
    again = read(box(tmp_path / "other", "off"), ReadSettings(surface=500, seed=seed))
    more = read(tmp_path / "a.off", ReadSettings(surface=900, seed=seed))
    other = read(tmp_path / "a.off", ReadSettings(surface=500, seed=seed + 1))
    assert np.array_equal(first.xyz, again.xyz)
    assert np.array_equal(first.xyz, more.xyz[:500])
    assert np.array_equal(first.fields["normal"], more.fields["normal"][:500])
    assert not (first.xyz == other.xyz).all(axis=1).any()


def test_every_format_gives_the_same_points(tmp_path: Path) -> None:
    shape = trimesh.creation.icosphere(subdivisions=2)
    scans = [read(box(tmp_path / kind, kind, shape), ReadSettings(surface=300, seed=4)) for kind in FORMATS]
    for scan in scans[1:]:
        assert np.allclose(scan.xyz, scans[0].xyz, atol=1e-6)
        assert np.allclose(scan.fields["normal"], scans[0].fields["normal"], atol=1e-5)


@pytest.mark.parametrize("kind", FORMATS)
def test_how_many_points_where_none_are_asked_for(tmp_path: Path, kind: str) -> None:
    scan = read(box(tmp_path / "a", kind))
    assert len(scan.xyz) == (8 if kind.startswith("ply") else 10_000)
    assert ("normal" in scan.fields) == (not kind.startswith("ply"))


def test_large_coordinates_keep_their_digits(tmp_path: Path) -> None:
    far = np.array([388096.0, 3948996.0, 40.0])
    shape = trimesh.creation.box(SIZE)
    lines = [f"v {x:.3f} {y:.3f} {z:.3f}\n" for x, y, z in shape.vertices + far]
    lines += [f"f {a + 1} {b + 1} {c + 1}\n" for a, b, c in shape.faces]
    (tmp_path / "a.obj").write_text("".join(lines))
    scan = read(tmp_path / "a.obj", ReadSettings(surface=1000))
    sides(Scan(scan.xyz - far, scan.fields))


TRIANGLES = "v 0 0 0\nv 1 0 0\nv 0 1 0\nv 2 2 2\nv 3 3 3\nv nan 0 0\nv 1e200 0 0\n"


def test_faces_without_an_area_have_no_points(tmp_path: Path) -> None:
    (tmp_path / "a.obj").write_text(TRIANGLES + "f 1 1 1\nf 1 4 5\nf 1 2\nf 2\nf 1 2 3\nf 1 4 5\nf 4 4 5\n")
    scan = read(tmp_path / "a.obj")
    assert len(scan.xyz) == 10_000
    assert (scan.xyz[:, 2] == 0).all()
    assert (scan.xyz.sum(axis=1) <= 1).all()
    assert (scan.fields["normal"] == [0, 0, 1]).all()


def test_faces_that_are_not_finite_are_left_out(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "a.obj").write_text(TRIANGLES + "f 1 2 6\nf 1 2 3\nf 3 7 2\n")
    scan = read(tmp_path / "a.obj")
    assert (scan.xyz[:, 2] == 0).all()
    assert np.isfinite(scan.xyz).all()
    assert "left out 1 faces that are not finite" in caplog.text or "left out 2 faces" in caplog.text


@pytest.mark.parametrize("kind", ["stl", "glb", "ply"])
def test_signalling_nan_is_a_nan_like_others(tmp_path: Path, kind: str) -> None:
    shape = trimesh.Trimesh([[0, 0, 0], [1, 0, 0], [0, 1.375, 0]], [[0, 1, 2]])
    path = box(tmp_path / "a", kind, shape)
    data = path.read_bytes()
    at = data.rindex(struct.pack("<f", 1.375))
    path.write_bytes(data[:at] + b"\0\0\xa0\x7f" + data[at + 4 :])
    xyz = read(path, ReadSettings(surface=5)).xyz  # its only face is not finite: these are the vertices
    assert np.isnan(xyz[:, 1]).tolist() == [False, False, True]
    assert xyz[:2].tolist() == [[0, 0, 0], [1, 0, 0]]


@pytest.mark.parametrize("scale", [1e-9, 1.0, 1e70])
def test_the_size_of_a_mesh_does_not_matter(tmp_path: Path, scale: float) -> None:
    square = np.array([[0, 0], [1, 0], [1, 1], [0, 1]]) * scale
    text = "OFF\n4 1 0\n" + "".join(f"{x!r} {y!r} 0\n" for x, y in square.tolist()) + "4 0 1 2 3\n"
    (tmp_path / "a.off").write_text(text)
    xyz = read(tmp_path / "a.off", ReadSettings(surface=4000)).xyz / scale
    assert np.allclose(xyz.mean(axis=0), [0.5, 0.5, 0], atol=0.03)


FLAT = "facet normal 0 0 0\nouter loop\nvertex 1 2 3\nvertex 4 5 6\nvertex 7 8 9\nendloop\nendfacet\n"
HEADER = (
    "ply\nformat ascii 1.0\nelement vertex 3\nproperty int x\nproperty int y\nproperty int z\n"
    "element face 1\nproperty list int int vertex_indices\nend_header\n"
)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("a.obj", "v 1 2 3\nv 4 5 6\nv 7 8 9\nf 1 2 3\nf 1 1 2\n"),
        ("a.obj", "v 1 2 3\nv 4 5 6\nv 7 8 9\n"),
        ("a.off", "OFF\n3 0 0\n1 2 3\n4 5 6\n7 8 9\n"),
        ("a.off", "OFF\n3 1 0\n1 2 3\n4 5 6\n7 8 9\n3 0 1 2\n"),
        ("a.stl", f"solid\n{FLAT}endsolid\n"),
        ("a.ply", f"{HEADER}1 2 3\n4 5 6\n7 8 9\n3 0 1 2\n"),
    ],
)  # fmt: skip
def test_a_mesh_without_an_area_gives_its_vertices(
    tmp_path: Path, name: str, text: str, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / name).write_text(text)
    scan = read(tmp_path / name, ReadSettings(surface=7))
    assert scan.xyz.tolist() == [[1, 2, 3], [4, 5, 6], [7, 8, 9]]
    assert scan.fields == {}
    assert "so its vertices are taken" in caplog.text


@pytest.mark.parametrize("form", ["ascii", "binary_big_endian"])
def test_a_ply_file_with_polygons(tmp_path: Path, form: str, caplog: pytest.LogCaptureFixture) -> None:
    header = (
        f"ply\nformat {form} 1.0\nelement vertex 5\nproperty float x\nproperty float y\nproperty float z\n"
        "property uchar red\nelement face 3\nproperty list uchar int vertex_index\nproperty uchar f\n"
        "end_header\n"
    )
    vertices = [(0, 0, 0, 9), (1, 0, 0, 9), (1, 1, 0, 9), (0, 1, 0, 9), (0.5, 2, 0, 9)]
    faces = [(0, 1, 2, 3), (3, 2, 4), (0, 1)]
    if form == "ascii":
        body = "".join(" ".join(map(str, row)) + "\n" for row in vertices).encode()
        body += "".join(f"{len(f)} {' '.join(map(str, f))} 7\n" for f in faces).encode()
    else:
        body = b"".join(struct.pack(">3fB", *row) for row in vertices)
        body += b"".join(struct.pack(f">B{len(f)}iB", len(f), *f, 7) for f in faces)
    path = tmp_path / "a.ply"
    path.write_bytes(header.encode() + body)
    scan = read(path, ReadSettings(surface=6000))
    assert abs((scan.xyz[:, 1] > 1).mean() - 1 / 3) < 0.04
    assert (scan.fields["normal"] == [0, 0, 1]).all()
    assert scan.fields.keys() == {"normal"}
    assert "left out property 'red' of the vertices" in caplog.text
    assert len(read(path).xyz) == 5
    last = b"0 1 7\n" if form == "ascii" else struct.pack(">2iB", 0, 1, 7)
    changed = b"0 5 7\n" if form == "ascii" else struct.pack(">2iB", 0, 5, 7)
    path.write_bytes(path.read_bytes().removesuffix(last) + changed)
    assert "face 2 (counted from 0) has vertex 5, there are 5" in refused(path, ReadSettings(surface=1))


def test_a_ply_file_without_faces_gives_its_vertices(tmp_path: Path) -> None:
    header = "ply\nformat ascii 1.0\nelement vertex 1\nproperty float x\nproperty float y\nproperty float z\n"
    (tmp_path / "a.ply").write_text(header + "property uchar red\nend_header\n1 2 3 4\n")
    scan = read(tmp_path / "a.ply", ReadSettings(surface=5))
    assert scan.xyz.tolist() == [[1, 2, 3]]
    assert scan.fields["red"].tolist() == [4]


@pytest.mark.parametrize("kind", ["off", "stl", "stl_ascii", "glb", "ply", "ply_ascii"])
def test_a_mesh_cut_anywhere_is_refused(tmp_path: Path, kind: str) -> None:
    path = box(tmp_path / "a", kind)
    whole = path.read_bytes()
    last = len(whole.rstrip())  # a file cut in its last number, or without its last end of line, is whole
    for end in (
        *range(4, last - 20, 17),
        *range(last - 20, last - (1 if kind in ("off", "ply_ascii") else 0)),
    ):
        path.write_bytes(whole[:end])
        refused(path, ReadSettings(surface=10))


@settings(max_examples=120, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    kind=st.sampled_from(FORMATS),
    changes=st.lists(
        st.tuples(st.floats(0, 1, exclude_max=True), st.integers(0, 255)), min_size=1, max_size=4
    ),
)
def test_changed_bytes_never_escape_as_another_error(
    tmp_path: Path, kind: str, changes: list[tuple[float, int]]
) -> None:
    path = box(tmp_path / "a", kind)
    data = bytearray(path.read_bytes())
    for at, value in changes:
        data[int(at**2 * len(data))] = value
    path.write_bytes(data)
    try:
        scan = read(path, ReadSettings(surface=20))
    except DataError as error:
        assert str(error).startswith(str(path))  # noqa: PT017
    else:
        assert scan.xyz.shape == (len(scan.xyz), 3)
        assert all(len(values) == len(scan.xyz) for values in scan.fields.values())


@pytest.mark.parametrize("seed", [0, 1])
def test_points_of_a_real_mesh_lie_where_its_area_is(data_folder: Path, seed: int) -> None:
    path = data_folder / "reader" / "trimesh_bunny.ply"
    n = 20_000
    scan = read(path, ReadSettings(surface=n, seed=seed))
    mesh = trimesh.load(path, process=False)
    share = mesh.area_faces / mesh.area
    error = np.abs(scan.xyz.mean(axis=0) - share @ mesh.triangles_center)
    assert (error < 5 * scan.xyz.std(axis=0) / np.sqrt(n)).all()
    assert np.allclose(scan.fields["normal"].mean(axis=0), share @ mesh.face_normals, atol=5 / np.sqrt(n))
    assert (scan.xyz >= mesh.bounds[0] - 1e-6).all()
    assert (scan.xyz <= mesh.bounds[1] + 1e-6).all()


@pytest.mark.slow
def test_a_folder_of_meshes_builds(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "raw").mkdir()
    for kind in ("obj", "off", "stl", "glb", "ply"):
        box(tmp_path / "raw" / kind, kind)
    caplog.set_level(logging.ERROR)
    given = DataSettings(root=tmp_path / "raw", read=ReadSettings(surface=50), row_order="source")
    dataset = build(given, tmp_path / "out")
    assert len(dataset) == 5
    for number in range(5):
        assert dataset.sample(number, ["normal"]).columns["normal"].shape == (50, 3)
