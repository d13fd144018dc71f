"""One training step."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from torch import nn

from ..errors import DataError
from ..loaders.loader import Batch
from ..metrics import Meter
from ..samplers import draw
from .optim import adamw, learning_rate, set_learning_rate
from .parallel.data import Ranks
from .settings import TrainerSettings
from .tasks import Segmentation

Move = Callable[[Batch], Mapping[str, torch.Tensor]]


class Learner:
    """A model that is learning: its parameters, its optimiser, and how often they were updated.

    ``model`` is the plain module, which checkpoints and evaluation use; ``wrapped`` the same parameters
    behind the ranks' gradient exchange.
    """

    def __init__(self, model: nn.Module, task: Segmentation, settings: TrainerSettings, ranks: Ranks) -> None:
        self.model, self.task, self.settings, self.ranks = model, task, settings, ranks
        self.wrapped = ranks.wrap(model)
        self.optimiser = adamw(model, settings)
        self.updates = 0


@dataclass(frozen=True)
class Outcome:
    """What a step did, summed over ranks; ``loss`` and ``grad_norm`` are None where nothing counted."""

    loss: float | None
    grad_norm: float | None
    lr: float
    points: int  # rows that counted
    tally: tuple[int, ...]  # the sums over ranks of what the caller counted


def train_step(
    learner: Learner, batch: Batch, meter: Meter, tally: tuple[int, ...] = (), move: Move = Batch.torch
) -> Outcome:
    """Learn from one global batch, of which ``batch`` is this rank's share.

    The loss is the mean over all rows of the global batch that count, whatever rank holds them; where none
    does, all ranks skip the update together. ``tally``: integers (< 2^53) to be added up over ranks.
    ``move`` brings the batch to the model's device. Raises DataError, on all ranks, where the loss or a
    gradient is not finite.
    """
    task, ranks, device = learner.task, learner.ranks, learner.ranks.device
    reseed(learner.settings.seed, batch.step, device)
    with meter.time("train.h2d"):
        tensors = move(batch)
        inputs = task.inputs(tensors, tensors["mask"])
        labels, counts = task.labels(tensors, tensors["mask"], tensors["weight"])
        here = int(counts)
    with meter.time("train.sync", items=0):
        sums = ranks.sum(torch.tensor([here, *tally], dtype=torch.float64, device=device))
        points, *tallied = (int(v) for v in sums.tolist())
    rate = learning_rate(learner.updates, learner.settings)
    if points == 0:
        return Outcome(None, None, rate, 0, tuple(tallied))

    with meter.time("train.forward"):
        loss = task.loss(learner.wrapped(*inputs), labels)
    with meter.time("train.backward"):
        torch.autograd.backward(ranks.share(loss, points))
    with meter.time("train.sync"):
        mean = float(ranks.sum(loss.detach().double())) / points
    with meter.time("train.step"):
        norm = float(nn.utils.clip_grad_norm_(learner.model.parameters(), learner.settings.clip))
        _refuse_non_finite(mean, norm, batch, ranks)
        set_learning_rate(learner.optimiser, rate)
        learner.optimiser.step()
        learner.optimiser.zero_grad()
    learner.updates += 1
    meter.add("train.step", points_in=float(here))
    return Outcome(mean, norm, rate, points, tuple(tallied))


def reseed(seed: int, step: int, device: torch.device) -> None:
    """Make torch's draws a function of the step, so that no generator's state needs to be kept."""
    # Not torch.manual_seed: for the devices that are not there it takes a stack trace, every step.
    key = draw.key(seed, "step", step)
    torch.default_generator.manual_seed(key)
    if device.type == "cuda":
        torch.cuda.manual_seed(key)


def refuse_broken(learner: Learner, step: int) -> None:
    """Raise DataError where the update of ``step`` left a parameter that is not finite: never keep such."""
    norms = torch.stack([p.detach().norm() for p in learner.model.parameters()])
    if not norms.isfinite().all():  # ranks have equal parameters, so they agree
        raise DataError(f"step {step}", "its update left parameters that are not finite", "lower trainer.lr")


def _refuse_non_finite(loss: float, norm: float, batch: Batch, ranks: Ranks) -> None:
    # Both are sums over ranks, so all ranks come to the same decision.
    if torch.tensor([loss, norm]).isfinite().all():
        return
    ids = [f"{i:016x}" for part in ranks.gather([int(i) for i in batch.ids]) for i in part]
    raise DataError(
        f"step {batch.step}",
        f"the loss is {loss} and the norm of the gradient {norm}, in the batch of samples {', '.join(ids)}",
        "lower trainer.lr or trainer.clip, or look at these samples with `tamis inspect`",
    )
