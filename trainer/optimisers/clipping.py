"""The highest norm that a gradient may have: a number, or one that follows the run. Free of torch."""

from __future__ import annotations

import math
from typing import Annotated, Literal

from pydantic import BeforeValidator

from ...config import Model


def _number_or_name(value: object) -> object:
    number = isinstance(value, int | float) and not isinstance(value, bool) and 0 < value < math.inf
    if number or value == "adaptive":
        return value
    raise ValueError("is neither a number above 0 nor 'adaptive'")


Clip = Annotated[float | Literal["adaptive"], BeforeValidator(_number_or_name)]

LOWEST, HIGHEST = 0.1, 1.0
"""Between these an adaptive threshold stays."""
_MARGIN = 2.0  # times the usual norm: what is beyond stands out
_DECAY = 0.98  # of the mean, a step: it looks back about 50


class ClippingState(Model):
    """What a checkpoint keeps. ``usual``: the mean of the norms' logarithms; None before the first."""

    usual: float | None = None


class Clipping:
    """Says what the norm of the whole gradient is clipped to: equal norms on all ranks, equal thresholds.

    "adaptive": twice the usual norm, within [`LOWEST`, `HIGHEST`], as in ZClip (Kumar et al. 2025) one that
    follows a moving mean of the norms; ours is the exponential mean of their logarithms. A norm counts at
    most as the threshold that it was clipped to, so that no spike moves the threshold far, and one that is
    not finite does not count.
    """

    def __init__(self, clip: Clip) -> None:
        self._clip = clip
        self.state = ClippingState()

    @property
    def highest(self) -> float:
        """The threshold of the next gradient."""
        if self._clip != "adaptive":
            return self._clip
        if self.state.usual is None:
            return HIGHEST
        return min(max(_MARGIN * math.exp(self.state.usual), LOWEST), HIGHEST)

    def update(self, norm: float) -> None:
        """The norm of a gradient, before clipping."""
        if self._clip != "adaptive" or not math.isfinite(norm):
            return
        # What lies so low that the threshold is the lowest anyway would only make the mean slow to rise.
        counted = math.log(min(max(norm, LOWEST / _MARGIN), self.highest))
        usual = self.state.usual
        mean = counted if usual is None else _DECAY * usual + (1 - _DECAY) * counted
        self.state = ClippingState(usual=mean)
