"""Other people's samplers, on one thread: which are there, and how they pick points.

Open3D's clouds are made before the clock runs. torch_cluster is in no group: it has to be built against the
torch that is installed, which takes a quarter of an hour, and it needs scipy:
`uv pip install --no-build-isolation torch-cluster scipy`.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from functools import partial
from importlib import import_module
from importlib.metadata import version
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..pipelines import open3d
from .sampler_check import brute
from .sampler_clouds import Cloud
from .sampler_ways import Way

NAMES = ("fpsample", "open3d", "pandas", "polars", "torch_cluster")
SLOW = {
    "numpy": 2e7,
    "open3d legacy": 1.1e9,
    "fpsample kdtree": 2e8,
    "torch_cluster": 1.1e8,
}
"""Most rows times picks that a peer is given which is far behind the best: minutes otherwise."""

HEIGHTS = range(3, 10)

Peers = Mapping[str, Any]


def installed() -> tuple[dict[str, Any], dict[str, str]]:
    """Name -> module of the peers there are, each set to one thread, and name -> why of the others."""
    for variable in ("OMP_NUM_THREADS", "POLARS_MAX_THREADS"):
        os.environ.setdefault(variable, "1")  # read when a library is loaded
    found, missing = {}, {}
    for name in NAMES:
        try:
            found[name] = open3d.library() if name == "open3d" else import_module(name)
        except (ImportError, OSError) as error:
            missing[name] = str(error)
    if "torch_cluster" in found:
        import_module("torch").set_num_threads(1)
    return found, missing


def versions(peers: Peers) -> dict[str, str]:
    """Of what was measured."""
    return {name: version(name.replace("_", "-")) for name in ("numpy", "numba", *peers)}


def farthest_peers(xyz: Cloud, k: int, peers: Peers) -> list[Way]:
    """Answers are (the first row or None where it is the lowest, points picked)."""
    found: dict[str, tuple[Callable[[], Any], Callable[[Any], Any]]] = {}
    found["numpy"] = lambda: brute(xyz, k)[0], partial(_of_rows, xyz)
    if "fpsample" in peers:
        library = peers["fpsample"]
        for height in HEIGHTS:
            search = partial(library.bucket_fps_kdline_sampling, xyz, k, h=height, start_idx=0)
            found[f"fpsample kdline h={height}"] = search, partial(_of_rows, xyz)
        tree = partial(library.bucket_fps_kdtree_sampling, xyz, k, start_idx=0)
        found["fpsample kdtree"] = tree, partial(_of_rows, xyz)
    if "open3d" in peers and k < len(xyz):  # where k is n it copies the cloud
        cloud = open3d.cloud(xyz)
        found["open3d legacy"] = partial(cloud.farthest_point_down_sample, k), _of_points
    if "torch_cluster" in peers:
        tensor = import_module("torch").from_numpy(xyz)
        picks = partial(peers["torch_cluster"].fps, tensor, ratio=k / len(xyz), random_start=False)
        found["torch_cluster"] = lambda: picks()[:k].numpy(), partial(_of_rows, xyz)
    work = len(xyz) * k
    return [Way(name, *way) for name, way in found.items() if work <= SLOW.get(name, np.inf)]


def batch_peers(clouds: list[Cloud], k: int, peers: Peers) -> list[Way]:
    """As `farthest_peers` one cloud after the other; answers are lists of theirs."""
    if "fpsample" not in peers:
        return []
    search = peers["fpsample"].bucket_fps_kdline_sampling

    def each(height: int) -> list[Any]:
        return [search(xyz, k, h=height, start_idx=0) for xyz in clouds]

    def answers(found: list[Any]) -> list[Any]:
        return [_of_rows(xyz, rows) for xyz, rows in zip(clouds, found, strict=True)]

    return [Way(f"fpsample kdline h={h}, a loop", partial(each, h), answers) for h in HEIGHTS]


def random_peers(n: int, k: int) -> list[Way]:
    """Answers are rows."""
    rng = np.random.default_rng(0)
    return [
        Way("numpy choice", lambda: rng.choice(n, k, replace=False)),
        Way("numpy choice, unshuffled", lambda: rng.choice(n, k, replace=False, shuffle=False)),
        Way("numpy permutation", lambda: rng.permutation(n)[:k]),
    ]


def _of_rows(xyz: Cloud, rows: NDArray[Any]) -> tuple[int, Cloud]:
    return int(rows[0]), xyz[rows.astype(np.int64)]


def _of_points(cloud: Any) -> tuple[int, Cloud]:
    return 0, np.asarray(cloud.points, np.float32)
