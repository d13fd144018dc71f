"""``report.json``: what a run was, how fast it went and what came out."""

from __future__ import annotations

import json
import os
import platform
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch

from .. import __version__
from ..files import write_atomic
from ..metrics import Meter, limiting_stage, stage_rows
from .log import losses
from .settings import Settings
from .speed import Speed
from .step import Learner


def write(
    out: Path,
    settings: Settings,
    learner: Learner,
    meter: Meter,
    speed: Speed,
    evaluation: dict[str, Any] | None,
    *,
    resumed_from: int,
    started_s: float,
) -> None:
    """Write ``out/report.json`` from what all ranks measured; every rank calls this.

    Rates, ``data_wait_fraction`` and ``limiting_stage`` are of the steady state of this process, ``levels``
    and ``stages`` of all its steps, ``loss_first`` and ``loss_last`` of the whole run.
    """
    ranks = learner.ranks
    tables = np.stack(ranks.gather(meter.table))
    steady = np.stack(ranks.gather(speed.steady))
    cpu_s = sum(ranks.gather(speed.cpu_s))
    parameters = ranks.gather(sum(p.numel() for p in learner.model.parameters()))
    if ranks.rank != 0:
        return
    first, last = losses(out / "steps.jsonl")
    steady_rows = stage_rows(meter.stages, steady, speed.steady_s)
    waits = [r["starved"] for r in steady_rows if r["stage"] == "train.wait"]
    report = {
        "config": settings.model_dump(mode="json", exclude_none=True),
        "environment": _environment(ranks.device),
        "layout": settings.layout.model_dump(),
        "world_size": ranks.world,
        "parameters_per_rank": parameters,
        "stages": [*_build_stages(out), *stage_rows(meter.stages, tables, speed.wall_s)],
        "levels": [speed.levels[k] for k in sorted(speed.levels)],
        "limiting_stage": limiting_stage(steady_rows),
        "steps": settings.trainer.steps,
        "updates": learner.updates,
        "wall_s": time.time() - started_s,
        "train_wall_s": speed.wall_s,
        "train_cpu_s": cpu_s,
        "samples_per_s": speed.samples / speed.steady_s if speed.steady_s else None,
        "points_per_s": speed.points / speed.steady_s if speed.steady_s else None,
        "data_wait_fraction": waits[0] if waits else 0.0,
        "loss_first": first,
        "loss_last": last,
        "eval": evaluation,
        "resumed_from": resumed_from or None,
    }
    write_atomic(out / "report.json", json.dumps(report, indent=1, allow_nan=False) + "\n")


def _build_stages(out: Path) -> list[dict[str, Any]]:
    path = out / "build.json"
    rows: list[dict[str, Any]] = json.loads(path.read_text(encoding="utf-8")) if path.exists() else []
    return rows


def _environment(device: torch.device) -> dict[str, Any]:
    return {
        "tamis": __version__,
        "python": platform.python_version(),
        "torch": str(torch.__version__),
        "numpy": np.__version__,
        "platform": platform.platform(),
        "cpus": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "device": torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu",
    }
