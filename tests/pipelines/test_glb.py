"""GLB files, by hand, whole and damaged."""

from __future__ import annotations

import base64
import copy
import json
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tamis.errors import DataError
from tamis.pipelines.readers import ReadSettings, read


def refused(path: Path) -> str:
    with pytest.raises(DataError) as caught:
        read(path)
    assert str(caught.value).startswith(f"{path}: ")
    assert "\n" not in str(caught.value)
    return str(caught.value)


POSITIONS = np.array([[0, 0, 0], [1, 0, 0], [0, 1, 0], [1, 1, 0]], "<f4")
BLOB = POSITIONS.tobytes() + np.array([0, 1, 2, 1, 3, 2], "<u2").tobytes()
VIEW = {"bufferView": 0, "componentType": 5126, "count": 4, "type": "VEC3"}
SCENE: dict[str, Any] = {
    "asset": {"version": "2.0"},
    "scene": 0,
    "scenes": [{"nodes": [0]}],
    "nodes": [{"mesh": 0}],
    "meshes": [{"primitives": [{"attributes": {"POSITION": 0}, "indices": 1}]}],
    "accessors": [VIEW, {"bufferView": 1, "componentType": 5123, "count": 6, "type": "SCALAR"}],
    "bufferViews": [
        {"buffer": 0, "byteOffset": 0, "byteLength": 48},
        {"buffer": 0, "byteOffset": 48, "byteLength": 12},
    ],
    "buffers": [{"byteLength": 60}],
}


def glb(path: Path, *changes: tuple[str, Any], binary: bytes = BLOB) -> Path:
    """A square in the plane of x and y; ``changes``: places in the scene, and what stands there instead."""
    scene = copy.deepcopy(SCENE)
    for place, value in changes:
        *keys, last = (int(key) if key.isdigit() else key for key in place.split("."))
        item: Any = scene
        for key in keys:
            item = item[key]
        item[last] = value
    text = json.dumps(scene).encode()
    text += b" " * (-len(text) % 4)
    body = (
        struct.pack("<II", len(text), 0x4E4F534A)
        + text
        + struct.pack("<II", len(binary), 0x004E4942)
        + binary
    )
    path.write_bytes(struct.pack("<4sII", b"glTF", 2, 12 + len(body)) + body)
    return path


PRIMITIVE = "meshes.0.primitives.0"
HALF = 0.7071067811865476


@pytest.mark.parametrize(
    ("changes", "centre", "normal"),
    [
        ([], [0.5, 0.5, 0], [0, 0, 1]),
        ([("nodes", [{"children": [1], "translation": [9, 0, 0]}, {"mesh": 0, "scale": [2, 4, 2]}])],
         [10, 2, 0], [0, 0, 1]),
        ([("nodes.0.rotation", [HALF, 0, 0, HALF])], [0.5, 0, 0.5], [0, -1, 0]),
        ([("nodes.0.scale", [-1, 1, 1])], [-0.5, 0.5, 0], [0, 0, 1]),
        ([("nodes.0.matrix", [0, 1, 0, 0, 0, 0, 1, 0, 1, 0, 0, 0, 5, 6, 7, 1])], [5, 6.5, 7.5], [1, 0, 0]),
        ([("nodes", [{"mesh": 0}, {"mesh": 0, "translation": [0, 0, 8]}]), ("scenes.0.nodes", [0, 1])],
         [0.5, 0.5, 4], [0, 0, 1]),
        ([("scenes", [{"nodes": []}, {"nodes": [0]}]), ("scene", 1)], [0.5, 0.5, 0], [0, 0, 1]),
        ([("accessors.1", {"bufferView": 1, "componentType": 5123, "count": 3, "type": "SCALAR"})],
         [1 / 3, 1 / 3, 0], [0, 0, 1]),
        ([(PRIMITIVE, {"attributes": {"POSITION": 0}, "mode": 5})], [0.5, 0.5, 0], [0, 0, 1]),
    ],
    ids=range(9),
)  # fmt: skip
def test_glb(tmp_path: Path, changes: list[tuple[str, Any]], centre: Any, normal: Any) -> None:
    scan = read(glb(tmp_path / "a.glb", *changes), ReadSettings(surface=8000))
    spread = max(1.0, np.ptp(scan.xyz, axis=0).max())
    assert np.allclose(scan.xyz.mean(axis=0), centre, atol=0.03 * spread)
    assert np.allclose(scan.fields["normal"], normal, atol=1e-6)


