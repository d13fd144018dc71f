"""The benchmark of samplers: tamis and its peers on the same clouds, in one run.

Before it is timed each way is compared with a plain computation; one that gives something else is told and
left out. Then all ways of a cloud are timed in turn, warm, in one process: medians of the rounds count.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from ..files import write_atomic
from ..samplers import Reduction, Voxels, farthest, farthest_batch, random, voxel
from .compare import Report
from .loader import machine
from .sampler_check import Cells, Grid, Picks, rows_differ
from .sampler_clouds import CLOUDS, SIZE, Cloud, fields
from .sampler_floor import kernels_ms, stage_rows, voxel_stages
from .sampler_grids import grid_peers
from .sampler_peers import Peers, batch_peers, farthest_peers, installed, random_peers, versions
from .sampler_table import ABOUT, figures
from .sampler_ways import THREADS, Contest, Way, measured, rows, wrong

log = logging.getLogger(__name__)

FIELDS = 4


@dataclass(frozen=True)
class Sizes:
    """``farthest``: (n, k). ``batch``: clouds, n and k of each. ``small``: where picks are compared."""

    farthest: tuple[tuple[int, int], ...]
    batch: tuple[int, int, int]
    voxel: tuple[int, ...]
    random: tuple[int, ...]
    small: tuple[int, int]
    rounds: int


FULL = Sizes(
    farthest=(
        (10_000, 1024),
        (10_000, 10_000),
        (100_000, 1024),
        (100_000, 10_000),
        (100_000, 100_000),
        (1_000_000, 1024),
    ),
    batch=(24, 10_000, 1024),
    voxel=(10_000, 100_000, 1_000_000),
    random=(10_000, 100_000, 1_000_000),
    small=(2000, 200),
    rounds=7,
)
QUICK = Sizes(
    farthest=((10_000, 1024),),
    batch=(4, 4000, 400),
    voxel=(10_000,),
    random=(10_000,),
    small=(600, 60),
    rounds=3,
)


def run(out: Path | None = None, sizes: Sizes = FULL) -> Report:
    """Measure, and write the report to ``out`` after every cloud."""
    peers, missing = installed()
    for name, why in missing.items():
        log.info("without %s: %s", name, why)
    report: Report = {
        **machine(),
        "about": ABOUT,
        "versions": versions(peers),
        "missing": missing,
        "rounds": sizes.rounds,
        "rows": [],
        "floor": [],
        "disagreements": [],
        "figures": [],
    }
    picks = {cloud: _wrong_picks(cloud, sizes, peers, report) for cloud in CLOUDS}
    for contests in _contests(sizes, peers):
        agreeing = []
        for contest in contests:
            away = set(_told(contest, report)) | picks.get(contest.cloud, set())
            agreeing += _without(contest, away)
        for contest, taken in zip(agreeing, measured(agreeing, sizes.rounds), strict=True):
            log.info("%s", contest.title)
            report["rows"] += rows(contest, taken)
            if contest.op == "voxel" and contest.outputs == "xyz":
                parts = kernels_ms(contest.ours[1].run, sizes.rounds)
                ms = taken[THREADS[1]].wall_ms
                stages = voxel_stages(contest.n, contest.k, contest.fields, ms, parts)
                report["floor"] += stage_rows(stages, contest.n, contest.cloud)
        if sizes == FULL:  # they are of its sizes
            report["figures"] = [figure.values() for figure in figures(report["rows"])]
        if out:
            write_atomic(out, json.dumps(report, indent=1) + "\n")
    return report


def _contests(sizes: Sizes, peers: Peers) -> Iterator[list[Contest]]:
    """What is timed in turn."""
    for n, k in sizes.farthest:
        for name, make in CLOUDS.items():
            yield [_farthest(make(n), k, name, peers)]
    for name in CLOUDS:
        yield [_batch(*sizes.batch, name, peers)]
    for n in sizes.voxel:
        for name, make in CLOUDS.items():
            yield _grids(make(n), name, peers)
    for n in sizes.random:
        k = n // 10
        ours = {1: Way("tamis", partial(random, n, k))}
        yield [Contest("random", n, k, "", ours, random_peers(n, k), partial(rows_differ, n=n, k=k))]


def _farthest(xyz: Cloud, k: int, cloud: str, peers: Peers) -> Contest:
    ours = {1: Way("tamis", partial(farthest, xyz, k))}
    return Contest("farthest", len(xyz), k, cloud, ours, farthest_peers(xyz, k, peers), None)


def _batch(clouds: int, n: int, k: int, cloud: str, peers: Peers) -> Contest:
    """Ours on several threads, and peers one cloud after the other. Each cloud is a shuffle of the same."""
    rng = np.random.default_rng(0)
    parts = [CLOUDS[cloud](n)[rng.permutation(n)] for _ in range(clouds)]
    xyz, offsets = np.concatenate(parts), np.arange(clouds + 1) * n
    wanted = np.concatenate([at + farthest(part, k) for at, part in zip(offsets, parts, strict=False)])

    def differs(answer: Any) -> str:
        if isinstance(answer, np.ndarray):
            return "" if np.array_equal(answer, wanted) else "other rows than farthest of each cloud"
        few = sum(len(np.unique(points, axis=0)) != k for _, points in answer)
        return f"{few} clouds without {k} different points" if few else ""

    ours = {
        threads: Way(
            name,
            partial(farthest_batch, xyz, offsets, k, threads=threads),
            lambda found: found[0],
        )
        for threads, name in THREADS.items()
    }
    others = batch_peers(parts, k, peers)
    return Contest("farthest_batch", len(xyz), clouds * k, cloud, ours, others, differs)


def _grids(xyz: Cloud, cloud: str, peers: Peers) -> list[Contest]:
    """Centroids alone, with all that can be asked, and with fields averaged."""
    found = []
    for number, outputs in ((0, "xyz"), (0, "full"), (FIELDS, "xyz")):
        carried = fields(len(xyz), number)
        cells = Cells(xyz, SIZE, carried)
        ours = {
            threads: Way(name, partial(_asked, xyz, carried, outputs, threads), partial(_grid, outputs))
            for threads, name in THREADS.items()
        }
        others = grid_peers(xyz, SIZE, carried, outputs, peers)
        found.append(
            Contest("voxel", len(xyz), len(cells), cloud, ours, others, cells.differs, number, outputs)
        )
    return found


def _asked(xyz: Cloud, carried: Mapping[str, Any], outputs: str, threads: int) -> Voxels:
    """Voxels of which that was computed which is asked for."""
    means: dict[str, Reduction] = dict.fromkeys(carried, "mean")
    found = voxel(xyz, SIZE, fields=carried, reduce=means, grid_origin=0, threads=threads)
    if outputs == "full":
        for name in ("index", "inverse", "count"):
            getattr(found, name)
    if carried:
        _ = found.fields
    return found


def _grid(outputs: str, found: Voxels) -> Grid:
    means = np.stack([*found.xyz.T, *found.fields.values()], axis=1)
    return Grid(means, found.count, found.index, found.inverse) if outputs == "full" else Grid(means)


def _wrong_picks(cloud: str, sizes: Sizes, peers: Peers, report: Report) -> set[str]:
    """Names of those whose farthest points are not, found on a small cloud."""
    n, k = sizes.small
    xyz = CLOUDS[cloud](n)
    return set(_told(replace(_farthest(xyz, k, cloud, peers), differs=Picks(xyz, k).differs), report))


def _told(contest: Contest, report: Report) -> dict[str, str]:
    """What `wrong` finds, put into the report."""
    found = wrong(contest)
    for name, difference in found.items():
        text = f"{contest.title}: {name}: {difference}"
        log.warning("%s", text)
        report["disagreements"].append(text)
    return found


def _without(contest: Contest, away: set[str]) -> list[Contest]:
    """The contest of those that are left; none where we are not."""
    ours = {threads: way for threads, way in contest.ours.items() if way.name not in away}
    peers = [way for way in contest.peers if way.name not in away]
    return [replace(contest, ours=ours, peers=peers)] if ours else []
