"""GLB: binary glTF 2.0 (Khronos Group, "glTF 2.0 Specification", 2021), the meshes of its scene as one."""

from __future__ import annotations

import base64
import json
import logging
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...errors import DataError
from . import ReadSettings, Scan
from .mesh import Mesh, points

log = logging.getLogger(__name__)

_JSON, _BINARY = 0x4E4F534A, 0x004E4942
_TYPES = {5120: "<i1", 5121: "<u1", 5122: "<i2", 5123: "<u2", 5125: "<u4", 5126: "<f4"}
_WIDTHS = {"SCALAR": 1, "VEC3": 3}
_TRIANGLES, _STRIP, _FAN = 4, 5, 6
_POINTS = "single points"

_USUAL = ("attribute NORMAL", "attribute TANGENT", "attribute TEXCOORD")
"""What nearly every mesh has and no point takes: left out with less ado than the rest."""

_HARMLESS = (
    "KHR_mesh_quantization",
    "KHR_materials_",
    "KHR_texture_",
    "EXT_texture_",
    "KHR_lights_",
    "KHR_xmp",
)
"""How extensions begin that a file may require: those that do not change how geometry is stored."""

_LARGEST = 1 << 27
"""Vertices and corners of faces together: a few bytes may place a mesh any number of times."""


Buffers = list[bytes | None]
"""The bytes of each buffer, None of one outside of the file."""


class _Wrong(Exception):
    """What a file has that it may not have."""


def read(path: Path, settings: ReadSettings) -> Scan:
    """Draw points from the triangles of the scene, each mesh where its nodes place it, as `mesh.points` says.

    Axes are those of the file: glTF has y up. Colours, textures, skins and all else are left out, with a
    notice in the log where vertices have more than positions.
    Raises DataError for a file that is not whole, and for geometry outside of it, compressed or sparse.
    """
    try:
        data = path.read_bytes()
    except OSError as error:
        raise DataError(path, f"cannot be read ({error.strerror})", "check the path") from None
    content, binary = _parts(path, data)
    left: set[str] = set()
    try:
        scene = json.loads(content)
        mesh = _mesh(scene, _buffers(scene, binary), left)
    except _Wrong as wrong:
        raise DataError(
            path, str(wrong), "export it again, with its buffers inside and uncompressed"
        ) from None
    # JSON may have anything anywhere.
    except (LookupError, TypeError, ValueError, AttributeError, OverflowError, RecursionError) as error:
        cause = f"its JSON is damaged ({type(error).__name__}: {error})"
        raise DataError(path, cause, "copy it again") from None
    if left:
        usual = all(name.startswith(_USUAL) for name in left)
        log.log(logging.INFO if usual else logging.WARNING, "%s: left out %s", path, ", ".join(sorted(left)))
    return points(path, mesh, settings)


def _parts(path: Path, data: bytes) -> tuple[bytes, bytes]:
    """The JSON and the binary chunk, the last empty where there is none."""
    if len(data) < 12:
        raise DataError(path, f"is cut: {len(data)} bytes are no GLB header", "copy it again")
    version, size = struct.unpack_from("<II", data, 4)
    if version != 2:
        raise DataError(path, f"offset 4: version {version} of GLB is not read", "export it as glTF 2.0")
    if size != len(data):
        raise DataError(path, f"offset 8: promises {size} bytes, it has {len(data)}", "copy it again")
    chunks: list[tuple[int, bytes]] = []
    at = 12
    while at < size:
        if at + 8 > size or at + 8 + struct.unpack_from("<I", data, at)[0] > size:
            raise DataError(
                path, f"offset {at}: a chunk goes beyond the file's {size} bytes", "copy it again"
            )
        length, kind = struct.unpack_from("<II", data, at)
        chunks.append((kind, data[at + 8 : at + 8 + length]))
        at += 8 + length
    if not chunks or chunks[0][0] != _JSON:
        raise DataError(path, "offset 12: its first chunk is no JSON", "copy it again")
    binary = chunks[1][1] if len(chunks) > 1 and chunks[1][0] == _BINARY else b""
    return chunks[0][1], binary


