"""LAS and LAZ, through laspy. Every dimension becomes a field under laspy's name."""

from __future__ import annotations

import struct
from pathlib import Path
from typing import BinaryIO

import laspy
import lazrs
import numpy as np

from ...errors import DataError
from . import Scan

# Byte positions in the public header block (LAS 1.4 R15, table 3).
_HEADER_SIZE, _POINTS_AT, _VLR_COUNT, _EVLR_AT, _EVLR_COUNT = 94, 96, 100, 235, 243
_VLR_BYTES, _EVLR_BYTES = 54, 60


def read(path: Path) -> Scan:
    """Read all points; coordinates are scaled in float64. Raises DataError where the file is not whole."""
    try:
        with path.open("rb") as file:
            _check_records(path, file)
            with laspy.open(file, closefd=False) as reader:
                _check_count(path, file, reader.header)
                data = reader.read()
    # laspy, lazrs and numpy each raise their own kinds on damaged bytes; none of them is a bug of ours.
    except DataError:
        raise
    except (Exception, MemoryError) as error:  # noqa: BLE001
        cause = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
        raise DataError(path, f"is a damaged or cut LAS file ({cause})", "copy it again") from None
    if len(data.points) != data.header.point_count:
        raise _too_few(path, data.header.point_count, len(data.points))
    xyz = np.stack([np.asarray(data[axis], np.float64) for axis in "xyz"], axis=1)
    names = [name for name in data.point_format.dimension_names if name not in ("X", "Y", "Z")]
    return Scan(xyz, {name: np.array(data[name]) for name in names})


def _check_records(path: Path, file: BinaryIO) -> None:
    """Refuse a header whose count of variable-length records cannot be: laspy would loop over them."""
    size = file.seek(0, 2)
    file.seek(0)
    head = file.read(375)
    file.seek(0)
    if len(head) < 227:
        raise DataError(path, f"is cut: {size} bytes are no LAS header", "copy it again")
    header, points_at = (
        struct.unpack_from("<H", head, _HEADER_SIZE)[0],
        struct.unpack_from("<I", head, _POINTS_AT)[0],
    )
    records = struct.unpack_from("<I", head, _VLR_COUNT)[0]
    if points_at > size or header + records * _VLR_BYTES > points_at:
        raise DataError(path, f"is cut or damaged: {records} records end past byte {points_at} of {size}")
    if head[25] >= 4 and len(head) == 375:
        start = struct.unpack_from("<Q", head, _EVLR_AT)[0]
        extended = struct.unpack_from("<I", head, _EVLR_COUNT)[0]
        if extended and start + extended * _EVLR_BYTES > size:
            raise DataError(
                path, f"is cut: its {extended} extended records end past byte {size}", "copy it again"
            )


def _check_count(path: Path, file: BinaryIO, header: laspy.LasHeader) -> None:
    """Refuse a header that promises more points than the file holds, before memory is taken for them."""
    start, promised = header.offset_to_point_data, header.point_count
    position = file.tell()
    if header.are_points_compressed:
        file.seek(start)
        table = lazrs.read_chunk_table(file, lazrs.LazVlr(header.vlrs.get("LasZipVlr")[0].record_data))
        # Every chunk but the last is full, so this is the most the file can hold.
        held = sum(points for points, _ in table)
    else:
        held = max(file.seek(0, 2) - start, 0) // header.point_format.size
    file.seek(position)
    if promised > held:
        raise _too_few(path, promised, held)


def _too_few(path: Path, promised: int, held: int) -> DataError:
    return DataError(path, f"its header promises {promised} points, it holds {held}", "copy it again")
