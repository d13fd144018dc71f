"""The shards of one part: each of one split, none larger than it may be."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple

import pyarrow as pa
from numpy.typing import NDArray

from . import shards
from .journal import Journal, PartFile, PartSample, temporary
from .manifest import Column
from .stored import Stored, owns, stored

_BUFFERED = 1 << 20


class _Sink(NamedTuple):
    """An Arrow file that is being written."""

    path: Path
    file: Any
    writer: Any

    def close(self) -> None:
        self.writer.close()
        self.file.close()


class _Shard:
    """One shard: its samples, their bytes, and a sink of each of its files."""

    def __init__(self, split: str, sinks: list[_Sink]) -> None:
        self.split, self.sinks = split, sinks
        self.samples: list[PartSample] = []
        self.bytes = 0


class PartWriter:
    """Writes the samples of ``source`` to shards of at most ``limit`` bytes, or one sample.

    The files have temporary names, `temporary`; nothing stays of a part that fails.
    """

    def __init__(
        self,
        journal: Journal,
        source: str,
        columns: Sequence[Column],
        annotations: Sequence[Column],
        limit: int,
    ) -> None:
        self._journal, self._source, self._limit = journal, source, limit
        self._owns = [
            (own, fields, shards.arrow_schema(fields)) for own, fields in owns(columns, annotations)
        ]
        self._all: list[_Shard] = []
        self._open: dict[str, _Shard] = {}

    def __enter__(self) -> PartWriter:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is not None:
            for shard in self._open.values():
                for sink in shard.sinks:
                    sink.file.close()
            for path in self.temporary:
                path.unlink(missing_ok=True)

    @property
    def temporary(self) -> list[Path]:
        """All files that were written, in the order of `Journal.paths`."""
        return [sink.path for shard in self._all for sink in shard.sinks]

    def add(self, sample: PartSample, arrays: Mapping[str, NDArray[Any]]) -> None:
        """Write a sample: its columns and annotations."""
        size = sum(arrays[name].nbytes for _, fields, _ in self._owns for name in fields)
        shard = self._open.get(sample.split)
        if shard is None or (shard.samples and shard.bytes + size > self._limit):
            shard = self._begin(sample.split)
        for sink, (_, _, schema) in zip(shard.sinks, self._owns, strict=True):
            sink.writer.write_batch(shards.to_batch(schema, arrays))
        shard.samples.append(sample)
        shard.bytes += size

    def close(self) -> tuple[list[PartFile], list[list[Stored]]]:
        """End the files and look through them."""
        for shard in self._open.values():
            for sink in shard.sinks:
                sink.close()
        self._open = {}
        files, found = [], []
        for shard in self._all:
            own = [
                stored(sink.path, fields)
                for sink, (_, fields, _) in zip(shard.sinks, self._owns, strict=True)
            ]
            files.append(
                PartFile(split=shard.split, samples=shard.samples, digests=[one.digest for one in own])
            )
            found.append(own)
        return files, found

    def _begin(self, split: str) -> _Shard:
        before = self._open.pop(split, None)
        if before is not None:
            for sink in before.sinks:
                sink.close()
        shard = self._open[split] = _Shard(split, [])
        self._all.append(shard)
        for own, _, schema in self._owns:
            path = temporary(self._journal.path(self._source, len(self._all) - 1, own))
            # Each column of a sample would be a call of the system for itself.
            file = pa.BufferedOutputStream(pa.OSFile(str(path), "wb"), _BUFFERED)
            shard.sinks.append(_Sink(path, file, pa.ipc.new_file(file, schema)))
        return shard
