"""One scan to samples: drop what is no point, keep what was asked for, cut the ground, order the rows."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..errors import DataError, UsageError
from ..samplers.farthest import farthest
from ..samplers.fields import kind_of
from ..samplers.random import random
from . import splits, tiles
from .readers import Scan, storable
from .records import IGNORED, SPLITS, Field, sample_id, sample_name
from .settings import DataSettings
from .splits import BlocksSplit, HashSplit

log = logging.getLogger(__name__)

TOLERANCE = 0.5e-3
"""Largest error that a stored coordinate may have, in the source's units."""

LARGEST = 2.0**53
"""Coordinates are smaller than this: from here on float64 does not hold every whole number."""


@dataclass(frozen=True)
class Points:
    """What is kept of a scan: ``xyz`` float64 (n, 3), global; ``columns``: label, row and fields."""

    xyz: NDArray[np.float64]
    columns: dict[str, NDArray[Any]]
    dropped: int
    outside: int

    @property
    def schema(self) -> dict[str, Field]:
        """The columns of its samples, in their order."""
        fields = {"xyz": Field(np.dtype(np.float32), 3, "point")}
        for name, array in self.columns.items():
            width = 1 if array.ndim == 1 else array.shape[1]
            fields[name] = Field(array.dtype, width, kind_of(name, array.dtype))
        return fields


@dataclass(frozen=True)
class Piece:
    """The rows of `Points` that one sample has, and the global position of its coordinates' zero."""

    split: str
    tile: int
    rows: NDArray[np.int64]
    origin: NDArray[np.float64]


def select(path: Path, scan: Scan, settings: DataSettings) -> Points:
    """Drop rows without a finite coordinate or outside the bounds; choose fields; number the classes.

    Raises DataError for a field that is not there, naming those that are, for one that cannot be stored, for
    two that would be stored under one name, and for a coordinate of 2^53 or more.
    """
    finite = np.isfinite(scan.xyz).all(axis=1)
    inside = finite.copy()
    if settings.bounds is not None:
        low, high = settings.bounds[:2], settings.bounds[2:]
        xy = scan.xyz[:, :2]
        inside &= ((xy >= low) & (xy < high)).all(axis=1)
    row = np.flatnonzero(inside).astype(np.int64)
    dropped, outside = int((~finite).sum()), int((finite & ~inside).sum())
    if dropped:
        log.warning("%s: dropped %d rows whose coordinates are not finite", path, dropped)
    xyz = scan.xyz[row]
    _check_size(path, xyz, row)

    columns: dict[str, NDArray[Any]] = {}
    if settings.classes:
        codes = _field(path, scan, settings.label, "data.label", row)
        if codes.ndim > 1:
            cause = f"field '{settings.label}' has {codes.shape[1]} numbers a row"
            raise DataError(path, cause, "name a field of single class codes in data.label")
        columns["label"] = class_numbers(codes, settings.classes)
    columns["row"] = scan.first + row
    # A source may use our own names: what it says under them is kept beside what we say.
    ours = {"xyz", *columns}
    origin: dict[str, str] = {}
    for name in scan.fields if settings.fields is None else settings.fields:
        stored = f"source_{name}" if name in ours else name
        if origin.setdefault(stored, name) != name:
            cause = f"fields '{origin[stored]}' and '{name}' would both be stored as '{stored}'"
            raise DataError(path, cause, "rename one, or list one of them in data.fields")
        columns[stored] = _field(path, scan, name, "data.fields", row)
    return Points(xyz, columns, dropped, outside)


def _check_size(path: Path, xyz: NDArray[np.float64], row: NDArray[np.int64]) -> None:
    large = np.abs(xyz) >= LARGEST
    if large.any():
        i, axis = np.argwhere(large)[0]
        cause = f"row {row[i]}: {'xyz'[axis]} is {xyz[i, axis]:g}, no coordinate may reach 2^53"
        raise DataError(path, cause, "mend the file, or leave the row out with data.bounds")


def class_numbers(codes: NDArray[Any], classes: Mapping[str, list[int]]) -> NDArray[np.int32]:
    """Class number of each code, int32 (n,); -1 where no class has it."""
    numbers = {code: number for number, wanted in enumerate(classes.values()) for code in wanted}
    known = sorted(numbers)
    listed = np.array(known)
    at = np.minimum(np.searchsorted(listed, codes), len(known) - 1)
    of_code = np.array([numbers[code] for code in known], np.int32)
    return np.where(listed[at] == codes, of_code[at], np.int32(IGNORED))


