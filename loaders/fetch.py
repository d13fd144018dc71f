"""Reads rows of samples from shards: one call a batch that holds no lock, whole blocks checked.

A sample's column is one run of bytes in its shard, so that rows [a, b) are one read. The table (descriptor,
offset, length, destination) of a batch is worked off by a kernel that calls pread(2) until each is whole.
"""

from __future__ import annotations

import ctypes
import os
import weakref
from collections import OrderedDict
from collections.abc import Sequence
from typing import Any, Literal

import numpy as np
from crc32c import crc32c
from numba import njit, types
from numpy.typing import NDArray

from ..errors import DataError
from ..pipelines.dataset import Dataset
from ..pipelines.ops import Columns
from ..pipelines.records import CHECK_ROWS
from ..pipelines.run_threads import Threads

OPEN_FILES = 128
_ALIGN = 64

Verify = Literal["first", "always", "never"]

# Named, not a pointer, so that the compiled kernel can be kept on disk.
_pread: Any = types.ExternalFunction("pread", types.intp(types.int32, types.uintp, types.uintp, types.int64))


@njit(cache=True, nogil=True, error_model="numpy")
def _read(fd, offset, length, address, first):  # type: ignore[no-untyped-def]
    """Read the entries from ``first`` on; the index of the first that failed, or their number."""
    for i in range(first, fd.size):
        done = 0
        while done < length[i]:
            got = _pread(fd[i], address[i] + np.uint64(done), np.uint64(length[i] - done), offset[i] + done)
            if got <= 0:
                return i
            done += got
    return fd.size


class Files:
    """Descriptors of shards: opened when needed, the least recently used closed beyond ``OPEN_FILES``."""

    def __init__(self, dataset: Dataset) -> None:
        self._dataset = dataset
        self._open: OrderedDict[int, int] = OrderedDict()
        self.close = weakref.finalize(self, _close, self._open)

    def descriptors(self, shards: Sequence[int]) -> dict[int, int]:
        """A descriptor for each of at most ``OPEN_FILES`` shards, good until the next call."""
        for shard in shards:
            if shard in self._open:
                self._open.move_to_end(shard)
                continue
            path = self._dataset.shard_path(shard)
            try:
                self._open[shard] = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
            except OSError as error:
                raise DataError(path, f"cannot be opened ({error.strerror})", "copy it again") from None
        while len(self._open) > OPEN_FILES:
            os.close(self._open.popitem(last=False)[1])
        return {shard: self._open[shard] for shard in shards}


