"""Rows of numbers in text: each column as integers where it holds nothing else, as floats otherwise.

Correctly rounded: a decimal number of at most 2^53 times or over a power of ten up to 22 is one exact float
operation (Clinger 1990); Arrow's conversion reads the others.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import pyarrow as pa
import pyarrow.csv as arrow_csv
from numba import njit
from numpy.typing import NDArray

from ...errors import DataError

CHUNK = 1 << 22
"""Bytes that are parsed at once. No line is longer."""

_POWERS = 10.0 ** np.arange(23)
_NO_NUMBER, _WRONG_COUNT = 1, 2


@dataclass
class Table:
    """What was read: ``columns``, int64 or float64 (n,); ``empty``: cells of no character, NaN there."""

    columns: list[NDArray[Any]]
    empty: int = 0


@dataclass
class _Parts:
    """The parts of a column, int64 until one holds another number."""

    real: bool = False
    arrays: list[NDArray[Any]] = field(default_factory=list)

    def add(self, bits: NDArray[np.int64], real: bool) -> None:
        if real and not self.real:
            self.arrays = [array.astype(np.float64) for array in self.arrays]
        self.real = real
        self.arrays.append(bits.view(np.float64).copy() if real else bits.copy())

    def whole(self) -> NDArray[Any]:
        kind = np.float64 if self.real else np.int64
        whole = np.concatenate(self.arrays) if self.arrays else np.empty(0, kind)
        self.arrays.clear()
        return whole


def parsed(path: Path, file: BinaryIO, width: int, delimiter: str, line: int) -> Table:
    """Read the rest of ``file``: rows of ``width`` numbers, the first on line ``line``.

    ``delimiter``: one character, or "" for any number of blanks and tabs. Blank lines and those that start
    with # or // are passed over. Raises DataError, with line and token, for what is no number and for another
    number of columns; with the line where one is longer than `CHUNK`.
    """
    parts = [_Parts() for _ in range(width)]
    real, empty = np.zeros(width, np.bool_), 0
    for bits, empties in blocks(path, file, width, delimiter, line, real):
        for column, own in enumerate(parts):
            own.add(bits[column], bool(real[column]))
        empty += empties
    return Table([own.whole() for own in parts], empty)


def blocks(
    path: Path, file: BinaryIO, width: int, delimiter: str, line: int, real: NDArray[np.bool_]
) -> Iterator[tuple[NDArray[np.int64], int]]:
    """As `parsed`, a few rows at a time: the bits of their numbers, int64 (width, n), and how many are empty.

    They are those of float64 where ``real``, (width,), says so of a column; it is set as the numbers need it.
    """
    mark = ord(delimiter) if delimiter else 0
    for text in _lines(path, file, line):
        # A row takes a byte for each of its numbers at least, however many blank lines there are.
        rows = min(int(np.count_nonzero(text == 10)), len(text) // width) + 1
        bits = np.empty((width, rows), np.int64)
        hard = np.empty(width * rows, np.int64)
        counts = _parse(text, width, mark, _POWERS, bits, bits.view(np.float64), real, hard)
        n, lines, hards, empties, fault, start, end, found = counts
        if fault:
            token = text[start:end].tobytes()
            raise _refused(path, line + lines - 1, token, fault, found, width)
        _read_hard(text, bits, hard[:hards])
        yield bits[:, :n], empties
        line += lines


def _lines(path: Path, file: BinaryIO, line: int) -> Iterator[NDArray[np.uint8]]:
    """Whole lines of at most about `CHUNK` bytes together."""
    rest = b""
    while data := file.read(CHUNK):
        cut = data.rfind(b"\n") + 1
        if cut:
            text = rest + data[:cut]
            yield np.frombuffer(text, np.uint8)
            line += text.count(b"\n")
            rest = data[cut:]
        else:
            rest += data
            if len(rest) > CHUNK:
                cause = f"line {line} has more than {CHUNK} characters"
                raise DataError(path, cause, "write a point a line")
    if rest:
        yield np.frombuffer(rest, np.uint8)


def _read_hard(text: NDArray[np.uint8], bits: NDArray[np.int64], hard: NDArray[np.int64]) -> None:
    """Read the numbers whose place in the text stands where their value belongs."""
    if not len(hard):
        return
    flat = bits.reshape(-1)
    firsts, lasts = flat[hard] >> 32, flat[hard] & 0xFFFFFFFF
    lines = np.empty(int((lasts - firsts).sum()) + len(hard), np.uint8)
    _gather(text, firsts, lasts, lines)
    table = arrow_csv.read_csv(
        pa.BufferReader(lines),
        arrow_csv.ReadOptions(column_names=["number"], use_threads=False),
        convert_options=arrow_csv.ConvertOptions(column_types={"number": pa.float64()}),
    )
    # Not to_numpy(), which imports pandas where that is installed: a second.
    flat.view(np.float64)[hard] = np.concatenate([np.from_dlpack(part) for part in table["number"].chunks])


def _refused(path: Path, line: int, token: bytes, fault: int, found: int, width: int) -> DataError:
    shown = shown_token(token)
    if fault == _WRONG_COUNT:
        cause = f"line {line} has {found} columns, not {width} ({shown})"
        return DataError(path, cause, "mend that line")
    fix = "write decimal points, not commas" if b"," in token else "mend that line"
    return DataError(path, f"line {line}: {shown} in column {found + 1} is no number", fix)


def shown_token(token: bytes) -> str:
    """A piece of a file as it can be printed on a line, at most 40 characters of it."""
    text = token.decode("utf-8", "backslashreplace")
    return repr(text if len(text) <= 40 else text[:37] + "...")


@njit(cache=True, nogil=True, error_model="numpy")
def _gather(text: Any, firsts: Any, lasts: Any, lines: Any) -> None:
    to = 0
    for i in range(len(firsts)):
        for at in range(firsts[i], lasts[i]):
            lines[to] = text[at]
            to += 1
        lines[to] = 10
        to += 1


@njit(cache=True, nogil=True, error_model="numpy")
def _parse(
    text: Any, width: int, mark: int, powers: Any, bits: Any, values: Any, real: Any, hard: Any
) -> Any:
    """Parse whole lines into ``bits`` (width, rows) or its float view ``values``, as ``real`` says of each.

    A column that turns real takes its rows so far along. Returns rows, lines, how many numbers are left to
    ``hard``, empty cells, the fault (0: none), the first and the end byte that it names, and its column.
    """
    n, at, row, line, hards, empty = len(text), 0, 0, 0, 0, 0
    while at < n:
        start = at
        while at < n and text[at] != 10:
            at += 1
        stop = at
        at += 1
        line += 1
        while start < stop and _blank(text[start], mark):
            start += 1
        while stop > start and _blank(text[stop - 1], mark):
            stop -= 1
        if start == stop or text[start] == 35:
            continue
        if stop - start > 1 and text[start] == 47 and text[start + 1] == 47:
            continue
        column, to = 0, start
        while to <= stop:
            first = to
            if mark:
                while to < stop and text[to] != mark:
                    to += 1
                last = to
                to += 1
                while first < last and _blank(text[first], mark):
                    first += 1
                while last > first and _blank(text[last - 1], mark):
                    last -= 1
            else:
                while to < stop and not _blank(text[to], mark):
                    to += 1
                last = to
                to += 1
                while to < stop and _blank(text[to], mark):
                    to += 1
            if column < width:
                if last - first > 1 and text[first] == 34 and text[last - 1] == 34:
                    first, last = first + 1, last - 1
                kind, whole, value = _number(text, first, last, powers)
                if kind == 0:
                    return row, line, hards, empty, 1, first, last, column
                if kind > 1 and not real[column]:
                    real[column] = True
                    for i in range(row):
                        values[column, i] = np.float64(bits[column, i])
                if not real[column]:
                    bits[column, row] = whole
                elif kind == 3:
                    bits[column, row] = (np.int64(first) << 32) | np.int64(last)
                    hard[hards] = np.int64(column) * bits.shape[1] + row
                    hards += 1
                else:
                    values[column, row] = value
                    empty += first == last
            column += 1
        if column != width:
            return row, line, hards, empty, 2, start, stop, column
        row += 1
    return row, line, hards, empty, 0, 0, 0, 0


@njit(cache=True, nogil=True, error_model="numpy")
def _blank(byte: int, mark: int) -> bool:
    return byte == 32 or byte == 13 or (byte == 9 and mark != 9)


@njit(cache=True, nogil=True, error_model="numpy")
def _number(text: Any, first: int, last: int, powers: Any) -> Any:
    """(kind, integer, float) of a token: no number (0), an integer (1), a float (2), read elsewhere (3)."""
    at, negative = first, False
    if at == last:
        return 2, np.int64(0), np.nan
    if text[at] == 45 or text[at] == 43:
        negative = text[at] == 45
        at += 1
    digits, point, power, too_long = 0, False, 0, False
    mantissa = np.int64(0)
    while at < last:
        byte = np.int64(text[at])
        if 48 <= byte <= 57:
            digits += 1
            digit = byte - 48
            if mantissa < 922337203685477580 or (mantissa == 922337203685477580 and digit <= 7):
                mantissa = mantissa * 10 + digit
                power -= point
            else:
                too_long = True
        elif byte == 46 and not point:
            point = True
        else:
            break
        at += 1
    if digits == 0:
        return _word(text, at, last, negative, point)
    exponent: Any = 0
    exact = at == last and not point
    if at < last:
        if text[at] | 32 != 101:
            return 0, np.int64(0), 0.0
        at += 1
        below = False
        if at < last and (text[at] == 45 or text[at] == 43):
            below = text[at] == 45
            at += 1
        if at == last:
            return 0, np.int64(0), 0.0
        while at < last:
            byte = np.int64(text[at])
            if byte < 48 or byte > 57:
                return 0, np.int64(0), 0.0
            exponent = min(exponent * 10 + byte - 48, 100000)
            at += 1
        power += -exponent if below else exponent
    if too_long:
        return 3, np.int64(0), 0.0
    if exact and not (negative and mantissa == 0):
        whole = -mantissa if negative else mantissa
        return 1, whole, np.float64(whole)
    value = np.float64(mantissa)
    if mantissa != 0:
        if mantissa > 9007199254740992 or power < -22 or power > 22:
            return 3, np.int64(0), 0.0
        value = value / powers[-power] if power < 0 else value * powers[power]
    return 2, np.int64(0), -value if negative else value


@njit(cache=True, nogil=True, error_model="numpy")
def _word(text: Any, at: int, last: int, negative: bool, point: bool) -> Any:
    """nan, inf and infinity, in any case, and C's nan(ind)."""
    size = last - at
    if not point and size >= 3:
        a, b, c = text[at] | 32, text[at + 1] | 32, text[at + 2] | 32
        tagged = size > 4 and text[at + 3] == 40 and text[last - 1] == 41
        if (size == 3 or tagged) and a == 110 and b == 97 and c == 110:
            return 2, np.int64(0), np.nan
        if a == 105 and b == 110 and c == 102:
            whole = size == 8
            if whole:
                for i, letter in enumerate((105, 110, 105, 116, 121)):
                    whole = whole and text[at + 3 + i] | 32 == letter
            if size == 3 or whole:
                return 2, np.int64(0), -np.inf if negative else np.inf
    return 0, np.int64(0), 0.0
