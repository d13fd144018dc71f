"""Shards: Arrow IPC files, one record batch a sample, that can be read by byte position alone."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from .records import Field

INDEX, SAMPLES, CHECKSUMS = "index.arrow", "samples.arrow", "checksums.arrow"
_VECTORS = pa.list_(pa.uint8(), 1).id

_ALONE = 8
"""What holds this share of a shard is not copied to be packed."""

SAMPLE_SCHEMA = pa.schema(
    [
        pa.field("name", pa.utf8(), nullable=False),
        pa.field("source", pa.utf8(), nullable=False),
        pa.field("tile", pa.int64(), nullable=False),
        pa.field("origin", pa.list_(pa.field("item", pa.float64(), nullable=False), 3), nullable=False),
        pa.field("bounds", pa.list_(pa.field("item", pa.float64(), nullable=False), 6), nullable=False),
        pa.field("label", pa.int32(), nullable=False),
        pa.field("split", pa.utf8(), nullable=False),
    ]
)


def shard_name(number: int, annotation: str | None = None) -> str:
    """File name of a shard: of its columns, or of one annotation."""
    return f"shard-{number:05d}.arrow" if annotation is None else f"shard-{number:05d}.{annotation}.arrow"


def checksums_name(annotation: str | None = None) -> str:
    """File name of the checksums of the columns, or of one annotation."""
    return CHECKSUMS if annotation is None else f"checksums.{annotation}.arrow"


def shard_of(name: str) -> tuple[int, str | None] | None:
    """Number and annotation of the shard with a file name, None where it is that of another file."""
    parts = name.removeprefix("shard-").removesuffix(".arrow").split(".", 1)
    if name == parts[0] or not parts[0].isdecimal():
        return None
    return int(parts[0]), parts[1] if len(parts) == 2 else None


def arrow_schema(fields: Mapping[str, Field]) -> pa.Schema:
    """Arrow types of the columns: nothing nullable, vectors as fixed-size lists."""
    return pa.schema([pa.field(name, _arrow_type(field), nullable=False) for name, field in fields.items()])


def to_batch(schema: pa.Schema, columns: Mapping[str, Any]) -> pa.RecordBatch:
    """The record batch of one sample, or of a table."""
    arrays = [_array(entry.type, columns[entry.name]) for entry in schema]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def _array(kind: pa.DataType, values: Any) -> pa.Array:
    """A column: texts, numbers (n,) or vectors (n, w).

    Not by pa.array, which imports pandas where that is installed: most of a second in every process.
    """
    if kind == pa.utf8():
        encoded = [text.encode() for text in values]
        ends = np.cumsum([0, *map(len, encoded)])
        if ends[-1] >= 1 << 31:
            raise OverflowError("the texts of a column are longer than 2 GB")
        buffers = [None, pa.py_buffer(ends.astype(np.int32)), pa.py_buffer(b"".join(encoded))]
        return pa.Array.from_buffers(kind, len(encoded), buffers)
    if kind.id != _VECTORS:
        values = np.ascontiguousarray(values, kind.to_pandas_dtype())
        return pa.Array.from_buffers(kind, len(values), [None, pa.py_buffer(values)])
    flat = _array(kind.value_type, np.ascontiguousarray(values).reshape(-1))
    return pa.Array.from_buffers(kind, len(values), [None], children=[flat])


def from_batch(batch: pa.RecordBatch) -> dict[str, NDArray[Any]]:
    """The columns of one sample: views of the batch's memory."""
    columns = {}
    for entry, array in zip(batch.schema, batch.columns, strict=True):
        width = None
        if pa.types.is_fixed_size_list(entry.type):
            array, width = array.flatten(), entry.type.list_size
        # Not by the array's own way, which imports pandas as `pa.array` does.
        dtype = np.dtype(array.type.to_pandas_dtype())
        values = np.frombuffer(array.buffers()[1] or b"", dtype, len(array), array.offset * dtype.itemsize)
        columns[entry.name] = values if width is None else values.reshape(-1, width)
    return columns


def write_table(path: Path, schema: pa.Schema, columns: Mapping[str, Any]) -> None:
    """Write one record batch, so that each column lies in one piece; it is for the caller to `sync` it."""
    with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_file(sink, schema) as writer:
        writer.write_batch(to_batch(schema, columns))


