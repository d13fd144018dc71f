"""What lies in a shard: the place and checksums of each column, and digests of the file."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from ..config import Model
from . import shards
from .checks import chunk_sums, running_of_columns
from .manifest import Column, FileDigest
from .records import Field

Own = str | None
"""Which arrays of samples: an annotation's name, or None for the columns."""


class Digest(Model):
    """Size and CRC32C of every MiB of a file, which find damage, and SHA-256 in hex where it is needed."""

    bytes: int
    sha256: str | None
    crc32c: list[int]


@dataclass(frozen=True)
class Stored:
    """Of each sample in a file: ``rows`` int64 (n,), ``positions``: name -> int64 (n,).

    ``sums``: name -> the running checksums of all samples, one sample behind the other, uint32. ``digest``:
    the file's, None where it was not asked for.
    """

    digest: Digest | None
    rows: NDArray[np.int64]
    positions: dict[str, NDArray[np.int64]]
    sums: dict[str, NDArray[np.uint32]]


def owns(columns: Sequence[Column], annotations: Sequence[Column]) -> list[tuple[Own, dict[str, Field]]]:
    """What shards have files of: the columns, if there are any, and each annotation."""
    together: list[tuple[Own, dict[str, Field]]] = []
    if columns:
        together.append((None, {column.name: column.field() for column in columns}))
    return together + [(one.name, {one.name: one.field()}) for one in annotations]


def digest_of(path: Path) -> FileDigest:
    """The digest of a file. Raises OSError."""
    size, sha256, crc32c = chunk_sums(path)
    return FileDigest(bytes=size, sha256=sha256, crc32c=crc32c)


def stored(path: Path, fields: Mapping[str, Field], digest: Digest | None = None) -> Stored:
    """Look through a finished shard: its columns, or one annotation. ``digest``: its own, if it is known."""
    data, rows, positions = shards.places(path, fields)
    row_bytes = np.array([field.row_bytes for field in fields.values()], np.int64)
    sums = running_of_columns(data, np.stack([*positions.values()]), rows, row_bytes)
    return Stored(digest, rows, positions, dict(zip(fields, sums, strict=True)))
