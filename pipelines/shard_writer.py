"""A shard on its way to the disk: its bytes are summed as they are written, and never read back."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from . import shards
from .checks import CHUNK, ChunkSums, running_of_columns
from .ipc import layout_of
from .records import Field
from .stored import Digest, Stored

_TOGETHER = 2 << 20
"""Bytes of samples that are put together, or one sample: few calls, in memory that is used again."""

Arrays = Mapping[str, NDArray[Any]]


class ShardWriter:
    """Writes the arrays ``fields`` of samples to the file ``path``; a context, that closes it.

    The bytes are the same however the samples come. ``sha256``: whether the digest of the file has one.
    """

    def __init__(self, path: Path, fields: Mapping[str, Field], *, sha256: bool = True) -> None:
        self.path, self.names, self._layout = path, [*fields], layout_of(fields)
        self._rows, self._sums = [np.zeros(0, np.int64)], [np.zeros((len(fields), 0), np.uint32)]
        self._row_bytes = np.array([field.row_bytes for field in fields.values()], np.int64)
        self._chunks, self._sha256 = ChunkSums(), hashlib.sha256() if sha256 else None
        self._file = path.open("wb", buffering=0)
        self._put(memoryview(self._layout.head))

    def __enter__(self) -> ShardWriter:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the file, finished or not."""
        self._file.close()

    def write(self, arrays: Arrays, rows: Sequence[int] | None = None) -> None:
        """Write samples of ``rows``, by default one, that stand one behind the other in ``arrays``.

        Arrays of other names may be among them. Raises ValueError for one of other rows.
        """
        if rows is None:
            rows = [len(arrays[self.names[0]])]
        every = np.array(rows, np.int64)
        ends = np.concatenate([[0], np.cumsum(every)])
        breaks = np.flatnonzero(np.diff(ends[:-1] * self._row_bytes.sum() // _TOGETHER)) + 1
        for first, stop in zip([0, *breaks], [*breaks, len(every)], strict=True):
            own = slice(ends[first], ends[stop])
            self._write({name: arrays[name][own] for name in self.names}, every[first:stop])

    def _write(self, arrays: Arrays, rows: NDArray[np.int64]) -> None:
        lying = self._layout.lying(rows)
        data = self._layout.messages(rows, lying, arrays)
        self._rows.append(rows)
        self._sums.append(running_of_columns(data, lying.columns.T, rows, self._row_bytes))
        self._put(data.data)

    def copy(self, path: Path, there: Stored) -> None:
        """Write the samples of another shard of the same fields, of which is known what lies where.

        Raises OSError where it is shorter than it was.
        """
        first = len(self._layout.head)
        end = first + int(self._layout.lying(there.rows).starts[-1])
        data = memoryview(shards.opened(path)[1])
        if len(data) < end:
            raise OSError(f"{path}: is shorter than what was written to it")
        self._put(data[first:end])
        self._rows.append(there.rows)
        self._sums.append(np.stack([there.sums[name] for name in self.names]))

    def finish(self) -> Stored:
        """End the file; what lies where in it."""
        rows = np.concatenate(self._rows)
        lying = self._layout.lying(rows)
        self._put(memoryview(self._layout.tail(rows, lying)))
        self._file.close()
        positions = np.where(rows > 0, (lying.columns + len(self._layout.head)).T, 0)
        sums = np.concatenate(self._sums, axis=1)
        sha256 = self._sha256.hexdigest() if self._sha256 else None
        return Stored(
            Digest(bytes=self._chunks.bytes, sha256=sha256, crc32c=self._chunks.crc32c),
            rows,
            dict(zip(self.names, positions, strict=True)),
            dict(zip(self.names, sums, strict=True)),
        )

    def _put(self, data: memoryview) -> None:
        for at in range(0, len(data), CHUNK):  # while a cache holds it
            piece = data[at : at + CHUNK]
            self._chunks.add(piece)
            if self._sha256:
                self._sha256.update(piece)
            while piece:
                piece = piece[self._file.write(piece) :]


def write_shard(path: Path, fields: Mapping[str, Field], samples: Iterable[Arrays]) -> Stored:
    """Write one shard of samples that come one by one; what lies where in it."""
    with ShardWriter(path, fields) as shard:
        for arrays in samples:
            shard.write(arrays)
        return shard.finish()
