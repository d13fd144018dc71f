"""What a training run can be told. Free of torch, so that the command line may read it."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import Field, ValidationInfo, field_validator, model_validator

from ..config import Model
from ..loaders.loader import LoaderSettings
from ..pipelines.settings import DataSettings

Feature = Literal["xy", "z", "intensity", "returns", "rgb"]
FIELDS: dict[Feature, tuple[str, ...]] = {
    "xy": (),
    "z": (),
    "intensity": ("intensity",),
    "returns": ("return_number", "number_of_returns"),
    "rgb": ("rgb",),
}
"""The fields of a scan that each feature is made of, beside its coordinates."""

Positive = Annotated[int, Field(ge=1)]


class LayoutSettings(Model):
    """Sizes of the mesh. ``dp`` is the number of ranks, each with a share of every batch."""

    dp: Positive = 1
    shard: Positive = 1
    tp: Positive = 1
    pp: Positive = 1

    @field_validator("shard", "tp", "pp")
    @classmethod
    def _only_data_parallel(cls, size: int) -> int:
        if size > 1:
            raise ValueError("only data parallel (layout.dp) is available")
        return size


class ModelSettings(Model):
    """The point transformer, and the features it reads (see `tasks.Features`).

    ``cell`` and ``wavelengths`` (shortest, longest) are in the unit of the scan's coordinates, as are
    ``xy_scale`` and ``z_scale``, which bring the coordinates among the features near 1.
    """

    kind: Literal["points"] = "points"
    width: Positive = 48
    heads: Positive = 2
    depth: Positive = 4
    mlp_ratio: Positive = 2
    window: Positive = 32
    cell: Annotated[float, Field(gt=0)] = 0.1
    wavelengths: tuple[float, float] = (1.0, 16.0)
    features: Annotated[tuple[Feature, ...], Field(min_length=1)] = ("xy", "z")
    xy_scale: Annotated[float, Field(gt=0)] = 5.0
    z_scale: Annotated[float, Field(gt=0)] = 10.0

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns of a sample that the model reads."""
        return ("xyz", *(field for feature in self.features for field in FIELDS[feature]))

    @field_validator("wavelengths")
    @classmethod
    def _rising(cls, wavelengths: tuple[float, float]) -> tuple[float, float]:
        if not 0 < wavelengths[0] <= wavelengths[1]:
            raise ValueError("needs 0 < shortest <= longest")
        return wavelengths

    @field_validator("features")
    @classmethod
    def _each_once(cls, features: tuple[Feature, ...]) -> tuple[Feature, ...]:
        if len(set(features)) < len(features):
            raise ValueError("names a feature twice")
        return features

    @model_validator(mode="after")
    def _heads_divide(self) -> Self:
        if self.width % (2 * self.heads) or self.width // self.heads < 6:
            raise ValueError(
                f"width {self.width} must be heads ({self.heads}) times an even number of channels, "
                "6 or more: each coordinate turns at least one pair of them"
            )
        return self


class TrainerSettings(Model):
    """How long and how fast to learn.

    ``points`` is k, the rows of a cloud at ratio 1. ``warmup`` is a share of ``steps``. A checkpoint is
    written every ``checkpoint_steps`` steps (0: never for this reason), after ``checkpoint_minutes``
    without one, and at the end.
    """

    points: Positive = 512
    steps: Positive = 1000
    lr: Annotated[float, Field(gt=0)] = 2e-3
    precision: str = "fp32"
    seed: Annotated[int, Field(ge=0)] = 0
    warmup: Annotated[float, Field(ge=0, lt=1)] = 0.05
    weight_decay: Annotated[float, Field(ge=0)] = 0.05
    clip: Annotated[float, Field(gt=0)] = 1.0
    checkpoint_steps: Annotated[int, Field(ge=0)] = 500
    checkpoint_minutes: Annotated[float, Field(gt=0)] = 30.0

    @field_validator("precision")
    @classmethod
    def _only_fp32(cls, precision: str) -> str:
        if precision != "fp32":
            raise ValueError(f"'{precision}' is not available, only 'fp32'")
        return precision


class Settings(Model):
    """The whole configuration of ``build``, ``stream`` and ``train``."""

    name: Annotated[str, Field(min_length=1, pattern=r"^[^/\\.][^/\\]*$")]
    data: DataSettings
    loader: LoaderSettings = LoaderSettings()
    layout: LayoutSettings = LayoutSettings()
    model: ModelSettings = ModelSettings()
    trainer: TrainerSettings = TrainerSettings()

    def dataset_path(self, out: Path) -> Path:
        """Where the dataset of a run in the folder ``out`` is."""
        return self.data.path or out / "dataset"

    @field_validator("layout")
    @classmethod
    def _a_sample_each(cls, layout: LayoutSettings, info: ValidationInfo) -> LayoutSettings:
        loader = info.data.get("loader")
        if isinstance(loader, LoaderSettings) and layout.dp > loader.batch:
            raise ValueError(f"layout.dp {layout.dp} is above loader.batch {loader.batch}: ranks would idle")
        return layout

    @field_validator("trainer")
    @classmethod
    def _whole_windows(cls, trainer: TrainerSettings, info: ValidationInfo) -> TrainerSettings:
        model = info.data.get("model")
        if isinstance(model, ModelSettings) and trainer.points % model.window:
            raise ValueError(
                f"trainer.points {trainer.points} is not a multiple of model.window {model.window}"
            )
        return trainer
