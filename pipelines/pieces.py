"""Kept points to samples: which rows each has and in what order, and where its coordinates count from."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numba import njit
from numpy.typing import NDArray

from ..errors import DataError, UsageError
from ..samplers.farthest import farthest
from ..samplers.random import random
from . import splits, tiles
from .annotations import Annotations, centres, of_sample
from .cut import Columns, Points
from .records import SPLITS, sample_id, sample_name
from .settings import DataSettings
from .splits import BlocksSplit, HashSplit
from .tiles import Grid

TOLERANCE = 0.5e-3
"""Largest error that a stored coordinate may have, in the source's units."""

GROUP_ROWS = 1 << 20
"""Rows that are written together: so many fill a cache line of work, and take little memory."""

Extent = NDArray[np.float64]
"""Least and most of x, y and z: float64 (2, 3)."""


@dataclass(frozen=True)
class Pieces:
    """Samples of one split: sample i has the rows ``rows[starts[i]:starts[i + 1]]`` of some `Points`.

    ``tile`` int64 (p,), ``origin`` float64 (p, 3): the global position of its coordinates' zero, ``bounds``
    float64 (p, 2, 3): its global extent, zero where it has no rows.
    """

    split: str
    tile: NDArray[np.int64]
    rows: NDArray[np.int64]
    starts: NDArray[np.int64]
    origin: NDArray[np.float64]
    bounds: NDArray[np.float64]

    def __len__(self) -> int:
        return len(self.tile)

    def rows_of(self, i: int) -> NDArray[np.int64]:
        """The rows of sample i."""
        return self.rows[self.starts[i] : self.starts[i + 1]]

    def part(self, first: int, stop: int) -> Pieces:
        """Some samples that follow each other."""
        begin, end = self.starts[first], self.starts[stop]
        own = slice(first, stop)
        return Pieces(
            self.split,
            self.tile[own],
            self.rows[begin:end],
            self.starts[first : stop + 1] - begin,
            self.origin[own],
            self.bounds[own],
        )

    def only(self, kept: Sequence[int]) -> Pieces:
        """Some samples, by their places."""
        chosen = np.array(kept, np.int64)
        return Pieces(
            self.split,
            self.tile[chosen],
            np.concatenate([np.zeros(0, np.int64), *(self.rows_of(i) for i in kept)]),
            np.concatenate([[0], np.cumsum(np.diff(self.starts)[chosen])]),
            self.origin[chosen],
            self.bounds[chosen],
        )


def grouped(sizes: NDArray[np.int64]) -> Iterator[tuple[int, int]]:
    """Samples of ``sizes`` rows in groups of `GROUP_ROWS` at most, or one sample: first and stop of each."""
    first, total = 0, 0
    for i, size in enumerate(sizes.tolist()):
        if i > first and total + size > GROUP_ROWS:
            yield first, i
            first, total = i, 0
        total += size
    if len(sizes) > first:
        yield first, len(sizes)


def cut(
    path: Path, source: str, points: Points, settings: DataSettings, listed: Mapping[str, str]
) -> Iterator[Pieces]:
    """The samples of a scan: ground that is trained on apart from ground that is evaluated."""
    xyz = points.xyz
    if settings.tiles is None:
        for split, rows in splits.divide(xyz, settings.split, source, listed).items():
            bounds = _extents(xyz, rows, np.array([0, len(rows)]))
            yield Pieces(
                split,
                np.array([SPLITS.index(split)]),
                rows,
                np.array([0, len(rows)]),
                middle(bounds),
                bounds,
            )
    elif len(xyz):
        grids = Grids(path, extent(xyz), settings)
        for split, rows in splits.divide(xyz, settings.split, source, listed).items():
            yield grids.pieces(split, xyz, *grids.cut(split, xyz, rows))


