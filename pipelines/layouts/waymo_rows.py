"""Rows of a component of the Waymo Open Dataset, a few at a time: a segment's range images fill gigabytes."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...errors import DataError
from .columns import damaged, has, numbers, table

TIME = "key.frame_timestamp_micros"
LASER = "key.laser_name"
Key = tuple[int, int]

_ROWS = 5
"""The lasers of a frame."""

_BUFFER = 1 << 20


class Rows:
    """The rows of a Parquet file by (time, laser). Cheap where they are asked for in the file's order."""

    def __init__(self, path: Path, columns: Sequence[str]) -> None:
        """Read the keys. Raises DataError where the file is missing, cut, damaged or lacks a column."""
        keys = table(path, [TIME, LASER])
        times, lasers = (numbers(path, keys, name, np.int64).tolist() for name in (TIME, LASER))
        self.path = path
        self.keys: dict[Key, int] = {}
        for row, key in enumerate(zip(times, lasers, strict=True)):
            if self.keys.setdefault(key, row) != row:
                cause = f"rows {self.keys[key]} and {row} are both of laser {key[1]} at {key[0]}"
                raise DataError(path, cause, "copy it again")
        self._columns = list(columns)
        self._batches = self._read()
        self._start = 0
        self._batch: Any = None

    def at(self, key: Key) -> dict[str, Any]:
        """The columns of a row: a list becomes an array, (n,), what is not there None."""
        row = self.keys[key]
        if row < self._start:
            self._batches = self._read()
            self._start, self._batch = 0, None
        while self._batch is None or row >= self._start + self._batch.num_rows:
            self._start += self._batch.num_rows if self._batch is not None else 0
            self._batch = self._next(row)
        place = row - self._start
        return {name: _value(self._batch.column(i)[place]) for i, name in enumerate(self._columns)}

    def _next(self, row: int) -> Any:
        try:
            return next(self._batches)
        except StopIteration:
            raise DataError(self.path, f"ends before row {row}", "copy it again") from None
        # pyarrow raises its own kinds and Python's; on what is damaged none of them is a bug of ours.
        except (Exception, MemoryError) as error:  # noqa: BLE001
            raise damaged(self.path, error) from None

    def _read(self) -> Iterator[Any]:
        import pyarrow as pa
        from pyarrow import parquet

        with pa.OSFile(str(self.path), "rb") as source:
            # Neither a whole column at once, nor what has been read kept: a segment has gigabytes.
            buffered = {"buffer_size": _BUFFER, "pre_buffer": False}
            file = parquet.ParquetFile(source, page_checksum_verification=True, **buffered)
            has(self.path, file.schema_arrow.names, self._columns)
            for batch in file.iter_batches(_ROWS, columns=self._columns):
                yield batch.select(self._columns)


def image_columns(images: Sequence[str]) -> list[str]:
    """The columns of images."""
    return [f"{name}.{part}" for name in images for part in ("values", "shape")]


def image(
    rows: Rows, key: Key, names: Sequence[str], channels: int, kinds: str = "iuf"
) -> list[NDArray[Any] | None]:
    """Images (height, width, channels) of a row, None for one that it has not.

    ``kinds``: of numbers that may be in it. Raises DataError where values and shape do not fit.
    """
    row = rows.at(key)
    return [_image(rows.path, key, name, row, channels, kinds) for name in names]


def _image(
    path: Path, key: Key, name: str, row: dict[str, Any], channels: int, kinds: str
) -> NDArray[Any] | None:
    values, shape = row[f"{name}.values"], row[f"{name}.shape"]
    if values is None or shape is None:
        return None
    sides = shape.tolist()
    known = values.dtype.kind in kinds and shape.dtype.kind in "iu"
    fits = len(sides) == 3 and sides[2] == channels and min(sides) >= 0 and len(values) == math.prod(sides)
    if not known or not fits:
        held = f"{len(values)} values of {values.dtype} and the shape {sides}"
        cause = f"laser {key[1]} at {key[0]}: '{name}' has {held}"
        raise DataError(path, cause, f"its last side is {channels}: copy it again")
    found: NDArray[Any] = values.reshape(sides)
    return found


def _value(scalar: Any) -> Any:
    values = getattr(scalar, "values", None)
    if not scalar.is_valid:
        return None
    return scalar.as_py() if values is None else values.to_numpy(zero_copy_only=False)
