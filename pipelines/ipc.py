"""Arrow IPC files of samples without an Arrow object a sample: what pyarrow writes, byte for byte.

The columns of shards have no nulls and are numbers or fixed-size lists of numbers. Record batches of them
that have rows differ in their data and in a few numbers of their metadata: pyarrow writes one such, and an
empty one, and the numbers are filled in for each sample. Where all lies follows from the samples' rows alone.

The format: "Serialization and Interprocess Communication" of the Arrow columnar format 1.5, its tables in
`Message.fbs` and `File.fbs`; "FlatBuffer Internals" for where the fields of a table stand.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from . import shards
from .records import Field

_MAGIC = b"ARROW1"
_START = _MAGIC + b"\0\0"
_END_OF_STREAM = b"\xff\xff\xff\xff\0\0\0\0"
_ALIGNED = 8  # bytes that messages and the columns in them begin at a multiple of, as pyarrow has it

_PREFIX = 8  # bytes before the metadata of a message
_HEADER, _BODY = 2, 3  # of a Message
_ROWS, _NODES, _BUFFERS = 0, 1, 2  # of a RecordBatch
_SCHEMA, _DICTIONARIES, _BATCHES = 1, 2, 3  # of a Footer
_BLOCK = 24  # bytes of what a footer says of a record batch


class Lying(NamedTuple):
    """Where samples lie that follow each other, in bytes from the start of the first, int64.

    ``starts`` (n + 1,): of each sample, and the end of the last; ``columns`` (n, columns): the first byte of
    each; ``sizes`` (n, columns).
    """

    starts: NDArray[np.int64]
    columns: NDArray[np.int64]
    sizes: NDArray[np.int64]


class Layout:
    """How samples with some ``fields`` lie in an Arrow file.

    ``head``: the bytes before the first sample.
    """

    def __init__(self, fields: Mapping[str, Field]) -> None:
        schema = shards.arrow_schema(fields)
        self._fields = fields
        self._row_bytes = np.array([field.row_bytes for field in fields.values()], np.int64)
        self.head = _START + schema.serialize().to_pybytes()
        none, one = (
            shards.to_batch(schema, {name: np.zeros(field.shape(rows)) for name, field in fields.items()})
            for rows in (0, 1)
        )
        self._footer = _footer(one)
        self._empty, self._message = (np.frombuffer(_metadata(batch), np.int64) for batch in (none, one))
        self._find(self._message.tobytes())

    def _find(self, message: bytes) -> None:
        """Which words of a message's metadata are other ones in each sample."""
        root = _target(message, _PREFIX)
        batch = _target(message, _slot(message, root, _HEADER))
        nodes, buffers = (_target(message, _slot(message, batch, slot)) + 4 for slot in (_NODES, _BUFFERS))
        widths = [field.width for field in self._fields.values()]
        # A column has a node and an empty buffer of validity, and so have the items of its lists; then data.
        levels = [1 if width == 1 else 2 for width in widths]
        ends = np.cumsum([level + 1 for level in levels])
        self._body = _slot(message, root, _BODY) // 8
        self._rows = _slot(message, batch, _ROWS) // 8
        self._nodes = nodes // 8 + 2 * np.arange(sum(levels))
        self._node_rows = np.concatenate([[1] if width == 1 else [1, width] for width in widths])
        self._buffers = buffers // 8 + 2 * np.arange(ends[-1])
        self._column_of_buffer = np.repeat(np.arange(len(widths)), np.diff(ends, prepend=0))
        self._data = buffers // 8 + 2 * (ends - 1) + 1

    def lying(self, rows: NDArray[np.int64]) -> Lying:
        """Where samples of ``rows``, (n,), lie."""
        sizes = rows[:, None] * self._row_bytes
        padded = _padded(sizes)
        ends = padded.cumsum(axis=1)
        metadata = self._metadata_sizes(rows)
        starts = np.concatenate([[0], np.cumsum(metadata + ends[:, -1])])
        return Lying(starts, (starts[:-1] + metadata)[:, None] + ends - padded, sizes)

    def messages(
        self, rows: NDArray[np.int64], lying: Lying, columns: Mapping[str, NDArray[Any]]
    ) -> NDArray[np.uint8]:
        """The bytes of samples, whose rows stand one behind the other in ``columns``.

        Raises ValueError for a column of other rows or another width.
        """
        out = np.empty(lying.starts[-1], np.uint8)
        ends = (lying.columns + _padded(lying.sizes))[rows > 0]
        out.view(np.int64)[ends // 8 - 1] = 0  # what is left of it behind the data is padding
        for at, own, count in zip(
            lying.starts.tolist(), self._words(rows, lying), rows.tolist(), strict=False
        ):
            metadata = own if count else self._empty
            out[at : at + metadata.nbytes] = metadata.view(np.uint8)
        count = int(rows.sum())
        for i, (name, field) in enumerate(self._fields.items()):
            values = np.ascontiguousarray(columns[name], field.dtype).reshape(field.shape(count))
            data, taken = values.reshape(-1).view(np.uint8), 0
            for at, size in zip(lying.columns[:, i].tolist(), lying.sizes[:, i].tolist(), strict=True):
                out[at : at + size] = data[taken : taken + size]
                taken += size
        return out

    def _words(self, rows: NDArray[np.int64], lying: Lying) -> NDArray[np.int64]:
        """The metadata of each sample's message: (n, words)."""
        words = np.tile(self._message, (len(rows), 1))
        words[:, self._body] = _bodies(lying)
        words[:, self._rows] = rows
        words[:, self._nodes] = rows[:, None] * self._node_rows
        words[:, self._buffers] = (lying.columns - lying.columns[:, :1])[:, self._column_of_buffer]
        words[:, self._data] = lying.sizes
        return words

    def tail(self, rows: NDArray[np.int64], lying: Lying) -> bytes:
        """The bytes behind the last sample: the footer says where all samples of the file lie."""
        blocks = np.zeros((len(rows), 3), np.int64)
        blocks[:, 0] = len(self.head) + lying.starts[:-1]
        blocks[:, 1] = self._metadata_sizes(rows)
        blocks[:, 2] = _bodies(lying)
        footer = self._footer.with_blocks(blocks)
        return _END_OF_STREAM + footer + struct.pack("<i", len(footer)) + _MAGIC

    def _metadata_sizes(self, rows: NDArray[np.int64]) -> NDArray[np.int64]:
        return np.where(rows > 0, self._message.nbytes, self._empty.nbytes)


def layout_of(fields: Mapping[str, Field]) -> Layout:
    """The layout of samples with some fields; the shards of a build all have the same few."""
    return _layout_of(tuple(fields.items()))


@lru_cache(maxsize=64)
def _layout_of(fields: tuple[tuple[str, Field], ...]) -> Layout:
    return Layout(dict(fields))


class _Footer:
    """The footer of a file with one record batch, to which others are added."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        table = _target(data, 0)
        self._count = _target(data, _slot(data, table, _BATCHES))
        # What lies behind the blocks moves: pyarrow puts the schema there, and a list of no dictionaries.
        self._moved = [_slot(data, table, slot) for slot in (_SCHEMA, _DICTIONARIES)]

    def with_blocks(self, blocks: NDArray[np.int64]) -> bytes:
        """That of a file with other ``blocks``, (n, 3): where each begins, bytes of metadata and of data."""
        data, begin = bytearray(self._data), self._count + 4
        end = begin + _BLOCK
        for at in self._moved:
            struct.pack_into("<I", data, at, _number(data, at) + blocks.nbytes - _BLOCK)
        struct.pack_into("<I", data, self._count, len(blocks))
        data[begin:end] = blocks.tobytes()
        return bytes(data)


def _footer(one: pa.RecordBatch) -> _Footer:
    """That of a file which pyarrow writes."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_file(sink, one.schema) as writer:
        writer.write_batch(one)
    data: bytes = sink.getvalue().to_pybytes()
    end = len(data) - len(_MAGIC) - 4
    return _Footer(data[end - _number(data, end) : end])


def _metadata(batch: pa.RecordBatch) -> bytes:
    """All but the data of a record batch that pyarrow writes."""
    message: bytes = batch.serialize().to_pybytes()
    return message[: _PREFIX + _number(message, 4)]


def _padded(sizes: NDArray[np.int64]) -> NDArray[np.int64]:
    return (sizes + (_ALIGNED - 1)) & -_ALIGNED


def _bodies(lying: Lying) -> NDArray[np.int64]:
    """Bytes of each sample's columns, with their padding."""
    bodies: NDArray[np.int64] = lying.starts[1:] - lying.columns[:, 0]
    return bodies


def _number(data: bytes | bytearray, at: int) -> int:
    number: int = struct.unpack_from("<I", data, at)[0]
    return number


def _target(data: bytes, at: int) -> int:
    """Where an offset of a flatbuffer leads to: it counts from where it stands."""
    return at + _number(data, at)


def _slot(data: bytes, table: int, field: int) -> int:
    """Where a field of a table stands: the table says where its list of them is."""
    fields = table - struct.unpack_from("<i", data, table)[0]
    place: int = table + struct.unpack_from("<H", data, fields + 4 + 2 * field)[0]
    return place
