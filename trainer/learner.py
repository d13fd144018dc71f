"""A model that is learning: this rank's part of it, its optimiser, and how often it was updated."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.tensor import DTensor

from ..config import Model
from ..samplers import draw
from .flops import block_flops, embedding_flops, head_flops
from .mesh import Mesh
from .models.trunk import Part, Trunk, new_trunk
from .optimisers.clipping import Clipping, ClippingState
from .optimisers.optimiser import Optimiser, optimiser_of
from .parallel.data import Replicas
from .parallel.pipeline import own_stages, parts_of
from .parallel.rows import ALL
from .parallel.tensor import rows_of, split
from .precision.monitor import Monitor
from .precision.precisions import Precisions
from .precision.raising import Raising, RaisingState
from .precision.scaling import Scaler, ScalerState
from .recompute import recomputing
from .settings import LayoutSettings, TrainerSettings
from .tasks import Task


class LearnerState(Model):
    """What changes with the steps beside tensors.

    ``updates``: optimiser steps done; ``skipped``: steps in a row, up to now, without one, because loss or
    gradients were not finite.
    """

    updates: int
    skipped: int
    scaler: ScalerState
    raising: RaisingState
    clipping: ClippingState


class Learner:
    """The parts of a model on this rank, and what changes them.

    ``model``: all this rank holds of it, by the names it has in the whole; ``parts``: of every stage of the
    pipeline; ``stages``: this rank's, by number, as they run; ``updates``, ``skipped``: see `LearnerState`.
    """

    def __init__(
        self,
        task: Task,
        layout: LayoutSettings,
        settings: TrainerSettings,
        mesh: Mesh,
        optimiser: Optimiser = optimiser_of,
    ) -> None:
        self.task, self.layout, self.settings, self.mesh = task, layout, settings, mesh
        self.rows = rows_of(mesh)
        self.parts = stage_parts(task, layout, settings.points)
        own = own_stages(layout, mesh)

        def finish(module: nn.Module, name: str) -> None:
            module.to(mesh.device)
            split(module, name, mesh)

        parts = [self.parts[i] for i in own]
        reseed = _reseeding(settings.seed)
        self.model = new_trunk(task.model, task.makers, self.rows, parts, reseed, finish)
        self.model.run = recomputing(settings.recompute)
        self.precisions = Precisions(self.model, task.model.depth, settings, mesh.device)
        self.model.within = self.precisions.running
        if settings.compile:
            for block in self.model.blocks.values():
                block.compile()
        stages = [self.model] if len(own) == 1 else [self.model.part(part) for part in parts]
        self.replicas = Replicas(stages, mesh, layout.reshards)
        self.stages = dict(zip(own, self.replicas.stages, strict=True))
        self.optimiser = optimiser(self.model, settings)
        self.scaler, self.raising = Scaler(settings.scaling), Raising(self.precisions.layers)
        self.clipping = Clipping(settings.clip)
        self.monitor = Monitor(self.model, self.precisions.layers, mesh)
        self.updates = self.skipped = 0

    @property
    def scale(self) -> float:
        """What the next step's loss is multiplied by."""
        return self.scaler.scale if self.precisions.scaled else 1.0

    @property
    def state(self) -> LearnerState:
        """What a checkpoint keeps beside tensors; the same on every rank."""
        return LearnerState(
            updates=self.updates,
            skipped=self.skipped,
            scaler=self.scaler.state,
            raising=self.raising.state,
            clipping=self.clipping.state,
        )

    def restore(self, state: LearnerState) -> None:
        """Be where ``state`` was taken."""
        self.updates, self.skipped = state.updates, state.skipped
        self.scaler.state, self.raising.state = state.scaler, state.raising
        self.clipping.state = state.clipping
        self.precisions.raise_to_fp32(state.raising.raised)

    def whole(self) -> Trunk:
        """The whole model in one piece, the same on every rank; every rank calls this."""
        if self.mesh.world == self.mesh.size("dp_replicate"):
            return self.model  # it is here already
        mesh = self.mesh
        whole = whole_model(self.task).to(mesh.device)
        names = {name for name, _ in self.model.named_parameters()}
        owners = {name: stage for stage, has in enumerate(self._along_pipeline(names)) for name in has}
        here = dict(self.model.named_parameters())
        with torch.no_grad():
            for name, parameter in whole.named_parameters():
                if name in here:
                    held = here[name]
                    full = held.full_tensor() if isinstance(held, DTensor) else held
                    parameter.copy_(full[: len(parameter)])  # without what filled up a vocabulary
                group = mesh.group("pp")
                if group is not None:
                    dist.broadcast(parameter, group=group, group_src=owners[name])
        return whole

    def _along_pipeline(self, value: set[str]) -> list[set[str]]:
        """The values of the ranks of this one's pipeline, by their place in it."""
        group, size = self.mesh.group("pp"), self.mesh.size("pp")
        values = [value] * size
        if group is not None:
            dist.all_gather_object(values, value, group=group)
        return values


def whole_model(task: Task) -> Trunk:
    """The model in one piece, its parameters as they may be."""
    return new_trunk(task.model, task.makers, ALL, [Part(range(task.model.depth))], unseeded)


def unseeded(_name: str) -> None:
    """Leave torch's generator as it is."""


def stage_parts(task: Task, layout: LayoutSettings, k: int) -> list[Part]:
    """What each stage of the pipeline holds, as even as the floating-point operations of blocks allow."""
    block = block_flops(task.model, k)
    return parts_of(layout, [block] * task.model.depth, embedding_flops(task), head_flops(task))


def _reseeding(seed: int) -> Callable[[str], None]:
    """Before each module is made: its parameters are a function of the seed and its name."""

    def reseed(name: str) -> None:
        torch.manual_seed(draw.key(seed, "model", name))

    return reseed
