"""PLY (Turk, "The PLY Polygon File Format", 1994): ascii and both byte orders."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from ...errors import DataError
from . import ReadSettings, Scan, ply_ascii, ply_binary, ply_header
from .axes import places, scan_of
from .mesh import Mesh, points
from .opening import opening
from .ply_header import Element, Header, Rows
from .text_rows import bad, ends, numbered

log = logging.getLogger(__name__)

_CORNERS = ("vertex_indices", "vertex_index")
"""What writers call the list of a face's vertices."""

_PADDING = b"\0\x1a \t\r\n"
"""What may stand behind the last row: some writers add a line's end, or fill a block."""


def read(path: Path, settings: ReadSettings) -> Scan:
    """Read the vertices; ``nx``, ``ny`` and ``nz`` become ``normal`` (n, 3).

    Where ``settings.surface`` is set and the file has faces, that many points of them are drawn instead.
    Coordinates of ascii files keep all their digits, whatever the type of the property says. Lists of the
    vertices and other elements are left out, with a notice in the log.
    Raises DataError, with the line or the offset, for a file that is not whole or goes on
    behind its last row.
    """
    with opening(path) as file:
        header = ply_header.parse(path, file)
        faces = _faces(header) if settings.surface is not None else None
        found = _elements(path, file, header, faces)
    scan = _scan(path, found["vertex"].fields)
    if faces is None:
        _notice(path, header, (), None)
        return scan
    _notice(path, header, scan.fields, faces)
    return points(path, Mesh.of(path, scan.xyz, *found["face"].lists[faces]), settings)


def chunks(path: Path, settings: ReadSettings, rows: int) -> Iterator[Scan] | None:
    """As `read`, at most ``rows`` vertices at a time; None for ascii files and those that have lists."""
    with opening(path) as file:
        header = ply_header.parse(path, file)
    surface = settings.surface is not None and _faces(header)
    return _pieces(path, rows) if _is_plain(header) and not surface else None


def rows(path: Path, settings: ReadSettings) -> int | None:
    """How many vertices there are; None where only reading tells, or where others are drawn."""
    with opening(path) as file:
        header = ply_header.parse(path, file)
        vertex, _, _ = _vertex(path, header)
        if not _is_plain(header) or (settings.surface is not None and _faces(header)):
            return None
        for element in header.elements:
            ply_binary.read(path, file, element, header.order, ())
    return vertex.rows


def _pieces(path: Path, most: int) -> Iterator[Scan]:
    with opening(path) as file:
        header = ply_header.parse(path, file)
        vertex, single, _ = _vertex(path, header)
        _notice(path, header, (), None)
        for element in header.elements:
            if element is not vertex:
                ply_binary.read(path, file, element, header.order, ())
                continue
            ply_binary.check(path, file, vertex)
            for first in range(0, max(vertex.rows, 1), most):
                n = min(most, vertex.rows - first)
                fields = ply_binary.part(path, file, vertex, header.order, single, first, n)
                yield _scan(path, fields)
        _check_end(path, file)


def _is_plain(header: Header) -> bool:
    """Whether the rows of all elements are of one size each, so that they need not be walked along."""
    return bool(header.order) and not any(element.lists and element.rows for element in header.elements)


def _scan(path: Path, fields: dict[str, NDArray[Any]]) -> Scan:
    names = list(fields)
    columns = [fields.pop(name) for name in names]
    with np.errstate(invalid="ignore"):  # of signalling NaN
        return scan_of(path, names, columns, "name a file of points")


def _faces(header: Header) -> str | None:
    """The property that has the vertices of each face; None where there is no face."""
    element = header.element("face")
    lists = {one.name for one in element.lists if one.type[0] != "f"} if element and element.rows else set()
    return next((name for name in _CORNERS if name in lists), None)


def _vertex(path: Path, header: Header) -> tuple[Element, list[str], tuple[int, int, int]]:
    """The vertices, their properties that are no lists, and which of these are x, y and z."""
    vertex = header.element("vertex")
    if vertex is None:
        there = ", ".join(one.name for one in header.elements) or "none"
        raise DataError(path, f"has no element 'vertex' (its elements: {there})", "name a file of points")
    single = [one.name for one in vertex.properties if one.length is None]
    axes = places(single)
    if axes is None:
        there = ", ".join(one.name for one in vertex.properties) or "none"
        raise DataError(
            path, f"its vertices have no x, y and z (they have: {there})", "name a file of points"
        )
    return vertex, single, axes


def _elements(path: Path, file: BinaryIO, header: Header, faces: str | None) -> dict[str, Rows]:
    """What is wanted of each element; all are read, so that a cut file is told from a whole one."""
    vertex, single, axes = _vertex(path, header)
    wanted = {"vertex": single, "face": [faces] if faces else []}
    found: dict[str, Rows] = {}
    if header.order:
        for element in header.elements:
            keep = wanted.get(element.name, [])
            found[element.name] = ply_binary.read(path, file, element, header.order, keep)
        _check_end(path, file)
        return found
    lines = numbered(file, header.newline, header.lines)
    for element in header.elements:
        exact = [single[axis] for axis in axes] if element is vertex else []
        found[element.name] = ply_ascii.read(path, lines, element, wanted.get(element.name, []), exact)
    for number, line in lines:
        if line.strip(_PADDING):
            raise bad(path, number, "is behind the last row that the header promises")
    ends(path, file)
    return found


def _check_end(path: Path, file: BinaryIO) -> None:
    at = file.tell()
    while chunk := file.read(1 << 20):
        if chunk.strip(_PADDING):
            raise DataError(path, f"goes on at offset {at}, behind its last row", "copy it again")


def _notice(path: Path, header: Header, others: Iterable[str], faces: str | None) -> None:
    """Say what is left out, once a file: lists and ``others`` of the vertices, elements that are not used."""
    left = [f"property '{name}' of the vertices" for name in others]
    for element in header.elements:
        if element.name == "vertex":
            left += [f"list '{one.name}' of the vertices" for one in element.lists]
        elif element.rows and not (faces and element.name == "face"):
            left.append(f"{element.rows} rows of element '{element.name}'")
    if left:
        of_points = any(name.endswith("of the vertices") for name in left)
        log.log(logging.WARNING if of_points else logging.INFO, "%s: left out %s", path, ", ".join(left))
