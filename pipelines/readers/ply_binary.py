"""Rows of binary PLY files: packed one behind the other, lists in their midst."""

from __future__ import annotations

import struct
from collections.abc import Collection
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from ...errors import DataError
from .ply_header import Element, Property, Rows

_CHUNK = 1 << 20
"""Bytes that are read at once, so that memory is taken for the columns alone."""

_STRUCT = {"i1": "b", "u1": "B", "i2": "h", "u2": "H", "i4": "i", "u4": "I"}


def read(path: Path, file: BinaryIO, element: Element, order: str, wanted: Collection[str]) -> Rows:
    """Read the rows of an element, from where ``file`` is; of its properties, those ``wanted`` are kept.

    ``order``: "<" or ">". Raises DataError, with the row or the offset, where the file ends too early.
    """
    least = check(path, file, element)
    if element.lists and element.rows:
        return _with_lists(path, file, element, order, wanted)
    if not element.rows or not any(one.name in wanted for one in element.properties):
        file.seek(element.rows * least, 1)
        empty = {one.name: np.empty(0, one.type) for one in element.properties if one.name in wanted}
        lists = {name: (np.empty(0, np.int64), empty.pop(name)) for name in _names(element.lists) & {*empty}}
        return Rows(dict(empty), lists)
    return Rows(part(path, file, element, order, wanted, 0, element.rows), {})


def check(path: Path, file: BinaryIO, element: Element) -> int:
    """The bytes that a row of an element has at least. Raises DataError where the file ends too early."""
    start = file.tell()
    left = file.seek(0, 2) - start
    file.seek(start)
    # A list has at least its length.
    least = sum(np.dtype(one.length or one.type).itemsize for one in element.properties)
    if element.rows * least > left:
        bound = "at most " if element.lists else ""
        raise _too_few(path, element, f"{bound}{left // least}", start + left)
    return least