def _buffers(scene: Any, binary: bytes) -> Buffers:
    """The binary chunk, which is the first buffer if that has no URI, and what stands in ``data:`` URIs."""
    found: Buffers = []
    for number, buffer in enumerate(scene.get("buffers", [])):
        head, comma, text = buffer["uri"].partition(",") if "uri" in buffer else ("", "", "")
        if "uri" not in buffer:
            found.append(None if number else binary)
        elif not (comma and head.startswith("data:") and head.endswith(";base64")):
            found.append(None)
        else:
            try:
                data = base64.b64decode(text, validate=True)
            except ValueError as error:
                raise _Wrong(f"the URI of buffer {number} is no base64 ({error})") from None
            if len(data) < (length := _natural(buffer, "byteLength")):
                raise _Wrong(f"the URI of buffer {number} holds {len(data)} bytes of {length}")
            found.append(data)
    return found


def _mesh(scene: Any, buffers: Buffers, left: set[str]) -> Mesh:
    for name in scene.get("extensionsRequired", []):
        if not name.startswith(_HARMLESS):
            raise _Wrong(f"needs the extension {name}, which is not read")
    vertices, faces = [np.empty((0, 3))], [np.empty((0, 3), np.int64)]
    count = size = 0
    for matrix, number in _placed(scene):
        for primitive in _item(scene["meshes"], number, "mesh")["primitives"]:
            attributes = primitive["attributes"]
            left |= {f"attribute {name}" for name in attributes if name != "POSITION"}
            if "POSITION" not in attributes:
                continue
            with np.errstate(invalid="ignore"):  # of signalling NaN
                xyz = _accessor(scene, buffers, attributes["POSITION"], "VEC3").astype(np.float64)
            own = _triangles(scene, buffers, primitive, len(xyz), left)
            size += len(xyz) + own.size
            if size > _LARGEST:
                raise _Wrong(f"its nodes place more than {_LARGEST} vertices")
            with np.errstate(over="ignore", invalid="ignore"):
                vertices.append(xyz @ matrix[:3, :3].T + matrix[:3, 3])
                mirrored = np.linalg.det(matrix[:3, :3]) < 0
            faces.append((own[:, ::-1] if mirrored else own) + count)
            count += len(xyz)
    mesh = Mesh(np.concatenate(vertices), np.concatenate(faces))
    if not len(mesh.faces):
        left.discard(_POINTS)  # then they are what is taken
    return mesh


def _placed(scene: Any) -> Iterator[tuple[NDArray[np.float64], int]]:
    """The meshes of the scene, each with its matrix (4, 4), in the order of the nodes."""
    nodes = scene.get("nodes", [])
    if "scenes" in scene:
        roots = _item(scene["scenes"], scene.get("scene", 0), "scene").get("nodes", [])
    else:
        below = {child for node in nodes for child in node.get("children", [])}
        roots = [number for number in range(len(nodes)) if number not in below]
    seen: set[int] = set()
    stack = [(np.eye(4), number) for number in reversed(roots)]
    while stack:
        above, number = stack.pop()
        node = _item(nodes, number, "node")
        if number in seen:
            raise _Wrong(f"node {number} is reached twice")
        seen.add(number)
        with np.errstate(over="ignore", invalid="ignore"):
            matrix = above @ _matrix(node)
        if "mesh" in node:
            yield matrix, node["mesh"]
        stack += [(matrix, child) for child in reversed(node.get("children", []))]


def _matrix(node: Any) -> NDArray[np.float64]:
    """Where a node stands in the one above it: its matrix, or scale, then rotation, then translation."""
    if "matrix" in node:
        return np.array(node["matrix"], np.float64).reshape(4, 4).T
    x, y, z, w = (float(value) for value in node.get("rotation", (0, 0, 0, 1)))
    turn = np.array(
        [
            [1 - 2 * (y * y + z * z), 2 * (x * y - z * w), 2 * (x * z + y * w)],
            [2 * (x * y + z * w), 1 - 2 * (x * x + z * z), 2 * (y * z - x * w)],
            [2 * (x * z - y * w), 2 * (y * z + x * w), 1 - 2 * (x * x + y * y)],
        ]
    )
    matrix = np.eye(4)
    matrix[:3, :3] = turn * np.array(node.get("scale", (1, 1, 1)), np.float64).reshape(3)
    matrix[:3, 3] = np.array(node.get("translation", (0, 0, 0)), np.float64).reshape(3)
    return matrix


