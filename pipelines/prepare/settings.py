"""What may be done to a scan before it is cut into samples: one settings model a step, told by ``kind``."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, model_validator

from ...config import Model

Length = Annotated[float, Field(gt=0)]
Corner = Annotated[list[float], Field(min_length=3, max_length=3)]


class CropSettings(Model):
    """Keep the points in [low, high), three numbers each, in the unit of the coordinates.

    Of the boxes among the annotations those stay whose centre lies there.
    """

    kind: Literal["crop"] = "crop"
    low: Corner
    high: Corner

    @model_validator(mode="after")
    def _has_room(self) -> CropSettings:
        if not all(a < b for a, b in zip(self.low, self.high, strict=True)):
            raise ValueError("every number of 'low' must be below that of 'high'")
        return self


class AxesSettings(Model):
    """Turn the axes: which of them becomes x, which y, which z, as in "x-zy" for y up to z up.

    A minus turns an axis round. Vectors turn with the points. A mirroring is refused.
    """

    kind: Literal["axes"] = "axes"
    order: Annotated[str, Field(pattern=r"^(-?[xyz]){3}$")]

    @model_validator(mode="after")
    def _turns(self) -> AxesSettings:
        names = self.order.replace("-", "")
        if sorted(names) != ["x", "y", "z"]:
            raise ValueError(f"'{self.order}' must name x, y and z, each once")
        even = names in ("xyz", "yzx", "zxy")
        if (self.order.count("-") % 2 == 0) != even:
            raise ValueError(f"'{self.order}' mirrors the scan: turn one axis round, or one fewer, with '-'")
        return self


class RotateSettings(Model):
    """Turn by ``degrees`` about z, from x to y, about the zero of the coordinates; vectors turn too."""

    kind: Literal["rotate"] = "rotate"
    degrees: Annotated[float, Field(ge=-360, le=360)]


class FlipSettings(Model):
    """Mirror one ``axis``: its coordinates, and those of vectors, change their sign."""

    kind: Literal["flip"] = "flip"
    axis: Literal["x", "y", "z"]


class ScaleSettings(Model):
    """Multiply all coordinates by ``factor``, as from feet to metres; normals keep their length."""

    kind: Literal["scale"] = "scale"
    factor: Annotated[float, Field(ge=1e-6, le=1e6)]


class DeduplicateSettings(Model):
    """Keep the first of the points that lie at the same place exactly."""

    kind: Literal["deduplicate"] = "deduplicate"


class OutliersSettings(Model):
    """Drop points far from others.

    Those whose mean distance to their ``neighbours`` nearest is above the mean of all of them by more than
    ``deviations`` standard deviations (Open3D; Rusu et al., "Towards 3D point cloud based object maps").
    """

    kind: Literal["outliers"] = "outliers"
    neighbours: Annotated[int, Field(ge=1, le=1000)] = 20
    deviations: Length = 2.0


class ThinSettings(Model):
    """One point for each occupied voxel of edge ``size``, on a grid that all scans share.

    The other columns merge by kind, labels by majority; ``row`` is the point that stands for the voxel.
    """

    kind: Literal["voxel"] = "voxel"
    size: Length
    pick: Literal["centroid", "first", "nearest", "random", "center"] = "centroid"


class FarthestSettings(Model):
    """At most so many ``points`` of each scan, by farthest-point sampling."""

    kind: Literal["farthest"] = "farthest"
    points: Annotated[int, Field(ge=1)]


class NormalsSettings(Model):
    """Add the column ``normal``: of the plane through the ``neighbours`` nearest points, z up (Open3D)."""

    kind: Literal["normals"] = "normals"
    neighbours: Annotated[int, Field(ge=3, le=1000)] = 20


StepSettings = Annotated[
    CropSettings
    | AxesSettings
    | RotateSettings
    | FlipSettings
    | ScaleSettings
    | DeduplicateSettings
    | OutliersSettings
    | ThinSettings
    | FarthestSettings
    | NormalsSettings,
    Field(discriminator="kind"),
]
