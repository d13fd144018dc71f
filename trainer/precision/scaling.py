"""The scale of an fp16 loss: as high as gradients allow, one decision for all ranks. Free of torch."""

from __future__ import annotations

from typing import Annotated, Self

from pydantic import Field, model_validator

from ...config import Model

Scale = Annotated[float, Field(ge=2.0**-24, le=2.0**100)]
"""Beyond these float32, which losses and gradients have, would overflow, or come to nothing, itself."""


class ScalingSettings(Model):
    """How the scale moves.

    It starts at ``initial``, is multiplied by ``backoff`` after a step whose gradients overflow and by
    ``growth`` after ``interval`` steps in a row that do not, and stays within ``floor`` and ``ceiling``.
    Powers of 2 change no digit of a gradient.
    """

    initial: Scale = 2.0**16
    growth: Annotated[float, Field(gt=1)] = 2.0
    backoff: Annotated[float, Field(gt=0, lt=1)] = 0.5
    interval: Annotated[int, Field(ge=1)] = 2000
    floor: Scale = 2.0**3
    ceiling: Scale = 2.0**24

    @model_validator(mode="after")
    def _in_order(self) -> Self:
        if not self.floor <= self.initial <= self.ceiling:
            told = f"floor {self.floor:g}, initial {self.initial:g} and ceiling {self.ceiling:g}"
            raise ValueError(f"{told} are not in this order")
        return self


class ScalerState(Model):
    """What a checkpoint keeps. ``good``: steps in a row without an overflow, since the scale last moved."""

    scale: float
    good: int


class Scaler:
    """Dynamic loss scaling (Micikevicius et al. 2018), in plain numbers: equal inputs, equal scales.

    torch's GradScaler decides on each rank by what that rank holds, and can halve its scale to zero. This
    one is told what the norm over all ranks says, and has a floor.
    """

    def __init__(self, settings: ScalingSettings) -> None:
        self.settings = settings
        self.state = ScalerState(scale=settings.initial, good=0)

    @property
    def scale(self) -> float:
        """What the next loss is multiplied by."""
        return self.state.scale

    def update(self, overflow: bool) -> bool:
        """A step's gradients overflowed, or did not. Was there room to lower the scale, if so?"""
        settings, scale = self.settings, self.state.scale
        if overflow:
            self.state = ScalerState(scale=max(scale * settings.backoff, settings.floor), good=0)
            return scale > settings.floor
        good = self.state.good + 1
        if good == settings.interval:
            scale, good = min(scale * settings.growth, settings.ceiling), 0
        self.state = ScalerState(scale=scale, good=good)
        return False
