"""``report.json``: what a run was, how fast it went and what came out."""

from __future__ import annotations

import json
import os
import platform
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from .. import __version__
from ..files import write_atomic
from ..metrics import limiting_stage, stage_rows
from .learner import Learner
from .log import losses, read_lines, setbacks
from .rank_figures import bubble, held_parameters, mean_traffic, rank_figures, work
from .settings import Settings
from .speed import Speed
from .step import Trainer
from .summary import read

UNMEASURED: dict[str, Any] = {
    "stages": [],
    "levels": [],
    "limiting_stage": None,
    "train_wall_s": 0.0,
    "train_cpu_s": 0.0,
    "samples_per_s": None,
    "points_per_s": None,
    "tokens_per_s": None,
    "data_wait_fraction": None,
    "bubble_fraction": None,
    "bubble_predicted": None,
    "flops_per_s": None,
    "mfu": None,
    "ranks": [],
    "collectives": {},
    "wire_bytes": 0,
    "resumed_from": None,
}
"""What a report says of training where the record of it is gone."""


@dataclass(frozen=True)
class Measured:
    """What one rank measured while it trained; ``traffic``: see `traffic.Traffic.levels`."""

    speed: Speed
    traffic: dict[int, dict[str, Any]]


def measure(out: Path, trainer: Trainer, measured: Measured, resumed_from: int) -> None:
    """Write ``out/training.json``, what all ranks measured while they trained; every rank calls this.

    A file of its own, so that a run that is killed while it evaluates does not lose it. Rates,
    ``data_wait_fraction`` and ``limiting_stage`` are of the steady state, ``levels`` and ``stages`` of all
    steps, since the run was last resumed.
    """
    mesh, meter, speed = trainer.learner.mesh, trainer.meter, measured.speed
    tables = np.stack(mesh.gather(meter.table))
    steady = np.stack(mesh.gather(speed.steady))
    cpu_s = sum(mesh.gather(speed.cpu_s))
    traffic = mesh.gather(measured.traffic)
    ranks = mesh.gather(rank_figures(trainer, speed))
    if mesh.rank != 0:
        return
    highest = max(speed.levels)
    unit = trainer.learner.task.model.unit
    steady_rows = stage_rows(meter.stages, steady, speed.steady_s)
    waits = [r["starved"] for r in steady_rows if r["stage"] == "train.wait"]
    numbers = {
        "stages": stage_rows(meter.stages, tables, speed.wall_s),
        "levels": [speed.levels[k] for k in sorted(speed.levels)],
        "limiting_stage": limiting_stage(steady_rows),
        "train_wall_s": speed.wall_s,
        "train_cpu_s": cpu_s,
        "samples_per_s": speed.samples / speed.steady_s if speed.steady_s else None,
        "points_per_s": None,
        "tokens_per_s": None,
        f"{unit}_per_s": speed.rows / speed.steady_s if speed.steady_s else None,
        "data_wait_fraction": waits[0] if waits else 0.0,
        **bubble(trainer, ranks),
        **work(trainer, speed),
        "ranks": ranks,
        "collectives": {
            str(k): mean_traffic([found.get(k, {}) for found in traffic]) for k in sorted(traffic[0])
        },
        "wire_bytes": sum(f["wire_bytes"] for found in traffic for f in found.get(highest, {}).values()),
        "resumed_from": resumed_from or None,
    }
    write_atomic(out / "training.json", json.dumps(numbers, indent=1, allow_nan=False) + "\n")


def write(
    out: Path,
    settings: Settings,
    learner: Learner,
    evaluation: dict[str, Any] | None,
    eval_wall_s: float,
    started_s: float,
) -> None:
    """Write ``out/report.json``: what `measure` and the build left, and what came out; every rank calls this.

    ``wall_s`` is of this command from its start on; ``loss_first`` and ``loss_last`` of the whole run.
    """
    mesh = learner.mesh
    parameters = mesh.gather(held_parameters(learner))
    if mesh.rank != 0:
        return
    steps = read_lines(out / "steps.jsonl")
    first, last = losses(steps)
    measured = read(out / "training.json", UNMEASURED)
    report = {
        **measured,
        "config": settings.model_dump(mode="json", exclude_none=True),
        "environment": _environment(mesh.device),
        "layout": settings.layout.model_dump(),
        "world_size": mesh.world,
        "parameters_per_rank": parameters,
        "stages": [*read(out / "build.json", []), *measured["stages"]],
        "steps": settings.trainer.steps,
        "updates": learner.updates,
        "setbacks": setbacks(steps),
        "wall_s": time.time() - started_s,
        "eval_wall_s": eval_wall_s,
        "loss_first": first,
        "loss_last": last,
        "eval": evaluation,
    }
    write_atomic(out / "report.json", json.dumps(report, indent=1, allow_nan=False) + "\n")


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
