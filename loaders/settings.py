"""The keys of a loader in a configuration."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from ..config import Model
from ..pipelines.ops import OperatorSettings
from ..samplers.ratio import RatioSettings


class LoaderSettings(Model):
    """How batches are made. ``batch`` is the global batch, of all replicas together."""

    batch: int = Field(default=8, ge=1)
    graph: tuple[OperatorSettings, ...] = ()
    ratio: RatioSettings | None = None
    engine: Literal["auto", "threads"] = "auto"
    feeder: Literal["inline"] = "inline"
    threads: int | None = Field(default=None, ge=1)
