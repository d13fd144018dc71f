"""One training step."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from ..errors import DataError
from ..loaders.loader import Batch
from ..metrics import Meter
from ..pipelines.records import IGNORED
from ..samplers import draw
from .learner import Learner
from .mesh import Mesh
from .optim import learning_rate, set_learning_rate
from .parallel.norm import clip, gradients, squared_norm
from .parallel.pipeline import Pipeline
from .parallel.tensor import sum_parts
from .tasks.task import counted

Move = Callable[[Batch], Mapping[str, Tensor]]


@dataclass(frozen=True)
class Outcome:
    """What a step did, summed over ranks; ``loss`` and ``grad_norm`` are None where nothing counted."""

    loss: float | None
    grad_norm: float | None
    lr: float
    points: int  # rows, or samples, that counted
    tally: tuple[int, ...]  # the sums over replicas of what the caller counted


class Trainer:
    """Steps of a learner: by a pipeline's schedule, or one microbatch after the other.

    ``clouds``: the most samples of a batch that a replica gets.
    """

    def __init__(self, learner: Learner, clouds: int, meter: Meter) -> None:
        self.learner, self.meter = learner, meter
        self._parts = learner.layout.parts
        self._places = -(-clouds // self._parts) * self._parts
        self._weight = 1.0  # of a row's loss in what is differentiated
        self.pipeline = None
        if learner.layout.pp > 1:
            self.pipeline = Pipeline(learner.stages, learner.layout, learner.mesh, self._weighted, meter)
        self.first = self.pipeline is None or self.pipeline.first
        self.last = self.pipeline is None or self.pipeline.last

    def step(self, batch: Batch, tally: tuple[int, ...] = (), move: Move = Batch.torch) -> Outcome:
        """Learn from one global batch, of which ``batch`` is this replica's share.

        The loss is the mean over all rows of the global batch that count, whatever rank holds them; where
        none does, all ranks skip the update together. ``tally``: integers (< 2^53) to be added up over
        replicas. ``move`` brings the batch to the model's device. Raises DataError, on all ranks, where the
        loss or a gradient is not finite.
        """
        learner, mesh, meter = self.learner, self.learner.mesh, self.meter
        reseed(learner.settings.seed, batch.step, mesh.device)
        with meter.time("train.h2d"):
            x, inputs, labels = self._read(move(batch))
            here = int(counted(labels)) if mesh.leads else 0
        with meter.time("train.sync", items=0):
            own = [here, *tally] if mesh.leads else [0] * (1 + len(tally))
            sums = mesh.sum(torch.tensor(own, dtype=torch.float64, device=mesh.device))
            points, *tallied = (int(v) for v in sums.tolist())
        rate = learning_rate(learner.updates, learner.settings)
        if points == 0:
            return Outcome(None, None, rate, 0, tuple(tallied))

        self._weight = learner.replicas.factor / points
        loss = self._passes(x, inputs, labels, batch.k) / learner.replicas.factor
        with meter.time("train.sync"):
            sum_parts(learner.model, mesh)
            learner.replicas.add_up(learner.model)
            held = gradients(learner.model)
            told = loss if self.last and mesh.index("tp") == 0 else torch.zeros_like(loss)
            sums = mesh.sum(torch.stack([told, squared_norm(held, mesh)]))
            mean, squares = sums.tolist()
            norm = squares**0.5
        with meter.time("train.step"):
            _refuse_non_finite(mean, norm, batch, mesh)
            clip(held, norm, learner.settings.clip)
            set_learning_rate(learner.optimiser, rate)
            learner.optimiser.step()
            learner.optimiser.zero_grad()
        learner.updates += 1
        meter.add("train.step", points_in=float(here))
        return Outcome(mean, norm, rate, points, tuple(tallied))

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

    def _passes(self, x: Tensor, inputs: Mapping[str, Tensor], labels: Tensor, k: int) -> Tensor:
        """Forward and backward passes: this rank's share of the weighted loss, float64 ()."""
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
        raise DataError(f"step {step}", "its update left parameters that are not finite", "lower trainer.lr")


def _refuse_non_finite(loss: float, norm: float, batch: Batch, mesh: Mesh) -> None:
    # Both are sums over ranks, so all ranks come to the same decision.
    if math.isfinite(loss) and math.isfinite(norm):
        return
    ids = sorted({f"{i:016x}" for part in mesh.gather([int(i) for i in batch.ids]) for i in part})
    raise DataError(
        f"step {batch.step}",
        f"the loss is {loss} and the norm of the gradient {norm}, in the batch of samples {', '.join(ids)}",
        "lower trainer.lr or trainer.clip, or look at these samples with `tamis inspect`",
    )