def _triangles(scene: Any, buffers: Buffers, primitive: Any, n: int, left: set[str]) -> NDArray[np.int64]:
    """The rows of the vertices of each triangle, (m, 3); none of points and lines."""
    mode = primitive.get("mode", _TRIANGLES)
    if mode not in range(_FAN + 1):
        raise _Wrong(f"a primitive has mode {str(mode)[:40]}")
    if mode < _TRIANGLES:
        left.add("lines" if mode else _POINTS)
        return np.empty((0, 3), np.int64)
    if "indices" in primitive:
        rows = _accessor(scene, buffers, primitive["indices"], "SCALAR")[:, 0]
        if rows.dtype.kind != "u":
            raise _Wrong(f"accessor {primitive['indices']} has indices of type {rows.dtype}")
        rows = rows.astype(np.int64)
        if len(rows) and rows.max() >= n:
            raise _Wrong(f"accessor {primitive['indices']} names vertex {rows.max()}, there are {n}")
    else:
        rows = np.arange(n)
    if mode == _TRIANGLES:
        if len(rows) % 3:
            raise _Wrong(f"a primitive of triangles has {len(rows)} corners")
        return rows.reshape(-1, 3)
    each = np.arange(max(len(rows) - 2, 0))
    if mode == _FAN:
        return rows[np.stack([np.zeros_like(each), each + 1, each + 2], axis=1)]
    odd = each % 2  # every second triangle of a strip is wound the other way
    return rows[np.stack([each, each + 1 + odd, each + 2 - odd], axis=1)]


def _accessor(scene: Any, buffers: Buffers, number: Any, wanted: str) -> NDArray[Any]:
    """The values of an accessor, (n, w), integers that are said to be normalised as floats."""
    accessor = _item(scene["accessors"], number, "accessor")
    if "sparse" in accessor or "bufferView" not in accessor:
        raise _Wrong(f"accessor {number} is sparse, or without a bufferView")
    if accessor["type"] != wanted or accessor["componentType"] not in _TYPES:
        found = f"{accessor['type']} {accessor['componentType']}"
        raise _Wrong(f"accessor {number} has type {found[:40]}, not {wanted} of a known kind")
    view = _item(scene["bufferViews"], accessor["bufferView"], "bufferView")
    data = _item(buffers, view["buffer"], "buffer")
    if data is None:
        raise _Wrong(f"the buffer of accessor {number} is outside of the file")
    kind, width = np.dtype(_TYPES[accessor["componentType"]]), _WIDTHS[wanted]
    start, inner = _natural(view, "byteOffset"), _natural(accessor, "byteOffset")
    length, count = _natural(view, "byteLength"), _natural(accessor, "count")
    stride = _natural(view, "byteStride") or kind.itemsize * width
    needs = inner + (count - 1) * stride + kind.itemsize * width if count else 0
    if start + length > len(data) or needs > length or stride < kind.itemsize * width:
        cause = f"accessor {number} takes {needs} bytes of a view of {length} at {start}"
        raise _Wrong(f"{cause}, the buffer has {len(data)}")
    if not count:
        return np.empty((0, width), kind)
    values = np.ndarray((count, width), kind, data, start + inner, (stride, kind.itemsize))
    if accessor.get("normalized") and kind.kind in "iu":
        return np.maximum(values / np.iinfo(kind).max, -1.0)
    return values


def _natural(item: Any, key: str) -> int:
    value = item.get(key, 0)
    if not isinstance(value, int) or not 0 <= value < 1 << 53:
        raise _Wrong(f"{key} is {str(value)[:40]}")
    return value


def _item(items: Any, number: Any, what: str) -> Any:
    """Item ``number`` of a list of the file; Python would take -1 for the last."""
    if not isinstance(number, int) or not 0 <= number < len(items):
        raise _Wrong(f"there is no {what} {str(number)[:40]}")
    return items[number]