def part(
    path: Path, file: BinaryIO, element: Element, order: str, wanted: Collection[str], first: int, n: int
) -> dict[str, NDArray[Any]]:
    """The next ``n`` rows of an element without lists, row ``first`` being that where ``file`` is."""
    columns = {one.name: np.empty(n, one.type) for one in element.properties if one.name in wanted}
    packed = np.dtype([(one.name, order + one.type) for one in element.properties])
    step = max(_CHUNK // packed.itemsize, 1)
    for start in range(0, n, step):
        rows = np.fromfile(file, packed, min(step, n - start))
        if len(rows) < min(step, n - start):
            raise _too_few(path, element, str(first + start + len(rows)), file.tell())
        for name, column in columns.items():
            column[start : start + len(rows)] = rows[name]
    return columns


def _names(properties: list[Property]) -> set[str]:
    return {one.name for one in properties}


def _with_lists(path: Path, file: BinaryIO, element: Element, order: str, wanted: Collection[str]) -> Rows:
    start = file.tell()
    data = file.read()
    found = _even(data, element, order, wanted)
    if found is None:
        found = _uneven(path, data, start, element, order, wanted)
    rows, used = found
    file.seek(start + used)
    return rows


def _even(data: bytes, element: Element, order: str, wanted: Collection[str]) -> tuple[Rows, int] | None:
    """The rows, and their bytes, where all have lists as long as those of the first; None where not."""
    layout: list[tuple[Any, ...]] = []
    many: dict[str, int] = {}
    at = 0
    for number, one in enumerate(element.properties):
        if one.length is not None:
            if at + int(one.length[1]) > len(data):
                return None
            many[one.name] = struct.unpack_from(order + _STRUCT[one.length], data, at)[0]
            layout.append((f"length {number}", order + one.length))
            at += int(one.length[1])
            if not 0 <= many[one.name] <= len(data):
                return None
            layout.append((f"value {number}", order + one.type, (many[one.name],)))
        else:
            layout.append((f"value {number}", order + one.type))
        at += int(one.type[1]) * many.get(one.name, 1)
        if at > len(data):
            return None
    if element.rows * at > len(data):
        return None
    table = np.frombuffer(data, np.dtype(layout), element.rows)
    fields: dict[str, NDArray[Any]] = {}
    lists: dict[str, tuple[NDArray[Any], NDArray[Any]]] = {}
    for number, one in enumerate(element.properties):
        if one.length is not None and not (table[f"length {number}"] == many[one.name]).all():
            return None
        if one.name in wanted:
            values = table[f"value {number}"].astype(one.type)
            if one.length is None:
                fields[one.name] = values
            else:
                lists[one.name] = np.full(element.rows, many[one.name]), values.ravel()
    return Rows(fields, lists), element.rows * at


def _uneven(
    path: Path, data: bytes, start: int, element: Element, order: str, wanted: Collection[str]
) -> tuple[Rows, int]:
    """As `_even`, row by row; ``start``: where in the file ``data`` begins."""
    # One step a list: the bytes before its length, the length, the size of a value; then what is behind all.
    steps: list[tuple[int, struct.Struct, int]] = []
    fixed = 0
    for one in element.properties:
        if one.length is None:
            fixed += int(one.type[1])
        else:
            steps.append((fixed, struct.Struct(order + _STRUCT[one.length]), int(one.type[1])))
            fixed = 0
    begins, lengths = np.empty((2, element.rows, len(steps)), np.int64)
    rows = np.empty(element.rows, np.int64)
    at = 0
    for row in range(element.rows):
        rows[row] = at
        for number, (before, length, size) in enumerate(steps):
            at += before
            if at + length.size > len(data):
                raise _too_few(path, element, str(row), start + len(data))
            many = length.unpack_from(data, at)[0]
            if many < 0:
                cause = f"offset {start + at}: row {row} of element '{element.name}' has a list of {many}"
                raise DataError(path, cause, "copy it again")
            at += length.size
            begins[row, number], lengths[row, number] = at, many
            at += many * size
        at += fixed
        if at > len(data):
            raise _too_few(path, element, str(row), start + len(data))
    return _gathered(data, element, order, wanted, rows, begins, lengths), at


def _gathered(
    data: bytes,
    element: Element,
    order: str,
    wanted: Collection[str],
    at: NDArray[np.int64],
    begins: NDArray[np.int64],
    lengths: NDArray[np.int64],
) -> Rows:
    """The values at their places: ``at`` (n,) of rows, ``begins`` and ``lengths`` (n, lists)."""
    octets = np.frombuffer(data, np.uint8)
    fields: dict[str, NDArray[Any]] = {}
    lists: dict[str, tuple[NDArray[Any], NDArray[Any]]] = {}
    number = 0
    for one in element.properties:
        size = int(one.type[1])
        if one.length is None:
            if one.name in wanted:
                fields[one.name] = _values(octets, at, order, one.type)
            at = at + size
            continue
        begin, length = begins[:, number], lengths[:, number]
        if one.name in wanted:
            behind = np.cumsum(length)
            within = np.arange(length.sum()) - np.repeat(behind - length, length)
            lists[one.name] = (
                length,
                _values(octets, np.repeat(begin, length) + within * size, order, one.type),
            )
        at = begin + length * size
        number += 1
    return Rows(fields, lists)


def _values(octets: NDArray[np.uint8], at: NDArray[np.int64], order: str, type: str) -> NDArray[Any]:
    """The values that begin at these bytes, (n,)."""
    size = int(type[1])
    taken = octets[at[:, None] + np.arange(size)]
    return np.asarray(taken.view(order + type)[:, 0], type)


def _too_few(path: Path, element: Element, held: str, end: int) -> DataError:
    cause = (
        f"promises {element.rows} rows of element '{element.name}', it holds {held} and ends at byte {end}"
    )
    return DataError(path, cause, "copy it again")
