"""Normal draws from hashes, by additions, multiplications, divisions and square roots alone.

Those are rounded alike everywhere, logarithms and cosines are not: so the draws have the same bits on every
machine and, as the arithmetic is that of numpy or of torch, on every device.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...samplers import draw

_LOG_2 = 0.6931471805599453
_ROOT_HALF = 0.7071067811865476
_LOW, _HIGH = 1.17, 8.58
_QUANTILE = (
    -0.020265215307585287,
    0.024299460640910445,
    0.031390999942117026,
    -0.030861867294407184,
    -0.039405945907787246,
    0.04181170714792888,
    -0.011143602327218156,
    0.026342842565951437,
    -0.05719319346128818,
    0.08959880501662021,
    -0.14656204327826222,
    3.9633306273726987,
    4.346759750355666,
)
"""Quantile of the upper tail p, as a polynomial of sqrt(-2 log p), which [_LOW, _HIGH] brings to [-1, 1]: a
Chebyshev fit of degree 12, right to 7e-6."""


def normal(key: int, n: int) -> NDArray[np.float64]:
    """float64 (n,): standard normal draws of a key, none beyond 8.3; draw i is a function of key and i."""
    words = draw.hashes(key, n)
    tail = ((words >> np.uint64(12)) + np.uint64(1)).astype(np.float64)
    values: NDArray[np.float64] = from_tail(tail, words & np.uint64(1) == 1, np)
    return values


def from_tail(tail: Any, negative: Any, arrays: Any) -> Any:
    """The draws of the upper tails ``tail`` * 2^-53 with a sign.

    ``tail``: float64, whole numbers in [1, 2^52]. ``negative``: bool of its shape. ``arrays``: the module
    they are of, numpy or torch.
    """
    mantissa, exponent = arrays.frexp(tail * 2.0**-53)
    ratio = (mantissa - _ROOT_HALF) / (mantissa + _ROOT_HALF)
    square = ratio * ratio
    series = 1 / 3 + square * (1 / 5 + square * (1 / 7 + square * (1 / 9)))
    log = 2 * (ratio + ratio * (square * series))
    log = log + (arrays.asarray(exponent, dtype=arrays.float64) - 0.5) * _LOG_2
    place = (arrays.sqrt(-2 * log) - (_LOW + _HIGH) / 2) * (2 / (_HIGH - _LOW))
    value = place * 0
    for coefficient in _QUANTILE:
        value = value * place + coefficient
    return arrays.where(negative, -value, value)
