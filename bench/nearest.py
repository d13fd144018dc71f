"""How well the kept points stand for a cloud: distances to the nearest, and shares of classes."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..pipelines import open3d

_FEW = 2_000_000
"""Pairs that are all looked at; beyond them Open3D's tree is used."""

_BLOCK = 4096


def nearest(of: NDArray[Any], among: NDArray[Any]) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    """Of each point of ``of``: distance to the nearest of ``among``, and which row of it that is."""
    if len(of) * len(among) <= _FEW:
        return _of_all(of, among)
    library = open3d.library()
    tensors = [library.core.Tensor(np.ascontiguousarray(points, np.float64)) for points in (of, among)]
    search = library.core.nns.NearestNeighborSearch(tensors[1])
    search.knn_index()
    rows, squares = search.knn_search(tensors[0], 1)
    return np.sqrt(squares.numpy()[:, 0]), rows.numpy()[:, 0].astype(np.int64)


def _of_all(of: NDArray[Any], among: NDArray[Any]) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    distances, rows = np.empty(len(of)), np.empty(len(of), np.int64)
    for start in range(0, len(of), _BLOCK):
        block = slice(start, start + _BLOCK)
        apart = np.square(of[block, None].astype(np.float64) - among[None]).sum(axis=2)
        rows[block] = apart.argmin(axis=1)
        distances[block] = np.sqrt(apart.min(axis=1))
    return distances, rows


def likeness(cloud: NDArray[Any], kept: NDArray[Any]) -> tuple[dict[str, float], NDArray[np.int64]]:
    """Distances between a cloud and what was kept of it, in its unit, and the nearest kept point of each row.

    ``coverage``: of any row to its nearest kept point, the largest. ``chamfer``: the mean of rows to kept
    points plus that of kept points to rows, which is 0 for rows kept as they are. ``hausdorff``: the largest
    either way.
    """
    there, rows = nearest(cloud, kept)
    back, _ = nearest(kept, cloud)
    found = {
        "coverage": float(there.max()),
        "chamfer": float(there.mean() + back.mean()),
        "hausdorff": float(max(there.max(), back.max())),
    }
    return found, rows


def balance(before: NDArray[Any], after: NDArray[Any]) -> dict[str, float]:
    """Of labels: the share of the class that was rarest, before and after, and how far shares moved.

    ``moved``: total variation, half the sum of what the shares of all classes differ by.
    """
    classes, counts = np.unique(before, return_counts=True)
    kept = np.array([(after == one).sum() for one in classes])
    shares, kept_shares = counts / len(before), kept / max(len(after), 1)
    rarest = int(counts.argmin())
    return {
        "rarest_before": float(shares[rarest]),
        "rarest_after": float(kept_shares[rarest]),
        "moved": float(np.abs(shares - kept_shares).sum() / 2),
    }
