"""Pipeline schedules over passes that only sleep: a step's time, measured beside what is simulated.

    python -m tamis.bench.pipeline

Two minutes. Four processes exchange real activations and gradients; since their passes only sleep, two cores
are enough, and the difference is what sending and torch's own work cost.
"""

from __future__ import annotations

import statistics
import tempfile
import time
from pathlib import Path
from typing import Any, get_args

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.pipelining import PipelineStage
from torch.multiprocessing.spawn import spawn

from ..trainer.parallel.schedules import Kind, ScheduleName, actions, chunks, new_schedule, stages_of
from ..trainer.parallel.simulate import Timeline, simulate

PP, MICROBATCHES, REPEATS = 4, 8, 3
PASS_S: dict[Kind, float] = {"F": 0.08, "I": 0.08, "W": 0.08}
"""Seconds of the passes of a microbatch through a stage."""


class _Wait(torch.autograd.Function):
    """The identity, whose backward pass sleeps."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, seconds: float) -> Tensor:
        ctx.seconds = seconds
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        time.sleep(ctx.seconds)
        return gradient, None


class Sleeper(nn.Module):
    """A stage whose passes forward, to its input and to its weights sleep for given seconds."""

    def __init__(self, seconds: dict[Kind, float]) -> None:
        super().__init__()
        self.seconds = seconds
        self.weight = nn.Parameter(torch.ones(()))

    def forward(self, x: Tensor) -> Tensor:
        time.sleep(self.seconds["F"])
        return _Wait.apply(x, self.seconds["I"]) * _Wait.apply(self.weight, self.seconds["W"])  # type: ignore[no-any-return]


def simulated(name: ScheduleName, pp: int, microbatches: int, seconds: dict[Kind, float]) -> Timeline:
    """The step of `measured`; the first stage has no input to compute a gradient for."""

    def times(kind: Kind, stage: int) -> float:
        if kind == "B":
            return times("I", stage) + times("W", stage)
        return 0.0 if kind == "I" and stage == 0 else seconds[kind]

    return simulate(actions(name, pp, microbatches), times)


def measured(name: ScheduleName, microbatches: int, seconds: dict[Kind, float], repeats: int) -> float:
    """Seconds of a step from its common start to the end of the last rank: the median of ``repeats``.

    Called on every rank of the default process group, all of them pipeline ranks.
    """
    rank, pp = dist.get_rank(), dist.get_world_size()
    mine, count = stages_of(name, pp, rank), pp * chunks(name)
    awake: dict[Kind, float] = {"F": 0.0, "I": 0.0, "W": 0.0}
    sleepers = [Sleeper(awake) for _ in mine]
    stages: Any = [
        PipelineStage(sleeper, index, count, torch.device("cpu"))
        for sleeper, index in zip(sleepers, mine, strict=True)
    ]
    schedule: Any = new_schedule(
        name, stages, microbatches, lambda output, target: (output - target).square().sum()
    )
    x = torch.ones(microbatches, 4)
    inputs = (x,) if 0 in mine else ()
    target = {"target": 2 * x} if count - 1 in mine else {}
    schedule.step(*inputs, **target)  # the first step agrees on shapes and connects the ranks
    for sleeper in sleepers:
        sleeper.seconds = seconds
    found = []
    for _ in range(repeats):
        dist.barrier()
        start = time.perf_counter()
        schedule.step(*inputs, **target)
        took = torch.tensor(time.perf_counter() - start)
        dist.all_reduce(took, op=dist.ReduceOp.MAX)
        found.append(float(took))
    return statistics.median(found)


def _rank(rank: int, store: str) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=PP)
    for name in get_args(ScheduleName):
        found_s = measured(name, MICROBATCHES, PASS_S, REPEATS)
        if rank == 0:
            timeline = simulated(name, PP, MICROBATCHES, PASS_S)
            bubble = 1 - sum(timeline.busy_s.values()) / (PP * found_s)
            print(
                f"| {name} | {chunks(name)} | {timeline.makespan_s:.3f} | {found_s:.3f} "
                f"| {found_s / timeline.makespan_s:.3f} | {timeline.bubble:.3f} | {bubble:.3f} |",
                flush=True,
            )
    dist.barrier()
    dist.destroy_process_group()


def main() -> None:
    passes = ", ".join(f"{kind} {1e3 * seconds:.0f} ms" for kind, seconds in PASS_S.items())
    print(f"{PP} pipeline ranks, {MICROBATCHES} microbatches, {passes} a stage, median of {REPEATS} steps\n")
    print("| schedule | stages a rank | simulated s | measured s | ratio | bubble simulated | measured |")
    print("|:--|--:|--:|--:|--:|--:|--:|", flush=True)
    with tempfile.TemporaryDirectory() as folder:
        spawn(_rank, (str(Path(folder, "store")),), nprocs=PP)  # type: ignore[no-untyped-call]


if __name__ == "__main__":
    main()