class Fetcher:
    """Reads ``columns`` of samples. One thread uses it at a time.

    ``verify``: rows are widened to whole blocks and checked on the "first" read of each block by this
    object, "always", or "never".
    """

    def __init__(self, dataset: Dataset, columns: Sequence[str], verify: Verify, threads: Threads) -> None:
        self._dataset, self._columns, self._verify, self._threads = dataset, tuple(columns), verify, threads
        self._files = Files(dataset)
        self._checked = np.zeros(max((len(dataset.checks[c]) for c in columns), default=0), np.bool_)
        self._scratch = np.zeros(0, np.uint8)
        self.bytes = 0

    def close(self) -> None:
        """Close the shards."""
        self._files.close()

    def fetch(
        self, rows: NDArray[np.int64], first: NDArray[np.int64], stop: NDArray[np.int64]
    ) -> list[Columns]:
        """Rows ``first[i]`` to ``stop[i]`` of sample ``rows[i]``, a dict of columns for each.

        The arrays are views of a buffer that the next call overwrites. Raises DataError naming the shard and
        the byte offset where a file cannot be read, ends early or fails its checksum.
        """
        begin, end, check = self._widened(rows, first, stop)
        offset, length = self._entries(rows, begin, end)
        place = self._places(length)
        self._read(rows, offset, length, place.astype(np.uint64) + np.uint64(self._scratch.ctypes.data))
        clouds: list[Columns] = [{} for _ in rows]
        fields = [self._dataset.schema[name] for name in self._columns]

        def finish(i: int) -> None:
            spans = zip(place[:, i].tolist(), length[:, i].tolist(), strict=True)
            raws = [self._scratch[a : a + n] for a, n in spans]
            if check[i]:
                self._check(int(rows[i]), int(begin[i]), int(end[i]), raws)
            wanted = slice(first[i] - begin[i], stop[i] - begin[i])
            for name, field, raw in zip(self._columns, fields, raws, strict=True):
                values = raw.view(field.dtype)
                clouds[i][name] = (values if field.width == 1 else values.reshape(-1, field.width))[wanted]

        self._threads.each(finish, len(rows), int(length[:, check].sum()))
        return clouds

    def fetch_into(
        self,
        columns: Columns,
        at: NDArray[np.int64],
        rows: NDArray[np.int64],
        first: NDArray[np.int64],
        stop: NDArray[np.int64],
    ) -> None:
        """Put what `fetch` reads into ``columns``, flat over samples: sample i from row ``at[i]`` on.

        It is read straight to its place, unless a check needs more rows than are asked for.
        """
        begin, end, check = self._widened(rows, first, stop)
        if not (np.array_equal(begin, first) and np.array_equal(end, stop)):
            for cloud, start, n in zip(self.fetch(rows, first, stop), at, stop - first, strict=True):
                for name, values in cloud.items():
                    columns[name][start : start + n] = values
            return
        offset, length = self._entries(rows, begin, end)
        flat = [columns[name].reshape(-1).view(np.uint8) for name in self._columns]
        place = np.stack([at * self._dataset.schema[name].row_bytes for name in self._columns])
        base = np.array([[values.ctypes.data] for values in flat], np.uint64)
        self._read(rows, offset, length, place.astype(np.uint64) + base)
        checked = np.flatnonzero(check)

        def finish(j: int) -> None:
            i = checked[j]
            spans = zip(flat, place[:, i], length[:, i], strict=True)
            self._check(int(rows[i]), int(begin[i]), int(end[i]), [v[a : a + n] for v, a, n in spans])

        self._threads.each(finish, len(checked), int(length[:, checked].sum()))

    def _widened(
        self, rows: NDArray[np.int64], first: NDArray[np.int64], stop: NDArray[np.int64]
    ) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.bool_]]:
        if self._verify == "never":
            return first, stop, np.zeros(len(rows), np.bool_)
        begin = first // CHECK_ROWS * CHECK_ROWS
        end = np.minimum(-(-stop // CHECK_ROWS) * CHECK_ROWS, self._dataset.rows[rows])
        check = np.ones(len(rows), np.bool_)
        if self._verify == "first":
            spans = zip(rows.tolist(), begin.tolist(), end.tolist(), strict=True)
            check[:] = [not self._checked[self._blocks(*span)].all() for span in spans]
        return np.where(check, begin, first), np.where(check, end, stop), check

    def _entries(
        self, rows: NDArray[np.int64], begin: NDArray[np.int64], end: NDArray[np.int64]
    ) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Offset and length in bytes of rows ``begin`` to ``end``, each int64 (columns, samples)."""
        sizes = np.array([[self._dataset.schema[name].row_bytes] for name in self._columns])
        position = np.stack([self._dataset.positions[name][rows] for name in self._columns])
        return position + begin * sizes, (end - begin) * sizes

    def _places(self, length: NDArray[np.int64]) -> NDArray[np.int64]:
        """Where in the scratch buffer each entry goes; makes it large enough."""
        room = -(-length.ravel() // _ALIGN) * _ALIGN
        if (need := int(room.sum())) > self._scratch.size:
            self._scratch = np.empty(need, np.uint8)
        return (np.cumsum(room) - room).reshape(length.shape)

    def _read(
        self,
        rows: NDArray[np.int64],
        offset: NDArray[np.int64],
        length: NDArray[np.int64],
        address: NDArray[np.uint64],
    ) -> None:
        """Read each entry, all arrays (columns, samples), to its address in memory."""
        shard = np.tile(self._dataset.shard[rows], len(offset))
        present = np.unique(shard)
        for start in range(0, len(present), OPEN_FILES):
            group = present[start : start + OPEN_FILES]
            here = np.flatnonzero((shard >= group[0]) & (shard <= group[-1]))
            table = offset.ravel()[here], length.ravel()[here]
            self._read_group(group, shard[here], *table, address.ravel()[here])
        self.bytes += int(length.sum())

    def _read_group(
        self,
        present: NDArray[np.int32],
        shard: NDArray[np.int32],
        offset: NDArray[np.int64],
        length: NDArray[np.int64],
        address: NDArray[np.uint64],
    ) -> None:
        descriptors = self._files.descriptors(present.tolist())
        fd = np.array(list(descriptors.values()), np.int32)[np.searchsorted(present, shard)]
        done = _read(fd, offset, length, address, 0)
        while done < len(fd):
            entry = shard[done], fd[done], offset[done], length[done], address[done]
            self._read_slowly(*map(int, entry))
            done = _read(fd, offset, length, address, done + 1)

    def _read_slowly(self, shard: int, fd: int, offset: int, length: int, address: int) -> None:
        """Read one entry again through Python, which retries interrupted calls and says what failed."""
        path, done = self._dataset.shard_path(shard), 0
        memory = memoryview((ctypes.c_ubyte * length).from_address(address))
        while done < length:
            try:
                got = os.preadv(fd, [memory[done:]], offset + done)
            except OSError as error:
                cause = f"cannot be read at offset {offset + done} ({error.strerror})"
                raise DataError(path, cause, "check the disk") from None
            if got == 0:
                raise DataError(path, f"ends at offset {offset + done}, inside a sample", "copy it again")
            done += got

    def _blocks(self, row: int, begin: int, end: int) -> slice:
        block = int(self._dataset.block[row])
        return slice(block + begin // CHECK_ROWS, block - (-end // CHECK_ROWS))

    def _check(self, row: int, begin: int, end: int, raws: list[NDArray[np.uint8]]) -> None:
        """Check rows ``begin`` to ``end`` of every column and remember that they were."""
        for name, raw in zip(self._columns, raws, strict=True):
            self._check_column(name, row, begin, raw)
        self._checked[self._blocks(row, begin, end)] = True

    def _check_column(self, name: str, row: int, begin: int, raw: NDArray[np.uint8]) -> None:
        """Compare ``raw``, whole blocks from row ``begin`` on, with the running checksum at its end."""
        if not len(raw):
            return
        block_bytes = CHECK_ROWS * self._dataset.schema[name].row_bytes
        at = int(self._dataset.block[row]) + begin // CHECK_ROWS
        sums = self._dataset.checks[name]
        start = int(sums[at - 1]) if begin else 0
        if crc32c(raw.data, start) == sums[at - 1 + -(-len(raw) // block_bytes)]:
            return
        bad = 0
        while crc32c(raw[bad : bad + block_bytes].data, start) == sums[at]:
            start, at, bad = int(sums[at]), at + 1, bad + block_bytes
        sample = self._dataset.samples.column("name")[row]
        offset = int(self._dataset.positions[name][row]) + begin * self._dataset.schema[name].row_bytes
        raise DataError(
            self._dataset.shard_path(int(self._dataset.shard[row])),
            f"is damaged in the block at offset {offset + bad} (sample {sample}, column {name})",
            "copy it again",
        )


def _close(files: OrderedDict[int, int]) -> None:
    while files:
        os.close(files.popitem()[1])
