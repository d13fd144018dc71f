"""TFRecord files and the tf.train.Example in each record, written and read without TensorFlow.

A record: its length (uint64), the masked CRC32C of the length, the data, their masked CRC32C, all
little-endian (https://www.tensorflow.org/tutorials/load_data/tfrecord). An Example is a protobuf message
(https://protobuf.dev/programming-guides/encoding): a map of names to lists of bytes, floats or int64.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import IO

import numpy as np
from crc32c import crc32c
from numpy.typing import NDArray

from ..errors import DataError, system_error

Values = list[bytes] | NDArray[np.float32] | NDArray[np.int64]
"""What a feature lists."""

LARGEST = (1 << 31) - 1
"""Bytes of the largest message that a protobuf library reads."""

FIX = "fetch it again; compressed files are not read"
HEAD, TAIL = 12, 4
"""Bytes of a record before its data, the length and its checksum, and after them, their checksum."""

_LIST = {1: "bytes", 2: "floats", 3: "ints"}
_VARINT, _EIGHT, _SIZED, _FOUR = 0, 1, 2, 5  # how a field of a message is stored


def example(features: Mapping[str, bytes | NDArray[np.int64]]) -> bytes:
    """A serialised tf.train.Example of byte strings and lists of int64, in the given order."""
    parts = []
    for name, values in features.items():
        if isinstance(values, bytes):
            feature = _message(1, _message(1, values))
        else:
            ints = b"".join(_varint(value & (1 << 64) - 1) for value in values.tolist())
            feature = _message(3, _message(1, ints))
        parts.append(_message(1, _message(1, name.encode()) + _message(2, feature)))
    return _message(1, b"".join(parts))


def framed(data: bytes) -> bytes:
    """A record of a TFRecord file."""
    length = struct.pack("<Q", len(data))
    return b"".join(
        [length, struct.pack("<I", masked(crc32c(length))), data, struct.pack("<I", masked(crc32c(data)))]
    )


def records(path: Path) -> Iterator[tuple[int, bytes]]:
    """First byte and data of each record. Raises DataError, with the byte, for one that is damaged or cut."""
    try:
        with path.open("rb") as file:
            size = path.stat().st_size
            while file.tell() < size:
                start = file.tell()
                yield start, _next(path, file, size)
    except OSError as error:
        raise system_error(error, path) from None


def record(path: Path, start: int) -> bytes:
    """The data of the record at byte ``start``; DataError as in `records`."""
    try:
        with path.open("rb") as file:
            file.seek(start)
            return _next(path, file, path.stat().st_size)
    except OSError as error:
        raise system_error(error, path) from None


def features(data: bytes) -> dict[str, Values]:
    """What a serialised tf.train.Example lists under each name. Raises ValueError for what is none.

    A feature that is there without a list has no bytes.
    """
    found: dict[str, Values] = {}
    for _, listed in sized(memoryview(data)):
        for _, entry in sized(listed):
            pair = dict(sized(entry))
            name = bytes(pair.get(1, b"")).decode()
            if name in found:
                raise ValueError(f"names '{name}' twice")
            found[name] = _values(pair.get(2, memoryview(b"")))
    return found


def _next(path: Path, file: IO[bytes], size: int) -> bytes:
    start = file.tell()
    where = f"{path}: record at byte {start}"
    head = file.read(HEAD)
    if len(head) < HEAD or struct.unpack("<I", head[8:])[0] != masked(crc32c(head[:8])):
        raise DataError(where, "its length is damaged or cut", FIX)
    (length,) = struct.unpack("<Q", head[:8])
    beyond = start + HEAD + length + TAIL - size
    if beyond > 0:
        raise DataError(where, f"ends {beyond} bytes beyond the file", FIX)
    data, tail = file.read(length), file.read(TAIL)
    if tail != struct.pack("<I", masked(crc32c(data))):
        raise DataError(where, "its data are not those of its checksum", FIX)
    return data


def _values(feature: memoryview) -> Values:
    strings: list[bytes] = []
    found: Values = strings
    for number, listed in sized(feature):
        stored = _LIST.get(number)
        if stored == "bytes":
            strings += [bytes(value) for _, value in sized(listed)]
        elif stored == "floats":
            found = _floats(listed)
        elif stored == "ints":
            found = _ints(listed)
        else:
            raise ValueError(f"has a list of kind {number}")
    return found


def _floats(listed: memoryview) -> NDArray[np.float32]:
    """Packed or not: both are legal."""
    data = b"".join(bytes(part) for _, stored, part in _fields(listed) if stored in (_SIZED, _FOUR))
    if len(data) % 4:
        raise ValueError(f"has {len(data)} bytes of floats")
    return np.frombuffer(data, "<f4").astype(np.float32)


def _ints(listed: memoryview) -> NDArray[np.int64]:
    data = b"".join(bytes(part) for _, stored, part in _fields(listed) if stored in (_SIZED, _VARINT))
    raw = np.frombuffer(data, np.uint8)
    ends = np.flatnonzero(raw < 0x80)
    starts = np.concatenate([[0], ends[:-1] + 1]) if len(ends) else ends
    sizes = ends - starts + 1
    if len(raw) and (raw[-1] >= 0x80 or sizes.max() > 10):
        raise ValueError("has an integer that does not end")
    values = np.zeros(len(ends), np.uint64)
    for place in range(int(sizes.max(initial=0))):
        more = sizes > place
        part = (raw[starts[more] + place] & 0x7F).astype(np.uint64)
        values[more] |= part << np.uint64(7 * place)
    return values.view(np.int64)


def sized(message: memoryview) -> Iterator[tuple[int, memoryview]]:
    """Numbers and contents of the fields of a message that have a length; all of a known map have one."""
    for number, stored, part in _fields(message):
        if stored != _SIZED:
            raise ValueError(f"has a field {number} without a length")
        yield number, part


def _fields(message: memoryview) -> Iterator[tuple[int, int, memoryview]]:
    """Number, kind and bytes of each field of a protobuf message."""
    at = 0
    while at < len(message):
        tag, at = _read_varint(message, at)
        stored, start = tag & 7, at
        if stored == _VARINT:
            _, at = _read_varint(message, at)
        elif stored == _SIZED:
            size, start = _read_varint(message, at)
            at = start + size
        elif stored in (_FOUR, _EIGHT):
            at += 4 if stored == _FOUR else 8
        else:
            raise ValueError(f"has a field of kind {stored}")
        if at > len(message):
            raise ValueError("has a field that is cut")
        yield tag >> 3, stored, message[start:at]


def _read_varint(message: memoryview, at: int) -> tuple[int, int]:
    value = 0
    for place in range(10):
        if at + place >= len(message):
            break
        byte = message[at + place]
        value |= (byte & 0x7F) << 7 * place
        if byte < 0x80:
            return value, at + place + 1
    raise ValueError("has a number that does not end")


def _varint(value: int) -> bytes:
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def _message(number: int, data: bytes) -> bytes:
    return bytes([number << 3 | _SIZED]) + _varint(len(data)) + data


def masked(crc: int) -> int:
    """A checksum as TFRecord stores it."""
    return ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF
