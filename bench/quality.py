"""What sampling loses: coverage, chamfer, Hausdorff, classes and registration, of each sampler and share.

On real scans: `source.ply` and `target.ply`, which are registered, and labelled LAZ tiles in `ign_dense`.
"""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..errors import DataError, UsageError
from ..files import write_atomic
from ..pipelines import open3d
from ..pipelines.readers import read
from ..samplers import farthest, random, voxel
from ..samplers.adaptive import adaptive
from .compare import Report, Row
from .loader import machine
from .nearest import balance, likeness
from .registration import OTHER_REACHES_M, apart, read_ply, registered
from .sampler_peers import versions

log = logging.getLogger(__name__)

SHARES = (0.01, 0.05, 0.10, 0.25)
CLAIMED = 0.22
"""A share that an article names for voxels; measured for them alone."""

SEEDS = 5
VARIABLE = "TAMIS_DATA"

_FINEST, _HALVINGS = 1000, 16  # the search for a voxel size starts at an extent's thousandth


@dataclass(frozen=True)
class Cloud:
    """``xyz`` float32 (n, 3), near 0; ``label`` int32 (n,) where it has one."""

    xyz: NDArray[np.float32]
    label: NDArray[np.int32] | None = None


@dataclass(frozen=True)
class Kept:
    """What a sampler kept of a cloud, the milliseconds that took, and the method where it chose one."""

    xyz: NDArray[np.float32]
    label: NDArray[np.int32] | None
    ms: float
    method: str = ""


Sampler = Callable[[Cloud, int, int], Kept]
"""(cloud, how many points, seed)"""

Seed = tuple[dict[str, Any], set[str]]
"""What a seed gave: figures, and the methods chosen, "" where a sampler has one."""


def samplers() -> dict[str, Sampler]:
    """By name. Seeds draw the rows, the first row, or where the grid lies."""
    return {
        "random": lambda cloud, k, seed: _rows(cloud, lambda: random(len(cloud.xyz), k, seed=seed)),
        "voxel": _voxels,
        "farthest": lambda cloud, k, seed: _rows(
            cloud, lambda: farthest(cloud.xyz, k, start="random", seed=seed)
        ),
        "adaptive": _adaptive,
    }


