"""What an operator graph may hold: one settings model an operator, told apart by ``kind``."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, model_validator

from ...config import Model
from ..readers.settings import FunctionName

Axis = Literal["x", "y", "z"]


class VoxelSettings(Model):
    """One row for each occupied voxel of edge ``size``, in the coordinates' unit; columns merge by kind.

    The grid counts from the sample's origin.
    """

    kind: Literal["voxel"] = "voxel"
    size: float = Field(gt=0)
    pick: Literal["centroid", "first"] = "centroid"


class RandomSettings(Model):
    """k rows at random, without repeats."""

    kind: Literal["random"] = "random"


class FarthestSettings(Model):
    """k rows by farthest-point sampling from row 0."""

    kind: Literal["farthest"] = "farthest"


class RotateSettings(Model):
    """A turn round ``axis`` by an angle uniform in [-degrees / 2, degrees / 2)."""

    kind: Literal["rotate"] = "rotate"
    axis: Axis = "z"
    degrees: float = Field(default=360.0, ge=0, le=360)


class FlipSettings(Model):
    """A mirroring of each named axis, each with probability one half."""

    kind: Literal["flip"] = "flip"
    axes: tuple[Axis, ...] = ("x", "y")


class ScaleSettings(Model):
    """A factor uniform in [low, high) for the points; the bounds keep float32 coordinates finite."""

    kind: Literal["scale"] = "scale"
    low: float = Field(ge=1e-6, le=1e6)
    high: float = Field(ge=1e-6, le=1e6)

    @model_validator(mode="after")
    def _ordered(self) -> ScaleSettings:
        if self.low > self.high:
            raise ValueError(f"low {self.low} is above high {self.high}")
        return self


class JitterSettings(Model):
    """Normal noise on the points, of deviation ``sigma`` and at most ``clip``, in the coordinates' unit."""

    kind: Literal["jitter"] = "jitter"
    sigma: float = Field(gt=0, le=1e6)
    clip: float | None = Field(default=None, gt=0)


class NormaliseSettings(Model):
    """Points about their mean, the farthest at distance 1."""

    kind: Literal["normalise"] = "normalise"


class FunctionSettings(Model):
    """A function of the user's own, ``module:name``, called in a worker process (see `UserCode`)."""

    kind: Literal["function"] = "function"
    function: FunctionName


class SerialiseSettings(Model):
    """Rows in the order of a curve over square cells of edge ``cell``; the last operator of a dense graph."""

    kind: Literal["serialise"] = "serialise"
    cell: float = Field(gt=0)


OperatorSettings = Annotated[
    VoxelSettings
    | RandomSettings
    | FarthestSettings
    | RotateSettings
    | FlipSettings
    | ScaleSettings
    | JitterSettings
    | NormaliseSettings
    | FunctionSettings
    | SerialiseSettings,
    Field(discriminator="kind"),
]
