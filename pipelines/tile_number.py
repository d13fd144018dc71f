"""Which tile each of many values lies in."""

from __future__ import annotations

import numpy as np
from numba import njit
from numpy.typing import NDArray


@njit(cache=True, nogil=True, error_model="numpy")
def number(
    values: NDArray[np.float64], anchor: float, size: float, count: int, numbers: NDArray[np.int64]
) -> None:
    """Add the tile on one axis to ``numbers`` times ``count``, by the edges that `tiles.Axis.edges` gives."""
    for row in range(len(values)):
        value = values[row]
        tile = int(np.floor((value - anchor) / size))
        tile = min(max(tile, 0), count - 1)
        while tile > 0 and value < anchor + tile * size:
            tile -= 1
        while tile < count - 1 and value >= anchor + (tile + 1) * size:
            tile += 1
        numbers[row] = numbers[row] * count + tile
