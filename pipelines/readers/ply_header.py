"""The header of PLY files (Turk, "The PLY Polygon File Format", 1994): what elements there are, and where."""

from __future__ import annotations

from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

from numpy.typing import NDArray

from ...errors import DataError

LARGEST = 1 << 20
"""Bytes that a header may have: some writers put reports into its comments."""

_OLD = ("char", "uchar", "short", "ushort", "int", "uint", "float", "double")
_NEW = ("int8", "uint8", "int16", "uint16", "int32", "uint32", "float32", "float64")
_CODES = ("i1", "u1", "i2", "u2", "i4", "u4", "f4", "f8")
TYPES = dict(zip(_OLD + _NEW, _CODES * 2, strict=True))
"""Both naming schemes -> numpy's, without a byte order."""

_ORDERS = {"ascii": "", "binary_little_endian": "<", "binary_big_endian": ">"}


class Property(NamedTuple):
    """A property: its type, one of `TYPES`' values; ``length``: that of a list's length, None for no list."""

    name: str
    type: str
    length: str | None


class Element(NamedTuple):
    """An element: ``rows`` of it are promised, each with ``properties``."""

    name: str
    rows: int
    properties: list[Property]

    @property
    def lists(self) -> list[Property]:
        """Those of its properties that are lists."""
        return [one for one in self.properties if one.length is not None]


class Rows(NamedTuple):
    """What was wanted of an element: ``fields``: name -> (n,); ``lists``: name -> (lengths (n,), values)."""

    fields: dict[str, NDArray[Any]]
    lists: dict[str, tuple[NDArray[Any], NDArray[Any]]]


class Header(NamedTuple):
    """``order``: "<" or ">", "" for ascii; ``lines``: how many there are; ``newline``: what ends each."""

    order: str
    elements: list[Element]
    lines: int
    newline: bytes

    def element(self, name: str) -> Element | None:
        """The element of a name, if there is one."""
        return next((one for one in self.elements if one.name == name), None)


def parse(path: Path, file: BinaryIO) -> Header:
    """Read the header and leave ``file`` at the first byte behind it.

    Lines end as the first one does: with LF, CR LF or CR. Blank lines, comments and obj_info are passed over,
    whatever they hold. Raises DataError with the line for what is no header.
    """
    head = file.read(LARGEST)
    newline = _newline(head)
    order: str | None = None
    elements: list[Element] = []
    named: set[tuple[int, str]] = set()  # the elements themselves under 0, their properties under 1, 2, ...
    start = number = 0
    while (end := head.find(newline, start)) >= 0:
        number += 1
        line, start = head[start:end].strip(), end + 1
        words = line.split()
        if number == 1 or not words or words[0] in (b"comment", b"obj_info"):
            continue
        try:
            text = [word.decode() for word in words]
        except UnicodeDecodeError:
            raise _bad(path, number, f"{line[:80]!r} is not UTF-8") from None
        if text == ["end_header"]:
            if order is None:
                raise _bad(path, number, "the header ends without a 'format' line")
            file.seek(start)
            return Header(order, elements, number, newline)
        if text[0] == "format":
            if order is not None:
                raise _bad(path, number, "a second 'format'")
            order = _order(path, number, text)
        elif text[0] == "element":
            elements.append(_element(path, number, text))
        elif text[0] == "property":
            if not elements:
                raise _bad(path, number, "a 'property' before any 'element'")
            elements[-1].properties.append(_property(path, number, text))
        else:
            raise _bad(path, number, f"'{_short(text[0])}' is no word of a PLY header")
        if text[0] != "format":
            name = (len(elements) if text[0] == "property" else 0, text[-1 if text[0] == "property" else 1])
            if name in named:
                raise _bad(path, number, f"a second {text[0]} '{_short(name[1])}'")
            named.add(name)
    cause = f"has no line 'end_header' in its first {len(head)} bytes"
    raise DataError(path, cause, "copy it again")


def _newline(head: bytes) -> bytes:
    """CR only where the first line ends with it alone: CR LF is LF after a blank that is stripped."""
    ends = [at for at in (head.find(b"\n"), head.find(b"\r")) if at >= 0]
    first = min(ends, default=0)
    return b"\r" if head[first : first + 1] == b"\r" and head[first + 1 : first + 2] not in b"\r\n" else b"\n"


def _order(path: Path, number: int, words: list[str]) -> str:
    if len(words) != 3 or words[1] not in _ORDERS or words[2] != "1.0":
        known = ", ".join(_ORDERS)
        raise _bad(path, number, f"'{_short(' '.join(words))}' is no known format ({known}; 1.0)")
    return _ORDERS[words[1]]


def _element(path: Path, number: int, words: list[str]) -> Element:
    if len(words) != 3 or not (words[2].isascii() and words[2].isdigit() and len(words[2]) < 19):
        raise _bad(path, number, f"'{_short(' '.join(words))}' is not 'element NAME ROWS'")
    return Element(words[1], int(words[2]), [])


def _property(path: Path, number: int, words: list[str]) -> Property:
    is_list = words[1:2] == ["list"]
    types = words[2:-1] if is_list else words[1:-1]
    if len(types) != (2 if is_list else 1):
        raise _bad(path, number, f"'{_short(' '.join(words))}' is no property: it needs a type and a name")
    for word in types:
        if word not in TYPES:
            raise _bad(path, number, f"'{_short(word)}' is no type of PLY ({', '.join(TYPES)})")
    if is_list and TYPES[types[0]][0] == "f":
        raise _bad(path, number, f"the length of a list cannot be '{types[0]}'")
    return Property(words[-1], TYPES[types[-1]], TYPES[types[0]] if is_list else None)


def _short(text: str) -> str:
    return text if len(text) <= 60 else f"{text[:60]}..."


def _bad(path: Path, number: int, what: str) -> DataError:
    return DataError(path, f"line {number} of its header: {what}", "copy it again, or mend that line")
