"""OBJ (Wavefront, "Advanced Visualizer", appendix B1): vertices and polygons in text."""

from __future__ import annotations

import logging
import re
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from ...errors import DataError
from . import ReadSettings, Scan
from .mesh import Mesh, points
from .text_rows import Numbered, bad, block, ends, number

log = logging.getLogger(__name__)

_QUIET = frozenset(b"v f g s o mg usemtl mtllib vp".split())
"""Words whose lines hold no value of the mesh, beside those that are read; others are named in the log."""

_USUAL = frozenset((b"vt", b"vn"))
"""Textures and normals, which no point takes: left out with less ado than the rest."""

_BEHIND = re.compile(rb"/[^ \t\r\n]*")
"""Texture and normal of a corner: "7/1/3"."""


@dataclass
class _Lines:
    """The lines of vertices and faces without their words; ``before``: how many vertices a face follows."""

    vertices: Numbered = field(default_factory=list)
    faces: Numbered = field(default_factory=list)
    before: list[int] = field(default_factory=list)
    others: dict[bytes, int] = field(default_factory=dict)


def read(path: Path, settings: ReadSettings) -> Scan:
    """Draw points from the polygons, as `mesh.points` says.

    Colours of vertices, textures, normals, lines and curves are left out, with a notice in the log.
    Raises DataError with the line and the token for what is no number, for a vertex that there is not, and
    for a file without any vertex. The format has no counts and no end: a file cut between two lines is whole.
    """
    try:
        with path.open("rb") as file:
            lines = _lines(file.read())
            ends(path, file)
    except OSError as error:
        raise DataError(path, f"cannot be read ({error.strerror})", "check the path") from None
    if not lines.vertices:
        raise DataError(path, "has no line of a vertex ('v X Y Z')", "name a file of points or a mesh")
    xyz, extra = _vertices(path, lines.vertices)
    lengths, corners = _faces(path, lines)
    left = [*(["colours of its vertices"] if extra else [])]
    left += [f"{many} lines '{word.decode('utf-8', 'replace')[:20]}'" for word, many in lines.others.items()][
        :8
    ]
    if left:
        usual = not extra and lines.others.keys() <= _USUAL
        log.log(logging.INFO if usual else logging.WARNING, "%s: left out %s", path, ", ".join(left))
    return points(path, Mesh.of(path, xyz, lengths, corners), settings)


def _lines(data: bytes) -> _Lines:
    found = _Lines()
    held: list[bytes] = []
    for line, text in enumerate([*data.splitlines(), b""], 1):
        if text.endswith(b"\\"):  # it goes on in the next one
            held.append(text[:-1])
            continue
        own = b" ".join([*held, text]).partition(b"#")[0]
        held.clear()
        word, *after = own.split(None, 1)[:2] or [b""]
        rest = after[0] if after else b""
        if word == b"v":
            found.vertices.append((line, rest))
        elif word == b"f":
            found.faces.append((line, rest))
            found.before.append(len(found.vertices))
        elif word and word not in _QUIET:
            found.others[word] = found.others.get(word, 0) + 1
    return found


def _vertices(path: Path, lines: Numbered) -> tuple[NDArray[np.float64], bool]:
    """Coordinates, and whether colours stand behind them: x y z [w] or x y z r g b."""
    table = block([text for _, text in lines])
    if table is not None and table.shape[1] in (3, 4, 6, 7):
        return np.ascontiguousarray(table[:, :3]), table.shape[1] > 4
    xyz = np.empty((len(lines), 3))
    extra = False
    for row, (line, text) in enumerate(lines):
        values = [number(path, line, token) for token in text.split()]
        if len(values) not in (3, 4, 6, 7):
            raise bad(path, line, f"a vertex of {len(values)} numbers")
        xyz[row] = values[:3]
        extra |= len(values) > 4
    return xyz, extra


def _faces(path: Path, lines: _Lines) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Corners of each face, and all of them in a row, counted from zero."""
    table = block([_BEHIND.sub(b"", text) for _, text in lines.faces])
    if table is not None and (np.floor(table) == table).all():
        lengths = np.full(len(table), table.shape[1])
        corners = table.ravel()
    else:
        found = [_corners(path, line, text) for line, text in lines.faces]
        lengths = np.array([len(one) for one in found], np.int64)
        corners = np.array(list(chain.from_iterable(found)), np.float64)
    # Those below zero count back from the last vertex before the face.
    before = np.repeat(np.array(lines.before, np.int64), lengths)
    rows = np.where(corners < 0, before + corners, corners - 1)
    wrong = np.flatnonzero((corners == 0) | (rows < 0) | (rows >= len(lines.vertices)))
    if len(wrong):
        face = int(np.searchsorted(np.cumsum(lengths), wrong[0], side="right"))
        there = f"there are {len(lines.vertices)}, counted from 1"
        raise bad(path, lines.faces[face][0], f"a face has vertex {corners[wrong[0]]:.0f}, {there}")
    return lengths, rows.astype(np.int64)


def _corners(path: Path, line: int, text: bytes) -> list[float]:
    values: list[float] = []
    for token in text.split():
        own = token.partition(b"/")[0]
        if not own.removeprefix(b"-").isdigit():
            raise bad(path, line, f"{token[:40]!r} names no vertex")
        values.append(float(own))
    return values
