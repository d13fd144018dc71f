"""Readers: one file in, its clouds out, each a `Scan`; a format a file, as `formats` lists them."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...errors import DataError
from .formats import SUFFIXES, Format, format_of
from .settings import ReadSettings
from .units import check

__all__ = [
    "SUFFIXES",
    "File",
    "ReadSettings",
    "Scan",
    "Source",
    "chunked",
    "files_of",
    "opened",
    "read",
    "rows_of",
    "storable",
]

File = Path | bytes
"""What a source is read from: a file, or its part of a file that others are read from too."""


@dataclass(frozen=True)
class Scan:
    """A cloud of a file: ``xyz`` float64 (n, 3) in its units; ``fields``: name -> (n,) or (n, w).

    ``first``: which point of the file the cloud's first one is. ``annotations``: name -> array with rows of
    its own (boxes, poses, image bytes), positions in it as those of ``xyz``. ``names``: of all fields of the
    file, in their order, from a reader that can leave out some.
    """

    xyz: NDArray[np.float64]
    fields: dict[str, NDArray[Any]]
    first: int = 0
    annotations: dict[str, NDArray[Any]] = field(default_factory=dict)
    names: tuple[str, ...] = ()


@dataclass(frozen=True)
class Source:
    """The clouds of a file.

    ``objects``: each stands for itself; else there is one, a piece of ground. ``files``: those that it was
    read from, the named one first; of a file that many sources share, the bytes that are this one's.
    """

    scans: Sequence[Scan]
    objects: bool
    files: tuple[File, ...]


def read(path: Path, settings: ReadSettings | None = None) -> Scan:
    """Read the one cloud of a file. Raises DataError as `opened` does, and for images."""
    source = opened(path, settings)
    if source.objects:
        raise DataError(path, f"holds {len(source.scans)} images, not one cloud", "build a dataset of them")
    return source.scans[0]


def files_of(path: Path, settings: ReadSettings | None = None) -> tuple[Path, ...]:
    """The files that `opened` reads: for images, that of their labels too. Raises DataError without one."""
    from . import idx

    if settings and settings.function:
        return (path,)
    return (path, idx.labels_of(path)) if format_of(path).module == "idx" else (path,)


def opened(path: Path, settings: ReadSettings | None = None, wanted: Collection[str] | None = None) -> Source:
    """Read a file whole, with every field it has, or with those ``wanted``, which takes less time.

    Fields that are not wanted are there all the same in formats whose reader cannot leave them out. Fields
    keep their name, type and values; ``red``, ``green``, ``blue`` become ``rgb`` (n, 3). `storable` brings
    those that are kept to a type that can be stored.
    Raises DataError, one line with the file and the cause, for whatever is no whole file of points.
    """
    if settings and settings.function:
        from . import user

        return user.opened(path, settings)
    format, settings = format_of(path), settings or ReadSettings()
    check(path, format, settings)
    reader = import_module(f".{format.module}", __name__)
    if format.module == "idx":
        return Source(reader.read(path), True, files_of(path))
    scan: Scan = reader.read(path, settings, *_choice(format, wanted))
    return Source([_whole(scan)], False, (path,))


def chunked(
    path: Path, settings: ReadSettings | None, rows: int, wanted: Collection[str] | None = None
) -> Iterator[Scan] | None:
    """Read a file in pieces of at most ``rows`` points; None where its format cannot be read so.

    The pieces, one at least, make up the cloud of `opened`, value by value, in its order, with the same
    fields; ``first`` says where in it each begins. Memory is taken for about one of them (of LAZ and tables
    also for one of the file's own chunks). Raises DataError as `opened` does, here or with the piece that is
    damaged.
    """
    if settings and settings.function:
        return None
    format, settings = format_of(path), settings or ReadSettings()
    check(path, format, settings)
    reader = import_module(f".{format.module}", __name__)
    if not hasattr(reader, "chunks"):
        return None
    pieces = reader.chunks(path, settings, rows, *_choice(format, wanted))
    return None if pieces is None else _placed(pieces)


def _choice(format: Format, wanted: Collection[str] | None) -> tuple[Collection[str], ...]:
    """What a reader is told of the wanted fields: nothing where they are all, or it cannot leave out any."""
    return () if wanted is None or not format.chooses else (wanted,)


def _placed(pieces: Iterable[Scan]) -> Iterator[Scan]:
    first = 0
    for scan in pieces:
        yield _whole(scan, first)
        first += len(scan.xyz)


def _whole(scan: Scan, first: int = 0) -> Scan:
    """As every reader's scans are to be: points in one array, colours joined."""
    xyz = np.ascontiguousarray(scan.xyz, np.float64)
    return replace(scan, xyz=xyz, fields=join_colours(scan.fields), first=first)


def rows_of(path: Path, settings: ReadSettings | None = None) -> int | None:
    """How many points a file says it holds; None where it does not say, and where `chunked` gives None.

    Of text, which says nothing, the lines are counted: blank ones and comments are no points of `opened`.
    Raises DataError where its bytes cannot hold them.
    """
    if settings and settings.function:
        return None
    format, settings = format_of(path), settings or ReadSettings()
    reader = import_module(f".{format.module}", __name__)
    count: int | None = reader.rows(path, settings) if hasattr(reader, "rows") else None
    return count


def join_colours(fields: dict[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
    """Fields with ``red``, ``green`` and ``blue`` as one, ``rgb`` (n, 3), where they are of one type."""
    parts = [fields.get(name) for name in ("red", "green", "blue")]
    if "rgb" in fields or any(part is None or part.ndim != 1 for part in parts):
        return fields
    if len({part.dtype for part in parts if part is not None}) > 1:
        return fields
    joined: dict[str, NDArray[Any]] = {}
    for name, array in fields.items():
        if name == "red":
            joined["rgb"] = np.stack(parts, axis=1)  # type: ignore[arg-type]
        elif name not in ("green", "blue"):
            joined[name] = array
    return joined


def storable(path: Path, name: str, array: NDArray[Any]) -> NDArray[Any]:
    """Bring a field, (n,) or (n, w), to a type that every Arrow reader knows, without changing a value.

    Little-endian integers and floats of 8 to 64 bits; raises DataError for what is none.
    """
    kind, size = array.dtype.kind, array.dtype.itemsize
    if array.ndim == 2 and array.shape[1] == 1:
        array = array[:, 0]
    if array.ndim > 2 or 0 in array.shape[1:]:
        raise DataError(path, f"field '{name}' has rows of shape {array.shape[1:]}", "store vectors, (n, w)")
    if kind == "b":
        return array.astype(np.uint8)
    if kind == "f" and size == 2:
        return array.astype(np.float32)
    if kind in "iu" or (kind == "f" and size <= 8):
        return np.ascontiguousarray(array, array.dtype.newbyteorder("<"))
    raise DataError(path, f"field '{name}' has type {array.dtype}", "store integers or floats up to 64 bits")
