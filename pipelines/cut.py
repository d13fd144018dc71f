"""What is kept of a scan: no row that is no point, the fields that were asked for, classes by number."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..errors import DataError
from ..samplers.fields import kind_of
from .annotations import Annotations, stored
from .readers import Scan, storable
from .records import IGNORED, Field
from .settings import DataSettings

log = logging.getLogger(__name__)

LARGEST = 2.0**53
"""Coordinates are smaller than this: from here on float64 does not hold every whole number."""


Columns = dict[str, NDArray[Any]]


@dataclass(frozen=True)
class Points:
    """What is kept of a scan: ``xyz`` float64 (n, 3), global; ``columns``: label, row and fields.

    ``dropped`` and ``outside``: rows that were left out, as they are not finite or outside the bounds.
    ``annotations``: as `annotations.stored` gives them, positions global.
    """

    xyz: NDArray[np.float64]
    columns: Columns
    dropped: int
    outside: int
    annotations: Annotations = field(default_factory=dict)

    @property
    def schema(self) -> dict[str, Field]:
        """The columns of its samples, in their order."""
        fields = {"xyz": Field(np.dtype(np.float32), 3, "point")}
        for name, array in self.columns.items():
            width = 1 if array.ndim == 1 else array.shape[1]
            fields[name] = Field(array.dtype, width, kind_of(name, array.dtype))
        return fields


def wanted(settings: DataSettings) -> frozenset[str] | None:
    """The fields that `select` looks for in a scan; None for all it has."""
    if settings.fields is None:
        return None
    return frozenset([*settings.fields, *([settings.label] if settings.classes else [])])


def select(path: Path, scan: Scan, settings: DataSettings) -> Points:
    """Drop rows without a finite coordinate or outside the bounds; choose fields; number the classes.

    Raises DataError for a field that is not there, naming those that are, for one that cannot be stored, for
    two that would be stored under one name, for a coordinate of 2^53 or more, and for annotations that are
    none.
    """
    row, dropped, outside = _kept(scan.xyz, settings.bounds)
    xyz = scan.xyz if row is None else scan.xyz[row]
    numbers = scan.first + (np.arange(len(xyz)) if row is None else row)
    _check_size(path, xyz, numbers)

    columns: Columns = {}
    if settings.classes:
        codes = _field(path, scan, settings.label, "data.label", row)
        if codes.ndim > 1:
            cause = f"field '{settings.label}' has {codes.shape[1]} numbers a row"
            raise DataError(path, cause, "name a field of single class codes in data.label")
        columns["label"] = class_numbers(codes, settings.classes)
    columns["row"] = numbers
    # A source may use our own names: what it says under them is kept beside what we say.
    ours = {"xyz", *columns}
    origin: dict[str, str] = {}
    for name in scan.fields if settings.fields is None else settings.fields:
        kept_as = f"source_{name}" if name in ours else name
        if origin.setdefault(kept_as, name) != name:
            cause = f"fields '{origin[kept_as]}' and '{name}' would both be stored as '{kept_as}'"
            raise DataError(path, cause, "rename one, or list one of them in data.fields")
        columns[kept_as] = _field(path, scan, name, "data.fields", row)
    return Points(xyz, columns, dropped, outside, stored(path, scan.annotations, settings))


def warn_of_dropped(path: Path, dropped: int) -> None:
    """Tell how many rows of a source were no points."""
    if dropped:
        log.warning("%s: dropped %d rows whose coordinates are not finite", path, dropped)


def joined(all_points: Sequence[Points]) -> Points:
    """Several clouds as one, the rows of each behind those of the one before; annotations are left out."""
    first, *others = all_points
    if not others:
        return first
    return Points(
        np.concatenate([one.xyz for one in all_points]),
        {name: np.concatenate([one.columns[name] for one in all_points]) for name in first.columns},
        sum(one.dropped for one in all_points),
        sum(one.outside for one in all_points),
    )


def class_numbers(codes: NDArray[Any], classes: Mapping[str, list[int]]) -> NDArray[np.int32]:
    """Class number of each code, int32 (n,); -1 where no class has it."""
    numbers = {code: number for number, wanted in enumerate(classes.values()) for code in wanted}
    if codes.dtype.kind == "u" and codes.dtype.itemsize <= 2:
        of_all = np.full(1 << 8 * codes.dtype.itemsize, IGNORED, np.int32)
        for code, number in numbers.items():
            if 0 <= code < len(of_all):
                of_all[code] = number
        found: NDArray[np.int32] = of_all[codes]
        return found
    known = sorted(numbers)
    listed = np.array(known)
    at = np.minimum(np.searchsorted(listed, codes), len(known) - 1)
    of_code = np.array([numbers[code] for code in known], np.int32)
    return np.where(listed[at] == codes, of_code[at], np.int32(IGNORED))


def _kept(
    xyz: NDArray[np.float64], bounds: Sequence[float] | None
) -> tuple[NDArray[np.int64] | None, int, int]:
    """The rows that are kept, None for all, and how many are not finite, and outside the bounds."""
    if bounds is None and np.isfinite(_sum(xyz)):  # a sum is finite only if all of it is
        return None, 0, 0
    finite = np.isfinite(xyz).all(axis=1)
    inside = finite.copy()
    if bounds is not None:
        low, high = bounds[:2], bounds[2:]
        xy = xyz[:, :2]
        inside &= ((xy >= low) & (xy < high)).all(axis=1)
    row = np.flatnonzero(inside).astype(np.int64)
    return row, int((~finite).sum()), int((finite & ~inside).sum())


def _sum(xyz: NDArray[np.float64]) -> float:
    with np.errstate(over="ignore", invalid="ignore"):
        return float(xyz.sum())


def _check_size(path: Path, xyz: NDArray[np.float64], numbers: NDArray[np.int64]) -> None:
    if not xyz.size or (xyz.max() < LARGEST and xyz.min() > -LARGEST):
        return
    i, axis = np.argwhere(np.abs(xyz) >= LARGEST)[0]
    cause = f"row {numbers[i]}: {'xyz'[axis]} is {xyz[i, axis]:g}, no coordinate may reach 2^53"
    raise DataError(path, cause, "mend the file, or leave the row out with data.bounds")


def _field(path: Path, scan: Scan, name: str, key: str, row: NDArray[np.int64] | None) -> NDArray[Any]:
    if name not in scan.fields:
        there = ", ".join(scan.names or scan.fields) or "no field but x, y, z"
        raise DataError(path, f"has no field '{name}' (it has {there})", f"correct {key}")
    values = scan.fields[name]
    return storable(path, name, values if row is None else values[row])
