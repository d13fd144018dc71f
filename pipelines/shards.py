"""Shards: Arrow IPC files, one record batch a sample, that can be read by byte position alone."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from .checks import running
from .records import Field

INDEX, SAMPLES, CHECKSUMS = "index.arrow", "samples.arrow", "checksums.arrow"
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


def to_batch(schema: pa.Schema, columns: Mapping[str, NDArray[Any]]) -> pa.RecordBatch:
    """The record batch of one sample."""
    arrays = []
    for entry in schema:
        values, type_ = np.ascontiguousarray(columns[entry.name]), entry.type
        vectors = pa.types.is_fixed_size_list(type_)
        # Not by pa.array, which imports pandas where that is installed: most of a second in every process.
        flat = pa.Array.from_buffers(
            type_.value_type if vectors else type_, values.size, [None, pa.py_buffer(values)]
        )
        if vectors:
            flat = pa.Array.from_buffers(type_, len(values), [None], children=[flat])
        arrays.append(flat)
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


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


@contextmanager
def writing(path: Path, schema: pa.Schema) -> Iterator[Any]:
    """An Arrow file to write batches to; it is for the caller to `sync` it."""
    with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_file(sink, schema) as writer:
        yield writer


def write_table(path: Path, schema: pa.Schema, columns: Mapping[str, Any]) -> None:
    """Write one record batch, so that each column lies in one piece."""
    arrays = []
    for entry in schema:
        values = columns[entry.name]
        if isinstance(values, np.ndarray) and values.ndim == 2:
            arrays.append(pa.FixedSizeListArray.from_arrays(pa.array(values.reshape(-1)), type=entry.type))
        else:
            arrays.append(pa.array(values, type=entry.type))
    with writing(path, schema) as writer:
        writer.write_batch(pa.record_batch(arrays, schema=schema))


def opened(path: Path) -> tuple[Any, Any]:
    """A file, mapped into memory: its Arrow reader, and the buffer of all its bytes."""
    buffer = pa.memory_map(str(path)).read_buffer()
    return pa.ipc.open_file(pa.BufferReader(buffer)), buffer


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


def pack(sizes: Sequence[int], splits: Sequence[str], limit: int) -> list[range]:
    """Shards of single sources, in order, to the shards of a dataset: large ones alone, small ones together.

    A large one has an eighth of ``limit`` or more; together they have at most ``limit`` bytes and one split.
    """
    groups: list[range] = []
    first, total = 0, 0
    for i, size in enumerate(sizes):
        alone = size * _ALONE >= limit
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


def write_shard(path: Path, schema: pa.Schema, batches: Iterable[pa.RecordBatch]) -> None:
    """Write one shard."""
    with writing(path, schema) as writer:
        for batch in batches:
            writer.write_batch(batch)


def buffers(
    path: Path, fields: Mapping[str, Field]
) -> Iterator[tuple[int, dict[str, tuple[int, memoryview]]]]:
    """For each sample of a finished shard: its rows, and of each column the byte position and the bytes.

    Read back from the file, so that what is recorded is what is there.
    """
    reader, whole = opened(path)
    wanted = [(name, reader.schema.get_field_index(name), field.row_bytes) for name, field in fields.items()]
    for number in range(reader.num_record_batches):
        batch = reader.get_batch(number)
        rows, arrays = batch.num_rows, batch.columns
        found: dict[str, tuple[int, memoryview]] = {}
        for name, at, row_bytes in wanted:
            buffer = arrays[at].buffers()[-1]
            data = memoryview(buffer)[: rows * row_bytes] if rows else memoryview(b"")
            found[name] = buffer.address - whole.address if rows else 0, data
        yield rows, found


def locate(
    path: Path, fields: Mapping[str, Field]
) -> Iterator[tuple[int, dict[str, int], dict[str, NDArray[np.uint32]]]]:
    """For each sample of a finished shard: rows, byte position of each column, and its running checksums."""
    row_bytes = {name: field.row_bytes for name, field in fields.items()}
    for rows, found in buffers(path, fields):
        positions = {name: at for name, (at, _) in found.items()}
        yield (
            rows,
            positions,
            {name: running(data, rows, row_bytes[name]) for name, (_, data) in found.items()},
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
