"""Voxel grids as a good user writes them with other libraries: means of the rows of each cell.

They give `sampler_check.Grid`, on a grid from 0. Open3D's clouds are made before the clock runs, data
frames and cell numbers while it does.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..pipelines import open3d
from .sampler_check import Grid
from .sampler_clouds import Cloud
from .sampler_peers import Peers
from .sampler_ways import Way

Fields = Mapping[str, NDArray[np.float32]]


def packed(xyz: Cloud, size: float) -> NDArray[np.int64]:
    """One whole number for the cell of each row, in the order of cells. An axis at a time is quickest."""
    key = np.zeros(len(xyz), np.int64)
    for axis in range(3):
        cell = np.floor(xyz[:, axis] / np.float32(size)).astype(np.int32)
        low = cell.min()
        key *= int(cell.max()) - int(low) + 1
        key += cell
        key -= low
    return key


def grid_peers(xyz: Cloud, size: float, fields: Fields, outputs: str, peers: Peers) -> list[Way]:
    """Those that give what is asked: with ``outputs`` "full" also first rows, cells of rows and counts."""
    columns = [xyz[:, axis] for axis in range(3)] + list(fields.values())
    full = outputs == "full"
    found: dict[str, Callable[[], Grid]] = {
        "numpy unique": partial(_unique, xyz, size, columns, full),
        "numpy sort": partial(_sort, xyz, size, columns, full),
    }
    if "pandas" in peers:
        pandas = peers["pandas"]
        for sort in (False, True):
            grouped = partial(_groupby, pandas, xyz, size, fields, full, sort=sort)
            found[f"pandas groupby sort={sort}"] = grouped
        found["pandas factorize"] = partial(_factorize, pandas, xyz, size, columns, full)
    if "polars" in peers:
        found["polars group_by"] = partial(_group_by, peers["polars"], xyz, size, columns, full)
    ways = [Way(name, run) for name, run in found.items()]
    if "open3d" in peers and not full:
        ways += _of_open3d(xyz, size, fields, peers["open3d"])
    return ways


def _unique(xyz: Cloud, size: float, columns: list[NDArray[Any]], full: bool) -> Grid:
    key = packed(xyz, size)
    if full:
        _, index, inverse, count = np.unique(key, return_index=True, return_inverse=True, return_counts=True)
        return Grid(_means(columns, inverse, count), count, index, inverse)
    _, inverse, count = np.unique(key, return_inverse=True, return_counts=True)
    return Grid(_means(columns, inverse, count))


def _sort(xyz: Cloud, size: float, columns: list[NDArray[Any]], full: bool) -> Grid:
    """Key and row in one number: it sorts faster than by an index, and equal keys stay in order."""
    n, bits = len(xyz), len(xyz).bit_length()
    both = np.sort(packed(xyz, size) << bits | np.arange(n))
    rows, key = both & ((1 << bits) - 1), both >> bits
    starts = np.flatnonzero(np.concatenate([[True], key[1:] != key[:-1]]))
    count = np.diff(starts, append=n)
    means = np.stack([np.add.reduceat(column[rows], starts) for column in columns], axis=1) / count[:, None]
    if not full:
        return Grid(means)
    inverse = np.empty(n, np.int64)
    inverse[rows] = np.repeat(np.arange(len(starts)), count)
    return Grid(means, count, rows[starts], inverse)


def _factorize(pandas: Any, xyz: Cloud, size: float, columns: list[NDArray[Any]], full: bool) -> Grid:
    """Cells in the order of their first rows: without sorting."""
    inverse, keys = pandas.factorize(packed(xyz, size))
    count = np.bincount(inverse, minlength=len(keys))
    means = _means(columns, inverse, count)
    if not full:
        return Grid(means)
    index = np.empty(len(keys), np.int64)
    index[inverse[::-1]] = np.arange(len(xyz) - 1, -1, -1)  # the first row is written last
    return Grid(means, count, index, inverse)


def _groupby(pandas: Any, xyz: Cloud, size: float, fields: Fields, full: bool, *, sort: bool) -> Grid:
    key = packed(xyz, size)
    frame = pandas.DataFrame(xyz, copy=False)
    for name, values in fields.items():
        frame[name] = values
    groups = frame.groupby(key, sort=sort)
    means = groups.mean().to_numpy()
    if not full:
        return Grid(means)
    count, inverse = groups.size().to_numpy(), groups.ngroup().to_numpy()
    index = np.flatnonzero(~pandas.Series(key).duplicated().to_numpy())
    if sort:
        index = index[np.argsort(key[index])]
    return Grid(means, count, index, inverse)


def _group_by(polars: Any, xyz: Cloud, size: float, columns: list[NDArray[Any]], full: bool) -> Grid:
    frame = polars.DataFrame({f"c{i}": column for i, column in enumerate(columns)})
    table = frame.lazy().with_columns(polars.Series("key", packed(xyz, size)))
    means = [polars.col(name).mean() for name in frame.columns]
    if not full:
        grouped = table.group_by("key").agg(means).collect()
        return Grid(grouped.select(frame.columns).to_numpy())
    first = polars.col("row").first()
    grouped = table.with_row_index("row").group_by("key").agg(*means, first, polars.len().alias("count"))
    cells = grouped.collect().with_row_index("cell")
    joined = table.select("key").collect().join(cells.select("key", "cell"), on="key", maintain_order="left")
    return Grid(
        cells.select(frame.columns).to_numpy(),
        cells["count"].to_numpy(),
        cells["row"].to_numpy(),
        joined["cell"].to_numpy(),
    )


def _of_open3d(xyz: Cloud, size: float, fields: Fields, library: Any) -> list[Way]:
    cloud = library.t.geometry.PointCloud(library.core.Tensor.from_numpy(xyz))
    for name, values in fields.items():
        cloud.point[name] = library.core.Tensor.from_numpy(values[:, None])

    def of_tensors(found: Any) -> Grid:
        names = ["positions", *fields]
        return Grid(np.concatenate([found.point[name].numpy() for name in names], axis=1))

    ways = [Way("open3d tensor", lambda: cloud.voxel_down_sample(size), of_tensors)]
    if not fields:
        # Its grid begins half a voxel below the cloud: one more point makes that a corner of ours.
        corner = (np.floor(xyz.min(axis=0) / size) - 0.5) * size
        older = open3d.cloud(np.vstack([xyz, corner]))

        def of_points(found: Any) -> Grid:
            points = np.asarray(found.points)
            return Grid(points[(points != corner).any(axis=1)])

        ways.append(Way("open3d legacy", lambda: older.voxel_down_sample(size), of_points))
    return ways


def _means(columns: list[NDArray[Any]], inverse: NDArray[Any], count: NDArray[Any]) -> NDArray[Any]:
    sums = np.stack([np.bincount(inverse, column) for column in columns], axis=1)
    return np.asarray(sums / count[:, None])
