"""Pipeline parallelism: microbatches travel through stages of blocks that lie on several ranks.

torch's schedules do the work; here are the stages, one schedule object for each number of rows (a stage's
receive buffers are fixed at its first step), and where the time went.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.distributed.pipelining import PipelineStage

from ...metrics import Meter
from ..mesh import Mesh
from ..models.trunk import Part
from ..settings import LayoutSettings
from .cut import balanced
from .schedules import Actions, chunks, from_live, new_schedule, stages_of
from .simulate import simulate

if TYPE_CHECKING:
    from .schedules import Schedule

Loss = Callable[[Tensor, Tensor], Tensor]


def parts_of(layout: LayoutSettings, costs: Sequence[float], first: float, last: float) -> list[Part]:
    """What each stage of a pipeline holds, the cost of the stages being as even as it can be.

    ``costs``: of each block; ``first`` and ``last``: of the embedding and of the head.
    """
    if layout.pp == 1:
        return [Part(range(len(costs)))]
    stages = layout.pp * chunks(layout.schedule)
    ranges = balanced(costs, stages, first, last)
    return [Part(blocks, i == 0, i == stages - 1) for i, blocks in enumerate(ranges)]


def own_stages(layout: LayoutSettings, mesh: Mesh) -> tuple[int, ...]:
    """The stages of this rank, counted from the first of the model."""
    return (0,) if layout.pp == 1 else stages_of(layout.schedule, layout.pp, mesh.index("pp"))


class Pipeline:
    """The stages of one rank, and the schedules they have run by.

    ``stages``: the model's parts on this rank, by number. ``loss``: scores and labels of a microbatch to what
    is differentiated; called where the last stage is.
    """

    def __init__(
        self, stages: Mapping[int, nn.Module], layout: LayoutSettings, mesh: Mesh, loss: Loss, meter: Meter
    ) -> None:
        self._stages, self._layout, self._mesh = dict(stages), layout, mesh
        self._loss, self._meter = loss, meter
        self._schedules: dict[int, Schedule] = {}
        self.first = 0 in self._stages
        self.last = self.count - 1 in self._stages
        self.seconds = Seconds()

    @property
    def count(self) -> int:
        """Stages of the whole pipeline."""
        return self._layout.pp * chunks(self._layout.schedule)

    def step(self, x: Tensor, inputs: Mapping[str, Tensor], labels: Tensor, k: int) -> Tensor:
        """Forward and backward passes of all microbatches: this rank's loss, added up; 0 but on the last.

        ``x``, ``inputs`` and ``labels``: of all the replica's clouds, which the number of microbatches
        divides; ``k``: rows of a cloud.
        """
        busy_s = self.seconds.busy_s
        first_time = k not in self._schedules
        if first_time:
            self._schedules[k] = self._new_schedule()
            before = deepcopy(self.seconds)
        losses: list[Tensor] = []
        entry = (x,) if self.first else ()
        options: dict[str, Any] = {"target": labels, "losses": losses} if self.last else {}
        start_s = time.perf_counter()
        self._schedules[k].step(*entry, return_outputs=False, **(options | dict(inputs)))
        wall_s = time.perf_counter() - start_s
        self.seconds.wall_s += wall_s
        self._meter.add("train.bubble", wait_in_s=wall_s - (self.seconds.busy_s - busy_s))
        if first_time:
            self.seconds.restore(before)  # in its first step a schedule also finds out what its stages send
        found = x.new_zeros((), dtype=torch.float32)
        return sum((loss.detach() for loss in losses), found)

    def actions(self) -> Actions:
        """What the ranks do in a step; all schedules are alike."""
        return from_live(next(iter(self._schedules.values())))

    def _new_schedule(self) -> Schedule:
        group, device = self._mesh.group("pp"), self._mesh.device
        stages = [
            _TimedStage(
                module, number, self.count, device, group=group, clock=self.seconds, meter=self._meter
            )
            for number, module in self._stages.items()
        ]
        return new_schedule(self._layout.schedule, stages, self._layout.parts, self._loss)


@dataclass
class Seconds:
    """Time of a rank inside pipeline steps.

    ``wall_s`` of the steps, ``busy_s`` in passes; ``passes``: their number and seconds by (kind, stage).
    """

    wall_s: float = 0.0
    busy_s: float = 0.0
    passes: dict[tuple[str, int], tuple[int, float]] = field(default_factory=dict)

    def add(self, kind: str, stage: int, seconds: float) -> None:
        """One pass is done."""
        number, before_s = self.passes.get((kind, stage), (0, 0.0))
        self.passes[kind, stage] = (number + 1, before_s + seconds)
        self.busy_s += seconds

    def restore(self, other: Seconds) -> None:
        """Be as ``other``."""
        self.wall_s, self.busy_s, self.passes = other.wall_s, other.busy_s, other.passes


def predicted_bubble(actions: Actions, passes: Mapping[tuple[str, int], Sequence[float]]) -> float:
    """The share of time that ranks would wait if only the order of passes made them, each taking its mean.

    ``passes``: (kind, stage) -> number and seconds, of all ranks.
    """
    return simulate(actions, lambda kind, stage: passes[kind, stage][1] / passes[kind, stage][0]).bubble


class _TimedStage(PipelineStage):
    """A stage that counts the time of its passes."""

    def __init__(self, *args: Any, clock: Seconds, meter: Meter, **options: Any) -> None:
        super().__init__(*args, **options)
        self._clock, self._timer = clock, meter

    def forward_one_chunk(self, *args: Any, **options: Any) -> Any:
        return self._timed("F", "train.forward", super().forward_one_chunk, *args, **options)

    def backward_one_chunk(self, *args: Any, **options: Any) -> Any:
        full = options.get("full_backward", True)
        return self._timed(
            "B" if full else "I", "train.backward", super().backward_one_chunk, *args, **options
        )

    def backward_weight_one_chunk(self, *args: Any, **options: Any) -> Any:
        return self._timed("W", "train.backward", super().backward_weight_one_chunk, *args, **options)

    def _timed(self, kind: str, stage: str, work: Callable[..., Any], *args: Any, **options: Any) -> Any:
        start_s = time.perf_counter()
        with self._timer.time(stage):
            found = work(*args, **options)
        self._clock.add(kind, self.stage_index, time.perf_counter() - start_s)
        return found
