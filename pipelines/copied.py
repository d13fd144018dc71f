"""Whole samples of datasets, read to be written again: every byte that is taken is checked."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from crc32c import crc32c
from numpy.typing import NDArray

from ..errors import system_error
from .checks import blocks
from .dataset import Dataset
from .journal import PartSample
from .members import Member


class Copied:
    """The arrays ``names`` of a dataset's samples; a context, in which one file of each kind is open.

    The columns of a sample lie side by side, and so do those of the sample after it: they come in one read.
    """

    def __init__(self, dataset: Dataset, names: Sequence[str]) -> None:
        self._dataset = dataset
        own = [[name for name in names if name in dataset.schema]]
        own += [[name] for name in names if name in dataset.annotations]
        self._groups = [group for group in own if group]
        self._row_bytes = {name: dataset.fields[name].row_bytes for name in names}
        self._checks = dataset.checks
        self._open: dict[str, tuple[int, int]] = {}  # first name of the group -> shard, file

    def __enter__(self) -> Copied:
        return self

    def __exit__(self, *_: object) -> None:
        for _shard, fd in self._open.values():
            os.close(fd)
        self._open.clear()

    def arrays(self, row: int) -> dict[str, NDArray[Any]]:
        """The arrays of a sample, of the dataset's dtypes and shapes.

        Raises DataError, with the offset, for damage.
        """
        found: dict[str, NDArray[Any]] = {}
        for group in self._groups:
            found |= self._group(row, group)
        return found

    def _group(self, row: int, names: Sequence[str]) -> dict[str, NDArray[Any]]:
        """Columns that lie in one file."""
        dataset = self._dataset
        rows = int(dataset.rows_of(names[0])[row])
        if not rows:
            return {name: dataset.fields[name].empty(0) for name in names}
        starts = [int(dataset.positions[name][row]) for name in names]
        ends = [start + rows * self._row_bytes[name] for name, start in zip(names, starts, strict=True)]
        first = min(starts)
        data = np.empty(max(ends) - first, np.uint8)
        try:
            whole = self._read(row, names[0], data, first)
        except OSError as error:
            path = dataset.shard_path(int(dataset.shard[row]), names[0])
            raise system_error(OSError(error.errno, error.strerror), path) from None
        last = int(dataset.block_of(names[0])[row]) + blocks(rows) - 1
        found = {}
        for name, start, end in zip(names, starts, ends, strict=True):
            own, field = data[start - first : end - first], dataset.fields[name]
            if whole and crc32c(own.data) == self._checks[name][last]:
                found[name] = own.view(field.dtype).reshape(field.shape(rows))
            else:  # this says where it is damaged
                sample = dataset.sample(row, [name])
                found[name] = {**sample.columns, **sample.annotations}[name]
        return found

    def _read(self, row: int, name: str, data: NDArray[np.uint8], position: int) -> bool:
        """Fill ``data`` from the file of a sample's ``name``; whether there was as much."""
        shard = int(self._dataset.shard[row])
        known, fd = self._open.get(name, (-1, -1))
        if known != shard:
            self._open.pop(name, None)
            if fd >= 0:
                os.close(fd)
            fd = os.open(self._dataset.shard_path(shard, name), os.O_RDONLY)
            self._open[name] = shard, fd
        taken = 0
        while taken < len(data) and (got := os.preadv(fd, [data[taken:].data], position + taken)):
            taken += got
        return taken == len(data)


def members(dataset: Dataset) -> list[Member]:
    """What the dataset says of its samples beside their arrays, in the order of its index."""
    keys = ("split", "tile", "rows", "origin", "bounds", "label")
    said = dataset.samples.to_pydict() | {"rows": dataset.rows.tolist()}
    samples = zip(*(said[key] for key in keys), strict=True)
    return [
        # Not looked at again: the table is checked, and a build has written it.
        Member(source, number, PartSample.model_construct(**dict(zip(keys, one, strict=True))))
        for number, (source, one) in enumerate(zip(said["source"], samples, strict=True))
    ]


def sizes(dataset: Dataset, names: Sequence[str]) -> NDArray[np.int64]:
    """Bytes of the arrays ``names`` of each sample, int64 (samples,)."""
    total = np.zeros(len(dataset), np.int64)
    for name in names:
        total += dataset.rows_of(name) * dataset.fields[name].row_bytes
    return total


def sums(dataset: Dataset, row: int) -> Mapping[str, bytes]:
    """The rows and running checksums of each array of a sample: equal for equal arrays."""
    found = {}
    for name in dataset.fields:
        rows, block = int(dataset.rows_of(name)[row]), int(dataset.block_of(name)[row])
        found[name] = b"%d:%b" % (rows, dataset.checks[name][block : block + blocks(rows)].tobytes())
    return found
