"""Rows of ascii PLY files: one a line, each value a token."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...errors import DataError
from .ply_header import Element, Rows
from .text_rows import Numbered, bad, block, chunks, number

_Values = dict[str, NDArray[np.float64]]


def read(
    path: Path,
    lines: Iterator[tuple[int, bytes]],
    element: Element,
    wanted: Collection[str],
    exact: Collection[str] = (),
) -> Rows:
    """Read the rows of an element off ``lines``; of its properties, those ``wanted`` are kept.

    ``exact``: kept as float64, whatever their type: many a writer puts more digits behind ``float`` than a
    float holds.
    Raises DataError with the line and the token for what is no number or not of its type, for lines that are
    too short or too long, and for too few of them.
    """
    keeps = [one for one in element.properties if one.name in wanted]
    values: dict[str, list[NDArray[np.float64]]] = {one.name: [] for one in keeps}
    lengths: dict[str, list[NDArray[np.float64]]] = {one.name: [] for one in keeps if one.length}
    rows, last = 0, 0
    for chunk in chunks(lines, element.rows if element.properties else 0):
        some, counts = _even(chunk, element) or _uneven(path, chunk, element)
        rows, last = rows + len(chunk), chunk[-1][0]
        for name, parts in values.items():
            parts.append(some[name])
        for name, parts in lengths.items():
            parts.append(counts[name])
    if element.properties and rows < element.rows:
        cause = f"promises {element.rows} rows of element '{element.name}', it holds {rows}"
        raise DataError(path, cause + (f" (the last in line {last})" if rows else ""), "copy it again")
    fields: dict[str, NDArray[Any]] = {}
    lists: dict[str, tuple[NDArray[Any], NDArray[Any]]] = {}
    for one in keeps:
        typed = _joined(values[one.name], "f8" if one.name in exact else one.type)
        if one.length:
            lists[one.name] = _joined(lengths[one.name], "i8"), typed
        else:
            fields[one.name] = typed
    return Rows(fields, lists)


def _joined(parts: list[NDArray[np.float64]], type: str) -> NDArray[Any]:
    return np.concatenate([np.empty(0), *parts]).astype(type)


def _even(chunk: Numbered, element: Element) -> tuple[_Values, _Values] | None:
    """The values of lines that are all cut alike, and the lengths of their lists; None for others."""
    table = block([line for _, line in chunk])
    if table is None:
        return None
    values: _Values = {}
    lengths: _Values = {}
    at = 0
    for one in element.properties:
        if at >= table.shape[1]:
            return None
        if one.length is None:
            values[one.name] = table[:, at]
        else:
            length = lengths[one.name] = table[:, at]
            many = table[0, at]
            if not (length == many).all() or not 0 <= many < table.shape[1] - at:
                return None
            values[one.name] = table[:, at + 1 : at + 1 + int(many)].ravel()
            if int(many) != many:
                return None
            at += int(many)
        if not _fits(values[one.name], one.type).all():
            return None
        at += 1
    return (values, lengths) if at == table.shape[1] else None


def _uneven(path: Path, chunk: Numbered, element: Element) -> tuple[_Values, _Values]:
    """As `_even`, token by token."""
    values: dict[str, list[float]] = {one.name: [] for one in element.properties}
    lengths: dict[str, list[int]] = {one.name: [] for one in element.properties if one.length}
    for line, text in chunk:
        tokens = text.split()
        at = 0
        for one in element.properties:
            many = 1
            if one.length is not None:
                many = int(_typed(path, line, tokens[at], one.name, one.length)) if at < len(tokens) else 0
                at += 1
                if many < 0:
                    raise bad(path, line, f"list '{one.name}' has length {many}")
                lengths[one.name].append(many)
            if at + many > len(tokens):
                raise bad(path, line, f"ends before its '{one.name}', it has {len(tokens)} values")
            values[one.name] += [
                _typed(path, line, token, one.name, one.type) for token in tokens[at : at + many]
            ]
            at += many
        if at < len(tokens):
            raise bad(path, line, f"goes on with {tokens[at][:40]!r} after its {at} values")
    return (
        {name: np.array(some, np.float64) for name, some in values.items()},
        {name: np.array(some, np.float64) for name, some in lengths.items()},
    )


def _typed(path: Path, line: int, token: bytes, name: str, type: str) -> float:
    value = number(path, line, token)
    if not _fits(np.array([value]), type)[0]:
        raise bad(path, line, f"{token[:40]!r} is no value of '{name}', which is {np.dtype(type).name}")
    return value


def _fits(values: NDArray[np.float64], type: str) -> NDArray[np.bool_]:
    """Which values a type holds, whole numbers exactly and floats to their nearest."""
    if type[0] == "f":
        return np.isinf(values) | ~(np.abs(values) > np.finfo(type).max)
    info = np.iinfo(type)
    return np.asarray((values >= info.min) & (values <= info.max) & (np.floor(values) == values))
