"""What a training run can be told. Free of torch, so that the command line may read it."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import Field, field_validator, model_validator

from ..config import Model
from ..loaders.loader import LoaderSettings
from ..pipelines.settings import DataSettings
from .export import ReportSettings
from .model_settings import ModelSettings, PointSettings, Positive
from .parallel.schedules import ScheduleName, refusal


class LayoutSettings(Model):
    """Sizes of the mesh, and how a pipeline works.

    ``dp``: replicas, each with a share of every batch, of which every ``shard`` split the parameters among
    them; ``tp``: ranks that split each matrix; ``pp``: ranks that share out the blocks. A replica's share of
    a batch is worked through in ``microbatches`` equal parts (None: ``pp`` of them), whose gradients are
    exchanged once. ``reshard``: give gathered parameters back after each forward pass (None: unless ``pp``
    is above 1, where they would be gathered for each microbatch).
    """

    dp: Positive = 1
    shard: Positive = 1
    tp: Positive = 1
    pp: Positive = 1
    schedule: ScheduleName = "1f1b"
    microbatches: Positive | None = None
    reshard: bool | None = None

    @property
    def ranks(self) -> int:
        """All ranks."""
        return self.dp * self.tp * self.pp

    @property
    def sizes(self) -> tuple[int, int, int, int]:
        """Ranks along each of `mesh.AXES`."""
        return self.pp, self.dp // self.shard, self.shard, self.tp

    def share(self, batch: int) -> int:
        """The most samples that a replica gets of a global batch."""
        return -(-batch // self.dp)

    @property
    def parts(self) -> int:
        """Microbatches of a step."""
        return self.microbatches or self.pp

    @property
    def reshards(self) -> bool:
        """``reshard``, decided."""
        return self.pp == 1 if self.reshard is None else self.reshard

    @model_validator(mode="after")
    def _shards_divide(self) -> Self:
        if self.dp % self.shard:
            raise ValueError(f"shard {self.shard} does not divide dp {self.dp}")
        return self


Recompute = Literal["none", "selective", "full"]


class TrainerSettings(Model):
    """How long and how fast to learn.

    ``points`` is k, the rows of a sample at ratio 1. ``recompute``: what the backward pass computes anew to
    save memory: nothing, all but matrix products and attention, or each block. ``compile``: each block by
    torch.compile. ``warmup`` is a share of ``steps``. A checkpoint is written every ``checkpoint_steps``
    steps (0: never for this reason), after ``checkpoint_minutes`` without one, and at the end.
    """

    points: Positive = 512
    steps: Positive = 1000
    lr: Annotated[float, Field(gt=0)] = 2e-3
    precision: str = "fp32"
    recompute: Recompute = "none"
    compile: bool = False
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
    model: ModelSettings = PointSettings()
    trainer: TrainerSettings = TrainerSettings()
    report: ReportSettings = ReportSettings()

    def dataset_path(self, out: Path) -> Path:
        """Where the dataset of a run in the folder ``out`` is."""
        return self.data.path or out / "dataset"

    @model_validator(mode="after")
    def _fits(self) -> Self:
        for message in refusals(self.layout, self.model, self.loader.batch, self.trainer):
            raise ValueError(message)
        return self


def refusals(
    layout: LayoutSettings, model: ModelSettings, batch: int, trainer: TrainerSettings
) -> Iterator[str]:
    """What is wrong between sections: what would idle, hang or learn something else on some ranks."""
    if layout.dp > batch:
        yield f"layout.dp {layout.dp} is above loader.batch {batch}: ranks would idle"
    if layout.parts > layout.share(batch):
        share = f"a replica's share of loader.batch, {layout.share(batch)}"
        yield f"layout.microbatches {layout.parts} is above {share}: some would always be empty"
    for name, width in (("heads", model.heads), ("width x mlp_ratio", model.width * model.mlp_ratio)):
        if width % layout.tp:
            yield f"layout.tp {layout.tp} does not divide model.{name} {width}"
    # With sequence parallelism a number of rows that tp does not divide would end the process, not raise.
    multiple = rows_multiple(layout, model)
    if trainer.points % multiple:
        whole = "model.window" if layout.tp == 1 else "model.window and layout.tp"
        yield f"trainer.points {trainer.points} is not a multiple of {multiple}, by which {whole} divide it"
    if layout.pp > 1:
        told = refusal(
            layout.schedule,
            layout.pp,
            layout.parts,
            model.depth,
            layout.reshards and layout.shard > 1,
            trainer.recompute,
            trainer.compile,
        )
        if told:
            yield told


def rows_multiple(layout: LayoutSettings, model: ModelSettings) -> int:
    """What the number of rows of a sample must be a multiple of: whole windows, and a share for each rank."""
    return math.lcm(model.rows_multiple, layout.tp)