@pytest.mark.parametrize(("mode", "rows"), [(5, [0, 1, 2, 3]), (6, [0, 1, 3, 2])], ids=["strip", "fan"])
def test_strips_and_fans(tmp_path: Path, mode: int, rows: list[int]) -> None:
    binary = POSITIONS.tobytes() + np.array(rows, "<u2").tobytes()
    changes = [(PRIMITIVE + ".mode", mode), ("accessors.1.count", 4), ("bufferViews.1.byteLength", 8)]
    scan = read(glb(tmp_path / "a.glb", *changes, binary=binary))
    assert np.allclose(scan.xyz.mean(axis=0), [0.5, 0.5, 0], atol=0.03)
    assert (scan.fields["normal"] == [0, 0, 1]).all()


def test_rows_may_be_apart(tmp_path: Path) -> None:
    path = glb(
        tmp_path / "a.glb",
        ("accessors.0.count", 2),
        ("accessors.0.byteOffset", 4),
        ("bufferViews.0.byteStride", 20),
        ("accessors.1.count", 0),
    )
    assert read(path).xyz.tolist() == [POSITIONS.ravel()[at : at + 3].tolist() for at in (1, 6)]


def test_normalised_integers(tmp_path: Path) -> None:
    binary = (
        np.array([[0, 0, 0, 0], [127, 0, 0, 0], [0, -128, 0, 0]], "i1").tobytes().ljust(48, b"\0") + BLOB[48:]
    )
    changed = {**VIEW, "componentType": 5120, "count": 3, "normalized": True}
    path = glb(
        tmp_path / "a.glb",
        ("accessors.0", changed),
        ("bufferViews.0.byteStride", 4),
        ("accessors.1.count", 0),
        binary=binary,
    )
    assert read(path).xyz.tolist() == [[0, 0, 0], [1, 0, 0], [0, -1, 0]]


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ([("accessors.0.count", 5)], "accessor 0 takes 60 bytes of a view of 48 at 0, the buffer has 60"),
        ([("accessors.0.count", 2**40)], "accessor 0 takes 13194139533312 bytes of a view of 48"),
        ([("accessors.0.count", 2**70)], "count is 1180591620717411303424"),
        ([("accessors.0.count", -1)], "count is -1"),
        ([("accessors.0.count", 1e3)], "count is 1000.0"),
        ([("accessors.0", {"componentType": 5126, "count": 2**28, "type": "VEC3"})], "accessor 0 is sparse"),
        ([("accessors.0.sparse", {})], "accessor 0 is sparse"),
        ([("accessors.0.type", "VEC2")], "accessor 0 has type VEC2 5126, not VEC3"),
        ([("accessors.0.componentType", 5130)], "accessor 0 has type VEC3 5130"),
        ([("bufferViews.1.byteOffset", 50)], "accessor 1 takes 12 bytes of a view of 12 at 50"),
        ([("bufferViews.0.byteStride", 4)], "accessor 0 takes"),
        ([("accessors.1.componentType", 5122)], "accessor 1 has indices of type int16"),
        ([("accessors.1.count", 5)], "a primitive of triangles has 5 corners"),
        ([("accessors.0.count", 3)], "accessor 1 names vertex 3, there are 3"),
        ([(PRIMITIVE + ".mode", 7)], "a primitive has mode 7"),
        ([(PRIMITIVE + ".attributes.POSITION", -1)], "there is no accessor -1"),
        ([("nodes.0.mesh", 1)], "there is no mesh 1"),
        ([("nodes.0.children", [0])], "node 0 is reached twice"),
        ([("nodes.0.children", ["a"])], "there is no node a"),
        ([("scene", 5)], "there is no scene 5"),
        ([("nodes", "hello")], "its JSON is damaged (AttributeError"),
        ([("nodes.0.scale", [1, 2])], "its JSON is damaged (ValueError"),
        ([("buffers.0.uri", "a.bin")], "the buffer of accessor 0 is outside of the file"),
        ([("extensionsRequired", ["KHR_draco_mesh_compression"])], "needs the extension KHR_draco_mesh_comp"),
    ],
    ids=range(24),
)  # fmt: skip
def test_glb_that_is_wrong_is_named(tmp_path: Path, changes: list[tuple[str, Any]], said: str) -> None:
    assert said in refused(glb(tmp_path / "a.glb", *changes))


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda data: data[:11], "is cut: 11 bytes are no GLB header"),
        (lambda data: data[:-1], "offset 8: promises"),
        (lambda data: data + b"\0", "offset 8: promises"),
        (lambda data: data[:4] + b"\1" + data[5:], "offset 4: version 1 of GLB is not read"),
        (lambda data: data[:12] + b"\xff\xff\xff\xff" + data[16:], "offset 12: a chunk goes beyond"),
        (lambda data: data[:16] + b"NSOJ" + data[20:], "offset 12: its first chunk is no JSON"),
        (lambda data: data[:20] + b"]" + data[21:], "its JSON is damaged (JSONDecodeError"),
        (
            lambda _: struct.pack("<4sIIII", b"glTF", 2, 400_020, 400_000, 0x4E4F534A) + b"[" * 400_000,
            "JSON",
        ),
    ],
    ids=range(8),
)
def test_glb_that_is_damaged_is_refused(tmp_path: Path, change: Callable[[bytes], bytes], said: str) -> None:
    path = glb(tmp_path / "a.glb")
    path.write_bytes(change(path.read_bytes()))
    assert said in refused(path)


