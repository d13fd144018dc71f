"""Whether samplers gave the same: before they are timed, each answer is compared with a plain computation."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .sampler_clouds import Cloud

TOLERANCE = 1 / 1024
"""Of a voxel's edge for centroids, absolute for fields in [0, 1): float32 sums of a few rows."""

_RADIUS = 1e-3


@dataclass(frozen=True)
class Grid:
    """Cells in any order. ``means`` (m, 3 + fields); None for what was not asked."""

    means: NDArray[Any]
    count: NDArray[Any] | None = None
    index: NDArray[Any] | None = None
    inverse: NDArray[Any] | None = None


class Cells:
    """The right answer for a cloud, in float64, on a grid from 0."""

    def __init__(self, xyz: Cloud, size: float, fields: Mapping[str, NDArray[Any]]) -> None:
        self.size = size
        self.of_rows = _cells(xyz, size)
        low, high = self.of_rows.min(axis=0), self.of_rows.max(axis=0)
        self._low, self._span = low, high - low + 1
        columns = [*xyz.T, *fields.values()]
        self.keys, self.index, self.inverse, self.count = np.unique(
            self._key(self.of_rows), return_index=True, return_inverse=True, return_counts=True
        )
        sums = [np.bincount(self.inverse, column) for column in columns]
        self.means = np.stack(sums, axis=1) / self.count[:, None]

    def __len__(self) -> int:
        return len(self.keys)

    def differs(self, grid: Grid) -> str:
        """How an answer differs, "" where it does not."""
        m, width = len(self), self.means.shape[1]
        if grid.means.shape != (m, width):
            return f"{grid.means.shape} means, not {(m, width)}"
        keys = self._key(_cells(grid.means[:, :3], self.size))
        order = np.argsort(keys, kind="stable")
        if not np.array_equal(keys[order], self.keys):
            return f"{(keys[order] != self.keys).sum()} of {m} means are not in the cells that are occupied"
        off = np.abs(grid.means[order] - self.means)
        limit = np.where(np.arange(width) < 3, self.size * TOLERANCE, TOLERANCE)
        if not (off <= limit).all():
            of_fields = f", fields by up to {off[:, 3:].max():g}" if width > 3 else ""
            return f"means are off by up to {off[:, :3].max():g}{of_fields}"
        for name, wanted in (("count", self.count), ("index", self.index)):
            got = getattr(grid, name)
            if got is not None and not np.array_equal(got[order], wanted):
                return f"{name} differs in {(got[order] != wanted).sum()} of {m} cells"
        if grid.inverse is not None and not np.array_equal(keys[grid.inverse], self.keys[self.inverse]):
            return "inverse leads to other cells"
        return ""

    def _key(self, cells: NDArray[np.int64]) -> NDArray[np.int64]:
        x, y, z = (cells - self._low).T
        key = (x * self._span[1] + y) * self._span[2] + z
        outside = ((cells < self._low) | (cells >= self._low + self._span)).any(axis=1)
        return np.where(outside, -1, key)


def _cells(xyz: NDArray[Any], size: float) -> NDArray[np.int64]:
    return np.floor(xyz.astype(np.float64) / size).astype(np.int64)


def brute(xyz: Cloud, k: int, start: int = 0) -> tuple[NDArray[np.int64], float]:
    """Farthest points one by one, and how far the farthest row is from all of them."""
    least, picks, row = np.full(len(xyz), np.inf, np.float32), [], start
    for _ in range(k):
        picks.append(row)
        apart = xyz - xyz[row]
        least = np.minimum(least, (apart[:, 0] ** 2 + apart[:, 1] ** 2) + apart[:, 2] ** 2)
        row = int(least.argmax())
    return np.array(picks), float(np.sqrt(least.max()))


class Picks:
    """Farthest points of a cloud: ours are to be those of brute force, peers' to cover as well.

    A peer may begin with another row than it was told, and gives points where others give rows. Wanted of it
    is the radius of brute force from the row it began with.
    """

    def __init__(self, xyz: Cloud, k: int) -> None:
        self._xyz, self._k = xyz, k

    def differs(self, answer: Any) -> str:
        """Of our rows, or of a peer's (first row, points)."""
        if isinstance(answer, np.ndarray):
            off = int((answer != brute(self._xyz, self._k)[0]).sum())
            return f"{off} of {self._k} rows are not brute force's" if off else ""
        first, points = answer
        if len(np.unique(points, axis=0)) != self._k:
            return f"{len(np.unique(points, axis=0))} different points of {self._k}"
        wanted = brute(self._xyz, self._k, first)[1]
        least = np.full(len(self._xyz), np.inf)
        for point in points:
            least = np.minimum(least, np.square(self._xyz - point).sum(axis=1))
        radius = float(np.sqrt(least.max()))
        if abs(radius / wanted - 1) > _RADIUS:
            return f"covers within {radius:g}, brute force from the same row within {wanted:g}"
        return ""


def rows_differ(rows: NDArray[Any], n: int, k: int) -> str:
    """Of rows that should be ``k`` different ones of ``n``."""
    if rows.shape != (k,) or len(np.unique(rows)) != k or rows.min() < 0 or rows.max() >= n:
        return f"not {k} different rows of {n}"
    return ""
