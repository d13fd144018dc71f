"""Operators that move a cloud: points and vectors as their kinds demand, every other column untouched.

Coordinates are relative to the sample's origin, and so are the turns, mirrorings and factors. The arithmetic
is written out a column at a time, so that its bits do not depend on a matrix library.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...samplers import draw
from ...samplers.fields import Kind
from .call import Call, Columns
from .settings import FlipSettings, RotateSettings, ScaleSettings

_AXES = {"x": 0, "y": 1, "z": 2}


def rotate(columns: Columns, call: Call[RotateSettings]) -> Columns:
    """Turn points and vectors round an axis by one drawn angle."""
    turn = np.radians(call.settings.degrees) * (draw.uniform(call.key, 1)[0] - 0.5)
    cosine, sine = np.float32(np.cos(turn)), np.float32(np.sin(turn))
    axis = _AXES[call.settings.axis]
    a, b = (axis + 1) % 3, (axis + 2) % 3

    def turned(values: NDArray[Any]) -> NDArray[Any]:
        out = values.copy()
        out[:, a] = cosine * values[:, a] - sine * values[:, b]
        out[:, b] = sine * values[:, a] + cosine * values[:, b]
        return out

    return _moved(columns, call.kinds, ("point", "vector"), turned)


def flip(columns: Columns, call: Call[FlipSettings]) -> Columns:
    """Mirror points and vectors in each named axis whose draw says so."""
    draws = draw.uniform(call.key, 3)
    mirrored = [_AXES[axis] for axis in call.settings.axes if draws[_AXES[axis]] < 0.5]

    def flipped(values: NDArray[Any]) -> NDArray[Any]:
        out = values.copy()
        out[:, mirrored] = -values[:, mirrored]
        return out

    return _moved(columns, call.kinds, ("point", "vector"), flipped)


def scale(columns: Columns, call: Call[ScaleSettings]) -> Columns:
    """Multiply points by one drawn factor; vectors keep their length."""
    low, high = call.settings.low, call.settings.high
    factor = np.float32(low + (high - low) * draw.uniform(call.key, 1)[0])
    return _moved(columns, call.kinds, ("point",), lambda values: values * factor)


def _moved(
    columns: Columns,
    kinds: dict[str, Kind],
    moving: tuple[Kind, ...],
    move: Callable[[NDArray[Any]], NDArray[Any]],
) -> Columns:
    return {name: move(values) if kinds[name] in moving else values for name, values in columns.items()}
