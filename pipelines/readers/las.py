"""LAS and LAZ, cloud-optimised too, through laspy. Every dimension becomes a field under laspy's name."""

from __future__ import annotations

import struct
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

import laspy
import lazrs

from ...errors import DataError
from . import ReadSettings, Scan
from .las_points import Points
from .units import geo_keys, metres

# Byte positions in the public header block (LAS 1.4 R15, table 3).
HEADER_SIZE, POINTS_AT, VLR_COUNT, EVLR_AT, EVLR_COUNT = 94, 96, 100, 235, 243
_VLR_BYTES, _EVLR_BYTES, _EVLR_LENGTH = 54, 60, 20

# Records of a coordinate system (LAS 1.4 R15, annex B).
_PROJECTION, _WKT, _KEYS, _DOUBLES = "LASF_Projection", 2112, 34735, 34736

# Of a LASzip record (Isenburg 2013): chunks of any number of points; and what a chunk may always take.
_VARIABLE, _LARGE = 2**32 - 1, 2**30

# Of its kinds of parts of a point: basic ones, time, colours, waves, as of before LAS 1.4 and since.
_ITEM_BYTES = {6: 20, 7: 8, 8: 6, 9: 29, 10: 30, 11: 6, 12: 8, 13: 29}

# Layers that LASzip cuts a chunk of each point format into, without one for every extra byte.
_LAYERS = {6: 9, 7: 10, 8: 11, 9: 10, 10: 12}


def read(path: Path, settings: ReadSettings, wanted: Collection[str] | None = None) -> Scan:
    """Read all points; coordinates, and extra bytes that have a scale, are scaled in float64.

    Fields that are not ``wanted`` are left out, and not decoded where they lie in layers of their own.
    With ``settings.unit`` "metre" coordinates are brought to metres by the unit that the records of the
    coordinate system give. Raises DataError where they give none, and where the file is not whole.
    """
    return next(_pieces(path, settings, None, wanted))


def chunks(
    path: Path, settings: ReadSettings, rows: int, wanted: Collection[str] | None = None
) -> Iterator[Scan]:
    """As `read`, at most ``rows`` points at a time."""
    return _pieces(path, settings, rows, wanted)


def rows(path: Path, settings: ReadSettings) -> int:  # noqa: ARG001 (it says all itself)
    """How many points there are. Raises DataError where the file cannot hold them."""
    with _damage_told(path), path.open("rb") as file:
        return int(_header(path, file).point_count)


def _pieces(
    path: Path, settings: ReadSettings, most: int | None, wanted: Collection[str] | None
) -> Iterator[Scan]:
    """All points, or ``most`` at a time."""
    with _damage_told(path):
        file = path.open("rb")
    with file:
        with _damage_told(path):
            header = _header(path, file)
            points = Points(file, header, wanted)
        unit = None
        if settings.unit == "metre":
            across, up = metres(path, *_system([*header.vlrs, *(header.evlrs or [])]))
            unit = across, across, up
        done, promised = 0, header.point_count
        while not done or done < promised:
            count = min(most or promised, promised - done)
            with _damage_told(path):
                xyz, fields = points.take(count)
            done += len(xyz)
            if len(xyz) < count:
                raise _too_few(path, promised, done)
            if unit:
                xyz *= unit
            yield Scan(xyz, fields, names=points.names)
            if not promised:
                return


@contextmanager
def _damage_told(path: Path) -> Iterator[None]:
    """Tell what laspy, lazrs and numpy raise on damaged bytes, each its own kinds, as a DataError."""
    try:
        yield
    except DataError:
        raise
    except BaseException as error:
        # What goes wrong in Rust is no Exception for Python, as Ctrl-C is none.
        if not isinstance(error, Exception) and type(error).__name__ != "PanicException":
            raise
        cause = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
        raise DataError(path, f"is a damaged or cut LAS file ({cause})", "copy it again") from None


def _header(path: Path, file: BinaryIO) -> laspy.LasHeader:
    """The header, once its records and its number of points are known to be there."""
    _check_records(path, file)
    with laspy.open(file, closefd=False) as reader:
        _check_count(path, file, reader.header)
        return reader.header


def _system(records: list[laspy.VLR]) -> tuple[str, dict[int, float]]:
    """The WKT of a file's coordinate system, and its GeoTIFF keys; empty where there are none."""
    found = {
        record.record_id: record.record_data_bytes()
        for record in reversed(records)  # of two, the first holds
        if record.user_id == _PROJECTION
    }
    text = found.get(_WKT, b"").decode("utf-8", "replace").rstrip("\0")
    return text, geo_keys(found.get(_KEYS, b""), found.get(_DOUBLES, b""))


def _check_records(path: Path, file: BinaryIO) -> None:
    """Refuse a header whose count of variable-length records cannot be: laspy would loop over them."""
    size = file.seek(0, 2)
    file.seek(0)
    head = file.read(375)
    file.seek(0)
    if len(head) < 227:
        raise DataError(path, f"is cut: {size} bytes are no LAS header", "copy it again")
    header, points_at = (
        struct.unpack_from("<H", head, HEADER_SIZE)[0],
        struct.unpack_from("<I", head, POINTS_AT)[0],
    )
    records = struct.unpack_from("<I", head, VLR_COUNT)[0]
    if points_at > size or header + records * _VLR_BYTES > points_at:
        cause = f"is cut or damaged: {records} records end past byte {points_at} of {size}"
        raise DataError(path, cause, "copy it again")
    if head[25] >= 4 and len(head) == 375:
        start = struct.unpack_from("<Q", head, EVLR_AT)[0]
        extended = struct.unpack_from("<I", head, EVLR_COUNT)[0]
        if not _whole(file, start, extended, size):
            cause = f"is cut: its {extended} extended records end past byte {size}"
            raise DataError(path, cause, "copy it again")


