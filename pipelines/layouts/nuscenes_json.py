"""The tables of nuScenes: lists of records in JSON, which are read one after another.

``sample_data.json`` of the whole dataset is a gigabyte: it is never held as a whole.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, TypeVar

from ...errors import DataError
from .layout import must_exist
from .poses import FARTHEST

Record = dict[str, Any]
T = TypeVar("T")

_CHUNK = 1 << 20
_LONGEST = 1 << 20
_BETWEEN = " \t\r\n,"
_FIX = "copy it again"
_NOTHING: Any = object()


def records(path: Path) -> Iterator[Record]:
    """The records of a table. Raises DataError where it is missing, cut, or no list of records."""
    decoder = json.JSONDecoder()
    text, at, before, ended = "", 0, 0, False
    opened = False
    with must_exist(path, "a table of the dataset").open(encoding="utf-8") as file:
        while True:
            while at < len(text) and text[at] in (_BETWEEN if opened else _BETWEEN[:-1]):
                at += 1
            if at < len(text) and not opened:
                if text[at] != "[":
                    raise DataError(path, f"is no list: it starts with {text[at]!r}", _FIX)
                opened, at = True, at + 1
                continue
            if at < len(text) and text[at] == "]":
                return
            found, error = _NOTHING, ""
            if at < len(text):
                try:
                    found, end = decoder.raw_decode(text, at)
                except (ValueError, RecursionError) as failure:
                    error = getattr(failure, "msg", None) or str(failure)
            if found is _NOTHING or end == len(text):  # it may go on in what has not been read
                if not ended and len(text) - at <= _LONGEST:
                    try:
                        more = file.read(_CHUNK)
                    except UnicodeDecodeError as failure:
                        raise DataError(path, f"is no text ({failure.reason})", _FIX) from None
                    before, text, at, ended = before + at, text[at:] + more, 0, not more
                    continue
                if found is _NOTHING:
                    cause = f"is cut or damaged at character {before + at} ({error or 'it ends there'})"
                    raise DataError(path, cause, _FIX)
            if not isinstance(found, dict):
                raise DataError(path, f"has at character {before + at} no record", _FIX)
            yield found
            at = end


def wrong(path: Path, record: Record, cause: str) -> DataError:
    """What is wrong with a record of a table."""
    return DataError(path, f"record {record.get('token')!r}: {cause}", "complete the download")


def text(path: Path, record: Record, key: str) -> str:
    """A text of a record; DataError where there is none."""
    value = record.get(key)
    if not isinstance(value, str):
        raise wrong(path, record, f"'{key}' is {value!r:.40}, no text")
    return value


def file_name(path: Path, record: Record) -> str:
    """The file of a record, relative to the dataset's folder; DataError for one that leaves it."""
    name = text(path, record, "filename")
    if not name or name.startswith("/") or ".." in name.split("/"):
        raise wrong(path, record, f"'filename' is {name!r:.60}, no file below the dataset's folder")
    return name


def whole(path: Path, record: Record, key: str) -> int:
    """A whole number of a record; DataError where there is none."""
    value = record.get(key)
    if not isinstance(value, int) or not 0 <= value < 1 << 62:
        raise wrong(path, record, f"'{key}' is {value!r:.40}, no whole number")
    return value


def numbers(path: Path, record: Record, key: str, count: int) -> list[float]:
    """A list of finite numbers of a record; DataError where there is none of that length."""
    values = record.get(key)
    if not isinstance(values, list) or len(values) != count or not all(map(_is_number, values)):
        raise wrong(path, record, f"'{key}' is {values!r:.60}, no {count} numbers")
    return values


def quaternion(path: Path, record: Record) -> list[float]:
    """The rotation of a record: w, x, y, z, of length 1 to a hundredth; DataError where it is none."""
    values = numbers(path, record, "rotation", 4)
    if not 0.99 <= math.hypot(*values) <= 1.01:
        raise wrong(path, record, f"'rotation' is {values}, no quaternion of length 1")
    return values


def referred(path: Path, record: Record, key: str, table: Mapping[str, T], of: str) -> T:
    """What a record's token names in another table; DataError where that lacks it."""
    token = text(path, record, key)
    found = table.get(token)
    if found is None:
        raise wrong(path, record, f"its {key} '{token}' is not in {of}")
    return found


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and -FARTHEST < value < FARTHEST