class Grids:
    """The tiles over the whole extent of a scan, those of each split."""

    def __init__(self, path: Path, extent: Extent, settings: DataSettings) -> None:
        assert settings.tiles is not None
        self._least = settings.tiles.min_points
        self.of: dict[str, Grid] = {}
        self._first: dict[str, int] = {}
        number = 0
        for split in SPLITS:
            # The grids of one source follow each other, so that no two tiles share a number.
            self.of[split] = tiles.grid(path, extent, settings.tiles, train=split == "train")
            self._first[split] = number
            number += self.of[split].count

    def cut(
        self, split: str, xyz: NDArray[np.float64], rows: NDArray[np.int64]
    ) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
        """The tiles that hold some rows of ``xyz``: number (p,), those rows by tile, where each's start."""
        every = len(rows) == len(xyz)
        tile, order, starts = self.of[split].grouped(xyz if every else xyz[rows])
        return tile + self._first[split], order if every else rows[order], starts

    def enough(self, split: str, sizes: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Which tiles have rows enough for a sample: of evaluated ones, all that have any."""
        return sizes >= (self._least if split == "train" else 1)

    def pieces(
        self,
        split: str,
        xyz: NDArray[np.float64],
        tile: NDArray[np.int64],
        rows: NDArray[np.int64],
        starts: NDArray[np.int64],
    ) -> Pieces:
        """Samples of tiles; those with too few rows are left out.

        A sample counts from its tile's centre, moved into the bounding box of its points, as a tile may be
        far wider than the cloud.
        """
        bounds = _extents(xyz, rows, starts)
        middles = [self.of[split].centre(number - self._first[split]) for number in tile.tolist()]
        origin = bounds[:, 0].copy()
        origin[:, :2] = np.clip(np.array(middles).reshape(-1, 2), bounds[:, 0, :2], bounds[:, 1, :2])
        found = Pieces(split, tile, rows, starts, origin, bounds)
        enough = self.enough(split, np.diff(starts))
        return found if enough.all() else found.only(np.flatnonzero(enough).tolist())


def whole(
    source: str,
    first: int,
    sizes: Sequence[int],
    points: Points,
    settings: DataSettings,
    listed: Mapping[str, str],
) -> Iterator[Pieces]:
    """Clouds that stand for themselves, one sample each: a source's from ``first`` on, of ``sizes`` rows.

    Raises UsageError for settings that cut ground.
    """
    for key, cuts in (("tiles", settings.tiles), ("split", isinstance(settings.split, BlocksSplit))):
        if cuts:
            raise UsageError(
                f"data.{key}", f"cuts ground, the clouds of {source} stand for themselves", "leave it out"
            )
    numbers = range(first, first + len(sizes))
    own = [listed.get(source, "train")] * len(sizes)
    if isinstance(settings.split, HashSplit):
        own = [settings.split.of(sample_name(source, number)) for number in numbers]
    starts = np.cumsum([0, *sizes])
    rows = np.arange(starts[-1])
    bounds = _extents(points.xyz, rows, starts)
    every = Pieces("", np.array(numbers, np.int64), rows, starts, middle(bounds), bounds)
    for split in SPLITS:
        chosen = [i for i, name in enumerate(own) if name == split]
        if chosen:
            mine = every if len(chosen) == len(own) else every.only(chosen)
            yield Pieces(split, mine.tile, mine.rows, mine.starts, mine.origin, mine.bounds)


def columns_of(path: Path, source: str, points: Points, pieces: Pieces, row_order: str) -> Columns:
    """The stored columns of all samples, one behind the other, the rows of each in ``row_order``.

    ``xyz`` is float32, counted from each sample's origin. Raises DataError where float32 is too coarse for
    the extent.
    """
    for i in range(len(pieces)):
        _check_extent(path, pieces.bounds[i], pieces.origin[i])
    xyz, rows = np.empty((len(pieces.rows), 3), np.float32), pieces.rows
    if row_order == "random":
        rows = np.empty_like(rows)
        for i in range(len(pieces)):
            own = pieces.rows_of(i)
            order = random(len(own), len(own), seed=0, id=sample_id(source, int(pieces.tile[i])))
            rows[pieces.starts[i] : pieces.starts[i + 1]] = own[order]
    _shift(points.xyz, rows, pieces.starts, pieces.origin, xyz)
    if row_order == "farthest":
        rows = np.empty_like(rows)
        for i in range(len(pieces)):
            place = slice(pieces.starts[i], pieces.starts[i + 1])
            order = farthest(xyz[place], len(xyz[place]))
            rows[place], xyz[place] = pieces.rows[place][order], xyz[place][order]
    return {"xyz": xyz, **{name: column.take(rows, axis=0) for name, column in points.columns.items()}}


def annotations_of(
    points: Points, pieces: Pieces, settings: DataSettings, path: Path
) -> Iterator[Annotations]:
    """The annotations of each sample: boxes by the tile and the split that their centres lie in."""
    boxes = centres(points.annotations)
    belongs: dict[int, NDArray[np.int64]] | None = None
    if len(boxes) and len(points.xyz):
        in_split = np.arange(len(boxes))
        if isinstance(settings.split, BlocksSplit):
            in_split = splits.divide(boxes, settings.split, "", {}).get(pieces.split, in_split[:0])
        belongs = {int(pieces.tile[0]): in_split}
        if settings.tiles is not None:
            grids = Grids(path, extent(points.xyz), settings)
            tile, rows, starts = grids.cut(pieces.split, boxes, in_split)
            belongs = {number: rows[starts[i] : starts[i + 1]] for i, number in enumerate(tile.tolist())}
    none = np.zeros(0, np.int64)
    for tile, origin in zip(pieces.tile.tolist(), pieces.origin, strict=True):
        yield of_sample(points.annotations, origin, None if belongs is None else belongs.get(tile, none))


def extent(xyz: NDArray[np.float64]) -> Extent:
    """The extent of some rows."""
    found: Extent = _extent(xyz)
    return found


def middle(bounds: NDArray[np.float64]) -> NDArray[np.float64]:
    """Middle of a bounding box, (..., 2, 3), in x and y, and the lowest z."""
    found: NDArray[np.float64] = bounds[..., 0, :].copy()
    found[..., :2] = (bounds[..., 0, :2] + bounds[..., 1, :2]) / 2
    return found


def corner(xyz: NDArray[np.float64]) -> NDArray[np.float64]:
    """The `middle` of some rows; zero for none."""
    return middle(extent(xyz))


def local(path: Path, xyz: NDArray[np.float64], origin: NDArray[np.float64]) -> NDArray[np.float32]:
    """Coordinates counted from ``origin``, float32 (n, 3), each right to half a unit in a thousand."""
    _check_extent(path, extent(xyz), origin)
    return (xyz - origin).astype(np.float32)


def float32_error(shifted: NDArray[np.float64]) -> float:
    """How far coordinates (n, 3), below 2^53, are off at most as float32."""
    return float(np.spacing(np.float32(np.abs(shifted).max(initial=0)))) / 2


def _check_extent(path: Path, bounds: Extent, origin: NDArray[np.float64]) -> None:
    error = float32_error(bounds - origin)
    if error > TOLERANCE:
        sides = " x ".join(f"{size:g}" for size in bounds[1] - bounds[0])
        raise DataError(
            path,
            f"a sample spans {sides} units: float32 coordinates would be off by up to {error:.2g}",
            "cut it with data.tiles",
        )


@njit(cache=True, nogil=True, error_model="numpy")
def _extent(xyz: NDArray[np.float64]) -> NDArray[np.float64]:
    """Least and most of all rows: (2, 3), zero without rows."""
    found = np.zeros((2, 3))
    for axis in range(3 if len(xyz) else 0):
        low = high = xyz[0, axis]
        for row in range(1, len(xyz)):
            value = xyz[row, axis]
            low = value if value < low else low
            high = value if value > high else high
        found[0, axis], found[1, axis] = low, high
    return found


@njit(cache=True, nogil=True, error_model="numpy")
def _extents(
    xyz: NDArray[np.float64], rows: NDArray[np.int64], starts: NDArray[np.int64]
) -> NDArray[np.float64]:
    """Least and most of the rows of each sample: (samples, 2, 3), zero without rows."""
    found = np.zeros((len(starts) - 1, 2, 3))
    for i in range(len(starts) - 1):
        if starts[i] == starts[i + 1]:
            continue
        for axis in range(3):
            found[i, 0, axis] = found[i, 1, axis] = xyz[rows[starts[i]], axis]
        for at in range(starts[i], starts[i + 1]):
            for axis in range(3):
                value = xyz[rows[at], axis]
                if value < found[i, 0, axis]:
                    found[i, 0, axis] = value
                if value > found[i, 1, axis]:
                    found[i, 1, axis] = value
    return found


@njit(cache=True, nogil=True, error_model="numpy")
def _shift(
    xyz: NDArray[np.float64],
    rows: NDArray[np.int64],
    starts: NDArray[np.int64],
    origin: NDArray[np.float64],
    out: NDArray[np.float32],
) -> None:
    """Each sample's rows, counted from its origin."""
    for i in range(len(starts) - 1):
        for at in range(starts[i], starts[i + 1]):
            for axis in range(3):
                out[at, axis] = np.float32(xyz[rows[at], axis] - origin[i, axis])
