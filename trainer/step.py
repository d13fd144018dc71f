"""One training step: what is learned from a global batch, and what is done where numbers overflow."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal, NamedTuple

import torch
from torch import Tensor, nn

from ..errors import DataError
from ..loaders.loader import Batch
from ..metrics import Meter
from ..pipelines.records import IGNORED
from ..samplers import draw
from .learner import Learner
from .optimisers.optimiser import learning_rate, set_learning_rate
from .parallel.norm import clip, gradients, squared_norm
from .parallel.pipeline import Pipeline
from .parallel.tensor import sum_parts
from .precision.monitor import LayerGradient
from .precision.precisions import MAY_VANISH
from .tasks.task import counted

log = logging.getLogger(__name__)

Move = Callable[[Batch], Mapping[str, Tensor]]
Skipped = Literal["nothing counted", "overflow", "not finite"]

PATIENCE = 20
"""Steps in a row that may be skipped because loss or gradients are not finite."""


@dataclass(frozen=True)
class Outcome:
    """What a step did, summed over ranks.

    ``loss`` and ``grad_norm`` are None where nothing counted, or where they are not finite.
    """

    loss: float | None
    grad_norm: float | None
    lr: float
    points: int  # rows, or samples, that counted
    tally: tuple[int, ...]  # the sums over ranks of what the caller counted
    skipped: Skipped | None = None  # why parameters stay as they were
    recomputed: bool = False  # by all layers in fp32, as loss or gradients were not finite
    scale: float | None = None  # of the loss, where a layer runs in fp16
    layers: Mapping[str, LayerGradient] | None = None  # where gradients were looked at


class _Share(NamedTuple):
    """What a rank reads of a global batch, in which ``points`` rows count."""

    x: Tensor
    inputs: Mapping[str, Tensor]
    labels: Tensor
    k: int
    points: int


class _Found(NamedTuple):
    """The loss, the gradients on this rank, which carry ``scale``, and the norm of all without it."""

    loss: float
    norm: float
    held: list[tuple[nn.Parameter, Tensor]]
    scale: float

    @property
    def finite(self) -> bool:
        # Both are sums over ranks, so all ranks come to the same decision.
        return math.isfinite(self.loss) and math.isfinite(self.norm)


class Trainer:
    """Steps of a learner: by a pipeline's schedule, or one microbatch after the other.

    ``clouds``: the most samples of a batch that a replica gets.
    """

    def __init__(self, learner: Learner, clouds: int, meter: Meter) -> None:
        self.learner, self.meter = learner, meter
        self._parts = learner.layout.parts
        self._places = -(-clouds // self._parts) * self._parts
        self._weight = 1.0  # of a row's loss in what is differentiated, the scale included
        self.pipeline = None
        if learner.layout.pp > 1:
            self.pipeline = Pipeline(learner.stages, learner.layout, learner.mesh, self._weighted, meter)
        self.first = self.pipeline is None or self.pipeline.first
        self.last = self.pipeline is None or self.pipeline.last

    def step(self, batch: Batch, tally: tuple[int, ...] = (), move: Move = Batch.torch) -> Outcome:
        """Learn from one global batch, of which ``batch`` is this replica's share.

        The loss is the mean over all rows of the global batch that count, whatever rank holds them; where
        none does, all ranks skip the update together. ``tally``: integers (< 2^53) to be added up over
        ranks. ``move`` brings the batch to the model's device.

        Where fp16 gradients overflow, the scale is lowered and the update skipped. Where the scale is at its
        floor, or it is the loss that is not finite, or no layer is fp16, the step is computed anew with all
        layers in fp32, and skipped if that does not help: rank 0 warns, with the ids of the global batch.
        Raises DataError, on all ranks, where that was so in `PATIENCE` steps in a row.
        """
        learner, mesh, meter = self.learner, self.learner.mesh, self.meter
        reseed(learner.settings.seed, batch.step, mesh.device)
        with meter.time("train.h2d"):
            x, inputs, labels = self._read(move(batch))
            here = int(counted(labels)) if mesh.leads else 0
        with meter.time("train.sync", items=0):
            sums = mesh.sum(torch.tensor([here, *tally], dtype=torch.float64, device=mesh.device))
            points, *tallied = (int(v) for v in sums.tolist())
        rate = learning_rate(learner.updates, learner.settings)
        if points == 0:
            return Outcome(None, None, rate, 0, tuple(tallied), "nothing counted")

        share = _Share(x, inputs, labels, batch.k, points)
        first = found = self._learned(share, learner.scale)
        scaled, lowered = learner.precisions.scaled, learner.precisions.lowered
        layers = None
        if learner.precisions.watched or (lowered and not first.finite):
            with meter.time("train.sync", items=0):
                layers = learner.monitor.read(first.scale)
        # A loss that is not finite says nothing about the scale: it is what the forward pass gave.
        moves = scaled and math.isfinite(first.loss)
        backed_off = moves and learner.scaler.update(overflow=not first.finite)
        recomputed = lowered and not first.finite and not backed_off
        if recomputed:
            learner.optimiser.zero_grad()
            with learner.precisions.exact():
                found = self._learned(share, scale=1.0)
        if found.finite:
            with meter.time("train.step"):
                self._update(found, rate)
        else:
            learner.optimiser.zero_grad()
            if not backed_off:
                self._skip(found, batch)
        if layers and found.finite:
            self._raise_layers(batch.step, first, layers)
        meter.add("train.step", points_in=float(here))
        return Outcome(
            _finite(found.loss),
            _finite(found.norm),
            rate,
            points,
            tuple(tallied),
            None if found.finite else "overflow" if backed_off else "not finite",
            recomputed,
            first.scale if scaled else None,
            layers,
        )

    def _learned(self, share: _Share, scale: float) -> _Found:
        """Gradients of the loss times ``scale``, summed over ranks, and what they amount to."""
        learner, mesh = self.learner, self.learner.mesh
        self._weight = scale * learner.replicas.factor / share.points
        loss = self._passes(share) / (scale * learner.replicas.factor)
        with self.meter.time("train.sync"):
            sum_parts(learner.model, mesh)
            learner.replicas.add_up(learner.model)
            held = gradients(learner.model)
            told = loss if self.last and mesh.index("tp") == 0 else torch.zeros_like(loss)
            mean, squares = mesh.sum(torch.stack([told, squared_norm(held, mesh)])).tolist()
        return _Found(mean, squares**0.5 / scale, held, scale)

    def _update(self, found: _Found, rate: float) -> None:
        learner = self.learner
        clip(found.held, found.norm, learner.clipping.highest, found.scale)
        learner.clipping.update(found.norm)
        set_learning_rate(learner.optimiser, rate)
        learner.optimiser.step()
        learner.optimiser.zero_grad()
        learner.updates += 1
        learner.skipped = 0

    def _skip(self, found: _Found, batch: Batch) -> None:
        """Tell of a step that fp32 does not help; raise DataError where it is one of too many."""
        learner, mesh = self.learner, self.learner.mesh
        learner.skipped += 1
        ids = sorted({f"{i:016x}" for part in mesh.gather([int(i) for i in batch.ids]) for i in part})
        told = f"the loss is {found.loss} and the norm of the gradient {found.norm}"
        samples = f"in the batch of samples {', '.join(ids)}"
        if mesh.rank == 0:
            log.warning("step %d: %s, %s; no update", batch.step, told, samples)
        if learner.skipped >= PATIENCE:
            raise DataError(
                f"step {batch.step}",
                f"{told}, {samples}; so it was, or alike, in {PATIENCE} steps in a row",
                "lower trainer.lr or trainer.clip, or look at these samples with `tamis inspect`",
            )

    def _raise_layers(self, step: int, first: _Found, layers: Mapping[str, LayerGradient]) -> None:
        """Have layers run in fp32 from now on whose gradients overflow or vanish; ``first``: in this step."""
        learner, of = self.learner, self.learner.precisions.of
        if first.finite:
            shares = {layer: found.zeros for layer, found in layers.items()}
            raised = learner.raising.finite(shares, {layer for layer in layers if of(layer) in MAY_VANISH})
        elif math.isfinite(first.loss):
            broken = {layer for layer, found in layers.items() if found.broken}
            raised = learner.raising.broke(step, broken, {layer for layer in layers if of(layer) != "fp32"})
        else:
            return
        learner.precisions.raise_to_fp32(learner.raising.state.raised)
        if raised and learner.mesh.rank == 0:
            why = "vanish" if first.finite else "overflow"
            log.warning("step %d: %s in fp32 from now on: gradients %s", step, ", ".join(raised), why)

    def _read(self, tensors: Mapping[str, Tensor]) -> tuple[Tensor, dict[str, Tensor], Tensor]:
        """What the first stage reads, what all read, and what the last compares with, if it is here."""
        task, mask = self.learner.task, tensors["mask"]
        nothing = mask.new_zeros(0)
        x = task.entry(tensors) if self.first else nothing
        wanted = self.first or self.last
        labels = task.labels(tensors, mask, tensors["weight"]) if wanted else nothing
        inputs = task.inputs(tensors, mask)
        # Microbatches and what compiled blocks and pipelines get, the last batch of an epoch too.
        equal = self._parts > 1 or self.pipeline is not None or self.learner.settings.compile
        missing = self._places - len(mask) if equal else 0
        if missing:  # some samples come once more, and do not count
            x, inputs = _more(x, missing), {name: _more(value, missing) for name, value in inputs.items()}
            labels = _more(labels, missing)
            labels[len(mask) :] = IGNORED
        return x, inputs, labels

    def _passes(self, share: _Share) -> Tensor:
        """Forward and backward passes: this rank's share of the weighted loss, float64 ()."""
        x, inputs, labels, k, _ = share
        if self.pipeline is not None:
            return self.pipeline.step(x, inputs, labels, k).double()
        learner, meter = self.learner, self.meter
        total = torch.zeros((), dtype=torch.float64, device=learner.mesh.device)
        (stage,) = learner.stages.values()
        pieces = [piece.chunk(self._parts) for piece in (x, labels, *inputs.values())]
        for i, (x, labels, *others) in enumerate(zip(*pieces, strict=True)):
            with learner.replicas.exchanging(i == len(pieces[0]) - 1):
                with meter.time("train.forward"):
                    loss = self._weighted(stage(x, **dict(zip(inputs, others, strict=True))), labels)
                with meter.time("train.backward"):
                    torch.autograd.backward(loss)
            total += loss.detach()
        return total

    def _weighted(self, scores: Tensor, labels: Tensor) -> Tensor:
        learner = self.learner
        return learner.task.loss(scores, labels, learner.rows) * self._weight


def _more(values: Tensor, missing: int) -> Tensor:
    """Values (b, ...) with the first of them so many times more at the end."""
    return torch.cat([values, values[:1].expand(missing, *values.shape[1:])]) if len(values) else values


def reseed(seed: int, step: int, device: torch.device) -> None:
    """Make torch's draws a function of the step, so that no generator's state needs to be kept."""
    # Not torch.manual_seed: for the devices that are not there it takes a stack trace, every step.
    key = draw.key(seed, "step", step)
    torch.default_generator.manual_seed(key)
    if device.type == "cuda":
        torch.cuda.manual_seed(key)


def refuse_broken(learner: Learner, step: int) -> None:
    """Raise DataError where the update of ``step`` left a parameter that is not finite: never keep such."""
    broken = sum(not p.detach().norm().isfinite() for p in learner.model.parameters())
    if learner.mesh.sum(torch.tensor(float(broken), device=learner.mesh.device)) > 0:
        fix = "lower trainer.lr or trainer.weight_decay"
        raise DataError(f"step {step}", "its update left parameters that are not finite", fix)


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None
