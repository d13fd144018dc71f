"""The keys of a loader in a configuration."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from ..config import Model
from ..pipelines.engines import EngineName
from ..pipelines.ops import OperatorSettings
from ..samplers.ratio import RatioSettings

Feeder = Literal["inline", "node"]
Form = Literal["dense", "ragged"]


class LoaderSettings(Model):
    """How batches are made. ``batch`` is the global batch, of all replicas together."""

    batch: int = Field(default=8, ge=1)
    graph: tuple[OperatorSettings, ...] = ()
    ratio: RatioSettings | None = None
    engine: EngineName = "auto"
    feeder: Feeder = "inline"
    threads: int | None = Field(default=None, ge=1)
    slots: int | None = Field(default=None, ge=2)
    timeout_s: float = Field(default=300.0, gt=0)
    max_damaged: int = Field(default=0, ge=0)
