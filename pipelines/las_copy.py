"""Writes the points of a LAS or LAZ file to another and leaves as it was whatever was not asked for."""

from __future__ import annotations

import io
import logging
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

import laspy

from ..files import atomic
from .readers.las import EVLR_AT, EVLR_COUNT, HEADER_SIZE, VLR_COUNT

log = logging.getLogger(__name__)

# Byte positions in the public header block (LAS 1.4 R15, table 3).
_COUNTS = (107, 24)  # the number of points as LAS 1.0 to 1.3 count them
_BOUNDS = (179, 48)


def write_copy(file: Path, las: laspy.LasData, out: Path, *, same_points: bool) -> None:
    """Write ``las``, which was read from ``file``, to ``out``; its suffix says whether it is compressed.

    laspy would describe extra fields, bounds and counts in its own words; so records, and where they are the
    ``same_points`` the figures too, are taken from the bytes of ``file``. Only the records of a
    cloud-optimised file are dropped: they say where in the old file its points lie.
    """
    with file.open("rb") as source, atomic(out) as temporary, temporary.open("wb+") as stream:
        las.header.vlrs[:] = _records(source, _number(source, HEADER_SIZE, 2), _number(source, VLR_COUNT, 4))
        if las.evlrs is not None:
            first, count = _number(source, EVLR_AT, 8), _number(source, EVLR_COUNT, 4)
            las.evlrs[:] = _records(source, first, count, extended=True)
        whole = io.BytesIO()  # on a full disk the compressor raises an error of its own, and leaves another
        las.write(whole, do_compress=out.suffix.lower() == ".laz")
        stream.write(whole.getbuffer())
        for place, size in (_COUNTS, _BOUNDS) if same_points else ():
            source.seek(place)
            stream.seek(place)
            stream.write(source.read(size))


def _records(source: BinaryIO, start: int, count: int, extended: bool = False) -> Iterator[laspy.VLR]:
    """Variable-length records as bytes, without those of LASzip, which the writer adds, and of COPC."""
    head = struct.Struct("<2x16sHQ32s" if extended else "<2x16sHH32s")
    source.seek(start)
    for _ in range(count):
        user, number, size, about = head.unpack(source.read(head.size))
        record = laspy.VLR(_text(user), number, _text(about), source.read(size))
        if record.user_id == "copc" and not extended:  # it has one of each
            log.warning("the copy is no cloud-optimised file (COPC): the record of that is left out")
        if record.user_id not in ("copc", "laszip encoded"):
            yield record


def _text(field: bytes) -> str:
    return field.split(b"\0")[0].decode("latin-1")


def _number(source: BinaryIO, place: int, size: int) -> int:
    source.seek(place)
    return int.from_bytes(source.read(size), "little")
