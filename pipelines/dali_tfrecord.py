"""Samples of TFRecord files: a record is a serialised tf.train.Example."""

from __future__ import annotations

import mmap
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
from crc32c import crc32c
from numpy.typing import NDArray
from pydantic import AfterValidator
from pydantic import Field as Limits

from ..config import ConfigPath, Model
from ..errors import DataError, system_error
from . import dali
from .dali_opened import READER, Opened, field_of, folder_of, relative
from .tfrecord import FIX, HEAD, TAIL, masked, sized

Stored = Literal["bytes", "floats", "ints"]

_VALUES = {1: "bytes", 2: "floats", 3: "ints"}  # field numbers of a tf.train.Feature


def _native(code: str) -> str:
    try:
        known = np.dtype(code) in dali.DTYPES
    except TypeError:
        known = False
    if not known:
        raise ValueError(f"{code!r} is no dtype of numbers, such as 'float32'")
    return code


class FeatureColumn(Model):
    """A column: ``width`` numbers a row of the feature ``feature``.

    ``stored``: as the raw bytes of ``dtype``, little-endian and row by row, or as a list of floats or of
    ints, which become ``dtype``.
    """

    feature: str
    dtype: Annotated[str, AfterValidator(_native)]
    width: int = Limits(default=1, ge=1)
    stored: Stored = "bytes"


class TfrecordSource(Model):
    """Uncompressed TFRecord files; a sample is a record."""

    kind: Literal["tfrecord"] = "tfrecord"
    paths: tuple[ConfigPath, ...] = Limits(min_length=1)
    columns: dict[str, FeatureColumn] = Limits(min_length=1)


class OpenedRecords(Opened):
    """Raises DataError for a file that is cut or damaged, and a record that lacks a feature.

    Lengths and their checksums are checked and the names and types of features; what a feature holds is not.
    """

    def __init__(self, settings: TfrecordSource) -> None:
        self._columns = settings.columns
        where = folder_of(settings.paths)
        self._records = {path: _checked(path, self._columns) for path in settings.paths}
        short = dict(zip(self._records, relative([*self._records]), strict=True))
        samples = [(short[path], i) for path, spans in self._records.items() for i in range(len(spans))]
        origins = [(path, start) for path, spans in self._records.items() for start, _ in spans]
        self._numbers = {f"{path} at index {start}": i for i, (path, start) in enumerate(origins)}
        fields = {
            name: field_of(where, name, np.dtype(c.dtype), (0,) if c.width == 1 else (0, c.width))
            for name, c in self._columns.items()
        }
        super().__init__(where, samples, fields, [*self._records.values(), repr(self._columns)])

    def nodes(self, folder: Path, **options: Any) -> tuple[Any, ...]:
        """See `Opened`. DALI is given an index of the records."""
        indices = []
        for place, spans in enumerate(self._records.values()):
            indices.append(folder / f"{place}.index")
            indices[-1].write_text("".join(f"{start} {size}\n" for start, size in spans))
        fn, kinds = dali.module("fn"), dali.module("tfrecord")
        read = {
            "bytes": kinds.FixedLenFeature((), kinds.string, ""),
            "floats": kinds.VarLenFeature(kinds.float32, 0.0),
            "ints": kinds.VarLenFeature(kinds.int64, 0),
        }
        found = fn.readers.tfrecord(
            path=[str(path) for path in self._records],
            index_path=[str(path) for path in indices],
            features={column.feature: read[column.stored] for column in self._columns.values()},
            dont_use_mmap=True,  # a file that is cut under its map ends the process
            name=READER,
            **options,
        )
        columns = [found[column.feature] for column in self._columns.values()]
        return (*columns, fn.get_property(columns[0], key="source_info"))

    def number(self, origin: str) -> int:
        """See `Opened`."""
        return self._numbers[origin]

    def column(self, name: str, raw: NDArray[Any]) -> NDArray[Any]:
        """See `Opened`."""
        about = self._columns[name]
        dtype = np.dtype(about.dtype)
        flat = raw if raw.ndim else raw.reshape(1)[:0]  # DALI's word for nothing
        if flat.nbytes % (about.width * (dtype.itemsize if about.stored == "bytes" else flat.itemsize)):
            raise ValueError(f"has {len(flat)} {about.stored}, no whole rows of {about.width} {dtype}")
        values = flat.view(dtype) if about.stored == "bytes" else flat.astype(dtype)
        if about.stored == "ints" and not np.array_equal(values, flat):
            raise ValueError(f"has numbers that {dtype} does not hold")
        return values.reshape(self.fields[name].shape(len(values) // about.width))


def _checked(path: Path, columns: dict[str, FeatureColumn]) -> list[tuple[int, int]]:
    """First byte and length, frame included, of each record of a file whose records have all features."""
    try:
        with path.open("rb") as file:
            if not path.stat().st_size:
                return []
            return [*_spans(path, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ), columns)]
    except OSError as error:
        raise system_error(error, path) from None


def _spans(path: Path, data: mmap.mmap, columns: dict[str, FeatureColumn]) -> Iterator[tuple[int, int]]:
    start, number = 0, 0
    while start < len(data):
        where = f"{path}: record {number}, byte {start}"
        head = data[start : start + HEAD]
        if len(head) < HEAD or struct.unpack("<I", head[8:])[0] != masked(crc32c(head[:8])):
            raise DataError(where, "its length is damaged or cut", FIX)
        size = HEAD + struct.unpack("<Q", head[:8])[0] + TAIL
        if start + size > len(data):
            raise DataError(where, f"ends {start + size - len(data)} bytes beyond the file", FIX)
        try:
            found = _features(memoryview(data)[start + HEAD : start + size - TAIL])
        except (ValueError, IndexError):
            raise DataError(where, "holds no tf.train.Example", "write it again") from None
        for column in columns.values():
            if found.get(column.feature) != column.stored:
                present = ", ".join(f"'{name}' ({stored})" for name, stored in sorted(found.items()))
                cause = (
                    f"lacks feature '{column.feature}' stored as {column.stored}; present {present or 'none'}"
                )
                raise DataError(where, cause, "correct the columns")
        yield start, size
        start, number = start + size, number + 1


def _features(example: memoryview) -> dict[str, str]:
    """Names of the features of a tf.train.Example and how they are stored."""
    found: dict[str, str] = {}
    for _, features in sized(example):
        for _, entry in sized(features):
            pair = dict(sized(entry))
            for number, listed in sized(pair.get(2, memoryview(b""))):
                stored = _VALUES.get(number, "unknown")
                if stored == "bytes" and (n := len([*sized(listed)])) != 1:
                    stored = f"{n} byte strings"  # DALI reads the first, which must be there
                found[bytes(pair.get(1, b"")).decode()] = stored
    return found