def run(data: Path | None, out: Path | None = None) -> Report:
    """Measure on the scans in ``data``, and write the report to ``out``.

    Raises UsageError without a folder or without Open3D, DataError for one that lacks a scan.
    """
    if data is None:
        cause = f"no folder of scans: --data is not given and {VARIABLE} is not set"
        fix = "name a folder with source.ply, target.ply and ign_dense/*.laz"
        raise UsageError("bench quality", cause, fix)
    try:
        open3d.library()
    except (ImportError, OSError) as error:
        raise UsageError("bench quality", f"needs Open3D ({error})", "uv sync --group bench") from None
    source, target, tiles = scans(data)
    report: Report = {
        **machine(),
        "versions": versions({"open3d": None}),
        "seeds": SEEDS,
        "scan": {"source": len(source.xyz), "target": len(target.xyz)},
        "tiles": {"files": len(tiles), "points": sum(len(tile.xyz) for tile in tiles)},
        "rows": [],
    }
    whole, seconds = registered(source.xyz, target.xyz)
    others = [registered(source.xyz, target.xyz, reach)[0] for reach in OTHER_REACHES_M]
    report["scan"] |= {
        "icp_s": seconds,
        **apart(np.eye(4), whole),
        "others": [apart(whole, other) for other in others],
    }
    for name, sampler in samplers().items():
        sampler(source, len(source.xyz) // 2, 0)  # to warm up
        for share in (*SHARES, CLAIMED) if name == "voxel" else SHARES:
            log.info("%s, %g %%", name, 100 * share)
            report["rows"].append(_row("scan", name, share, _of_scan(sampler, share, source, target, whole)))
            report["rows"].append(_row("tiles", name, share, _of_tiles(sampler, share, tiles)))
            if out:
                write_atomic(out, json.dumps(report, indent=1) + "\n")
    return report


def scans(folder: Path) -> tuple[Cloud, Cloud, list[Cloud]]:
    """Source, target and tiles below a folder. Raises DataError where one is missing."""
    found = {name: sorted(folder.rglob(name)) for name in ("source.ply", "target.ply", "ign_dense/*.laz")}
    for name, paths in found.items():
        if not paths:
            raise DataError(folder, f"has no {name}", f"name a folder that has, with --data or {VARIABLE}")
    pair = [Cloud(read_ply(found[name][0]).astype(np.float32)) for name in ("source.ply", "target.ply")]
    return pair[0], pair[1], [_tile(path) for path in found["ign_dense/*.laz"]]


def _tile(path: Path) -> Cloud:
    scan = read(path)
    if "classification" not in scan.fields:
        raise DataError(path, "has no classification", "leave it out")
    xyz = (scan.xyz - scan.xyz.min(axis=0)).astype(np.float32)
    return Cloud(xyz, scan.fields["classification"].astype(np.int32))


def _rows(cloud: Cloud, pick: Callable[[], Any]) -> Kept:
    start = time.perf_counter()
    index = pick()
    ms = (time.perf_counter() - start) * 1e3
    return Kept(cloud.xyz[index], None if cloud.label is None else cloud.label[index], ms)


def _adaptive(cloud: Cloud, k: int, seed: int) -> Kept:
    chosen = []

    def pick() -> Any:
        chosen.append(adaptive(cloud.xyz, k, seed=seed))
        return chosen[0].index

    return replace(_rows(cloud, pick), method=chosen[0].method)


def _voxels(cloud: Cloud, k: int, seed: int) -> Kept:
    """Voxels of the size that leaves the number of points nearest to ``k``, on a grid that ``seed`` moves."""
    place = np.random.default_rng(seed).random(3)

    def count(size: float) -> int:
        return len(voxel(cloud.xyz, size, grid_origin=place * size).xyz)

    best = _size(count, k, float(np.ptp(cloud.xyz, axis=0).max()) / _FINEST)
    fields = {} if cloud.label is None else {"label": cloud.label}
    start = time.perf_counter()
    found = voxel(cloud.xyz, best, grid_origin=place * best, fields=fields)
    ms = (time.perf_counter() - start) * 1e3
    return Kept(found.xyz, found.fields.get("label"), ms)


def _size(count: Callable[[float], int], k: int, low: float) -> float:
    """The size, of those looked at from ``low`` on, whose number of voxels is nearest to ``k``."""
    high = 2 * low
    while count(high) > k:
        low, high = high, 2 * high
    off: dict[int, float] = {}
    for _ in range(_HALVINGS):
        size = (low + high) / 2
        m = count(size)
        off[abs(m - k)] = size
        low, high = (size, high) if m > k else (low, size)
    return off[min(off)]


def _of_scan(
    sampler: Sampler, share: float, source: Cloud, target: Cloud, whole: NDArray[np.float64]
) -> Iterator[Seed]:
    """Of each seed: how the source is covered, and the registration of what is kept of both."""
    for seed in range(SEEDS):
        kept, onto = (
            sampler(cloud, max(round(share * len(cloud.xyz)), 1), seed) for cloud in (source, target)
        )
        found, _ = likeness(source.xyz, kept.xyz)
        transform, seconds = registered(kept.xyz, onto.xyz)
        figures = {"kept": len(kept.xyz), "ms": kept.ms, **found, **apart(whole, transform), "icp_s": seconds}
        yield {**figures, "transform": transform.tolist()}, {kept.method, onto.method}


def _of_tiles(sampler: Sampler, share: float, tiles: list[Cloud]) -> Iterator[Seed]:
    """Of each seed: means over tiles of distances and milliseconds, classes of all tiles together.

    ``labels``: the share of rows whose nearest kept point has their class.
    """
    for seed in range(SEEDS):
        figures: list[dict[str, float]] = []
        before, after, same, methods = [], [], [], set()
        for tile in tiles:
            kept = sampler(tile, max(round(share * len(tile.xyz)), 1), seed)
            assert tile.label is not None
            assert kept.label is not None
            found, rows = likeness(tile.xyz, kept.xyz)
            figures.append({"kept": len(kept.xyz), "ms": kept.ms, **found})
            before.append(tile.label)
            after.append(kept.label)
            same.append(kept.label[rows] == tile.label)
            methods.add(kept.method)
        means = {name: fmean(of[name] for of in figures) for name in figures[0]}
        classes = balance(np.concatenate(before), np.concatenate(after))
        yield {**means, **classes, "labels": float(np.concatenate(same).mean())}, methods


def _row(cloud: str, sampler: str, share: float, found: Iterator[Seed]) -> Row:
    """Each figure with its values by seed, and the methods that were chosen."""
    seeds = list(found)
    figures = {name: [of[name] for of, _ in seeds] for name in seeds[0][0]}
    methods = set().union(*(chosen for _, chosen in seeds)) - {""}
    return {"cloud": cloud, "sampler": sampler, "share": share, **figures, "methods": sorted(methods)}
