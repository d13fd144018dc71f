"""The steps that may be done to a whole scan before it is cut into samples, in the order they are listed."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...errors import DataError
from ...samplers.farthest import farthest
from ...samplers.fields import kind_of, reduction
from ...samplers.grid import sorted_rows, starts_of
from ...samplers.voxel import voxel
from ..cut import Points
from ..open3d import cloud, library
from .settings import (
    AxesSettings,
    CropSettings,
    FarthestSettings,
    NormalsSettings,
    OutliersSettings,
    StepSettings,
    ThinSettings,
)

log = logging.getLogger(__name__)

Columns = dict[str, NDArray[Any]]


def prepare(path: Path, points: Points, steps: Sequence[StepSettings]) -> Points:
    """The points after all steps; ``row`` still says which row of the source each one is, or stands for.

    Raises DataError, with the file, for a step that these points do not allow.
    """
    for step in steps:
        before = len(points.xyz)
        if before:
            points = _STEPS[step.kind](path, points, step)
        log.info("%s: %s: %d of %d points", path, step.kind, len(points.xyz), before)
    return points


def _kept(points: Points, rows: NDArray[Any]) -> Points:
    columns = {name: values[rows] for name, values in points.columns.items()}
    return Points(points.xyz[rows], columns, points.dropped, points.outside)


def _crop(_: Path, points: Points, step: CropSettings) -> Points:
    inside = (points.xyz >= step.low) & (points.xyz < step.high)
    return _kept(points, np.flatnonzero(inside.all(axis=1)))


def _axes(path: Path, points: Points, step: AxesSettings) -> Points:
    names = step.order.replace("-", "")
    order = ["xyz".index(name) for name in names]
    signs = [
        -1.0 if step.order[step.order.index(name) - 1 : step.order.index(name)] == "-" else 1.0
        for name in names
    ]

    def turned(values: NDArray[Any]) -> NDArray[Any]:
        moved: NDArray[Any] = values[:, order] * np.array(signs, values.dtype)
        return moved

    columns = dict(points.columns)
    for name, values in columns.items():
        kind = kind_of(name, values.dtype)
        if kind == "box":
            raise DataError(
                path, f"field '{name}' does not turn with the axes", "leave it out of data.fields"
            )
        if kind in ("point", "vector") and values.ndim == 2 and values.shape[1] == 3:
            columns[name] = turned(values)
    return Points(turned(points.xyz), columns, points.dropped, points.outside)


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
    return Points(thin.xyz + base, thin.fields, points.dropped, points.outside)


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
    return Points(points.xyz, {**points.columns, "normal": normal}, points.dropped, points.outside)


_STEPS: dict[str, Callable[[Path, Points, Any], Points]] = {
    "crop": _crop,
    "axes": _axes,
    "deduplicate": _deduplicate,
    "outliers": _outliers,
    "voxel": _thin,
    "farthest": _farthest,
    "normals": _normals,
}