def _whole(file: BinaryIO, start: int, count: int, size: int) -> bool:
    """Whether ``count`` extended records from ``start`` on end within ``size`` bytes."""
    at = start
    for _ in range(count):
        if at + _EVLR_BYTES > size:
            return False
        file.seek(at + _EVLR_LENGTH)
        at += _EVLR_BYTES + struct.unpack("<Q", file.read(8))[0]
    file.seek(0)
    return at <= size


def _check_count(path: Path, file: BinaryIO, header: laspy.LasHeader) -> None:
    """Refuse a header that promises more points than the file holds, before memory is taken for them."""
    start, promised = header.offset_to_point_data, header.point_count
    position = file.tell()
    if header.are_points_compressed:
        room = _check_chunks(path, file, start, header.point_format.size)
        file.seek(start)
        record = header.vlrs.get("LasZipVlr")[0].record_data
        per_chunk = _check_items(path, record, promised, header.point_format.size)
        table = lazrs.read_chunk_table(file, lazrs.LazVlr(record))
        _check_table(path, table, room, promised if per_chunk == _VARIABLE else per_chunk)
        if header.point_format.id in _LAYERS:
            _check_layers(path, file, start, table, header.point_format)
        # Every chunk but the last is full, so this is the most the file can hold.
        held = sum(points for points, _ in table)
    else:
        held = max(file.seek(0, 2) - start, 0) // header.point_format.size
    file.seek(position)
    if promised > held:
        raise _too_few(path, promised, held, "at most " if header.are_points_compressed else "")


def _check_items(path: Path, record: bytes, promised: int, point_bytes: int) -> int:
    """Points of a chunk, as the LASzip record says. Refuse chunks too large, and parts that make no point."""
    per_chunk, parts = struct.unpack_from("<I", record, 12)[0], struct.unpack_from("<H", record, 32)[0]
    items = [struct.unpack_from("<2H", record, 34 + 6 * part) for part in range(parts)]
    found = sum(size for _, size in items)
    if found != point_bytes:
        cause = f"is damaged: its LASzip record has points of {found} bytes, its header of {point_bytes}"
        raise DataError(path, cause, "copy it again")
    for kind, size in items:
        # The library would leave the bytes that it does not know of as they are.
        if _ITEM_BYTES.get(kind, size) != size:
            cause = f"is damaged: its LASzip record has {size} bytes for a part of kind {kind}"
            raise DataError(path, cause, "copy it again")
    # Memory is taken for whole chunks.
    if per_chunk != _VARIABLE and per_chunk * point_bytes > max(_LARGE, promised * point_bytes):
        cause = f"is damaged: it has chunks of {per_chunk} points for {promised} in all"
        raise DataError(path, cause, "copy it again")
    return int(per_chunk)


def _check_table(path: Path, table: list[tuple[int, int]], room: int, most: int) -> None:
    """Refuse chunks that do not fit into the ``room`` for them, or have more than ``most`` points."""
    taken = sum(size for _, size in table)
    if taken > room or any(points > most for points, _ in table):
        cause = f"is damaged: its table has chunks of {taken} bytes, they have {room}"
        raise DataError(path, cause, "copy it again")


def _check_chunks(path: Path, file: BinaryIO, start: int, point_bytes: int) -> int:
    """The bytes of all chunks. Refuse more than they have room for, before memory is taken for them.

    The points start with the position of the chunk table; where that is not after it, the writer could not
    seek and the position is the last number of the file (LASzip, Isenburg 2013).
    """
    size = file.seek(0, 2)
    file.seek(start)
    at = struct.unpack("<q", file.read(8))[0]
    if at <= start:
        file.seek(-8, 2)
        at = struct.unpack("<q", file.read(8))[0]
    if not start < at <= size - 8:
        raise DataError(
            path, f"is cut or damaged: its chunk table is at byte {at} of {size}", "copy it again"
        )
    file.seek(at + 4)
    chunks = struct.unpack("<I", file.read(4))[0]
    # The first point of a chunk is stored as it is; the last chunk may have none.
    if (chunks - 1) * point_bytes > at - start:
        cause = f"is damaged: {chunks} chunks have no room in {at - start} bytes"
        raise DataError(path, cause, "copy it again")
    return int(at - start - 8)


def _check_layers(
    path: Path, file: BinaryIO, start: int, table: list[tuple[int, int]], kind: laspy.PointFormat
) -> None:
    """Refuse layers larger than their chunk: memory is taken for a layer before it is read.

    A chunk has its first point as it is, the number of points, and the sizes of its layers, 4 bytes each.
    """
    layers = _LAYERS[kind.id] + kind.num_extra_bytes
    at = start + 8
    for points, size in table:
        if points:
            file.seek(at + kind.size + 4)
            held = sum(struct.unpack(f"<{layers}I", file.read(4 * layers)))
            if kind.size + 4 + 4 * layers + held > size:
                cause = f"is damaged: the chunk at byte {at} has {size} bytes and layers of {held}"
                raise DataError(path, cause, "copy it again")
        at += size


def _too_few(path: Path, promised: int, held: int, bound: str = "") -> DataError:
    return DataError(path, f"its header promises {promised} points, it holds {bound}{held}", "copy it again")
