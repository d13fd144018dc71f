"""The shards of one part: each of one split, none larger than it may be."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from . import shards
from .checks import file_sha256
from .journal import Journal, PartFile, PartSample, temporary
from .manifest import Column
from .shard_writer import ShardWriter
from .stored import Stored, owns

Arrays = Mapping[str, NDArray[Any]]


class _Shard:
    """One shard: its samples, their bytes, and a writer of each of its files."""

    def __init__(self, split: str, files: list[ShardWriter]) -> None:
        self.split, self.files = split, files
        self.samples: list[PartSample] = []
        self.bytes = 0
        self.stored: list[Stored] = []

    def write(self, samples: Sequence[PartSample], columns: Arrays, annotations: Sequence[Arrays]) -> None:
        """Write samples: their ``columns`` one behind the other, the ``annotations`` of each."""
        rows = {name: [sample.rows for sample in samples] for name in columns}
        rows |= {name: [len(own[name]) for own in annotations] for name in annotations[0]}
        beside = {name: np.concatenate([own[name] for own in annotations]) for name in annotations[0]}
        for file in self.files:
            file.write({**columns, **beside}, rows[file.names[0]])
        self.samples += samples

    def end(self, limit: int) -> None:
        """End the files. One that stays a shard needs a SHA-256; others are packed, and read for it then."""
        self.stored = [file.finish() for file in self.files]
        if shards.stays_alone(self.bytes, limit):
            self.stored = [
                _with_sha256(one, file.path) for one, file in zip(self.stored, self.files, strict=True)
            ]


def _with_sha256(stored: Stored, path: Path) -> Stored:
    assert stored.digest is not None  # it was just written
    return replace(stored, digest=stored.digest.model_copy(update={"sha256": file_sha256(path)}))


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
        self._owns = owns(columns, annotations)
        self._row_bytes = sum(column.field().row_bytes for column in columns)
        self._all: list[_Shard] = []
        self._open: dict[str, _Shard] = {}

    def __enter__(self) -> PartWriter:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is not None:
            for shard in self._all:
                for file in shard.files:
                    file.close()
                    file.path.unlink(missing_ok=True)

    @property
    def temporary(self) -> list[Path]:
        """All files that were written, in the order of `Journal.paths`."""
        return [file.path for shard in self._all for file in shard.files]

    def add(self, samples: Sequence[PartSample], columns: Arrays, annotations: Sequence[Arrays]) -> None:
        """Write samples of one split: their ``columns`` one behind the other, the ``annotations`` of each."""
        sizes = [
            sample.rows * self._row_bytes + sum(values.nbytes for values in own.values())
            for sample, own in zip(samples, annotations, strict=True)
        ]
        ends = np.cumsum([0, *(sample.rows for sample in samples)]).tolist()
        first = 0
        while first < len(samples):
            shard = self._with_room(samples[first].split, sizes[first])
            stop = first
            while stop < len(samples) and (stop == first or shard.bytes + sizes[stop] <= self._limit):
                shard.bytes += sizes[stop]
                stop += 1
            own = {name: values[ends[first] : ends[stop]] for name, values in columns.items()}
            shard.write(samples[first:stop], own, annotations[first:stop])
            first = stop

    def close(self) -> tuple[list[PartFile], list[list[Stored]]]:
        """End the files: what is recorded of them, and what lies where in them."""
        for shard in self._open.values():
            shard.end(self._limit)
        self._open = {}
        files = [
            PartFile(
                split=shard.split,
                samples=shard.samples,
                digests=[one.digest for one in shard.stored if one.digest],
            )
            for shard in self._all
        ]
        return files, [shard.stored for shard in self._all]

    def _with_room(self, split: str, size: int) -> _Shard:
        """The open shard of a split, or one that begins if ``size`` bytes more were too many."""
        before = self._open.get(split)
        if before and before.bytes + size <= self._limit:
            return before
        if before:
            self._open.pop(split).end(self._limit)
        shard = self._open[split] = _Shard(split, [])
        self._all.append(shard)
        for own, fields in self._owns:
            path = temporary(self._journal.path(self._source, len(self._all) - 1, own))
            shard.files.append(ShardWriter(path, fields, sha256=False))
        return shard
