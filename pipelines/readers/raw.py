"""KITTI and nuScenes: float32 rows and nothing else, in files named ``.bin``.

KITTI (Geiger et al. 2013) and SemanticKITTI store x, y, z, intensity; nuScenes (Caesar et al. 2020), whose
files are named ``.pcd.bin``, x, y, z, intensity, ring.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from ...errors import DataError
from . import ReadSettings, Scan
from .axes import checked, scan_of
from .opening import opening

KITTI = ["x", "y", "z", "intensity"]
NUSCENES = [*KITTI, "ring"]

_ROWS = 1 << 18


def read(path: Path, settings: ReadSettings) -> Scan:
    """Read all rows; fields are float32 (n,). ``settings.columns`` names other columns than those above.

    Raises DataError where the bytes are no whole number of rows; UsageError for columns without x, y and z.
    """
    return next(_pieces(path, settings, None))


def chunks(path: Path, settings: ReadSettings, rows: int) -> Iterator[Scan]:
    """As `read`, at most ``rows`` points at a time."""
    return _pieces(path, settings, rows)


def rows(path: Path, settings: ReadSettings) -> int:
    """How many points there are. Raises as `read`."""
    with opening(path) as file:
        return _count(path, _names(path, settings), file)


def _pieces(path: Path, settings: ReadSettings, most: int | None) -> Iterator[Scan]:
    """All points, or ``most`` at a time."""
    names = _names(path, settings)
    with opening(path) as file:
        n = _count(path, names, file)
        for first in range(0, n or 1, most or n or 1):
            columns = _columns(path, file, len(names), first, min(most or n, n - first))
            yield scan_of(path, names, columns, "name its columns in data.read.columns")


def _count(path: Path, names: list[str], file: BinaryIO) -> int:
    row, size = 4 * len(names), os.fstat(file.fileno()).st_size
    if size % row:
        cause = f"has {size} bytes, no multiple of {row} ({', '.join(names)} as float32)"
        raise DataError(path, cause, "copy it again, or name its columns in data.read.columns")
    return size // row


def _columns(path: Path, file: BinaryIO, width: int, first: int, n: int) -> list[NDArray[Any]]:
    """The next ``n`` rows, row ``first`` being that where ``file`` is."""
    columns: list[NDArray[Any]] = [np.empty(n, np.float32) for _ in range(width)]
    for start in range(0, n, _ROWS):
        # A part at a time: the rows as they are in the file take no second copy of all.
        count = min(_ROWS, n - start)
        part = np.fromfile(file, "<f4", count * width)
        if len(part) < count * width:
            raise DataError(path, f"was cut while it was read, at row {first + start}", "read it again")
        for column, values in zip(columns, part.reshape(count, -1).T, strict=True):
            column[start : start + count] = values
    return columns


def _names(path: Path, settings: ReadSettings) -> list[str]:
    if settings.columns is not None:
        return checked(settings.columns)
    return NUSCENES if path.name.lower().endswith(".pcd.bin") else KITTI
