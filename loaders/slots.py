"""Shared memory for a ring: what lies where in a slot, reserved up front, mapped as far as it is needed.

Every array of a batch has a memory file of its own (memfd: not bounded by /dev/shm, and gone with the last
process that has it open), with one place a slot. A reader gets the files of the columns it asked for and
maps no others.
"""

from __future__ import annotations

import mmap
import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..errors import DataError, UsageError
from ..metrics import STREAM, WIDTH
from ..pipelines.records import Field
from .limits import Limit, available
from .pack import offsets_of
from .ring import Ring

TEXT_BYTES = 1 << 14
SPARE = 0.9  # of what is free: a system without any spare memory ends processes
_SLOTS = (4, 3, 2)  # in use, ready, being made, and one for a slow moment; fewer where memory is short

Per = Literal["cloud", "edge", "row", "own"]


@dataclass(frozen=True)
class Part:
    """One array of a batch: an element a cloud, one more than clouds ("edge"), or ``width`` a row.

    ``rows``: the most rows of a batch, of what has rows of its "own" for each cloud.
    """

    dtype: np.dtype[Any]
    per: Per
    width: int = 1
    rows: int = 0

    def shape(self, head: Head, rows: int | None = None) -> tuple[int, ...]:
        """Its shape in a batch; ``rows``: how many of its own there are, by default the most."""
        if self.per in ("cloud", "edge"):
            return (head.places + (self.per == "edge"),)
        if self.per == "own":
            every: tuple[int, ...] = (self.rows if rows is None else rows,)
        else:
            every = (head.places, head.k) if head.dense else (head.rows,)
        return every if self.width == 1 else (*every, self.width)


@dataclass(frozen=True)
class Head:
    """The figures of one batch. ``text``: bytes of the error there is in its place, or 0."""

    step: int
    epoch: int
    k: int
    places: int
    rows: int
    dense: int
    text: int = 0


HEAD = len(Head.__dataclass_fields__)


def parts_of(
    fields: Mapping[str, Field], *, dense: bool, serialised: bool, own: Mapping[str, Part] | None = None
) -> dict[str, Part]:
    """Every array of a batch that has the columns ``fields`` and the annotations ``own``."""
    parts = {"ids": Part(np.dtype(np.uint64), "cloud"), "weight": Part(np.dtype(np.float32), "cloud")}
    if dense:
        parts["mask"] = Part(np.dtype(np.bool_), "row")
    else:
        parts["offsets"] = Part(np.dtype(np.int64), "edge")
    parts.update({name: Part(field.dtype, "row", field.width) for name, field in fields.items()})
    if serialised:
        parts["transposed"] = Part(np.dtype(np.int64), "row")
    for name, part in (own or {}).items():
        parts |= {offsets_of(name): Part(np.dtype(np.int64), "edge"), name: part}
    return parts


@dataclass(frozen=True)
class Layout:
    """``room``: bytes of each array in a slot, whole pages."""

    slots: int
    readers: int
    room: Mapping[str, int]

    @property
    def bytes(self) -> int:
        """Memory of the ring."""
        return self.slots * sum(self.room.values()) + self.control_bytes

    @property
    def control_bytes(self) -> int:
        """Bytes of words, heads, texts and the meter's table."""
        words = self.slots * (1 + self.readers + HEAD) * 8
        return _pages(words + self.slots * TEXT_BYTES + len(STREAM) * WIDTH * 8)


def layout(parts: Mapping[str, Part], largest: Head, slots: int, readers: int) -> Layout:
    """What ``slots`` slots need for batches no larger than ``largest``."""
    room = {
        name: _pages(int(np.prod(part.shape(largest), dtype=np.int64)) * part.dtype.itemsize)
        for name, part in parts.items()
    }
    return Layout(slots, readers, room)


def rings_of(
    parts: Mapping[int, Mapping[str, Part]],
    readers: Mapping[int, int],
    largest: Head,
    slots: int | None,
    limit: Limit | None = None,
) -> dict[int, Layout]:
    """A ring for each replica: with ``slots`` slots, None for as many as memory has room for, at most 4.

    ``readers``: of each replica. ``limit``: by default what the machine and its control groups have.
    Raises UsageError with the numbers where there is too little, before any is taken.
    """
    free = limit or available()

    def rings(count: int) -> dict[int, Layout]:
        return {replica: layout(parts[replica], largest, count, readers[replica]) for replica in parts}

    def need(count: int) -> int:
        return sum(ring.bytes for ring in rings(count).values())

    def fits(count: int) -> bool:
        return need(count) <= SPARE * free.bytes

    for count in (slots,) if slots else _SLOTS:
        if fits(count):
            return rings(count)
    most = int(SPARE * free.bytes * count / need(count)) + 1
    fewer = next((n for n in range(min(most, count - 1), 1, -1) if fits(n)), 0)
    raise UsageError(
        "loader.feeder",
        f"{count} slots of {need(count) / count / 1e6:.1f} MB need {need(count) / 1e6:.1f} MB of memory, "
        f"{free.bytes / 1e6:.1f} MB are free by {free.source}",
        f"set loader.slots to {fewer}" if fewer else "lower loader.batch or the points of a cloud",
    )


