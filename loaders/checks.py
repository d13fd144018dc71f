"""Compares what was read with the dataset's running checksums, in whole blocks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, NamedTuple

import numpy as np
from crc32c import crc32c
from numba import njit
from numpy.typing import NDArray

from ..errors import DataError
from ..pipelines.dataset import Dataset
from ..pipelines.ops import Columns
from ..pipelines.records import CHECK_ROWS

Verify = Literal["first", "always", "never"]

Ints = NDArray[np.int64]


@njit(cache=True, error_model="numpy")
def _not_all(checked, first, behind):  # type: ignore[no-untyped-def]
    """Whether one of ``checked[first[i]:behind[i]]`` is False, for each i."""
    found = np.zeros(first.size, np.bool_)
    for i in range(first.size):
        for block in range(first[i], behind[i]):
            found[i] |= not checked[block]
    return found


class Column(NamedTuple):
    """What one column has to sum up to, an element a sample.

    Bytes ``start`` to ``stop`` of ``memory`` take the running checksum ``before`` to ``after``.
    """

    name: str
    memory: memoryview
    start: list[int]
    stop: list[int]
    before: list[int]
    after: list[int]


class Expected(NamedTuple):
    """Samples to check: their ``rows`` in the index, first row read, and blocks ``first`` to ``behind``."""

    rows: Ints
    begin: Ints
    first: Ints
    behind: Ints
    columns: list[Column]


class Checks:
    """Which blocks of ``columns``, which have the same rows, to check, and which were.

    ``verify``: "always", at the "first" read of each block by this object, or "never".
    """

    def __init__(self, dataset: Dataset, columns: Sequence[str], verify: Verify) -> None:
        self._dataset, self._columns, self._verify = dataset, tuple(columns), verify
        self._rows, self._block = dataset.rows_of(columns[0]), dataset.block_of(columns[0])
        self._checked = np.zeros(max((len(dataset.checks[c]) for c in columns), default=0), np.bool_)

    def widened(self, rows: Ints, first: Ints, stop: Ints) -> tuple[Ints, Ints, NDArray[np.bool_] | None]:
        """The rows of each sample to read for ``first`` to ``stop``, and which to check; None for no sample.

        Whole blocks are read of those.
        """
        if self._verify == "never":
            return first, stop, None
        begin = first // CHECK_ROWS * CHECK_ROWS
        end = np.minimum(-(-stop // CHECK_ROWS) * CHECK_ROWS, self._rows[rows])
        if self._verify == "always":
            return begin, end, np.ones(len(rows), np.bool_)
        check = _not_all(self._checked, *self._blocks(rows, begin, end))
        if not check.any():
            return first, stop, None
        return np.where(check, begin, first), np.where(check, end, stop), check

    def expected(self, columns: Columns, at: Ints, rows: Ints, begin: Ints, end: Ints) -> Expected:
        """What rows ``begin`` to ``end`` of samples, at row ``at`` of all rows of ``columns``, sum up to."""
        first, behind = self._blocks(rows, begin, end)
        until, later, found = at + end - begin, begin > 0, []
        for name in self._columns:
            size, sums = self._dataset.fields[name].row_bytes, self._dataset.checks[name]
            before = sums[first - 1] * later
            lists = (values.tolist() for values in (at * size, until * size, before, sums[behind - 1]))
            found.append(Column(name, columns[name].reshape(-1).view(np.uint8).data, *lists))
        return Expected(rows, begin, first, behind, found)

    def check(self, expected: Expected, samples: range) -> None:
        """Check these samples, by their place in ``expected``. Raises DataError naming the damaged block."""
        for name, memory, start, stop, before, after in expected.columns:
            for j in samples:
                if crc32c(memory[start[j] : stop[j]], before[j]) != after[j]:
                    raw = memory[start[j] : stop[j]]
                    raise self._damage(name, int(expected.rows[j]), int(expected.begin[j]), raw, before[j])
        for j in samples if self._verify == "first" else ():
            self._checked[expected.first[j] : expected.behind[j]] = True

    def _blocks(self, rows: Ints, begin: Ints, end: Ints) -> tuple[Ints, Ints]:
        """The first block of rows ``begin`` to ``end`` of each sample, and the one behind the last."""
        block = self._block[rows]
        return block + begin // CHECK_ROWS, block - (-end // CHECK_ROWS)

    def _damage(self, name: str, row: int, begin: int, raw: memoryview, running: int) -> DataError:
        """Says where ``raw``, rows of a sample from ``begin`` on, is first not as it was written."""
        size = self._dataset.fields[name].row_bytes
        at, bad = int(self._block[row]) + begin // CHECK_ROWS, 0
        sums = self._dataset.checks[name]
        while crc32c(raw[bad : bad + CHECK_ROWS * size], running) == sums[at]:
            running, at, bad = int(sums[at]), at + 1, bad + CHECK_ROWS * size
        sample = self._dataset.samples.column("name")[row]
        offset = int(self._dataset.positions[name][row]) + begin * size + bad
        return DataError(
            self._dataset.shard_path(int(self._dataset.shard[row]), name),
            f"is damaged in the block at offset {offset} (sample {sample}, column {name})",
            "copy it again",
        )
