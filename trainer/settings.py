"""What a training run can be told. Free of torch, so that the command line may read it."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from ..config import ConfigPath, Model, load
from ..errors import DataError
from ..loaders.loader import LoaderSettings
from ..pipelines.settings import DataSettings
from .export import ReportSettings
from .model_settings import ModelSettings, PointSettings, Positive
from .optimisers.clipping import Clip
from .parallel.schedules import ScheduleName, refusal
from .precision.scaling import ScalingSettings


class LayoutSettings(Model):
    """Sizes of the mesh, and how a pipeline works.

    ``dp``: replicas, each with a share of every batch, of which every ``shard`` split the parameters among
    them; ``tp``: ranks that split each matrix; ``pp``: ranks that share out the blocks. A replica's share of
    a batch is worked through in ``microbatches`` equal parts (None: ``pp`` of them), whose gradients are
    exchanged once. ``reshard``: give gathered parameters back after each forward pass (None: unless ``pp``
    is above 1, where they would be gathered for each microbatch). ``min_dp``: so many replicas go on with the
    same batches where machines are lost (None: ``dp``); ``timeout_s``: ranks wait so long for one another.
    """

    dp: Positive = 1
    min_dp: Positive | None = None
    shard: Positive = 1
    tp: Positive = 1
    pp: Positive = 1
    schedule: ScheduleName = "1f1b"
    microbatches: Positive | None = None
    reshard: bool | None = None
    timeout_s: Annotated[float, Field(gt=0)] = 600.0

    def on(self, ranks: int) -> LayoutSettings:
        """This layout with fewer replicas, if that makes it one of ``ranks`` and ``min_dp`` allows it."""
        dp, over = divmod(ranks, self.tp * self.pp)
        if over or not (self.min_dp or self.dp) <= dp < self.dp:
            return self
        shard = max(size for size in range(1, min(self.shard, dp) + 1) if dp % size == 0)
        return self.model_copy(update={"dp": dp, "shard": shard})

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
        if self.min_dp is not None and self.min_dp > self.dp:
            raise ValueError(f"min_dp {self.min_dp} is above dp {self.dp}")
        return self


Recompute = Literal["none", "selective", "full"]
OptimiserName = Literal["adamw", "lion", "muon"]
Decay = Literal["cosine", "linear"]
Precision = Literal["fp32", "bf16", "fp16", "fp8"]


class TrainerSettings(Model):
    """How long and how fast to learn.

    ``points`` is k, the rows of a sample at ratio 1. ``recompute``: what the backward pass computes anew to
    save memory: nothing, all but matrix products and attention, or each block. ``compile``: each block by
    torch.compile. ``precision`` is that of matrix products, of some ``layers`` (see `layers_of`) another one;
    ``scaling``: of the loss, for fp16; ``tf32``: may a GPU round the factors of fp32 products to 10 bits?
    ``monitor``: look at each layer's gradients at every step, as is done for fp16 and fp8. ``lr`` is the
    highest learning rate, found at a global batch of ``lr_batch`` (None: at that of the run), after a
    ``warmup`` that is a share of ``steps`` and before its ``decay``. ``clip``: the largest norm of the whole
    gradient. A checkpoint is written every ``checkpoint_steps`` steps (0: never for this reason), after
    ``checkpoint_minutes`` without one, and at the end; the last ``checkpoints_kept`` stay. Every
    ``check_steps`` steps, and before each checkpoint, ranks compare their copies of parameters (0: never).
    ``init``: a safetensors file of the weights to begin with.
    """

    points: Positive = 512
    steps: Positive = 1000
    lr: Annotated[float, Field(gt=0)] = 2e-3
    lr_batch: Positive | None = None
    decay: Decay = "cosine"
    optimiser: OptimiserName = "adamw"
    precision: Precision = "fp32"
    layers: dict[str, Precision] = Field(default_factory=dict)
    scaling: ScalingSettings = ScalingSettings()
    tf32: bool = False
    monitor: bool = False
    recompute: Recompute = "none"
    compile: bool = False
    seed: Annotated[int, Field(ge=0, lt=1 << 64)] = 0
    warmup: Annotated[float, Field(ge=0, lt=1)] = 0.05
    weight_decay: Annotated[float, Field(ge=0)] = 0.05
    clip: Clip = 1.0
    checkpoint_steps: Annotated[int, Field(ge=0)] = 500
    checkpoint_minutes: Annotated[float, Field(gt=0)] = 30.0
    checkpoints_kept: Positive = 2
    check_steps: Annotated[int, Field(ge=0)] = 500
    init: ConfigPath | None = None


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

    @property
    def learning(self) -> TrainerSettings:
        """``trainer`` with the learning rate of this run's batch.

        By the linear scaling rule (Goyal et al. 2017): in proportion to the batch that it was found at.
        """
        trainer = self.trainer
        if trainer.lr_batch is None:
            return trainer
        rate = trainer.lr * self.loader.batch / trainer.lr_batch
        return trainer.model_copy(update={"lr": rate, "lr_batch": None})

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
    for name in sorted(trainer.layers.keys() - set(layers_of(model.depth))):
        yield f"trainer.layers.{name} names none of embed, blocks.0 to blocks.{model.depth - 1}, head"
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


def layers_of(depth: int) -> tuple[str, ...]:
    """The layers of a model that may have a precision each, from its input to its scores."""
    return ("embed", *(f"blocks.{i}" for i in range(depth)), "head")


def rows_multiple(layout: LayoutSettings, model: ModelSettings) -> int:
    """What the number of rows of a sample must be a multiple of: whole windows, and a share for each rank."""
    return math.lcm(model.rows_multiple, layout.tp)


def settings_of(run: Path) -> Settings:
    """The configuration of a run. Raises DataError where the folder holds none."""
    if not (run / "config.toml").is_file():
        fix = "name a folder that `tamis train` wrote"
        raise DataError(run, "holds no run (config.toml is missing)", fix)
    return load(run / "config.toml", [], Settings)
