"""The voxel grid of a cloud that comes in chunks: memory follows the occupied cells."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..errors import UsageError
from .accumulate_fields import Merging, Part, part_of
from .fields import Reduction
from .gate import Cloud, as_given, checked, whole
from .grid import numbered
from .group import Groups, Pick
from .merge import Chosen
from .tables import STEPS
from .voxel import chosen, grid_of, grouped

_FEW = 1 << 16
"""Cells that may wait to be merged, however few there are already."""


@dataclass(frozen=True, eq=False)
class AccumulatedVoxels:
    """The occupied cells of all chunks, sorted by (x, y, z) cell number: m of them.

    ``xyz``: float32 (m, 3). ``fields``: each with its dtype and m rows. ``index``: int64 (m,), a row of each
    cell, counted over all chunks. ``count``: int64 (m,). ``cell``: int64 (m, 3).
    """

    xyz: Any
    fields: dict[str, Any]
    index: Any
    count: Any
    cell: Any


@dataclass(frozen=True)
class _Cells:
    """What is known of some cells, in the order of cells once merged."""

    cell: NDArray[np.int64]
    count: NDArray[np.int64]
    steps: NDArray[np.int64]
    weight: NDArray[np.int64]
    row: NDArray[np.int64]
    xyz: NDArray[np.float32]
    fields: dict[str, Part]


class VoxelAccumulator:
    """`voxel` of a cloud that is added chunk by chunk, with the same result for any chunks.

    ``size``, ``pick``, ``reduce``, ``origin``, ``grid_origin``, ``seed``, ``threads``: as for `voxel`; all
    chunks are relative to the one ``origin``. Sums of places are of whole numbers, so `result` has the bits
    of `voxel`; means of float fields may differ in the last place. Memory follows the occupied cells, and for
    a majority the different values in each. Raises UsageError as `voxel` does.
    """

    def __init__(
        self,
        size: float,
        *,
        pick: Pick = "centroid",
        reduce: Mapping[str, Reduction] | None = None,
        origin: Any = None,
        grid_origin: Any = None,
        seed: int = 0,
        threads: int | None = None,
    ) -> None:
        self._grid = grid_of(size, pick, origin, grid_origin)
        self._pick: Pick = pick
        self._reduce = dict(reduce or {})
        self._seed, self._threads = whole(seed, "seed"), threads
        self._kinds: dict[str, tuple[str, tuple[int, ...]]] | None = None
        self._chunks = self._next = 0
        self._tensor = False
        self._edges: list[int] = []  # where the rows there are begin and end, in turn, rising
        self._parts: list[_Cells] = []  # the first is all that was merged, the others wait

    def add(self, xyz: Any, fields: Mapping[str, Any] | None = None, *, start: int | None = None) -> None:
        """Add rows ``xyz`` (n, 3), relative to the origin, with ``fields`` of n rows, always the same.

        ``start``: the number of the first row in the whole, by default the one after the chunk before. With
        it the order of chunks does not matter: it decides which row is the first, and what is drawn for each.
        Raises UsageError where rows of these numbers were added before.
        """
        cloud = checked(xyz)
        first = self._next if start is None else whole(start, "start")
        end = first + len(cloud.xyz)
        if not 0 <= first <= end < 2**63:
            raise UsageError("start", f"is {first}", "give the number of the chunk's first row")
        edges = _with(self._edges, first, end)
        named = chosen(fields or {}, self._reduce, len(cloud.xyz))
        self._check(named)
        how = self._pick, self._seed, self._threads
        groups = grouped(cloud, self._grid, *how, start=first, tell=bool(named))
        self._parts.append(self._cells(cloud, groups, named, first))
        self._tensor |= cloud.tensor
        self._chunks, self._next, self._edges = self._chunks + 1, end, edges
        if sum(len(part.cell) for part in self._parts[1:]) > max(len(self._parts[0].cell), _FEW):
            self._parts = [_merged(self._parts)]

    def result(self) -> AccumulatedVoxels:
        """The voxels of all rows so far; more may be added afterwards."""
        if not self._parts:
            self.add(np.empty((0, 3), np.float32))
            self._kinds, self._chunks = None, 0
        self._parts = [_merged(self._parts)]
        (cells,) = self._parts
        if self._pick == "centroid":
            xyz = self._means(cells)
        elif self._pick == "center":
            xyz = self._grid.points(cells.cell + 0.5)
        else:
            xyz = cells.xyz.copy()
        fields = {name: part.values(cells.count) for name, part in cells.fields.items()}
        found = (xyz, cells.row.copy(), cells.count.copy(), cells.cell.copy())
        xyz, index, count, cell = (as_given(values, self._tensor) for values in found)
        merged = {name: as_given(values, self._tensor) for name, values in fields.items()}
        return AccumulatedVoxels(xyz, merged, index, count, cell)

    def _check(self, named: Chosen) -> None:
        kinds = {name: (str(values.dtype), values.shape[1:]) for name, (values, _) in named.items()}
        if self._kinds is None:
            self._kinds = kinds
        elif kinds != self._kinds:
            where = f"VoxelAccumulator, chunk {self._chunks}"
            cause = f"has the fields {kinds}, where those before have {self._kinds}"
            raise UsageError(where, cause, "give the same fields with every chunk")

    def _cells(self, cloud: Cloud, groups: Groups, named: Chosen, first: int) -> _Cells:
        """What a chunk adds."""
        picked = self._pick in ("first", "nearest", "random")
        return _Cells(
            groups.cell,
            groups.count,
            groups.steps,
            groups.weight,
            first + groups.index,
            cloud.xyz[groups.index].astype(np.float32) if picked else np.empty((len(groups), 0), np.float32),
            dict(part_of(named, groups)),
        )

    def _means(self, cells: _Cells) -> NDArray[np.float32]:
        """The formula of `cells`, operation by operation."""
        return self._grid.points(cells.cell + (cells.steps * (1.0 / cells.count[:, None]) + 0.5) / STEPS)


def _with(edges: list[int], first: int, end: int) -> list[int]:
    """``edges`` and those of the rows [first, end); UsageError where some of these are there already."""
    if first == end:
        return edges
    i = bisect_right(edges, first)
    if i % 2 or bisect_left(edges, end) > i:
        cause = f"rows {first} to {end - 1} overlap with rows that were added before"
        raise UsageError("start", cause, "give the number of the chunk's first row in the whole")
    left, right = edges[:i], edges[i:]
    if left[-1:] == [first]:
        left, first = left[:-2], left[-2]
    if right[:1] == [end]:
        right, end = right[2:], right[1]
    return [*left, first, end, *right]


def _merged(parts: list[_Cells]) -> _Cells:
    """The cells of all parts, each once and sorted."""
    parts = [part for part in parts if len(part.cell)] or parts[:1]
    if len(parts) == 1:
        return parts[0]
    cell = np.concatenate([part.cell for part in parts])
    row = np.concatenate([part.row for part in parts])
    weight = np.concatenate([part.weight for part in parts])
    number, order, starts = numbered(cell)
    # Of each cell the part with the least weight, then the lowest row, stands for it.
    best = np.lexsort((row, weight, number))[starts[:-1]]
    how, firsts = Merging(number, order, starts, best), starts[:-1]
    fields = {
        name: kept.merged([part.fields[name] for part in parts], how)
        for name, kept in parts[0].fields.items()
    }
    return _Cells(
        cell[best],
        np.add.reduceat(np.concatenate([part.count for part in parts])[order], firsts),
        np.add.reduceat(np.concatenate([part.steps for part in parts])[order], firsts),
        weight[best],
        row[best],
        np.concatenate([part.xyz for part in parts])[best],
        fields,
    )
