"""A scan larger than memory to samples: its rows go to a file, by tile, and come back some tiles at a time.

The scan is read twice: once for its extent, which the tiles lie over, and once to cut it. What comes out is
what cutting it whole gives.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from . import splits
from .cut import Points
from .journal import temporary
from .pieces import Grids, Pieces, extent, grouped
from .records import SPLITS
from .settings import DataSettings
from .tiles import by_tile


def clouds(
    path: Path,
    source: str,
    chunks: Callable[[], Iterable[Points]],
    settings: DataSettings,
    listed: Mapping[str, str],
    spill: Path,
) -> Iterator[tuple[Points, list[Pieces]]]:
    """Groups of samples of a scan, and the points that they are cut from.

    ``chunks``: reads the scan, some rows at a time; it is called twice. ``spill``: a file to use meanwhile.
    """
    corners, dropped, outside = [], 0, 0
    none: Points | None = None
    for points in chunks():
        dropped, outside = dropped + points.dropped, outside + points.outside
        none = none or Points(points.xyz[:0], {n: column[:0] for n, column in points.columns.items()}, 0, 0)
        if len(points.xyz):
            corners.append(extent(points.xyz))
    assert none is not None
    yield Points(none.xyz, none.columns, dropped, outside), []
    if not corners:
        return
    grids = Grids(path, extent(np.concatenate(corners)), settings)
    with _spill(spill, none) as rows:
        for points in chunks():
            for split, own in splits.divide(points.xyz, settings.split, source, listed).items():
                rows.add(points, split, *grids.cut(split, points.xyz, own))
        for split in SPLITS:
            tile, sizes = rows.tiles(split)
            wanted = grids.enough(split, sizes)
            for first, stop in grouped(sizes):  # of all tiles: what lies between those wanted is read too
                own = tile[first:stop][wanted[first:stop]]
                if len(own):
                    points, order, starts = rows.load(split, own)
                    yield points, [grids.pieces(split, points.xyz, own, order, starts)]


@contextmanager
def _spill(path: Path, none: Points) -> Iterator[_Spill]:
    beside = temporary(path)
    try:
        with beside.open("w+b") as file:
            beside.unlink()  # it goes with the process, however that ends
            yield _Spill(file, none)
    finally:
        beside.unlink(missing_ok=True)


@dataclass(frozen=True)
class _Run:
    """Rows of one chunk and split, by tile: tile i's are ``starts[i]`` to ``starts[i + 1]`` from ``at`` on.

    ``at``: the byte at which each array begins.
    """

    tile: NDArray[np.int64]
    starts: NDArray[np.int64]
    at: list[int]


class _Spill:
    """Rows by split, chunk and tile; ``none``: points without rows, which tell the arrays' types."""

    def __init__(self, file: BinaryIO, none: Points) -> None:
        self._file, self._none = file, none
        self._runs: dict[str, list[_Run]] = {split: [] for split in SPLITS}

    def add(
        self,
        points: Points,
        split: str,
        tile: NDArray[np.int64],
        rows: NDArray[np.int64],
        starts: NDArray[np.int64],
    ) -> None:
        """Write rows of one chunk, ordered by tile."""
        at = []
        for values in (points.xyz, *points.columns.values()):
            at.append(self._file.tell())
            self._file.write(np.ascontiguousarray(values.take(rows, axis=0)).data)
        self._runs[split].append(_Run(tile, starts, at))

    def tiles(self, split: str) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """The tiles of a split that have rows, rising, and how many."""
        runs = self._runs[split]
        every = np.concatenate([np.zeros(0, np.int64), *(run.tile for run in runs)])
        counts = np.concatenate([np.zeros(0, np.int64), *(np.diff(run.starts) for run in runs)])
        tile, place = np.unique(every, return_inverse=True)
        sizes = np.zeros(len(tile), np.int64)
        np.add.at(sizes, place, counts)
        return tile, sizes

    def load(
        self, split: str, tile: NDArray[np.int64]
    ) -> tuple[Points, NDArray[np.int64], NDArray[np.int64]]:
        """Points with all rows of some tiles, which rise; the rows by tile, and where each tile's start."""
        self._file.flush()
        none = (self._none.xyz, *self._none.columns.values())
        arrays: list[list[NDArray[Any]]] = [[values] for values in none]
        numbers = [np.zeros(0, np.int64)]
        for run in self._runs[split]:
            first, stop = np.searchsorted(run.tile, tile[0]), np.searchsorted(run.tile, tile[-1], "right")
            begin, end = int(run.starts[first]), int(run.starts[stop])
            if begin == end:
                continue
            numbers.append(np.repeat(run.tile[first:stop], np.diff(run.starts[first : stop + 1])))
            for values, at, found in zip(none, run.at, arrays, strict=True):
                found.append(self._read(values, at, begin, end))
        xyz, *columns = (np.concatenate(found) for found in arrays)
        points = Points(xyz, dict(zip(self._none.columns, columns, strict=True)), 0, 0)
        number = np.concatenate(numbers)
        there, order, starts = by_tile(number)
        place = np.searchsorted(there, tile)
        first, stop = starts[place], starts[place + 1]
        rows = [order[a:b] for a, b in zip(first.tolist(), stop.tolist(), strict=True)]
        return points, np.concatenate(rows), np.concatenate([[0], np.cumsum(stop - first)])

    def _read(self, values: NDArray[Any], at: int, begin: int, end: int) -> NDArray[Any]:
        room = np.empty((end - begin, *values.shape[1:]), values.dtype)
        row_bytes = room.nbytes // len(room)
        self._file.seek(at + begin * row_bytes)
        if self._file.readinto(room.data.cast("B")) != room.nbytes:  # type: ignore[attr-defined]
            raise OSError(f"{self._file.name}: is shorter than what was written to it")
        return room
