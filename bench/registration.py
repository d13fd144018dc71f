"""Registration of a scan onto another with Open3D, and how far the answer is from that of the full clouds."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..errors import DataError
from ..pipelines import open3d

REACH_M, OTHER_REACHES_M = 1.0, (0.5, 2.0)
NEIGHBOURS = 20
ITERATIONS = 100

Transform = NDArray[np.float64]


def read_ply(path: Path) -> NDArray[np.float64]:
    """The points of a PLY file, (n, 3)."""
    xyz = np.asarray(open3d.library().io.read_point_cloud(str(path)).points)
    if not len(xyz):
        raise DataError(path, "holds no points", "copy it again")
    return xyz


def registered(
    source: NDArray[Any], target: NDArray[Any], reach_m: float = REACH_M
) -> tuple[Transform, float]:
    """The transform of ``source`` onto ``target``, and the seconds it took, normals included.

    Point-to-plane ICP from the identity, with partners within ``reach_m``. Normals are of the points of
    ``target`` that were given.
    """
    library = open3d.library()
    tools = library.pipelines.registration
    start = time.perf_counter()
    onto = open3d.cloud(target)
    onto.estimate_normals(library.geometry.KDTreeSearchParamKNN(NEIGHBOURS))
    found = tools.registration_icp(
        open3d.cloud(source),
        onto,
        reach_m,
        np.eye(4),
        tools.TransformationEstimationPointToPlane(),
        tools.ICPConvergenceCriteria(1e-6, 1e-6, ITERATIONS),
    )
    return np.array(found.transformation), time.perf_counter() - start


def apart(one: Transform, other: Transform) -> dict[str, float]:
    """What lies between two transforms: ``rotation_deg`` and ``translation_m``."""
    between = np.linalg.inv(one) @ other
    # Of the skew part, as the arc cosine of the trace loses small angles in rounding.
    skew = between[:3, :3] - between[:3, :3].T
    sine = np.linalg.norm([skew[2, 1], skew[0, 2], skew[1, 0]]) / 2
    angle = np.degrees(np.arctan2(sine, (np.trace(between[:3, :3]) - 1) / 2))
    return {"rotation_deg": float(angle), "translation_m": float(np.linalg.norm(between[:3, 3]))}
