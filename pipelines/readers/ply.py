"""PLY (Turk, "The PLY Polygon File Format", 1994): ascii and both byte orders."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from pathlib import Path
from typing import BinaryIO

import numpy as np

from ...errors import DataError
from . import ReadSettings, Scan, ply_ascii, ply_binary, ply_header
from .axes import places, scan_of
from .mesh import Mesh, points
from .ply_header import Header, Rows
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
    try:
        with path.open("rb") as file:
            header = ply_header.parse(path, file)
            faces = _faces(header) if settings.surface is not None else None
            found = _elements(path, file, header, faces)
    except OSError as error:
        raise DataError(path, f"cannot be read ({error.strerror})", "check the path") from None
    fields = found["vertex"].fields
    with np.errstate(invalid="ignore"):  # of signalling NaN
        scan = scan_of(path, list(fields), list(fields.values()), "name a file of points")
    if faces is None:
        _notice(path, header, (), None)
        return scan
    _notice(path, header, scan.fields, faces)
    return points(path, Mesh.of(path, scan.xyz, *found["face"].lists[faces]), settings)


def _faces(header: Header) -> str | None:
    """The property that has the vertices of each face; None where there is no face."""
    element = header.element("face")
    lists = {one.name for one in element.lists if one.type[0] != "f"} if element and element.rows else set()
    return next((name for name in _CORNERS if name in lists), None)


def _elements(path: Path, file: BinaryIO, header: Header, faces: str | None) -> dict[str, Rows]:
    """What is wanted of each element; all are read, so that a cut file is told from a whole one."""
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
    wanted = {"vertex": single, "face": [faces] if faces else []}
    found: dict[str, Rows] = {}
    if header.order:
        for element in header.elements:
            keep = wanted.get(element.name, [])
            found[element.name] = ply_binary.read(path, file, element, header.order, keep)
        at = file.tell()
        if _goes_on(file):
            raise DataError(path, f"goes on at offset {at}, behind its last row", "copy it again")
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


def _goes_on(file: BinaryIO) -> bool:
    while chunk := file.read(1 << 20):
        if chunk.strip(_PADDING):
            return True
    return False


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
