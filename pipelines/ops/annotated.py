"""How operators move the annotations of a sample: with its points, by the same draws."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..annotations import moved
from ..records import Field
from .call import Call, Columns
from .geometry import FACTORS, normal_form, turn
from .settings import FunctionSettings, NormaliseSettings, OperatorSettings, RotateSettings

Affine = tuple[NDArray[np.float64], NDArray[np.float64]]
"""A matrix (3, 3) and a shift (3,): what becomes of a point p is matrix p + shift."""

_WIDTHS = {"box": (7,), "vector": (2, 3), "pose": (16,)}


def carried(annotations: Columns, columns: Columns, call: Call[Any]) -> Columns:
    """The annotations of a sample after an operator; ``columns``: as they were before it.

    Boxes, velocities and poses move with the points (see `annotations.moved`), all else stays as it is. What
    chooses or merges points, and the noise of `jitter`, moves none.
    """
    affine = _AFFINE.get(call.settings.kind)
    if affine is None:
        return annotations
    return moved(annotations, *affine(columns, call), call.kinds)


def why_not(operator: OperatorSettings, annotations: Mapping[str, Field]) -> str | None:
    """Why an operator cannot be used where a batch has ``annotations``; None where it can."""
    for name, field in annotations.items():
        moves, float_ = field.kind in ("point", *_WIDTHS), field.dtype.kind == "f"
        if isinstance(operator, FunctionSettings) and moves:
            return f"may move points, which annotation '{name}' would not follow"
        if operator.kind not in _AFFINE or not moves:
            continue
        if not float_ or field.width not in _WIDTHS.get(field.kind, ()):
            return f"cannot move annotation '{name}' ({field.dtype} x {field.width}, {field.kind})"
        tilts = isinstance(operator, RotateSettings) and operator.axis != "z"
        if tilts and (field.kind == "box" or field.width == 2):
            return f"about {operator.axis} would tilt annotation '{name}'"  # type: ignore[union-attr]
    return None


def _rotate(_: Columns, call: Call[RotateSettings]) -> Affine:
    cosine, sine, a, b = turn(call)
    matrix = np.eye(3)
    matrix[a, a], matrix[a, b], matrix[b, a], matrix[b, b] = cosine, -sine, sine, cosine
    return matrix, np.zeros(3)


def _multiply(_: Columns, call: Call[Any]) -> Affine:
    return np.diag(FACTORS[call.settings.kind].of(call).astype(np.float64)), np.zeros(3)


def _normalise(columns: Columns, call: Call[NormaliseSettings]) -> Affine:  # noqa: ARG001 (it has no settings)
    centre, reach = normal_form(columns["xyz"])
    return np.eye(3) / reach, -centre / reach


_AFFINE: dict[str, Callable[[Columns, Call[Any]], Affine]] = {
    "rotate": _rotate,
    "flip": _multiply,
    "scale": _multiply,
    "normalise": _normalise,
}
