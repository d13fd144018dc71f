"""Reads rows of samples from shards: a compiled loop that holds no lock, whole blocks checked.

A sample's column, or an annotation, is one run of bytes in its shard, so that rows [a, b) are one read. The
samples of a batch are divided into portions, which threads share: a kernel works off the reads of a portion,
calling pread(2) until each is whole, then it is checked.
"""

from __future__ import annotations

import ctypes
import os
import weakref
from collections import OrderedDict
from collections.abc import Collection, Sequence
from typing import Any, NamedTuple

import numpy as np
from numba import njit, types
from numpy.typing import NDArray

from ..errors import DataError
from ..pipelines.dataset import Dataset
from ..pipelines.ops import Columns
from ..pipelines.run_threads import Threads
from .checks import Checks, Ints, Verify

OPEN_FILES = 128
_ALIGN = 64
_PORTION_BYTES = 1 << 21

# Named, not a pointer, so that the compiled kernel can be kept on disk.
_pread: Any = types.ExternalFunction("pread", types.intp(types.int32, types.uintp, types.uintp, types.int64))


@njit(cache=True, nogil=True, error_model="numpy")
def _read(fd, file, position, begin, end, at, row_bytes, base, entry, last):  # type: ignore[no-untyped-def]
    """Do the reads from ``entry`` to ``last``, see `Reads`: the first that failed, or ``last``."""
    for e in range(entry, last):
        i, c = e // row_bytes.size, e % row_bytes.size
        offset = position[c, i] + begin[i] * row_bytes[c]
        length = (end[i] - begin[i]) * row_bytes[c]
        address = base[c] + np.uint64(at[i] * row_bytes[c])
        done = 0
        while done < length:
            got = _pread(fd[file[c], i], address + np.uint64(done), np.uint64(length - done), offset + done)
            if got <= 0:
                return e
            done += got
    return last


class Files:
    """Descriptors of shards: opened when needed, the least recently used closed beyond ``OPEN_FILES``."""

    def __init__(self, dataset: Dataset) -> None:
        self._dataset = dataset
        self._open: OrderedDict[tuple[int, str | None], int] = OrderedDict()
        self.close = weakref.finalize(self, _close, self._open)

    def descriptors(self, shards: Collection[int], names: Sequence[str | None]) -> list[dict[int, int]]:
        """Descriptors of at most ``OPEN_FILES`` files, good until the next call.

        For each of ``names``, an annotation or None for the columns: shard -> descriptor.
        """
        wanted = [(shard, name) for name in names for shard in shards]
        for one in wanted:
            if one in self._open:
                self._open.move_to_end(one)
                continue
            path = self._dataset.shard_path(*one)
            try:
                self._open[one] = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
            except OSError as error:
                raise DataError(path, f"cannot be opened ({error.strerror})", "copy it again") from None
        while len(self._open) > OPEN_FILES:
            os.close(self._open.popitem(last=False)[1])
        return [{shard: self._open[shard, name] for shard in shards} for name in names]


class Reads(NamedTuple):
    """Rows ``begin`` to ``end`` of samples, and where they go.

    Read ``i * columns + c`` is column c of sample i: byte ``position[c, i]`` on of file ``fd[file[c], i]``,
    to row ``at[i]`` of the column's memory, which begins at ``base[c]`` and has ``row_bytes[c]`` bytes a row.
    """

    fd: NDArray[np.int32]
    file: Ints
    position: Ints
    begin: Ints
    end: Ints
    at: Ints
    row_bytes: Ints
    base: NDArray[np.uint64]