def reserve(name: str, size: int) -> int:
    """A memory file of ``size`` bytes that are really there: touching them later cannot fail."""
    fd = os.memfd_create(f"tamis-{name[:50]}", os.MFD_CLOEXEC)  # a name of up to 249 bytes is taken
    try:
        os.posix_fallocate(fd, 0, size)
    except OSError as error:
        os.close(fd)
        cause = f"{size / 1e6:.1f} MB of shared memory cannot be reserved ({error.strerror})"
        raise UsageError("loader.feeder", cause, "lower loader.slots or loader.batch") from None
    return fd


class Control:
    """The words of a ring, and the head and the text of each slot: small, mapped by everyone."""

    def __init__(self, fd: int, layout: Layout) -> None:
        memory = mmap.mmap(fd, layout.control_bytes)
        slots, width = layout.slots, 1 + layout.readers
        words = np.frombuffer(memory, np.uint64, slots * width)
        heads = np.frombuffer(memory, np.int64, slots * HEAD, words.nbytes)
        start = words.nbytes + heads.nbytes
        self.table = np.frombuffer(memory, np.float64, len(STREAM) * WIDTH, start).reshape(-1, WIDTH)
        texts = np.frombuffer(memory, np.uint8, slots * TEXT_BYTES, start + self.table.nbytes)
        self.ring = Ring(words.reshape(slots, width))
        self._heads, self._texts = heads.reshape(slots, HEAD), texts.reshape(slots, TEXT_BYTES)

    def write(self, slot: int, head: Head, text: bytes = b"") -> None:
        """Say what lies in a slot; it is not published by that."""
        self._heads[slot] = tuple(vars(head).values())
        self._texts[slot, : len(text)] = np.frombuffer(text, np.uint8)

    def read(self, slot: int) -> tuple[Head, bytes]:
        """What `write` said."""
        head = Head(*self._heads[slot].tolist())
        return head, self._texts[slot, : head.text].tobytes()


class HostMemory(NamedTuple):
    """Where batches lie: ``spans``, address and length in bytes of each mapping; ``slots``, how many fit."""

    spans: list[tuple[int, int]]
    slots: int


class Slots:
    """The memory of some arrays of a ring: array -> its file, mapped. Closes none of the descriptors.

    A ``private`` mapping shows what others write, and keeps what this process writes to itself until
    `forget`: so that readers of one batch cannot disturb each other.
    """

    def __init__(self, files: Mapping[str, int], layout: Layout, *, private: bool = False) -> None:
        self._layout, self.private = layout, private
        flags = mmap.MAP_PRIVATE if private else mmap.MAP_SHARED
        self._maps = {
            name: mmap.mmap(fd, layout.slots * layout.room[name], flags) for name, fd in files.items()
        }
        self._bytes = {name: np.frombuffer(memory, np.uint8) for name, memory in self._maps.items()}

    def array(self, slot: int, name: str, shape: tuple[int, ...], dtype: np.dtype[Any]) -> NDArray[Any]:
        """Array ``name`` of a slot, where it lies. Raises DataError where the slot is too small."""
        size, room = int(np.prod(shape, dtype=np.int64)) * dtype.itemsize, self._layout.room[name]
        if size > room:
            raise DataError(
                "loader.feeder",
                f"column {name} of a batch has {size} bytes, a slot holds {room}",
                "an operator made a cloud larger than its sample: give k",
            )
        return self._bytes[name][slot * room : slot * room + size].view(dtype).reshape(shape)

    def address(self, slot: int, name: str) -> int:
        """Where array ``name`` of a slot begins in this process."""
        return int(self._bytes[name].ctypes.data) + slot * self._layout.room[name]

    def forget(self, slot: int) -> None:
        """Drop what this process has written into a slot of a private mapping."""
        for name, memory in self._maps.items():
            room = self._layout.room[name]
            memory.madvise(mmap.MADV_DONTNEED, slot * room, room)

    def spans(self) -> list[tuple[int, int]]:
        """Address and length in bytes of each mapping, to register them with a device."""
        return [(int(b.ctypes.data), b.nbytes) for b in self._bytes.values() if b.nbytes]


def _pages(size: int) -> int:
    return max(-(-size // mmap.PAGESIZE), 1) * mmap.PAGESIZE