def test_a_mesh_that_is_placed_without_end_takes_no_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tamis.pipelines.readers.glb._LARGEST", 1000)
    changes = [("nodes", [{"mesh": 0}] * 200), ("scenes.0.nodes", list(range(200)))]
    assert "its nodes place more than 1000 vertices" in refused(glb(tmp_path / "a.glb", *changes))


def test_points_of_a_scene_are_its_vertices(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    assert read(glb(tmp_path / "a.glb", (PRIMITIVE + ".mode", 0))).xyz.tolist() == POSITIONS.tolist()
    assert "left out" not in caplog.text
    both = [
        {"attributes": {"POSITION": 0, "COLOR_0": 0}, "indices": 1},
        {"attributes": {"POSITION": 0}, "mode": 0},
    ]
    assert len(read(glb(tmp_path / "a.glb", ("meshes.0.primitives", both))).xyz) == 10_000
    assert "left out attribute COLOR_0, single points" in caplog.text


def uri(data: bytes, kind: str = "application/octet-stream") -> str:
    return f"data:{kind};base64,{base64.b64encode(data).decode()}"


@pytest.mark.parametrize("kind", ["application/octet-stream", "application/gltf-buffer", ""])
def test_buffers_may_stand_in_the_json(tmp_path: Path, kind: str) -> None:
    """Each with an address of its own, beside the binary chunk or without one."""
    whole = read(glb(tmp_path / "a.glb"))
    one = glb(tmp_path / "b.glb", ("buffers.0.uri", uri(BLOB, kind)), binary=b"")
    buffers = [{"byteLength": 48}, {"byteLength": 12, "uri": uri(BLOB[48:] + b"more", kind)}]
    view = {"buffer": 1, "byteLength": 12}
    two = glb(tmp_path / "c.glb", ("buffers", buffers), ("bufferViews.1", view), binary=BLOB[:48])
    for path in (one, two):
        assert np.array_equal(read(path).xyz, whole.xyz)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (uri(BLOB[:-1]), "the URI of buffer 0 holds 59 bytes of 60"),
        (uri(BLOB)[:-1], "the URI of buffer 0 is no base64 (Incorrect padding)"),
        ("data:;base64,ä" + uri(BLOB)[37:], "the URI of buffer 0 is no base64"),
        ("data:," + "a" * 60, "the buffer of accessor 0 is outside of the file"),
        ("a.bin", "the buffer of accessor 0 is outside of the file"),
        (5, "its JSON is damaged"),
    ],
)
def test_damaged_buffers_in_the_json(tmp_path: Path, text: Any, said: str) -> None:
    assert said in refused(glb(tmp_path / "a.glb", ("buffers.0.uri", text)))
