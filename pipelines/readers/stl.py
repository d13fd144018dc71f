"""STL (3D Systems, "StereoLithography Interface Specification", 1989): triangles, binary or ascii."""

from __future__ import annotations

import logging
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

import numpy as np
from numpy.typing import NDArray

from ...errors import DataError
from . import ReadSettings, Scan
from .mesh import Mesh, points
from .text_rows import bad, block, number, numbered

log = logging.getLogger(__name__)

_HEAD, _FACET = 84, 50
"""Bytes before the first triangle, the last four of them their number, and of each."""

_BINARY = np.dtype([("normal", "<f4", 3), ("xyz", "<f4", (3, 3)), ("attribute", "<u2")])

_FORM = (b"facet normal", b"outer loop", b"vertex", b"vertex", b"vertex", b"endloop", b"endfacet")
"""The lines of an ascii triangle."""

_LOOPS = 1 << 13
"""Triangles of an ascii file that are parsed at once."""


def read(path: Path, settings: ReadSettings) -> Scan:
    """Draw points from the triangles, as `mesh.points` says.

    Both kinds may begin with "solid": a file is binary where it has as many bytes as its number of triangles
    takes. The normals of the file are not read: those of the points are of the corners' order.
    Raises DataError, with the line or both sizes, for what is no whole file.
    """
    try:
        with path.open("rb") as file:
            xyz = _corners(path, file)
    except OSError as error:
        raise DataError(path, f"cannot be read ({error.strerror})", "check the path") from None
    return points(path, Mesh(xyz, np.arange(len(xyz)).reshape(-1, 3)), settings)


def _corners(path: Path, file: BinaryIO) -> NDArray[np.float64]:
    """Three rows a triangle, (3 n, 3)."""
    head = file.read(_HEAD)
    size = file.seek(0, 2)
    promised = struct.unpack_from("<I", head, _HEAD - 4)[0] if size >= _HEAD else 0
    wanted = _HEAD + promised * _FACET
    if size >= _HEAD and size == wanted:
        file.seek(_HEAD)
        facets = np.fromfile(file, _BINARY, promised)
        if len(facets) == promised:
            if facets["attribute"].any():
                log.warning("%s: left out the attributes of its triangles (colours, in some programs)", path)
            with np.errstate(invalid="ignore"):  # of signalling NaN
                return facets["xyz"].reshape(-1, 3).astype(np.float64)
    if head.lstrip()[:5].lower() == b"solid" and b"\0" not in head:
        file.seek(0)
        return _ascii(path, numbered(file))
    if size < _HEAD:
        raise DataError(path, f"is cut: {size} bytes are no STL header", "copy it again")
    cause = f"has {size} bytes, the {promised} triangles that its header promises take {wanted}"
    raise DataError(path, cause, "copy it again")


def _ascii(path: Path, lines: Iterator[tuple[int, bytes]]) -> NDArray[np.float64]:
    parts = [np.empty((0, 3))]
    is_open, last = False, 0
    held: list[tuple[int, bytes]] = []
    for line, text in lines:
        last = line
        word = text.split(None, 1)[0].lower()
        if word in (b"solid", b"endsolid"):
            if is_open == (word == b"solid") or len(held) % len(_FORM):
                raise bad(path, line, f"'{word.decode()}' in the wrong place")
            is_open = not is_open
        elif not is_open:
            raise bad(path, line, f"{text.strip()[:40]!r} is outside of any solid")
        else:
            held.append((line, text))
            if len(held) == _LOOPS * len(_FORM):
                parts.append(_facets(path, held))
                held = []
    if is_open:
        raise DataError(path, f"is cut: it ends in line {last}, without 'endsolid'", "copy it again")
    parts.append(_facets(path, held))
    return np.concatenate(parts)


def _facets(path: Path, lines: list[tuple[int, bytes]]) -> NDArray[np.float64]:
    """The corners of whole triangles."""
    rest: list[list[bytes]] = []
    for (line, text), form in zip(lines, _FORM * (len(lines) // len(_FORM)), strict=True):
        words = text.split()
        many = form.count(b" ") + 1
        if b" ".join(words[:many]).lower() != form:
            raise bad(path, line, f"{text.strip()[:40]!r} is not '{form.decode()}'")
        if form in (b"outer loop", b"endloop", b"endfacet"):
            if len(words) != many:
                raise bad(path, line, f"goes on with {words[many][:40]!r}")
        elif len(words) != many + 3:
            raise bad(path, line, f"has {len(words) - many} numbers behind '{form.decode()}', not 3")
        elif form == b"vertex":
            rest.append(words[1:])
    xyz = block([b" ".join(words) for words in rest])
    if xyz is not None:
        return xyz
    vertices = [
        line for (line, _), form in zip(lines, _FORM * (len(lines) // 7), strict=True) if form == b"vertex"
    ]
    values = [
        [number(path, line, token) for token in words] for line, words in zip(vertices, rest, strict=True)
    ]
    return np.array(values, np.float64).reshape(-1, 3)
