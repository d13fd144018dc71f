"""Where scans were taken: rigid motions, boxes in them, and several scans as one.

Products are written out, so that the bits do not depend on a matrix library.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..readers import Scan

Floats = NDArray[np.float64]

FARTHEST = 2.0**53
"""Coordinates are smaller: what reads places refuses others, so that no product of theirs overflows."""

TIME_LAG = "time_lag"
"""The field of merged scans: seconds from a point's scan to the last one, float32; 0 for its own points."""


class Sweep(NamedTuple):
    """A scan, the motion (4, 4) from its coordinates to the last scan's, and how many seconds older it is."""

    scan: Scan
    pose: Floats
    lag_s: float


def merged(sweeps: Sequence[Sweep]) -> Scan:
    """One scan in the coordinates of the first given, the last in time, with all annotations of that one.

    All scans have the fields of the first. The points of the first come first, as they were.
    """
    key = sweeps[0].scan
    xyz = [key.xyz, *(applied(sweep.pose, sweep.scan.xyz) for sweep in sweeps[1:])]
    fields = {name: np.concatenate([one.scan.fields[name] for one in sweeps]) for name in key.fields}
    lags = [np.full(len(one.scan.xyz), one.lag_s, np.float32) for one in sweeps]
    fields[TIME_LAG] = np.concatenate(lags)
    return Scan(np.concatenate(xyz), fields, key.first, key.annotations)


def rotations(quaternions: Floats) -> Floats:
    """Matrices (n, 3, 3) of quaternions (n, 4) in the order w, x, y, z, which are brought to length 1."""
    w, x, y, z = (quaternions / np.sqrt((quaternions**2).sum(axis=1))[:, None]).T
    rows = [
        [1 - 2 * (y * y + z * z), 2 * (x * y - w * z), 2 * (x * z + w * y)],
        [2 * (x * y + w * z), 1 - 2 * (x * x + z * z), 2 * (y * z - w * x)],
        [2 * (x * z - w * y), 2 * (y * z + w * x), 1 - 2 * (x * x + y * y)],
    ]
    return np.array(rows).transpose(2, 0, 1)


def rigid(place: Floats) -> Floats:
    """The motion (4, 4) of a place (7,): x, y, z and a quaternion w, x, y, z."""
    found = np.eye(4)
    found[:3, :3] = rotations(place[None, 3:])[0]
    found[:3, 3] = place[:3]
    return found


def inverse(pose: Floats) -> Floats:
    """The motion back, (4, 4), of a rigid one."""
    found = np.eye(4)
    found[:3, :3] = pose[:3, :3].T
    found[:3, 3] = -turned(pose[:3, :3].T, pose[None, :3, 3])[0]
    return found


def product(first: Floats, second: Floats) -> Floats:
    """Matrices (..., n, n) times matrices (..., n, n)."""
    found = first[..., :, :1] * second[..., :1, :]
    for i in range(1, first.shape[-1]):
        found = found + first[..., :, i : i + 1] * second[..., i : i + 1, :]
    return found


def turned(matrix: Floats, rows: Floats) -> Floats:
    """A matrix (3, 3) times each of the rows (n, 3)."""
    x, y, z = rows.T
    return np.stack([line[0] * x + line[1] * y + line[2] * z for line in matrix], axis=1)


def applied(pose: Floats, xyz: Floats) -> Floats:
    """Points (n, 3) where a motion (4, 4) takes them."""
    return turned(pose[:3, :3], xyz) + pose[:3, 3]


def boxes(pose: Floats, centres: Floats, sizes: Floats, quaternions: Floats) -> Floats:
    """Boxes (m, 7) where a motion (4, 4) takes them.

    ``centres`` (m, 3), ``sizes`` (m, 3) length, width, height, ``quaternions`` (m, 4) w, x, y, z. The yaw is
    the direction in which the box's own x points, seen from above.
    """
    matrices = product(np.broadcast_to(pose[:3, :3], (len(centres), 3, 3)), rotations(quaternions))
    yaw = np.arctan2(matrices[:, 1, 0], matrices[:, 0, 0])
    return np.concatenate([applied(pose, centres), sizes, yaw[:, None]], axis=1)


def instance_number(token: str) -> int:
    """A number for an object: the first 63 bits of the BLAKE2b of the name that its dataset gives it."""
    return int.from_bytes(hashlib.blake2b(token.encode()).digest()[:8], "big") >> 1