def cut(
    path: Path, source: str, points: Points, settings: DataSettings, listed: Mapping[str, str]
) -> Iterator[Piece]:
    """The samples of a scan, ground that is trained on apart from ground that is evaluated."""
    if settings.tiles is None:
        parts = splits.divide(points.xyz, settings.split, source, listed)
        for split, rows in parts.items():
            yield Piece(split, SPLITS.index(split), rows, corner(points.xyz[rows]))
        return
    if not len(points.xyz):
        return
    grids = {split: tiles.grid(path, points.xyz, settings.tiles, train=split == "train") for split in SPLITS}
    for split, rows in splits.divide(points.xyz, settings.split, source, listed).items():
        # The grids of one source follow each other, so that no two tiles share a number.
        number = sum(grids[before].count for before in SPLITS[: SPLITS.index(split)])
        least = settings.tiles.min_points if split == "train" else 1
        for tile, members in grids[split].cut(points.xyz[rows]):
            if len(members) >= least:
                chosen = rows[members]
                yield Piece(
                    split, number + tile, chosen, _origin(points.xyz[chosen], grids[split].centre(tile))
                )


def whole(
    source: str, number: int, points: Points, settings: DataSettings, listed: Mapping[str, str]
) -> Piece:
    """Cloud ``number`` of a source whose clouds stand for themselves: one sample, whatever is in it.

    Raises UsageError for settings that cut ground.
    """
    for key, cuts in (("tiles", settings.tiles), ("split", isinstance(settings.split, BlocksSplit))):
        if cuts:
            raise UsageError(f"data.{key}", f"cuts ground, {source} holds images", "leave it out")
    split = listed.get(source, "train")
    if isinstance(settings.split, HashSplit):
        split = settings.split.of(sample_name(source, number))
    return Piece(split, number, np.arange(len(points.xyz)), corner(points.xyz))


def columns_of(
    path: Path, source: str, points: Points, piece: Piece, row_order: str
) -> dict[str, NDArray[Any]]:
    """The stored columns of a sample, rows in ``row_order``, ``xyz`` float32 counted from its origin.

    Raises DataError where float32 is too coarse for the extent.
    """
    xyz = local(path, points.xyz[piece.rows], piece.origin)
    if row_order == "farthest":
        order = farthest(xyz, len(xyz))
    elif row_order == "random":
        order = random(len(xyz), len(xyz), seed=0, id=sample_id(source, piece.tile))
    else:
        order = np.arange(len(xyz))
    rows = piece.rows[order]
    return {"xyz": xyz[order], **{name: column[rows] for name, column in points.columns.items()}}


def local(path: Path, xyz: NDArray[np.float64], origin: NDArray[np.float64]) -> NDArray[np.float32]:
    """Coordinates counted from ``origin``, float32 (n, 3), each right to half a unit in a thousand."""
    shifted = xyz - origin
    error = float32_error(shifted)
    if error > TOLERANCE:
        extent = " x ".join(f"{size:g}" for size in np.ptp(xyz, axis=0))
        raise DataError(
            path,
            f"a sample spans {extent} units: float32 coordinates would be off by up to {error:.2g}",
            "cut it with data.tiles",
        )
    return shifted.astype(np.float32)


def float32_error(shifted: NDArray[np.float64]) -> float:
    """How far coordinates (n, 3), below 2^53, are off at most as float32."""
    return float(np.spacing(np.float32(np.abs(shifted).max(initial=0)))) / 2


def _field(path: Path, scan: Scan, name: str, key: str, row: NDArray[np.int64]) -> NDArray[Any]:
    if name not in scan.fields:
        there = ", ".join(scan.fields) or "no field but x, y, z"
        raise DataError(path, f"has no field '{name}' (it has {there})", f"correct {key}")
    return storable(path, name, scan.fields[name][row])


def _origin(xyz: NDArray[np.float64], centre: tuple[float, float]) -> NDArray[np.float64]:
    """A tile's centre, moved into the bounding box of its points: a tile may be far wider than the cloud."""
    low, high = xyz.min(axis=0), xyz.max(axis=0)
    return np.array([*np.clip(centre, low[:2], high[:2]), low[2]])


def corner(xyz: NDArray[np.float64]) -> NDArray[np.float64]:
    """Middle of the bounding box in x and y, and the lowest z; zero for no points."""
    if not len(xyz):
        return np.zeros(3)
    low, high = xyz.min(axis=0), xyz.max(axis=0)
    return np.array([*((low + high) / 2)[:2], low[2]])
