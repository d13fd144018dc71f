"""What each rank measured, and what follows from all of them together."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from ..metrics import stage_rows
from ..processes import peak_bytes
from .flops import step_flops
from .learner import Learner
from .mesh import AXES
from .models.layers import here
from .parallel.pipeline import predicted_bubble
from .speed import Speed
from .step import Trainer

PEAKS = {
    "NVIDIA A100": 19.5e12,
    "NVIDIA H100 80GB HBM3": 67e12,
    "NVIDIA H200": 67e12,
    "NVIDIA L40S": 91.6e12,
}
"""fp32 operations a second of some devices without tensor cores, by their makers' data sheets."""


def rank_figures(trainer: Trainer, speed: Speed) -> dict[str, Any]:
    """One rank: where it is, what it holds, and seconds of the steady state in each stage, waiting included.

    ``passes``: of its pipeline stages, [kind, stage, number, seconds].
    """
    mesh, learner = trainer.learner.mesh, trainer.learner
    rows = stage_rows(trainer.meter.stages, speed.steady[None], speed.steady_s)
    clock = trainer.pipeline.seconds if trainer.pipeline else None
    return {
        "rank": mesh.rank,
        **dict(zip(AXES, mesh.place, strict=True)),
        "parameters": held_parameters(learner),
        "peak_memory_bytes": _peak_bytes(mesh.device),
        "stages_s": {
            row["stage"]: row["busy_s"] + row["wait_in_s"]
            for row in rows
            if row["stage"].startswith("train.")
        },
        "pipeline_s": clock.wall_s if clock else 0.0,
        "passes": [[*key, *found] for key, found in clock.passes.items()] if clock else [],
    }


def held_parameters(learner: Learner) -> int:
    """How many numbers a rank keeps of the model."""
    return sum(here(p).numel() for p in learner.model.parameters())


def bubble(trainer: Trainer, ranks: Sequence[Mapping[str, Any]]) -> dict[str, float | None]:
    """The share of the pipeline's time in which ranks waited: as measured, and by its schedule alone."""
    if trainer.pipeline is None:
        return {"bubble_fraction": 0.0, "bubble_predicted": 0.0}
    passes: dict[tuple[str, int], list[float]] = {}
    for kind, stage, number, seconds in (one for rank in ranks for one in rank["passes"]):
        known = passes.setdefault((kind, stage), [0, 0.0])
        known[0] += number
        known[1] += seconds
    wall_s = sum(rank["pipeline_s"] for rank in ranks)
    if not wall_s:
        return {"bubble_fraction": None, "bubble_predicted": None}
    busy_s = sum(seconds for _, seconds in passes.values())
    return {
        "bubble_fraction": 1 - busy_s / wall_s,
        "bubble_predicted": predicted_bubble(trainer.pipeline.actions(), passes),
    }


def work(trainer: Trainer, speed: Speed) -> dict[str, float | None]:
    """Floating-point operations a second of all ranks, by formula, and their share of the devices' peak."""
    learner, device = trainer.learner, trainer.learner.mesh.device
    if not speed.steady_s:
        return {"flops_per_s": None, "mfu": None}
    operations = sum(step_flops(learner.task, k, samples) for k, samples in speed.steady_samples.items())
    rate = operations / speed.steady_s
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu"
    peak = next((value for known, value in PEAKS.items() if name.startswith(known)), None)
    return {"flops_per_s": rate, "mfu": rate / (peak * learner.mesh.world) if peak else None}


def mean_traffic(ranks: Sequence[Mapping[str, Mapping[str, float]]]) -> dict[str, dict[str, float]]:
    """Axis -> figures of a step, the mean over all ranks."""
    sums: dict[str, dict[str, float]] = {}
    for found in ranks:
        for axis, figures in found.items():
            known = sums.setdefault(axis, dict.fromkeys(figures, 0.0))
            for name, value in figures.items():
                known[name] += value / len(ranks)
    return sums


def _peak_bytes(device: torch.device) -> int:
    """The most memory that was in use: the device's, or this process's."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    return peak_bytes()
