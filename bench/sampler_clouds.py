"""Clouds that samplers are measured on: the same points for the same number of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
from numpy.typing import NDArray

Cloud = NDArray[np.float32]

SIZE = 0.25
"""Voxel size of all clouds, which are scaled to have two to six rows a cell.

A power of two: a coordinate divided by it is exact, so that all who use a grid from 0 have the same cells,
whether they divide in float32 or in float64.
"""


def cube(n: int) -> Cloud:
    """Evenly filled, around 0."""
    rng = np.random.default_rng([n, 0])
    return _scaled(rng.random((n, 3)) - 0.5, SIZE * (n / 6) ** (1 / 3))


def torus(n: int) -> Cloud:
    """A closed surface around 0, denser on the inside."""
    u, v = np.random.default_rng([n, 1]).random((2, n)) * 2 * np.pi
    ring = 1 + 0.4 * np.cos(v)
    xyz = np.stack([ring * np.cos(u), ring * np.sin(u), 0.4 * np.sin(v)], axis=1)
    return _scaled(xyz, SIZE * np.sqrt(n) / 9)


def rings(n: int) -> Cloud:
    """A spinning 64-beam scanner above ground, walls around it: dense near, sparse far, in scan order."""
    turns = -(-n // 64)
    down = np.deg2rad(np.repeat(np.linspace(3, -25, 64), turns)[:n])
    turn = np.tile(np.linspace(0.1, 0.1 + 2 * np.pi, turns), 64)[:n]
    wall = 10 + 30 * np.abs(np.sin(turn * 5))
    noise = np.random.default_rng([n, 2]).normal(0, 0.02, n)
    reach = np.minimum(wall, 1.8 / np.maximum(-np.sin(down), 0.02)) + noise
    flat = np.cos(down) * reach
    xyz = np.stack([flat * np.cos(turn), flat * np.sin(turn), np.sin(down) * reach], axis=1)
    return _scaled(xyz, SIZE / (0.5 * (1e4 / n) ** 0.35))


CLOUDS: Mapping[str, Callable[[int], Cloud]] = {"cube": cube, "torus": torus, "rings": rings}


def fields(n: int, number: int) -> dict[str, NDArray[np.float32]]:
    """Fields to be averaged: name -> (n,)."""
    rng = np.random.default_rng([n, 3])
    return {f"f{i}": rng.random(n, np.float32) for i in range(number)}


def _scaled(xyz: NDArray[np.float64], factor: float) -> Cloud:
    return np.ascontiguousarray(xyz * factor, np.float32)
