"""What lies in a finished shard, read back from it: digests, and the place and checksums of each column."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from . import shards
from .checks import chunk_sums, running_of_samples
from .manifest import Column, FileDigest
from .records import Field

Own = str | None
"""Which arrays of samples: an annotation's name, or None for the columns."""


@dataclass(frozen=True)
class Stored:
    """A file's digest, and of each sample in it: ``rows`` int64 (n,), ``positions``: name -> int64 (n,).

    ``sums``: name -> the running checksums of all samples, one sample behind the other, uint32.
    """

    digest: FileDigest
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


def stored(path: Path, fields: Mapping[str, Field], digest: FileDigest | None = None) -> Stored:
    """Look through a finished shard: its columns, or one annotation. ``digest``: its own, if it is known."""
    data, rows, positions = shards.places(path, fields)
    sums = {
        name: running_of_samples(data, positions[name], rows, field.row_bytes)
        for name, field in fields.items()
    }
    return Stored(digest or digest_of(path), rows, positions, sums)


def packed(path: Path, fields: Mapping[str, Field], parts: Sequence[Stored]) -> Stored:
    """Look through a shard that was packed of others, whose samples' sums are known."""
    _, rows, positions = shards.places(path, fields)
    sums = {name: np.concatenate([part.sums[name] for part in parts]) for name in fields}
    return Stored(digest_of(path), rows, positions, sums)
