"""Text: a point a line, in CSV, TXT, XYZ, PTS and ASC files, with or without a line of names.

There is no standard. What is read: lines of numbers divided by semicolons, tabs, commas or blanks, as the
first of them is; blank lines, and comments that start with # or //; names in a line before the numbers, a
comment or not, quoted or not; beside it, alone on a line, the number of points (Leica's PTS).
"""

from __future__ import annotations

import codecs
import csv
import logging
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

import numpy as np
from numpy.typing import NDArray

from ...errors import DataError
from . import ReadSettings, Scan
from .axes import NORMALS, checked, places, scan_of
from .opening import opening
from .text_numbers import CHUNK, blocks, parsed, shown_token

log = logging.getLogger(__name__)

_NUMBER_LIKE = re.compile(rb"[-+]?[.,]?\d")
_WORDS = (b"nan", b"inf", b"infinity")


@dataclass
class _Head:
    """What stands before the numbers, and how the first of them are divided.

    ``start`` and ``line``: of the first numbers. ``width``: how many there are, 0 where there is none.
    """

    names: list[str] | None = None
    promised: int | None = None
    delimiter: str = ""
    width: int = 0
    start: int = 0
    line: int = 1


def read(path: Path, settings: ReadSettings) -> Scan:
    """Read all points; columns hold int64 where every number is one that it can hold, else float64.

    x, y and z are the columns of one of the names in `axes.AXES`, or the first three where there are no
    names; then the others become ``column_3``, ``column_4``, ... ``settings.columns`` goes before the names
    of the file. A cell without a character is NaN. Normals are float64 always.
    Raises DataError, with line and token, for what is no number (so for a decimal comma), for another number
    of columns, and where the promised number of points is not there; UsageError for ``settings.columns``
    without x, y and z.
    """
    with opening(path) as file:
        head, names = _named(path, file, settings)
        table = parsed(path, file, len(names), head.delimiter, head.line)
    _check(path, head, len(table.columns[0]), table.empty)
    for column in _normals(names):
        table.columns[column] = table.columns[column].astype(np.float64, copy=False)
    return scan_of(path, names, table.columns, "name its columns in data.read.columns")


def chunks(path: Path, settings: ReadSettings, rows: int) -> Iterator[Scan]:
    """As `read`, at most ``rows`` points at a time.

    The file is read twice: what columns hold is known at its end. So all damage is told before the first.
    """
    with opening(path) as file:
        head, names = _named(path, file, settings)
        real = np.zeros(len(names), np.bool_)
        n = empty = 0
        for bits, empties in blocks(path, file, len(names), head.delimiter, head.line, real):
            n, empty = n + bits.shape[1], empty + empties
        _check(path, head, n, empty)
        real[_normals(names)] = True
        file.seek(head.start)
        again = blocks(path, file, len(names), head.delimiter, head.line, real)
        for bits in _pieces((bits for bits, _ in again), len(names), rows):
            own = [row.view(np.float64) if real[column] else row for column, row in enumerate(bits.copy())]
            yield scan_of(path, names, own, "name its columns in data.read.columns")


def rows(path: Path, settings: ReadSettings) -> int:
    """How many lines there are from the first numbers on, blank ones and comments too."""
    with opening(path) as file:
        head, _ = _named(path, file, settings)
        lines, last = 0, b"\n"
        while data := file.read(CHUNK):
            lines, last = lines + data.count(b"\n"), data[-1:]
        return head.promised if head.promised is not None else lines + (last != b"\n")


