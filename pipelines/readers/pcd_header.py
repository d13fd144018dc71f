"""The header of PCD files, versions 0.5 to 0.7 (Rusu and Cousins 2011; the format's page at PCL)."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from ...errors import DataError
from .text_numbers import shown_token

PADDING = "_"
KINDS = {"F4", "F8", "I1", "I2", "I4", "I8", "U1", "U2", "U4", "U8"}
"""TYPE and SIZE, as numpy names them too."""

_ONE_VALUE = ("WIDTH", "HEIGHT", "POINTS", "DATA")
_KNOWN = ("VERSION", "FIELDS", "COLUMNS", "SIZE", "TYPE", "COUNT", "VIEWPOINT", *_ONE_VALUE)
_MOST_NUMBERS = 1 << 16
_MOST_BYTES = 1 << 20


@dataclass(frozen=True)
class PcdField:
    """A field of every point: ``count`` numbers of one ``dtype``, little-endian."""

    name: str
    dtype: np.dtype[Any]
    count: int

    @property
    def bytes(self) -> int:
        """Of each point."""
        return self.dtype.itemsize * self.count


@dataclass(frozen=True)
class PcdHeader:
    """What a header says. ``data``: ascii, binary or binary_compressed; ``line``: of the first after it."""

    fields: tuple[PcdField, ...]
    points: int
    viewpoint: tuple[float, ...]
    data: str
    line: int


def read_header(path: Path, file: BinaryIO) -> PcdHeader:
    """Read up to the end of the line DATA. Raises DataError, with line or key, for what cannot be."""
    lines: dict[str, list[str]] = {}
    number = 0
    while "DATA" not in lines:
        raw = file.readline(_MOST_BYTES)
        number += 1
        if not raw or file.tell() > _MOST_BYTES:
            raise _bad(path, f"its header ends at byte {file.tell()} without a line DATA")
        words = raw.decode("latin-1").removeprefix("\xef\xbb\xbf").split()
        if not words or words[0].startswith("#"):
            continue
        if words[0].upper() not in _KNOWN:
            raise _bad(path, f"line {number} of its header starts with {shown_token(words[0].encode())}")
        key = words[0].upper().replace("COLUMNS", "FIELDS")
        if key in lines:
            raise _bad(path, f"its header has two lines {key}")
        if key in _ONE_VALUE and len(words) != 2:
            raise _bad(path, f"{key} on line {number} has {len(words) - 1} values")
        lines[key] = words[1:]
    if not raw.endswith(b"\n") and lines["DATA"][0].lower() != "ascii":
        raise _bad(path, f"its header ends at byte {file.tell()} without a line end")
    data = lines["DATA"][0].lower()
    if data not in ("ascii", "binary", "binary_compressed"):
        raise _bad(path, f"DATA is {shown_token(data.encode())}")
    return PcdHeader(_fields(path, lines), _points(path, lines), _viewpoint(path, lines), data, number + 1)


def _fields(path: Path, lines: dict[str, list[str]]) -> tuple[PcdField, ...]:
    for key in ("FIELDS", "SIZE", "TYPE"):
        if key not in lines:
            raise _bad(path, f"its header has no line {key}")
    names = lines["FIELDS"]
    counts = lines.get("COUNT", ["1"] * len(names))
    for key, values in (("SIZE", lines["SIZE"]), ("TYPE", lines["TYPE"]), ("COUNT", counts)):
        if len(values) != len(names):
            raise _bad(path, f"{key} has {len(values)} values for {len(names)} fields")
    fields = []
    for name, size, kind, count in zip(names, lines["SIZE"], lines["TYPE"], counts, strict=True):
        shown = shown_token(name.encode())
        if not name.isprintable():
            raise _bad(path, f"a field is named {shown}")
        code = kind.upper() + size
        if code not in KINDS:
            raise _bad(path, f"field {shown} has TYPE {kind} and SIZE {size}, which is no number")
        if not _is_whole(count) or not int(count):
            raise _bad(path, f"field {shown} has COUNT {count}")
        fields.append(PcdField(name, np.dtype(f"<{code.lower()}"), int(count)))
    numbers = sum(field.count for field in fields)
    if not 0 < numbers <= _MOST_NUMBERS:
        raise _bad(path, f"its fields have {numbers} numbers a point")
    return tuple(fields)


def _points(path: Path, lines: dict[str, list[str]]) -> int:
    """POINTS, or WIDTH times HEIGHT (1 where it is missing); where all are there they must agree."""
    values: dict[str, int] = {}
    for key in ("WIDTH", "HEIGHT", "POINTS"):
        if key in lines:
            if not _is_whole(lines[key][0]):
                raise _bad(path, f"{key} is {shown_token(lines[key][0].encode())}")
            values[key] = int(lines[key][0])
    if "WIDTH" not in values:
        if "POINTS" not in values:
            raise _bad(path, "its header has neither POINTS nor WIDTH")
        return values["POINTS"]
    width, height = values["WIDTH"], values.get("HEIGHT", 1)
    points = values.get("POINTS", width * height)
    if points != width * height:
        raise _bad(path, f"POINTS is {points}, WIDTH x HEIGHT is {width} x {height} = {width * height}")
    return points


def _viewpoint(path: Path, lines: dict[str, list[str]]) -> tuple[float, ...]:
    """Where the sensor stood and how it was turned: x y z and a quaternion w x y z."""
    values = lines.get("VIEWPOINT", ["0", "0", "0", "1", "0", "0", "0"])
    try:
        numbers = tuple(float(value) for value in values)
    except ValueError:
        numbers = ()
    if len(numbers) != 7 or not all(map(math.isfinite, numbers)):
        raise _bad(path, f"VIEWPOINT is {shown_token(' '.join(values).encode())}, not seven numbers")
    return numbers


def _is_whole(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) < 19


def _bad(path: Path, cause: str) -> DataError:
    return DataError(path, f"{cause}: it is no whole PCD file", "copy it again")