def opened(path: Path) -> tuple[Any, Any]:
    """A file, mapped into memory: its Arrow reader, and the buffer of all its bytes."""
    buffer = pa.memory_map(str(path)).read_buffer()
    return pa.ipc.open_file(pa.BufferReader(buffer)), buffer


def samples(path: Path) -> Iterator[dict[str, NDArray[Any]]]:
    """The columns of each sample of a shard, in its order: views of the file, mapped into memory."""
    reader, _ = opened(path)
    for number in range(reader.num_record_batches):
        yield from_batch(reader.get_batch(number))


def divide(sizes: Sequence[int], splits: Sequence[str], sources: Sequence[str], limit: int) -> list[range]:
    """Samples, in order, to shards of at most ``limit`` bytes (or one sample); a shard has one split.

    As a build makes them: those of one source are divided first, and what is small is packed.
    """
    pieces: list[range] = []
    first, total = 0, 0
    for i, size in enumerate(sizes):
        if i > first and (total + size > limit or (splits[i], sources[i]) != (splits[first], sources[first])):
            pieces.append(range(first, i))
            first, total = i, 0
        total += size
    if len(sizes) > first:
        pieces.append(range(first, len(sizes)))
    own = [sum(sizes[i] for i in piece) for piece in pieces]
    groups = pack(own, [splits[piece.start] for piece in pieces], limit)
    return [range(pieces[group.start].start, pieces[group.stop - 1].stop) for group in groups]


def stays_alone(size: int, limit: int) -> bool:
    """Whether a shard of a single source is so large that it is taken as it is."""
    return size * _ALONE >= limit


def pack(sizes: Sequence[int], splits: Sequence[str], limit: int) -> list[range]:
    """Shards of single sources, in order, to the shards of a dataset: large ones alone, small ones together.

    A large one has an eighth of ``limit`` or more; together they have at most ``limit`` bytes and one split.
    """
    groups: list[range] = []
    first, total = 0, 0
    for i, size in enumerate(sizes):
        alone = stays_alone(size, limit)
        if i > first and (alone or total + size > limit or splits[i] != splits[first]):
            groups.append(range(first, i))
            first, total = i, 0
        total += size
        if alone:
            groups.append(range(i, i + 1))
            first, total = i + 1, 0
    if len(sizes) > first:
        groups.append(range(first, len(sizes)))
    return groups


class Places(NamedTuple):
    """Where the samples of a shard lie: ``data`` uint8, all its bytes, ``rows`` int64 (n,).

    ``positions``: column -> byte position of each sample, int64 (n,), 0 for a sample without rows.
    """

    data: NDArray[np.uint8]
    rows: NDArray[np.int64]
    positions: dict[str, NDArray[np.int64]]


def places(path: Path, fields: Iterable[str]) -> Places:
    """Where the samples of a finished shard lie: read back from it, so that it is what is there."""
    reader, whole = opened(path)
    columns = [reader.schema.get_field_index(name) for name in fields]
    rows, positions = [], []
    for number in range(reader.num_record_batches):
        batch = reader.get_batch(number)
        rows.append(batch.num_rows)
        first = whole.address if batch.num_rows else None
        arrays = batch.columns
        positions.append([arrays[at].buffers()[-1].address - first if first else 0 for at in columns])
    at = np.array(positions, np.int64).reshape(-1, len(columns))
    return Places(
        np.frombuffer(whole, np.uint8),
        np.array(rows, np.int64),
        {name: np.ascontiguousarray(at[:, i]) for i, name in enumerate(fields)},
    )


def index_schema(fields: Iterable[str], annotations: Iterable[str] = ()) -> pa.Schema:
    """Columns of ``index.arrow``."""
    entries = [("id", pa.uint64()), ("rows", pa.int64()), ("shard", pa.int32()), ("block", pa.int64())]
    entries += [(f"pos_{name}", pa.int64()) for name in fields]
    entries += [(f"{what}_{name}", pa.int64()) for name in annotations for what in ("pos", "rows", "block")]
    return pa.schema([pa.field(name, kind, nullable=False) for name, kind in entries])


def checksum_schema(fields: Iterable[str]) -> pa.Schema:
    """Columns of ``checksums.arrow`` or, for the name of one, of an annotation's checksums."""
    return pa.schema([pa.field(name, pa.uint32(), nullable=False) for name in fields])


def _arrow_type(field: Field) -> pa.DataType:
    element = pa.from_numpy_dtype(field.dtype)
    if field.width == 1:
        return element
    return pa.list_(pa.field("item", element, nullable=False), field.width)
