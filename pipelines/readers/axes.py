"""Columns that files name in their own ways: coordinates, normals and colours under the names used here."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...errors import DataError, UsageError
from . import Scan

AXES = (
    ("x", "easting", "point_x"),
    ("y", "northing", "point_y"),
    ("z", "elevation", "height", "point_z"),
)
"""What the columns of coordinates are called, in any case; of several that fit, the first listed is taken."""

NORMALS = (("nx", "ny", "nz"), ("normal_x", "normal_y", "normal_z"))
"""What the parts of a normal are called, in any case."""

COLOURS = {"r": "red", "g": "green", "b": "blue", "red": "red", "green": "green", "blue": "blue"}
"""What the parts of a colour are called, in any case, and here."""


def places(names: Sequence[str]) -> tuple[int, int, int] | None:
    """The numbers of the columns of x, y and z among ``names``; None where one is missing."""
    lower = [name.lower() for name in names]
    found = [next((lower.index(name) for name in axis if name in lower), -1) for axis in AXES]
    return None if -1 in found else (found[0], found[1], found[2])


def checked(columns: Sequence[str]) -> list[str]:
    """The names of ``data.read.columns``. Raises UsageError for two alike and where x, y or z is missing."""
    key = "data.read.columns"
    twice = _twice(columns)
    if twice is not None:
        raise UsageError(key, f"names '{twice}' twice", "give each column a name of its own")
    if places(columns) is None:
        raise UsageError(key, f"names no x, y and z among {', '.join(columns)}", "name them")
    return list(columns)


def scan_of(path: Path, names: Sequence[str], columns: list[NDArray[Any]], fix: str) -> Scan:
    """The scan of named columns, each (n,) or (n, w); ``columns`` is emptied, so that memory is freed early.

    Normals in three columns of one type become ``normal`` (n, 3); three of colour are named red, green and
    blue. Raises DataError, with ``fix``, for two columns of one name, and without x, y and z of one number
    each.
    """
    twice = _twice(names)
    if twice is not None:
        raise DataError(path, f"has two columns '{twice}'", fix)
    at = places(names)
    if at is None:
        raise DataError(path, f"has no columns x, y and z among {', '.join(names)}", fix)
    for axis in at:
        if columns[axis].ndim != 1:
            raise DataError(path, f"column '{names[axis]}' has {columns[axis].shape[1]} numbers a point", fix)
    xyz = np.empty((len(columns[at[0]]), 3))
    for place, axis in enumerate(at):
        with np.errstate(invalid="ignore"):  # of float32 that are a signalling NaN
            xyz[:, place] = columns[axis]
        columns[axis] = np.empty(0)
    fields = {name: columns[i] for i, name in enumerate(names) if i not in at}
    columns.clear()
    return Scan(xyz, _joined(_coloured(fields)))


def _twice(names: Sequence[str]) -> str | None:
    return next((name for i, name in enumerate(names) if name in names[:i]), None)


def _coloured(fields: dict[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
    named = [COLOURS.get(name.lower(), name) for name in fields]
    whole = len(set(named)) == len(named) and {"red", "green", "blue"} <= set(named)
    return dict(zip(named, fields.values(), strict=True)) if whole else fields


def _joined(fields: dict[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
    lower = {name.lower(): name for name in fields}
    for parts in NORMALS:
        own = [lower[part] for part in parts if part in lower]
        arrays = [fields[name] for name in own]
        if len(own) < 3 or "normal" in fields or any(array.ndim != 1 for array in arrays):
            continue
        if len({array.dtype for array in arrays}) == 1:
            joined = np.stack(arrays, axis=1)
            renamed = {"normal" if name == own[0] else name: array for name, array in fields.items()}
            return {name: joined if name == "normal" else a for name, a in renamed.items() if name not in own}
    return fields
