"""Data parallelism: every replica learns from its share of the batch, and gradients are added up.

Losses are divided beforehand by what counts in the whole batch, so gradients are summed, never averaged.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from torch import nn
from torch.distributed.fsdp import FSDPModule, fully_shard
from torch.nn.parallel import DistributedDataParallel

from ..mesh import Mesh
from ..models.trunk import Trunk
from .flat import all_reduced
from .norm import gradients


class Replicas:
    """How the replicas of a mesh exchange gradients.

    Without tensor and pipeline ranks, torch's DistributedDataParallel (Li et al. 2020) sends gradients while
    the backward pass goes on. With ``dp_shard``, FSDP (Zhao et al. 2023; ZeRO, Rajbhandari et al. 2020) also
    splits parameters and the optimiser's state. Else gradients are added up after the backward pass.
    """

    def __init__(self, stages: Sequence[Trunk], mesh: Mesh, reshard: bool) -> None:
        self.mesh = mesh
        self.stages: list[nn.Module] = list(stages)
        sharded = mesh.size("dp_shard") > 1
        only_data = mesh.size("tp") == mesh.size("pp") == 1
        self._wrapped = sharded or (only_data and mesh.replicas > 1)
        if sharded:
            for stage in stages:
                _shard(stage, mesh, reshard)
        elif self._wrapped:
            devices = [mesh.device] if mesh.device.type == "cuda" else None
            self.stages = [DistributedDataParallel(stages[0], device_ids=devices)]

    @property
    def factor(self) -> float:
        """By what to multiply a loss, so that what arrives in the gradients is the sum over replicas."""
        return float(self.mesh.replicas) if self._wrapped else 1.0  # the wrappers average

    @contextmanager
    def exchanging(self, exchange: bool) -> Iterator[None]:
        """Run forward and backward passes whose gradients are sent, or only kept for those that follow."""
        stage = self.stages[0]
        if isinstance(stage, FSDPModule):
            stage.set_requires_gradient_sync(exchange)
            stage.set_is_last_backward(exchange)
            yield
        elif isinstance(stage, DistributedDataParallel) and not exchange:
            with stage.no_sync():
                yield
        else:
            yield

    def add_up(self, model: nn.Module) -> None:
        """After the backward pass: what was not sent during it."""
        group = self.mesh.group("dp_replicate")
        if group is not None and not self._wrapped:
            all_reduced([gradient for _, gradient in gradients(model)], group)


def _shard(stage: Trunk, mesh: Mesh, reshard: bool) -> None:
    assert mesh.devices is not None
    names = ("dp_replicate", "dp_shard") if mesh.size("dp_replicate") > 1 else ("dp_shard",)
    options: dict[str, Any] = {"mesh": mesh.devices[names], "reshard_after_forward": reshard}
    for block in stage.blocks.values():
        fully_shard(block, **options)
    fully_shard(stage, **options)
