"""Square tiles over a scan, on a grid that stands in the world and not on the cloud."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, model_validator

from ..config import Model
from ..errors import DataError

MOST = 2**30
"""Most tiles along an axis."""

OVERLAP = 100
"""Most strides in a size: a point is in up to the square of this many samples."""

Length = Annotated[float, Field(gt=0)]


class TileSettings(Model):
    """``size`` of a tile and ``stride`` between tiles, in the scan's units.

    ``stride`` (default: size) and ``min_points`` hold for training tiles; evaluated ones lie edge to edge
    and keep every point.
    """

    size: Length
    stride: Length | None = None
    min_points: Annotated[int, Field(ge=1)] = 1

    @model_validator(mode="after")
    def _no_gaps(self) -> TileSettings:
        if self.stride is not None and self.stride > self.size:
            raise ValueError("a stride above size leaves ground between the tiles that no sample covers")
        if self.stride is not None and self.stride * OVERLAP < self.size:
            raise ValueError(f"a stride below size / {OVERLAP} puts each point into too many samples")
        return self


@dataclass(frozen=True)
class Axis:
    """The tiles along x or y: tile i covers [anchor + i * stride, + size), the last one is closed."""

    anchor: float
    size: float
    stride: float
    count: int

    @staticmethod
    def over(low: float, high: float, size: float, stride: float) -> Axis:
        """The axis that covers [low, high]; its first tile starts at a multiple of ``size``."""
        anchor = math.floor(low / size) * size
        return Axis(anchor, size, stride, max(math.ceil((high - anchor - size) / stride), 0) + 1)

    def edges(self, tile: int) -> tuple[float, float]:
        """Lower and upper edge. Neighbours that touch have the same float64 between them."""
        steps = self.size / self.stride
        upper = (tile + steps) * self.stride if steps.is_integer() else tile * self.stride + self.size
        return self.anchor + tile * self.stride, self.anchor + upper

    def cut(self, values: NDArray[np.float64]) -> Iterator[tuple[int, NDArray[np.int64]]]:
        """Each tile that holds any of ``values``, and which of them, ascending."""
        order = np.argsort(values, kind="stable")
        ordered = values[order]
        for tile in self._candidates(values):
            low, high = self.edges(tile)
            # The grid covers the scan, so its ends are open: rounding of an edge must not lose a point.
            first = 0 if tile == 0 else int(np.searchsorted(ordered, low, "left"))
            stop = len(order) if tile == self.count - 1 else int(np.searchsorted(ordered, high, "left"))
            if first < stop:
                yield tile, np.sort(order[first:stop])

    def _candidates(self, values: NDArray[np.float64]) -> list[int]:
        """Tiles that may hold a value: few where a scan has one far outlier."""
        newest = np.unique(np.floor((values - self.anchor) / self.stride)).astype(np.int64)
        back = math.ceil(self.size / self.stride)
        near = newest[:, None] + np.arange(-back, 2)
        return [int(tile) for tile in np.unique(np.clip(near, 0, self.count - 1))]


@dataclass(frozen=True)
class Grid:
    """Tiles over x and y, numbered along y first."""

    x: Axis
    y: Axis

    @property
    def count(self) -> int:
        """Number of tiles, empty ones too."""
        return self.x.count * self.y.count

    @property
    def _apart(self) -> bool:
        """Whether each point is in one tile."""
        return self.x.size == self.x.stride

    def grouped(
        self, xyz: NDArray[np.float64]
    ) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
        """The tiles that hold rows of ``xyz``, float64 (n, 3): number (p,), rising, their rows, and starts.

        The rows of a tile, which rise, are those from its start to the next: int64 (p + 1,).
        """
        if self._apart:
            return by_tile(self.tile(xyz))
        found = [
            (i * self.y.count + j, strip[rows])
            for i, strip in self.x.cut(xyz[:, 0])
            for j, rows in self.y.cut(xyz[strip, 1])
        ]
        rows = np.concatenate([np.zeros(0, np.int64), *(rows for _, rows in found)])
        starts = np.cumsum([0, *(len(rows) for _, rows in found)])
        return np.array([tile for tile, _ in found], np.int64), rows, starts

    def tile(self, xyz: NDArray[np.float64]) -> NDArray[np.int64]:
        """The tile of each row of ``xyz``, float64 (n, 3), where tiles lie edge to edge: int64 (n,)."""
        from .tile_number import number  # compiled: settings, which import this, come without a compiler

        assert self._apart
        numbers = np.zeros(len(xyz), np.int64)
        for i, axis in enumerate((self.x, self.y)):
            number(xyz[:, i], axis.anchor, axis.size, axis.count, numbers)
        return numbers

    def centre(self, tile: int) -> tuple[float, float]:
        """The middle of a tile."""
        i, j = divmod(tile, self.y.count)
        return sum(self.x.edges(i)) / 2, sum(self.y.edges(j)) / 2


def by_tile(
    tile: NDArray[np.int64],
) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
    """The tiles there are, rising, the rows of each, which rise too, and where the rows of each start."""
    if not len(tile):
        return tile, np.zeros(0, np.int64), np.zeros(1, np.int64)
    least, most = tile.min(), tile.max()
    if most - least < 1 << 16:  # numbers of 16 bits are counted, not compared
        number = (tile - least).astype(np.uint16)
        rows, counts = np.argsort(number, kind="stable"), np.bincount(number)
        there = np.flatnonzero(counts)
        return there + least, rows, np.concatenate([[0], np.cumsum(counts[there])])
    rows = np.argsort(tile, kind="stable")
    ordered = tile[rows]
    starts = np.flatnonzero(np.concatenate([[True], ordered[1:] != ordered[:-1], [True]]))
    return ordered[starts[:-1]], rows, starts


def grid(path: Path, xyz: NDArray[Any], settings: TileSettings, *, train: bool) -> Grid:
    """The grid over a whole scan, or over two opposite corners of its extent.

    Raises DataError where tiles are too small for its extent or its place.
    """
    low, high = xyz[:, :2].min(axis=0), xyz[:, :2].max(axis=0)
    stride = settings.stride if train and settings.stride else settings.size
    reach = max(np.abs(low).max(), np.abs(high).max())
    # As products: a quotient by the smallest stride would overflow.
    if not np.all(high - low < stride * MOST) or not reach < stride * 2.0**50:
        cause = (
            f"spans {np.max(high - low):g} units, too wide (or too far from zero) for tiles every {stride:g}"
        )
        raise DataError(path, cause, "raise data.tiles, or set data.bounds")
    axes = [Axis.over(float(a), float(b), settings.size, stride) for a, b in zip(low, high, strict=True)]
    return Grid(axes[0], axes[1])
