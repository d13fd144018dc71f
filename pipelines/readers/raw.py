"""KITTI and nuScenes: float32 rows and nothing else, in files named ``.bin``.

KITTI (Geiger et al. 2013) and SemanticKITTI store x, y, z, intensity; nuScenes (Caesar et al. 2020), whose
files are named ``.pcd.bin``, x, y, z, intensity, ring.
"""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np

from ...errors import DataError
from . import ReadSettings, Scan
from .axes import checked, scan_of

KITTI = ["x", "y", "z", "intensity"]
NUSCENES = [*KITTI, "ring"]

_ROWS = 1 << 18


def read(path: Path, settings: ReadSettings) -> Scan:
    """Read all rows; fields are float32 (n,). ``settings.columns`` names other columns than those above.

    Raises DataError where the bytes are no whole number of rows; UsageError for columns without x, y and z.
    """
    names = _names(path, settings)
    row = 4 * len(names)
    try:
        with path.open("rb") as file:
            size = os.fstat(file.fileno()).st_size
            if size % row:
                cause = f"has {size} bytes, no multiple of {row} ({', '.join(names)} as float32)"
                raise DataError(path, cause, "copy it again, or name its columns in data.read.columns")
            n = size // row
            columns = [np.empty(n, np.float32) for _ in names]
            for start in range(0, n, _ROWS):
                # A part at a time: the rows as they are in the file take no second copy of all.
                count = min(_ROWS, n - start)
                part = np.fromfile(file, "<f4", count * len(names))
                if len(part) < count * len(names):
                    raise DataError(path, f"was cut while it was read, at row {start}", "read it again")
                for column, values in zip(columns, part.reshape(count, -1).T, strict=True):
                    column[start : start + count] = values
    except OSError as error:
        raise DataError(path, f"cannot be read ({error.strerror})", "check the path") from None
    return scan_of(path, names, columns, "name its columns in data.read.columns")


def _names(path: Path, settings: ReadSettings) -> list[str]:
    if settings.columns is not None:
        return checked(settings.columns)
    return NUSCENES if path.name.lower().endswith(".pcd.bin") else KITTI
