"""Samplers against their peers on one thread: medians of interleaved runs, and each peer's multiple of ours.

    python bench/bench_samplers.py [--sizes 10000 100000 1000000] [--rounds 15] [--json FILE]

Peers are used where they are installed (`uv sync --group bench`).
"""

from __future__ import annotations

import argparse
import ctypes
import json
import logging
import os
import platform
import time
from collections.abc import Callable
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np
from numpy.typing import NDArray

from tamis.samplers import farthest, random, voxel

Cloud = NDArray[np.float32]
Runs = dict[str, Callable[[], object]]


def cube(n: int, generator: np.random.Generator) -> tuple[Cloud, float]:
    """Evenly filled cube, and a voxel size that leaves about six rows a cell."""
    return (generator.random((n, 3)) * 100).astype(np.float32), 100 * (6 / n) ** (1 / 3)


def torus(n: int, generator: np.random.Generator) -> tuple[Cloud, float]:
    """A closed surface."""
    u, v = generator.random((2, n)) * 2 * np.pi
    ring = 1 + 0.4 * np.cos(v)
    xyz = np.stack([ring * np.cos(u), ring * np.sin(u), 0.4 * np.sin(v)], axis=1)
    return xyz.astype(np.float32), 9 / np.sqrt(n)


def rings(n: int, generator: np.random.Generator) -> tuple[Cloud, float]:
    """A spinning 64-beam scanner above ground, walls around it: dense near, sparse far, in scan order."""
    down = np.deg2rad(np.repeat(np.linspace(3, -25, 64), -(-n // 64))[:n])
    turn = np.tile(np.linspace(0, 2 * np.pi, -(-n // 64)), 64)[:n]
    wall = 10 + 30 * np.abs(np.sin(turn * 5))
    reach = np.minimum(wall, 1.8 / np.maximum(-np.sin(down), 0.02)) + generator.normal(0, 0.02, n)
    flat = np.cos(down) * reach
    xyz = np.stack([flat * np.cos(turn), flat * np.sin(turn), np.sin(down) * reach], axis=1)
    return xyz.astype(np.float32), 0.5 * (1e4 / n) ** 0.35


def open3d() -> Any:
    """Open3D, with the libusb it needs from PyPI where the system has none."""
    try:
        import libusb_package  # type: ignore[import-not-found]

        ctypes.CDLL(str(libusb_package.get_library_path()), ctypes.RTLD_GLOBAL)
    except ImportError:
        pass  # the system's own libusb may do
    import open3d

    open3d.utility.set_verbosity_level(open3d.utility.VerbosityLevel.Error)
    return open3d


def fpsample() -> Any:
    import fpsample

    return fpsample


def installed() -> dict[str, Any]:
    peers = {}
    for name, load in (("open3d", open3d), ("fpsample", fpsample)):
        try:
            peers[name] = load()
        except ImportError as error:
            print(f"without {name}: {error}")
    return peers


def farthest_runs(xyz: Cloud, k: int, peers: dict[str, Any]) -> Runs:
    runs: Runs = {"tamis": lambda: farthest(xyz, k)}
    if "fpsample" in peers:
        search = peers["fpsample"].bucket_fps_kdline_sampling
        for height in (5, 7, 9):
            runs[f"fpsample kdline h={height}"] = partial(search, xyz, k, h=height, start_idx=0)
    if "open3d" in peers and k < len(xyz) and len(xyz) * k <= 2e8:  # it copies the cloud where k is n
        cloud = _open3d_cloud(xyz, peers)
        runs["open3d"] = lambda: cloud.farthest_point_down_sample(k)
    return runs


def voxel_runs(xyz: Cloud, size: float, peers: dict[str, Any]) -> Runs:
    runs: Runs = {"tamis": lambda: voxel(xyz, size).xyz, "numpy unique": lambda: _unique(xyz, size)}
    if "open3d" in peers:
        cloud = _open3d_cloud(xyz, peers)
        runs["open3d"] = lambda: cloud.voxel_down_sample(size)
    return runs


def random_runs(n: int, k: int) -> Runs:
    generator = np.random.default_rng(0)
    return {"tamis": lambda: random(n, k), "numpy choice": lambda: generator.choice(n, k, replace=False)}


def _open3d_cloud(xyz: Cloud, peers: dict[str, Any]) -> Any:
    library = peers["open3d"]
    return library.geometry.PointCloud(library.utility.Vector3dVector(xyz.astype(np.float64)))


def _unique(xyz: Cloud, size: float) -> NDArray[np.float64]:
    cells = np.floor(xyz.astype(np.float64) / size).astype(np.int64)
    cells -= cells.min(axis=0)
    spans = cells.max(axis=0) + 1
    packed = (cells[:, 0] * spans[1] + cells[:, 1]) * spans[2] + cells[:, 2]
    _, inverse, count = np.unique(packed, return_inverse=True, return_counts=True)
    sums = np.stack([np.bincount(inverse, xyz[:, axis]) for axis in range(3)], axis=1)
    return np.asarray(sums / count[:, None])


def medians_ms(runs: Runs, rounds: int) -> dict[str, float]:
    """Median milliseconds of each, run in turn, after one warm-up."""
    times: dict[str, list[float]] = {name: [] for name in runs}
    for _ in range(rounds + 1):
        for name, run in runs.items():
            start = time.perf_counter()
            run()
            times[name].append((time.perf_counter() - start) * 1e3)
    return {name: float(np.median(taken[1:])) for name, taken in times.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--sizes", type=int, nargs="+", default=[10_000, 100_000, 1_000_000])
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--json", type=Path, help="write the figures to this file too")
    arguments = parser.parse_args()
    logging.disable(logging.WARNING)
    peers, rows = installed(), []

    def measure(case: str, runs: Runs) -> None:
        rounds = max(3, arguments.rounds // 5) if "1000000" in case else arguments.rounds
        taken = medians_ms(runs, rounds)
        rows.append({"case": case, "ms": taken})
        peer_text = [
            f"{name} {ms:.2f} ({ms / taken['tamis']:.1f}x)" for name, ms in taken.items() if name != "tamis"
        ]
        print(f"{case:34} tamis {taken['tamis']:8.2f} ms   " + "   ".join(peer_text), flush=True)

    for n in arguments.sizes:
        for make in (cube, torus, rings):
            xyz, size = make(n, np.random.default_rng(0))
            for k in (1024, 10_000, 100_000):
                if k <= n and n * k <= 1e10:  # more would keep the peers busy for minutes
                    measure(f"farthest {make.__name__} {n} -> {k}", farthest_runs(xyz, k, peers))
            measure(f"voxel {make.__name__} {n} at {size:.3g}", voxel_runs(xyz, size, peers))
        measure(f"random {n} -> {n // 10}", random_runs(n, n // 10))
    if arguments.json:
        versions = {name: version(name) for name in ("numpy", "numba", *peers)}
        machine = {"machine": platform.machine(), "python": platform.python_version(), "versions": versions}
        arguments.json.write_text(
            json.dumps({**machine, "rounds": arguments.rounds, "cases": rows}, indent=1) + "\n"
        )


if __name__ == "__main__":
    main()