def _pieces(parts: Iterable[NDArray[np.int64]], width: int, most: int) -> Iterator[NDArray[np.int64]]:
    """Parts (width, n) put together and cut to ``most`` each; one at least."""
    held, none = [np.empty((width, 0), np.int64)], True
    for part in parts:
        held.append(part)
        if sum(own.shape[1] for own in held) < most:
            continue
        whole, none = np.concatenate(held, axis=1), False
        for at in range(0, whole.shape[1] - most + 1, most):
            yield whole[:, at : at + most]
        held = [whole[:, whole.shape[1] // most * most :]]
    whole = np.concatenate(held, axis=1)
    if whole.shape[1] or none:
        yield whole


def _named(path: Path, file: BinaryIO, settings: ReadSettings) -> tuple[_Head, list[str]]:
    """What stands before the numbers, and the columns' names; ``file`` is left where the numbers start."""
    given = checked(settings.columns) if settings.columns is not None else None
    head = _head(path, file)
    names = given or head.names
    width = head.width or (len(names) if names else 3)
    names = names or ["x", "y", "z", *(f"column_{i}" for i in range(3, width))]
    if len(names) != width:
        cause = f"line {head.line} has {width} columns, {len(names)} are named ({', '.join(names)})"
        raise DataError(path, cause, "name its columns in data.read.columns")
    file.seek(head.start)
    return head, names


def _check(path: Path, head: _Head, n: int, empty: int) -> None:
    if head.promised not in (None, n):
        raise DataError(path, f"promises {head.promised} points, it holds {n}", "copy it again")
    if empty:
        log.info("%s: %d empty cells are read as NaN", path, empty)


def _normals(names: list[str]) -> list[int]:
    """The columns of normals: of an even floor they are whole, which does not make them another field."""
    return [column for column, name in enumerate(names) if any(name.lower() in parts for parts in NORMALS)]


def _head(path: Path, file: BinaryIO) -> _Head:
    """Read up to the first numbers. Raises DataError for what is no text and for fewer than three columns."""
    head, comment = _Head(), b""
    begin = file.read(4)
    if begin.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        raise DataError(path, "is UTF-16 text", "save it as UTF-8")
    file.seek(len(codecs.BOM_UTF8) if begin.startswith(codecs.BOM_UTF8) else 0)
    while True:
        head.start = file.tell()
        line = file.readline(CHUNK)
        text = line.strip(b" \r\n")
        if not line:
            break
        if len(line) == CHUNK:
            raise DataError(path, f"line {head.line} has {CHUNK} characters or more", "write a point a line")
        if text.strip().startswith((b"#", b"//")):
            comment = text
        elif text.strip():
            head.delimiter = _delimiter(text)
            cells = _split(text, head.delimiter)
            if head.promised is None and len(cells) == 1 and cells[0].isdigit() and len(cells[0]) < 19:
                head.promised = int(cells[0])
            elif head.names is None and _are_names(_split(text, _delimiter(text, names=True))):
                head.names = _names(path, head.line, text)
            else:
                head.width = len(cells)
                break
        head.line += 1
    if head.width in (1, 2):
        cause = f"line {head.line} has {head.width} columns ({shown_token(text)}), a point has three"
        raise DataError(path, cause, "name a file of points")
    if head.names is None and comment:
        names = _names(path, head.line, comment.lstrip(b"#/ \t"), strict=False)
        if places(names) is not None and head.width in (0, len(names)):
            head.names = names
    if not head.width and head.names is None and head.promised is None:
        raise DataError(path, "holds no line of numbers", "name a file of points")
    return head


def _delimiter(line: bytes, *, names: bool = False) -> str:
    """A line's delimiter, "" for blanks and tabs. Tabs alone where numbers between them have no blanks."""
    if b";" in line:
        return ";"
    if b"\t" in line:
        cells = [cell.strip(b" ") for cell in line.split(b"\t")]
        if len(cells) > 2 and cells[0] and cells[-1] and (names or not any(b" " in cell for cell in cells)):
            return "\t"
    return "," if b"," in line else ""


def _split(line: bytes, delimiter: str) -> list[bytes]:
    cells = line.split(delimiter.encode()) if delimiter else line.split()
    return [cell.strip().strip(b'"') for cell in cells]


def _are_names(cells: list[bytes]) -> bool:
    """Whether a line holds names: x, y and z among them, or some and nothing like a number."""
    if places([cell.decode("latin-1") for cell in cells]) is not None:
        return True
    return any(cells) and not any(_NUMBER_LIKE.match(cell) or cell.lower() in _WORDS for cell in cells)


def _names(path: Path, line: int, text: bytes, *, strict: bool = True) -> list[str]:
    """The names in a line, each without its quotes; ``column_0``, ... for those that are empty."""
    try:
        whole = text.decode()
    except UnicodeDecodeError:
        whole = text.decode("latin-1")
    delimiter = _delimiter(text, names=True)
    if not delimiter:
        whole, delimiter = " ".join(whole.split()), " "
    try:
        cells = next(csv.reader([whole], delimiter=delimiter, skipinitialspace=True))
    except csv.Error:
        cells = [whole]
    names = [cell.strip() for cell in cells]
    if strict and not all(name.isprintable() for name in names):
        raise DataError(path, f"line {line} is no text: {shown_token(text)}", "name a file of points")
    return [name or f"column_{i}" for i, name in enumerate(names)]
