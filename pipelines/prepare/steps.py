"""The steps that may be done to a whole scan before it is cut into samples, in the order they are listed."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...errors import DataError
from ...samplers.farthest import farthest
from ...samplers.fields import kind_of, reduction
from ...samplers.grid import sorted_rows, starts_of
from ...samplers.voxel import voxel
from ..annotations import centres, kept
from ..cut import Points
from ..open3d import cloud, library
from . import moves
from .settings import (
    CropSettings,
    FarthestSettings,
    NormalsSettings,
    OutliersSettings,
    StepSettings,
    ThinSettings,
)

log = logging.getLogger(__name__)

Columns = dict[str, NDArray[Any]]


_BY_ROW = ("crop", "axes", "rotate", "flip", "scale")


def by_row(steps: Sequence[StepSettings]) -> bool:
    """Whether each step does to a row what it would do to it alone, so that scans may come in pieces."""
    return all(step.kind in _BY_ROW for step in steps)


def prepare(path: Path, points: Points, steps: Sequence[StepSettings]) -> Points:
    """The points after all steps; ``row`` still says which row of the source each one is, or stands for.

    Annotations move as the points do, and a crop leaves out boxes; no other step touches them.
    Raises DataError, with the file, for a step that these points do not allow.
    """
    for step in steps:
        before = len(points.xyz)
        if before or step.kind in _FOR_ANNOTATIONS:
            points = _STEPS[step.kind](path, points, step)
        log.info("%s: %s: %d of %d points", path, step.kind, len(points.xyz), before)
    return points


def _kept(points: Points, rows: NDArray[Any]) -> Points:
    columns = {name: values[rows] for name, values in points.columns.items()}
    return replace(points, xyz=points.xyz[rows], columns=columns)


def _crop(_: Path, points: Points, step: CropSettings) -> Points:
    def inside(xyz: NDArray[np.float64]) -> NDArray[Any]:
        return np.flatnonzero(((xyz >= step.low) & (xyz < step.high)).all(axis=1))

    there = kept(points.annotations, inside(centres(points.annotations)))
    return replace(_kept(points, inside(points.xyz)), annotations=there)


def _deduplicate(_: Path, points: Points, step: Any) -> Points:  # noqa: ARG001 (it has no settings)
    bits = (points.xyz + 0.0).view(np.int64)  # -0.0 is 0.0
    order = sorted_rows(_numbered(bits))
    first = order[starts_of(bits[order])[:-1]]  # rows of one place stay in their order
    return _kept(points, np.sort(first))


def _numbered(bits: NDArray[np.int64]) -> NDArray[np.int64]:
    """Each axis's values by their rank, which takes fewer digits to sort."""
    return np.stack([np.unique(column, return_inverse=True)[1] for column in bits.T], axis=1)


def _outliers(_: Path, points: Points, step: OutliersSettings) -> Points:
    if len(points.xyz) <= step.neighbours:
        return points
    near = cloud(points.xyz - points.xyz[0])
    _, rows = near.remove_statistical_outlier(step.neighbours, step.deviations)
    return _kept(points, np.sort(np.asarray(rows, np.int64)))


def _thin(_: Path, points: Points, step: ThinSettings) -> Points:
    base = np.floor(points.xyz.min(axis=0))
    fields, order = points.columns, {"row": "first", "label": "majority"}
    reduce: Any = {n: order.get(n) or reduction(kind_of(n, v.dtype), v.dtype) for n, v in fields.items()}
    thin = voxel(
        points.xyz - base, step.size, pick=step.pick, fields=fields, reduce=reduce, origin=base, threads=1
    )
    return replace(points, xyz=thin.xyz + base, columns=thin.fields)


def _farthest(_: Path, points: Points, step: FarthestSettings) -> Points:
    chosen = farthest(points.xyz, min(step.points, len(points.xyz)))
    return _kept(points, np.sort(chosen))


def _normals(path: Path, points: Points, step: NormalsSettings) -> Points:
    if "normal" in points.columns:
        raise DataError(path, "has a field 'normal' already", "leave out the step 'normals', or the field")
    near = cloud(points.xyz - points.xyz[0])
    near.estimate_normals(library().geometry.KDTreeSearchParamKNN(step.neighbours))
    near.orient_normals_to_align_with_direction(np.array([0.0, 0.0, 1.0]))
    normal = np.asarray(near.normals).astype(np.float32)
    return replace(points, columns={**points.columns, "normal": normal})


_STEPS: dict[str, Callable[[Path, Points, Any], Points]] = {
    "crop": _crop,
    "axes": moves.axes,
    "rotate": moves.rotate,
    "flip": moves.flip,
    "scale": moves.scale,
    "deduplicate": _deduplicate,
    "outliers": _outliers,
    "voxel": _thin,
    "farthest": _farthest,
    "normals": _normals,
}
_FOR_ANNOTATIONS = ("crop", "axes", "rotate", "flip", "scale")
"""The steps that change annotations, which a scan without points may have too."""
