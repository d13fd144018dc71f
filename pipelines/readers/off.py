"""OFF (Geomview's "Object File Format"): vertices and polygons in text."""

from __future__ import annotations

import logging
import re
from collections.abc import Iterator
from itertools import chain
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from ...errors import DataError
from . import ReadSettings, Scan
from .mesh import Mesh, points
from .text_rows import Numbered, bad, block, chunks, ends, number, numbered

log = logging.getLogger(__name__)

_KEY = re.compile(rb"(ST)?(C)?(N)?(4)?(n)?OFF")
"""Texture, colour and normal behind the coordinates of each vertex; a fourth coordinate; other dimensions."""


def read(path: Path, settings: ReadSettings) -> Scan:
    """Draw points from the polygons, as `mesh.points` says; colours and normals are left out, with a notice.

    The word OFF may be missing, or stand right before the numbers, as in files of ModelNet.
    Raises DataError with the line for what is not read (binary and four-dimensional files), for fewer rows
    than the header promises or more, and for a vertex that there is not.
    """
    try:
        with path.open("rb") as file:
            lines = _without_comments(numbered(file))
            vertices, faces, lines = _counts(path, lines)
            xyz, extra = _vertices(path, lines, vertices)
            lengths, corners, colours = _faces(path, lines, faces)
            for line, text in lines:
                raise bad(path, line, f"{text.strip()[:40]!r} is behind the last face of the header")
            ends(path, file)
    except OSError as error:
        raise DataError(path, f"cannot be read ({error.strerror})", "check the path") from None
    if extra or colours:
        what = [
            *(["what its vertices have behind z"] if extra else []),
            *(["colours of faces"] if colours else []),
        ]
        log.warning("%s: left out %s", path, " and ".join(what))
    return points(path, Mesh.of(path, xyz, lengths, corners), settings)


def _without_comments(lines: Iterator[tuple[int, bytes]]) -> Iterator[tuple[int, bytes]]:
    cut = ((line, text.partition(b"#")[0]) for line, text in lines)
    return ((line, text) for line, text in cut if text.strip())


def _counts(path: Path, lines: Iterator[tuple[int, bytes]]) -> tuple[int, int, Iterator[tuple[int, bytes]]]:
    """How many vertices and faces are promised, and the lines behind."""
    line, text = next(lines, (1, b""))
    key = _KEY.match(text.strip())
    if key is not None:
        if key[4] or key[5]:
            raise bad(path, line, f"'{key[0].decode()}' has other than three dimensions")
        text = text.strip()[key.end() :]
        if text.split()[:1] == [b"BINARY"]:
            raise DataError(path, f"line {line}: binary OFF files are not read", "convert it to text")
        if not text.strip():
            line, text = next(lines, (line, b""))
    counts = text.split()
    if not 2 <= len(counts) <= 3 or not all(count.isdigit() and len(count) < 19 for count in counts):
        raise bad(path, line, f"{text.strip()[:40]!r} is not the number of vertices, faces and edges")
    return int(counts[0]), int(counts[1]), lines


def _vertices(path: Path, lines: Iterator[tuple[int, bytes]], rows: int) -> tuple[NDArray[np.float64], bool]:
    parts, held, extra = [np.empty((0, 3))], 0, False
    for chunk in chunks(lines, rows):
        held += len(chunk)
        table = block([text for _, text in chunk])
        if table is None or table.shape[1] < 3:
            width = len(chunk[0][1].split())
            table = np.array([_row(path, line, text, width) for line, text in chunk]).reshape(-1, width)
        extra |= table.shape[1] > 3
        parts.append(table[:, :3])
    if held < rows:
        raise DataError(path, f"promises {rows} vertices, it holds {held}", "copy it again")
    return np.concatenate(parts), extra


def _row(path: Path, line: int, text: bytes, width: int) -> list[float]:
    values = [number(path, line, token) for token in text.split()]
    if len(values) != width or width < 3:
        raise bad(path, line, f"a vertex of {len(values)} numbers, not {max(width, 3)}")
    return values


def _faces(
    path: Path, lines: Iterator[tuple[int, bytes]], rows: int
) -> tuple[NDArray[np.int64], NDArray[np.int64], bool]:
    """Corners of each face, all of them in a row, and whether colours stand behind them."""
    lengths, corners = [np.empty(0, np.int64)], [np.empty(0, np.int64)]
    held, colours = 0, False
    for chunk in chunks(lines, rows):
        held += len(chunk)
        table = block([text for _, text in chunk])
        if table is not None and (table[:, 0] == table[0, 0]).all() and 0 <= table[0, 0] < table.shape[1]:
            own = table[:, : int(table[0, 0]) + 1]
            if (own == np.floor(own)).all() and (np.abs(own) < 2**53).all():
                lengths.append(own[:, 0].astype(np.int64))
                corners.append(own[:, 1:].astype(np.int64).ravel())
                colours |= own.shape[1] < table.shape[1]
                continue
        some, more, coloured = _uneven(path, chunk)
        lengths.append(np.array(some, np.int64))
        corners.append(np.array(more, np.int64))
        colours |= coloured
    if held < rows:
        raise DataError(path, f"promises {rows} faces, it holds {held}", "copy it again")
    return np.concatenate(lengths), np.concatenate(corners), colours


def _uneven(path: Path, chunk: Numbered) -> tuple[list[int], list[int], bool]:
    lengths: list[int] = []
    corners: list[list[int]] = []
    colours = False
    for line, text in chunk:
        tokens = text.split()
        many = _whole(path, line, tokens[0])
        if many >= len(tokens):
            raise bad(path, line, f"a face of {many} vertices names {len(tokens) - 1}")
        lengths.append(many)
        corners.append([_whole(path, line, token) for token in tokens[1 : many + 1]])
        colours |= many + 1 < len(tokens)
    return lengths, list(chain.from_iterable(corners)), colours


def _whole(path: Path, line: int, token: bytes) -> int:
    if not token.isdigit() or len(token) > 18:
        raise bad(path, line, f"{token[:40]!r} is no whole number")
    return int(token)
