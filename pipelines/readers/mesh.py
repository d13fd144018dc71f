"""Meshes as clouds: points drawn from their faces, evenly by area."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from ...errors import DataError
from ...samplers import draw
from . import ReadSettings, Scan

log = logging.getLogger(__name__)

POINTS = 10_000
"""Points that are drawn where ``settings.surface`` does not say how many."""

_CHUNK = 1 << 18
"""Faces whose areas are computed at once."""


@dataclass(frozen=True)
class Mesh:
    """``xyz`` float64 (n, 3), the vertices; ``faces`` int64 (m, 3), their rows, of triangles."""

    xyz: NDArray[np.float64]
    faces: NDArray[np.int64]

    @classmethod
    def of(
        cls, path: Path, xyz: NDArray[np.float64], lengths: NDArray[np.int64], corners: NDArray[np.integer]
    ) -> Mesh:
        """A mesh of polygons: face i has the next ``lengths[i]`` of ``corners``; each becomes a fan.

        So a polygon that is not convex may have points outside of it, where the fan overlaps itself.
        Raises DataError for a face with a vertex that there is not.
        """
        corners = corners.astype(np.int64)
        begins = np.cumsum(lengths) - lengths
        wrong = np.flatnonzero((corners < 0) | (corners >= len(xyz)))
        if len(wrong):
            face = np.searchsorted(begins, wrong[0], side="right") - 1
            cause = f"face {face} (counted from 0) has vertex {corners[wrong[0]]}, there are {len(xyz)}"
            raise DataError(path, cause, "copy it again")
        triangles = np.maximum(lengths - 2, 0)
        first = np.repeat(begins, triangles)
        within = np.arange(len(first)) - np.repeat(np.cumsum(triangles) - triangles, triangles)
        fan = np.stack([first, first + within + 1, first + within + 2], axis=1)
        return cls(xyz, corners[fan])


def points(path: Path, mesh: Mesh, settings: ReadSettings) -> Scan:
    """Draw `POINTS` points, or ``settings.surface``, evenly by area; their face's ``normal`` float32 (n, 3).

    The draws depend on ``settings.seed`` and nothing else: the first of them are those of a smaller number.
    A mesh without faces, or none of whose faces has an area, gives its vertices, with a notice in the log.
    The normal points to where the corners are seen counter-clockwise.
    """
    n = settings.surface or POINTS
    starts = range(0, len(mesh.faces), _CHUNK)
    area = np.concatenate([np.empty(0), *(_area(*_edges(mesh, slice(at, at + _CHUNK))) for at in starts)])
    usable = np.isfinite(area) & (area > 0)
    if not usable.any():
        if len(mesh.xyz):
            why = "its faces have no area" if len(mesh.faces) else "it has no faces"
            log.warning("%s: %s, so its vertices are taken", path, why)
        return Scan(mesh.xyz, {})
    if not np.isfinite(area).all():
        log.warning("%s: left out %d faces that are not finite", path, (~np.isfinite(area)).sum())
    rows = np.flatnonzero(usable)
    behind = np.cumsum(area[rows] / area[rows].max())
    face, s, t = (draw.uniform(draw.key("surface", part, settings.seed), n) for part in ("face", "s", "t"))
    drawn = rows[np.minimum(np.searchsorted(behind, face * behind[-1], side="right"), len(rows) - 1)]
    # A square folded along its diagonal (Osada et al., "Shape Distributions", 2002, has the root instead).
    folded = s + t > 1
    s, t = np.where(folded, 1 - s, s)[:, None], np.where(folded, 1 - t, t)[:, None]
    one, other = _edges(mesh, drawn)
    xyz = mesh.xyz[mesh.faces[drawn, 0]] + s * one + t * other
    normal = np.cross(one, other)
    normal /= np.abs(normal).max(axis=1, keepdims=True)
    normal /= np.linalg.norm(normal, axis=1, keepdims=True)
    return Scan(xyz, {"normal": normal.astype(np.float32)})


def _edges(mesh: Mesh, rows: slice | NDArray[np.int64]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """From the first corner of some faces to the others, twice (k, 3)."""
    first, second, third = (mesh.xyz[mesh.faces[rows, i]] for i in range(3))
    with np.errstate(over="ignore", invalid="ignore"):
        return second - first, third - first


def _area(one: NDArray[np.float64], other: NDArray[np.float64]) -> NDArray[np.float64]:
    """Twice the area of faces, (k,); not finite where a corner is not."""
    with np.errstate(over="ignore", invalid="ignore"):
        return np.asarray(np.linalg.norm(np.cross(one, other), axis=1))
