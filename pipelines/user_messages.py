"""What a process and its workers for user code say to each other: a JSON value, then the bytes of arrays.

A worker imports this and numpy alone.
"""

from __future__ import annotations

import json
import os
import struct
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from .ops.call import Columns

Fill = Callable[[memoryview], None]
"""``fill(room)`` fills the whole of ``room`` with the bytes that come next."""

_MARK = b"tamis"
_PREFIX = struct.Struct("<5sI")  # the mark, bytes of the JSON text


class Garbled(Exception):
    """Bytes that are no message."""


def message(about: Any, columns: Columns | None = None) -> list[memoryview]:
    """The bytes of a message, in parts: ``about`` is any JSON value; the columns are not copied."""
    columns = columns or {}
    layout = [(name, values.dtype.str, values.shape) for name, values in columns.items()]
    text = json.dumps([about, layout]).encode()
    head = _PREFIX.pack(_MARK, len(text)) + text
    return [memoryview(head), *(_bytes(np.ascontiguousarray(values)) for values in columns.values())]


def received(fill: Fill) -> tuple[Any, Columns]:
    """The next message, its columns in arrays of their own. Raises Garbled, and what ``fill`` raises."""
    prefix = bytearray(_PREFIX.size)
    fill(memoryview(prefix))
    mark, size = _PREFIX.unpack(prefix)
    if mark != _MARK:
        raise Garbled
    text = bytearray(size)
    fill(memoryview(text))
    try:
        about, layout = json.loads(text)
    except ValueError:
        raise Garbled from None
    columns: Columns = {}
    for name, dtype, shape in layout:
        columns[name] = np.empty(shape, dtype)
        fill(_bytes(columns[name]))
    return about, columns


def filled(descriptor: int, room: memoryview) -> None:
    """Fill ``room`` from a pipe that waits for bytes. Raises EOFError where it ends before."""
    while room:
        n = os.readv(descriptor, [room])
        if not n:
            raise EOFError
        room = room[n:]


def sent(descriptor: int, parts: Iterable[memoryview]) -> None:
    """Write all parts to a pipe that waits for room."""
    for part in parts:
        while part:
            part = part[os.write(descriptor, part) :]


def _bytes(values: NDArray[Any]) -> memoryview:
    return values.reshape(-1).view(np.uint8).data
