"""What is known of a source that DALI reads, once it was looked through.

Sources are looked through before DALI reads them: it does not say which sample a fault is in, passes over
some faults and ends the process at others.
"""

from __future__ import annotations

import logging
import os
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from hashlib import blake2b
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..errors import DataError
from ..samplers.fields import kind_of
from .ops import Columns
from .records import Field, sample_id, sample_name

_log = logging.getLogger(__name__)

READER = "reader"
"""Name of the first reader in a pipeline."""


class Opened(ABC):
    """The samples of a source, in stored order.

    ``where``: its files, for errors. ``names``; ``ids``: uint64, of the names. ``fields``: of the columns.
    ``fingerprint``: of names, columns and ``sizes``, what else tells two sources apart.
    """

    def __init__(
        self, where: Path, samples: Sequence[tuple[str, int]], fields: Mapping[str, Field], sizes: object
    ) -> None:
        if not samples:
            raise DataError(where, "has no samples", "name files that have some")
        self.where, self.fields = where, dict(fields)
        self.names = [sample_name(*sample) for sample in samples]
        self.ids = np.array([sample_id(*sample) for sample in samples], np.uint64)
        if len(np.unique(self.ids)) < len(self.ids):
            raise DataError(where, "two samples have the same name", "name each file once")
        described = repr((self.names, sorted(self.fields.items()), sizes))
        self.fingerprint = blake2b(described.encode(), digest_size=16).hexdigest()

    @abstractmethod
    def nodes(self, folder: Path, **options: Any) -> tuple[Any, ...]:
        """In the definition of a pipeline: the columns as they are read, and then where they came from.

        ``folder``: for files that DALI reads while it builds the pipeline. ``options``: of the readers.
        """

    @abstractmethod
    def number(self, origin: str) -> int:
        """The sample that came from ``origin``."""

    @abstractmethod
    def column(self, name: str, raw: NDArray[Any]) -> NDArray[Any]:
        """Column ``name`` of what was read; ValueError says why it is none."""

    def cloud(self, read: Sequence[NDArray[Any]]) -> tuple[int, Columns]:
        """A sample's number and columns, of what `nodes` gave; DataError where they are unlike the first's.

        Rows with a coordinate that is not finite are left out, and a warning counts them.
        """
        raw, origins = read[: len(self.fields)], read[len(self.fields) :]
        numbers = [self.number(origin.tobytes().decode()) for origin in origins]
        number = numbers[0]
        if set(numbers) != {number}:
            names = [self.names[one] for one in numbers]
            raise DataError(self.where, f"DALI read columns of {names} as one sample", "report it")
        columns: Columns = {}
        rows = -1
        for (name, field), values in zip(self.fields.items(), raw, strict=True):
            where = f"{self.where}: sample {self.names[number]}: column {name}"
            try:
                column = self.column(name, values)
            except ValueError as error:
                raise DataError(where, str(error), "write it again") from None
            if column.shape[1:] == (1,):
                column = column[:, 0]
            rows = len(column) if rows < 0 and column.ndim else rows
            if (column.dtype, column.shape) != (field.dtype, field.shape(rows)):
                found = f"has shape {column.shape} and dtype {column.dtype}"
                wanted = (
                    f"make it {field.shape(rows)} of {field.dtype}: all samples and columns must fit together"
                )
                raise DataError(where, found, wanted)
            columns[name] = column
        finite = np.isfinite(columns["xyz"]).all(axis=1) if "xyz" in columns else np.ones(rows, np.bool_)
        if not finite.all():
            _log.warning("%s: %d rows have a non-finite coordinate", self.names[number], (~finite).sum())
            columns = {name: values[finite] for name, values in columns.items()}
        return number, columns


def field_of(where: str | Path, name: str, dtype: np.dtype[Any], shape: tuple[int, ...]) -> Field:
    """The field of a column that has ``dtype`` and ``shape`` in the first sample; DataError if it is none."""
    width = shape[1] if len(shape) == 2 else 1
    found = f"column {name} has shape {shape} and dtype {dtype}"
    if name == "xyz" and (len(shape) != 2 or width != 3 or dtype.newbyteorder("=") != np.float32):
        raise DataError(where, found, "store float32 (n, 3), counted from an origin near the cloud")
    if len(shape) not in (1, 2) or width == 0 or dtype.kind in "OV":
        raise DataError(where, found, "store numbers of shape (n,) or (n, width)")
    return Field(dtype.newbyteorder("="), width, kind_of(name, dtype))


def folder_of(paths: Sequence[Path]) -> Path:
    """What errors call the files: the one there is, or their folder. DataError where one is named twice."""
    for place, path in enumerate(paths):
        if path in paths[:place]:
            raise DataError(path, "is named twice", "name each file once")
    return (
        paths[0] if len(paths) == 1 else Path(os.path.commonpath([path.absolute().parent for path in paths]))
    )


def relative(paths: Sequence[Path]) -> list[str]:
    """The paths below the folder they share: names must not change when the files move together."""
    shared = os.path.commonpath([path.absolute().parent for path in paths])
    return [path.absolute().relative_to(shared).as_posix() for path in paths]
