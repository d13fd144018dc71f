"""Operators that move a cloud: points and vectors as their kinds demand, every other column untouched.

Coordinates are relative to the sample's origin, and so are the turns, mirrorings and factors. The arithmetic
is written out a column at a time, so that its bits do not depend on a matrix library.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ...samplers import draw
from ...samplers.fields import Kind
from .call import Call, Columns
from .normal import normal
from .settings import FlipSettings, JitterSettings, NormaliseSettings, RotateSettings, ScaleSettings

_AXES = {"x": 0, "y": 1, "z": 2}


def rotate(columns: Columns, call: Call[RotateSettings]) -> Columns:
    """Turn points and vectors round an axis by one drawn angle."""
    cosine, sine, a, b = turn(call)

    def turned(values: NDArray[Any]) -> NDArray[Any]:
        out = values.copy()
        out[:, a] = cosine * values[:, a] - sine * values[:, b]
        out[:, b] = sine * values[:, a] + cosine * values[:, b]
        return out

    return _moved(columns, call.kinds, ("point", "vector"), turned)


def turn(call: Call[RotateSettings]) -> tuple[np.float32, np.float32, int, int]:
    """Cosine and sine of the drawn angle, and the two axes that turn, the first towards the second."""
    angle = np.radians(call.settings.degrees) * (draw.uniform(call.key, 1)[0] - 0.5)
    axis = _AXES[call.settings.axis]
    return np.float32(np.cos(angle)), np.float32(np.sin(angle)), (axis + 1) % 3, (axis + 2) % 3


def flip(columns: Columns, call: Call[FlipSettings]) -> Columns:
    """Mirror points and vectors in each named axis whose draw says so."""
    return _multiplied(columns, call.kinds, FACTORS["flip"], call)


def flip_factors(call: Call[FlipSettings]) -> NDArray[np.float32]:
    """float32 (3,): -1 for each axis that is mirrored, else 1."""
    mirrored = draw.uniform(call.key, 3) < 0.5
    named = np.isin(np.arange(3), [_AXES[axis] for axis in call.settings.axes])
    return np.where(mirrored & named, np.float32(-1), np.float32(1))


def scale(columns: Columns, call: Call[ScaleSettings]) -> Columns:
    """Multiply points by one drawn factor; vectors keep their length."""
    return _multiplied(columns, call.kinds, FACTORS["scale"], call)


def scale_factors(call: Call[ScaleSettings]) -> NDArray[np.float32]:
    """float32 (3,): the drawn factor of all axes."""
    low, high = call.settings.low, call.settings.high
    return np.full(3, low + (high - low) * draw.uniform(call.key, 1)[0], np.float32)


class Factors(NamedTuple):
    """An operator that is one multiplication: ``of`` a call, float32 (3,), of columns of ``moving`` kinds."""

    of: Callable[[Call[Any]], NDArray[np.float32]]
    moving: tuple[Kind, ...]


FACTORS = {
    "flip": Factors(flip_factors, ("point", "vector")),
    "scale": Factors(scale_factors, ("point",)),
}


def jitter(columns: Columns, call: Call[JitterSettings]) -> Columns:
    """Add normal noise to points; coordinate j of row i draws by the key and 3 * i + j."""
    sigma, clip = call.settings.sigma, call.settings.clip

    def noisy(values: NDArray[Any]) -> NDArray[Any]:
        noise = sigma * normal(call.key, 3 * len(values)).reshape(-1, 3)
        noise = noise if clip is None else noise.clip(-clip, clip)
        moved: NDArray[Any] = values + noise.astype(values.dtype)
        return moved

    return _moved(columns, call.kinds, ("point",), noisy)


def normalise(columns: Columns, call: Call[NormaliseSettings]) -> Columns:
    """Move points so that their mean is 0 and scale them so that the farthest has distance 1.

    In float64. Rows that are not finite count for neither; points that are all the same become 0.
    """

    def normalised(values: NDArray[Any]) -> NDArray[Any]:
        centre, reach = normal_form(values)
        moved: NDArray[Any] = (values.T.astype(np.float64, order="C") - centre[:, None]) / reach
        return moved.T.astype(values.dtype, order="C")

    return _moved(columns, call.kinds, ("point",), normalised)


def normal_form(values: NDArray[Any]) -> tuple[NDArray[np.float64], np.float64]:
    """What `normalise` takes from points (n, 3), float64 (3,), and then divides them by."""
    wide = values.T.astype(np.float64, order="C")
    finite = wide[:, np.isfinite(wide).all(axis=0)]
    if not finite.size:
        return np.zeros(3), np.float64(1)
    centre = finite.mean(axis=1)
    x, y, z = np.square(finite - centre[:, None])
    return centre, np.sqrt((x + y + z).max()) or np.float64(1)


def _multiplied(columns: Columns, kinds: dict[str, Kind], by: Factors, call: Call[Any]) -> Columns:
    factors = by.of(call)

    def multiplied(values: NDArray[Any]) -> NDArray[Any]:
        out = np.empty_like(values)
        for axis in range(3):
            np.multiply(values[:, axis], factors[axis].astype(values.dtype), out=out[:, axis])
        return out

    return _moved(columns, kinds, by.moving, multiplied)


def _moved(
    columns: Columns,
    kinds: dict[str, Kind],
    moving: tuple[Kind, ...],
    move: Callable[[NDArray[Any]], NDArray[Any]],
) -> Columns:
    return {name: move(values) if kinds[name] in moving else values for name, values in columns.items()}
