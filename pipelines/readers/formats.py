"""The formats of raw files: told by how a file begins, and only where that says nothing by its name."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from ...errors import DataError

HEAD = 512
"""Bytes that are looked at: the magic of a tar archive is at 257."""


class Format(NamedTuple):
    """A format: its ``name``, the ``module`` of this folder that reads it, and how it is told.

    ``starts``: (offset, bytes) that a file has; any of them will do. ``suffixes``: in lower case. ``named``:
    a file whose suffix is one of them may lack all that: the format has no magic of its own.
    """

    name: str
    module: str
    suffixes: tuple[str, ...]
    starts: tuple[tuple[int, bytes], ...] = ()
    named: bool = False


FORMATS = (
    Format("LAS", "las", (".las", ".laz"), ((0, b"LASF"),)),
    Format("NPY", "npy", (".npy",), ((0, b"\x93NUMPY"),)),
    Format("IDX", "idx", (), ((0, b"\0\0\x08"), (0, b"\x1f\x8b"))),
)

SUFFIXES = tuple(suffix for format in FORMATS for suffix in format.suffixes)
"""Of files that are built from where none are named."""


def format_of(path: Path) -> Format:
    """The format of a file. Raises DataError for no file, an empty one, and one of no known format."""
    head = _head(path)
    for format in FORMATS:
        if any(head[at : at + len(magic)] == magic for at, magic in format.starts):
            return format
    suffix = path.suffix.lower()
    for format in FORMATS:
        if suffix in format.suffixes:
            if format.named:
                return format
            cause = f"is no {format.name} file, whatever its name says: it starts with {head[:8]!r}"
            raise DataError(path, cause, "copy it again, or name it after what it is")
    known = ", ".join(format.name for format in FORMATS)
    cause = f"is of no format that is read ({known}): it starts with {head[:8]!r}"
    raise DataError(path, cause, "convert it")


def _head(path: Path) -> bytes:
    """The first bytes. Raises DataError where there are none."""
    if path.exists() and not path.is_file():
        raise DataError(path, "is no file", "name a file of points")
    try:
        with path.open("rb") as file:
            head = file.read(HEAD)
    except OSError as error:
        raise DataError(path, f"cannot be read ({error.strerror})", "check the path") from None
    if not head:
        raise DataError(path, "is empty", "copy it again")
    return head
