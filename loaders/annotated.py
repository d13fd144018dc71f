"""Annotations that come beside the columns of a batch: read for the same samples, packed with own offsets."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from ..errors import UsageError
from ..pipelines.dataset import Dataset
from ..pipelines.ops import Columns
from ..pipelines.records import Field
from ..pipelines.run_threads import Threads
from .checks import Verify
from .fetch import Fetcher, Files
from .pack import RESERVED, Empty, Ragged, fresh, offsets_of, ragged


def annotations_of(dataset: Dataset, names: Sequence[str], columns: Sequence[str]) -> list[str]:
    """The annotations ``names``, in the dataset's order.

    Raises UsageError for one that is not there, or is among the ``columns`` already.
    """
    for name in names:
        if name not in dataset.annotations:
            known = ", ".join(dataset.annotations) or "none"
            cause = f"no annotation '{name}' in {dataset.path}"
            raise UsageError("loader.annotations", cause, f"it has {known}")
        if name in columns or name in RESERVED:
            cause = f"'{name}' is a part of the batch already"
            raise UsageError("loader.annotations", cause, "name it once, or convert the dataset")
    return [name for name in dataset.annotations if name in names]


class Beside:
    """Reads and packs the annotations ``names`` of samples. One thread uses it at a time.

    ``files``: see `Fetcher`. Annotations that have as many rows in every sample are read together.
    """

    def __init__(
        self, dataset: Dataset, names: Sequence[str], verify: Verify, threads: Threads, files: Files
    ) -> None:
        self.fields: dict[str, Field] = {name: dataset.annotations[name] for name in names}
        self._threads = threads
        together: list[list[str]] = []
        for name in names:
            rows = dataset.rows_of(name)
            same = [one for one in together if np.array_equal(dataset.rows_of(one[0]), rows)]
            if same:
                same[0].append(name)
            else:
                together.append([name])
        self._parts = [
            (dataset.rows_of(one[0]), Fetcher(dataset, one, verify, threads, files)) for one in together
        ]

    @property
    def bytes(self) -> int:
        """How many were read."""
        return sum(fetcher.bytes for _, fetcher in self._parts)

    def fetch(self, rows: NDArray[np.int64], left_out: NDArray[np.bool_]) -> list[Columns]:
        """The annotations of samples ``rows``; those ``left_out`` have none.

        The arrays are views of a buffer that the next call overwrites. Raises DataError as `Fetcher` does.
        """
        found: list[Columns] = [{} for _ in rows]
        for rows_of, fetcher in self._parts:
            stop = np.where(left_out, 0, rows_of[rows]).astype(np.int64)
            for own, read in zip(found, fetcher.fetch(rows, np.zeros_like(stop), stop), strict=True):
                own.update(read)
        return found

    def packed(self, held: list[Columns], places: int, empty: Empty = fresh) -> dict[str, Ragged]:
        """The annotations of a batch that has room for ``places`` samples."""
        packed = {}
        for name, field in self.fields.items():
            alone = [{name: own[name]} for own in held]
            columns, offsets = ragged(alone, {name: field}, places, self._threads, empty, offsets_of(name))
            packed[name] = Ragged(columns[name], offsets)
        return packed