class Fetcher:
    """Reads ``columns`` (or annotations) of samples, all of the same rows. One thread uses it at a time.

    ``verify``: rows are widened to whole blocks and checked on the "first" read of each block by this
    object, "always", or "never". ``files``: those of another fetcher that the same thread uses, so that
    there are not more of them open.
    """

    def __init__(
        self,
        dataset: Dataset,
        columns: Sequence[str],
        verify: Verify,
        threads: Threads,
        files: Files | None = None,
    ) -> None:
        self._dataset, self._columns, self._threads = dataset, tuple(columns), threads
        self._fields = [dataset.fields[name] for name in columns]
        lie_in = [name if name in dataset.annotations else None for name in columns]
        self._file_names = list(dict.fromkeys(lie_in))
        self._file = np.array([self._file_names.index(one) for one in lie_in], np.int64)
        self._positions = [dataset.positions[name] for name in columns]
        self._row_bytes = np.array([field.row_bytes for field in self._fields], np.int64)
        self._bytes_of_row = int(self._row_bytes.sum())
        self.files = files or Files(dataset)
        self._checks = Checks(dataset, columns, verify)
        self._scratch = np.zeros(0, np.uint8)
        self.bytes = 0

    def close(self) -> None:
        """Close the shards."""
        self.files.close()

    def fetch(self, rows: Ints, first: Ints, stop: Ints) -> list[Columns]:
        """Rows ``first[i]`` to ``stop[i]`` of sample ``rows[i]``, a dict of columns for each.

        The arrays are views of a buffer that the next call overwrites. Raises DataError naming the shard and
        the byte offset where a file cannot be read, ends early or fails its checksum.
        """
        begin, end, check = self._checks.widened(rows, first, stop)
        behind = np.cumsum(end - begin)
        at = behind - (end - begin)
        columns = self._room(int(behind[-1]) if len(rows) else 0)
        self._read(columns, at, rows, begin, end, check)
        spans = zip((at + first - begin).tolist(), (at + stop - begin).tolist(), strict=True)
        return [{name: values[a:b] for name, values in columns.items()} for a, b in spans]

    def fetch_into(self, columns: Columns, at: Ints, rows: Ints, first: Ints, stop: Ints) -> None:
        """Put what `fetch` reads into ``columns``, contiguous: sample i from row ``at[i]`` of all rows on.

        It is read straight to its place, unless a check needs more rows than are asked for.
        """
        begin, end, check = self._checks.widened(rows, first, stop)
        if check is None or not (np.count_nonzero(begin != first) or np.count_nonzero(end != stop)):
            self._read(columns, at, rows, begin, end, check)
            return
        for cloud, start, n in zip(self.fetch(rows, first, stop), at, stop - first, strict=True):
            for name, values in cloud.items():
                rows_of = columns[name].reshape(-1, *values.shape[1:])
                rows_of[start : start + n] = values

    def _room(self, rows: int) -> Columns:
        """Columns of ``rows`` rows in a buffer that is used again."""
        sizes = [rows * field.row_bytes for field in self._fields]
        starts = np.cumsum([0, *(-(-size // _ALIGN) * _ALIGN for size in sizes)]).tolist()
        if starts[-1] > self._scratch.size:
            self._scratch = np.empty(starts[-1], np.uint8)
        columns: Columns = {}
        for name, field, start, size in zip(self._columns, self._fields, starts[:-1], sizes, strict=True):
            raw = self._scratch[start : start + size]
            columns[name] = raw.view(field.dtype).reshape(field.shape(rows))
        return columns

    def _read(
        self, columns: Columns, at: Ints, rows: Ints, begin: Ints, end: Ints, check: NDArray[np.bool_] | None
    ) -> None:
        """Read rows ``begin`` to ``end`` of each sample to row ``at`` of ``columns``; check those to be."""
        sizes = end - begin
        if np.count_nonzero(sizes) < len(sizes):  # a shard of which nothing is read need not be there
            some = np.flatnonzero(sizes)
            at, rows, begin, end, sizes = at[some], rows[some], begin[some], end[some], sizes[some]
            check = None if check is None else check[some]
        shard = self._dataset.shard[rows].tolist()
        present = set(shard)
        most = OPEN_FILES // len(self._file_names)
        if len(present) > most:  # more than may be open together
            for start in range(0, len(rows), most):
                part = slice(start, start + most)
                few = None if check is None else check[part]
                self._read(columns, at[part], rows[part], begin[part], end[part], few)
            return
        descriptors = self.files.descriptors(present, self._file_names)
        reads = Reads(
            np.array([[own[one] for one in shard] for own in descriptors], np.int32),
            self._file,
            np.array([position[rows] for position in self._positions]),
            begin,
            end,
            at,
            self._row_bytes,
            np.array([columns[name].__array_interface__["data"][0] for name in self._columns], np.uint64),
        )
        total = int(sizes.sum()) * self._bytes_of_row
        cuts = [0, len(rows)]
        if total >= 2 * _PORTION_BYTES:
            behind, portions = np.cumsum(sizes), total // _PORTION_BYTES
            inner = np.searchsorted(behind, np.arange(1, portions) * (behind[-1] / portions))
            cuts[1:1] = inner.tolist()
        checking = None
        if check is not None:
            checked = np.flatnonzero(check)
            place = at[checked], rows[checked], begin[checked], end[checked]
            checking = self._checks.expected(columns, *place), np.searchsorted(checked, cuts).tolist()

        def work(portion: int) -> None:
            self._read_between(reads, shard, cuts[portion], cuts[portion + 1])
            if checking is not None:
                expected, turns = checking
                self._checks.check(expected, range(turns[portion], turns[portion + 1]))

        self._threads.each(work, len(cuts) - 1, total)
        self.bytes += total

    def _read_between(self, reads: Reads, shard: list[int], start: int, stop: int) -> None:
        """Read samples ``start`` to ``stop``."""
        columns = len(self._columns)
        done, last = start * columns, stop * columns
        while (done := _read(*reads, done, last)) < last:
            self._read_slowly(reads, shard[done // columns], *divmod(done, columns))
            done += 1

    def _read_slowly(self, reads: Reads, shard: int, i: int, c: int) -> None:
        """Do read (i, c) again through Python, which retries interrupted calls and says what failed."""
        size = int(reads.row_bytes[c])
        offset = int(reads.position[c, i]) + int(reads.begin[i]) * size
        address = int(reads.base[c]) + int(reads.at[i]) * size
        length = int(reads.end[i] - reads.begin[i]) * size
        path, done = self._dataset.shard_path(shard, self._columns[c]), 0
        memory = memoryview((ctypes.c_ubyte * length).from_address(address))
        while done < length:
            try:
                got = os.preadv(int(reads.fd[reads.file[c], i]), [memory[done:]], offset + done)
            except OSError as error:
                cause = f"cannot be read at offset {offset + done} ({error.strerror})"
                raise DataError(path, cause, "check the disk") from None
            if got == 0:
                raise DataError(path, f"ends at offset {offset + done}, inside a sample", "copy it again")
            done += got


def _close(files: OrderedDict[tuple[int, str | None], int]) -> None:
    while files:
        os.close(files.popitem()[1])
