"""Steps that move a whole scan: its points, its vectors, and its annotations.

The arithmetic is written out an axis at a time, so that a coordinate that does not move keeps its bits.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...errors import DataError
from ...samplers.fields import kind_of
from ..annotations import moved
from ..cut import Points
from .settings import AxesSettings, FlipSettings, RotateSettings, ScaleSettings

_QUARTERS: dict[float, tuple[float, float]] = {0: (1, 0), 90: (0, 1), 180: (-1, 0), 270: (0, -1)}

Move = Callable[[NDArray[Any]], NDArray[Any]]
"""What it does to rows of three numbers; the type stays."""


def axes(path: Path, points: Points, step: AxesSettings) -> Points:
    """See `AxesSettings`."""
    names = step.order.replace("-", "")
    signs = [-1.0 if f"-{name}" in step.order else 1.0 for name in names]
    return _rearranged(path, points, ["xyz".index(name) for name in names], signs)


def flip(path: Path, points: Points, step: FlipSettings) -> Points:
    """See `FlipSettings`."""
    return _rearranged(path, points, [0, 1, 2], [-1.0 if axis == step.axis else 1.0 for axis in "xyz"])


def scale(path: Path, points: Points, step: ScaleSettings) -> Points:
    """See `ScaleSettings`."""
    matrix = step.factor * np.eye(3)
    return _moved(path, points, matrix, lambda xyz: xyz * step.factor, lambda vectors: vectors)


def rotate(path: Path, points: Points, step: RotateSettings) -> Points:
    """See `RotateSettings`; quarters are exact."""
    angle = np.radians(step.degrees)
    turn = float(np.cos(angle)), float(np.sin(angle))
    cosine, sine = _QUARTERS.get(step.degrees % 360, turn)

    def turned(values: NDArray[Any]) -> NDArray[Any]:
        x, y = values[:, 0].astype(np.float64), values[:, 1].astype(np.float64)
        out = values.copy()
        out[:, 0], out[:, 1] = cosine * x - sine * y, sine * x + cosine * y
        return out

    matrix = np.array([[cosine, -sine, 0], [sine, cosine, 0], [0, 0, 1]])
    return _moved(path, points, matrix, turned, turned, turns=step.degrees % 90 != 0)


def _rearranged(path: Path, points: Points, order: list[int], signs: list[float]) -> Points:
    def turned(values: NDArray[Any]) -> NDArray[Any]:
        out: NDArray[Any] = values[:, order] * np.array(signs, values.dtype)
        return out

    return _moved(path, points, np.diag(signs) @ np.eye(3)[order], turned, turned)


def _moved(
    path: Path, points: Points, matrix: NDArray[np.float64], move: Move, turn: Move, *, turns: bool = False
) -> Points:
    """``move`` for coordinates, ``turn`` for vectors, ``matrix`` (3, 3) for annotations.

    ``turns``: whether whole numbers do not stay whole.
    """
    columns = dict(points.columns)
    for name, values in columns.items():
        kind, three = kind_of(name, values.dtype), values.ndim == 2 and values.shape[1] == 3
        if kind in ("point", "vector") and three:
            if values.dtype.kind == "u" or (turns and values.dtype.kind != "f"):
                cause = f"field '{name}' is {values.dtype}, which cannot turn"
                raise DataError(path, cause, "leave it out of data.fields")
            columns[name] = turn(values)
        elif kind in ("box", "pose"):
            cause = f"field '{name}' does not turn with the axes"
            raise DataError(path, cause, "leave it out of data.fields")
    return replace(
        points, xyz=move(points.xyz), columns=columns, annotations=moved(points.annotations, matrix)
    )
