"""What lies in a finished shard, read back from it: digests, and the place and checksums of each column."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from . import shards
from .checks import chunk_sums
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
    found = [*shards.locate(path, fields)]
    return Stored(
        digest or digest_of(path),
        np.array([rows for rows, _, _ in found], np.int64),
        {name: np.array([at[name] for _, at, _ in found], np.int64) for name in fields},
        {name: _joined([sums[name] for _, _, sums in found]) for name in fields},
    )


def packed(path: Path, fields: Mapping[str, Field], parts: Sequence[Stored]) -> Stored:
    """Look through a shard that was packed of others, whose samples' sums are known."""
    found = [*shards.buffers(path, fields)]
    return Stored(
        digest_of(path),
        np.array([rows for rows, _ in found], np.int64),
        {name: np.array([at[name][0] for _, at in found], np.int64) for name in fields},
        {name: _joined([part.sums[name] for part in parts]) for name in fields},
    )


def _joined(sums: list[NDArray[np.uint32]]) -> NDArray[np.uint32]:
    return np.concatenate([np.zeros(0, np.uint32), *sums])
