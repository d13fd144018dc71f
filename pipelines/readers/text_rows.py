"""Numbers in lines of text, checked one by one where they are not all as they should be."""

from __future__ import annotations

import io
import logging
import re
from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import BinaryIO

import numpy as np
from numpy.typing import NDArray

from ...errors import DataError

log = logging.getLogger(__name__)

Numbered = list[tuple[int, bytes]]
"""Lines with their numbers in the file."""

CHUNK = 1 << 16
"""Lines that are parsed at once."""

_NAN = re.compile(rb"[+-]?nan(\([a-z]*\))?", re.IGNORECASE)
"""As C libraries write it: "-nan", "nan(ind)"."""


def numbered(file: BinaryIO, newline: bytes = b"\n", behind: int = 0) -> Iterator[tuple[int, bytes]]:
    """The lines of ``file`` that are not blank, from where it is; ``behind``: how many have been read."""
    lines = file if newline == b"\n" else io.BytesIO(file.read().replace(newline, b"\n"))
    return ((number, line) for number, line in enumerate(lines, behind + 1) if not line.isspace())


def chunks(lines: Iterator[tuple[int, bytes]], rows: int) -> Iterator[Numbered]:
    """The next ``rows`` lines, or those that are left, some at once."""
    while rows > 0 and (chunk := list(islice(lines, min(rows, CHUNK)))):
        rows -= len(chunk)
        yield chunk


def block(lines: Sequence[bytes]) -> NDArray[np.float64] | None:
    """The numbers of lines that all have equally many, float64 (n, w); None where they are not so."""
    if not lines or not lines[0].strip():
        return None
    try:
        table = np.loadtxt(lines, ndmin=2, comments=None)
    except ValueError:
        return None
    return table if len(table) == len(lines) else None


def number(path: Path, line: int, token: bytes) -> float:
    """The value of a token. Raises DataError with the line and the token where it is no number."""
    try:
        if b"_" not in token:
            return float(token)
    except ValueError:
        if _NAN.fullmatch(token):
            return float("nan")
    comma = ", write decimals with a point" if b"," in token else ""
    raise bad(path, line, f"{token[:40]!r} is no number{comma}")


def ends(path: Path, file: BinaryIO) -> None:
    """Warn of a file whose last line has no end: its last number may have lost digits."""
    file.seek(-1, 2)
    if file.read(1) not in b"\r\n":
        log.warning("%s: its last line has no end: if it was cut there, its last number is wrong", path)


def bad(path: Path, line: int, what: str) -> DataError:
    """An error in a line of text."""
    return DataError(path, f"line {line}: {what}", "mend that line, or write the file again")
