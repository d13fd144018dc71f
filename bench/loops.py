"""Training loops around the same model, batches and optimiser: what a step takes in each."""

from __future__ import annotations

import logging
import os
import statistics
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from importlib import import_module
from importlib.metadata import version
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor, nn

from ..config import check
from ..loaders.loader import Batch
from ..metrics import STREAM, TRAIN, Meter
from ..samplers.curve import serialise
from ..trainer import loop
from ..trainer.faults.stopping import Stop
from ..trainer.learner import Learner, whole_model
from ..trainer.mesh import joined
from ..trainer.model_settings import PointSettings
from ..trainer.optimisers.clipping import Clipping
from ..trainer.optimisers.optimiser import adamw
from ..trainer.settings import Settings
from ..trainer.step import Trainer
from ..trainer.tasks import Segmentation, TaskState
from ..trainer.tasks.task import counted
from .ranks import on_ranks

CLASSES = ("ground", "plants", "roof")


# What follows, down to the line, is all that knows how the trainer is put together.


def settings_of(size: Size, dp: int = 1) -> Settings:
    """The bundled model with its defaults; no checkpoint but the one at the end."""
    sections = {
        "loader": {"batch": size.clouds},
        "layout": {"dp": dp},
        "trainer": {"points": size.points, "steps": size.steps, "checkpoint_steps": 0},
    }
    return check({"name": "bench", "data": {}, **sections}, Settings, where="bench")


def task_of(settings: Settings) -> Segmentation:
    """A class for every point."""
    assert isinstance(settings.model, PointSettings)
    return Segmentation(settings.model, TaskState(classes=CLASSES), ["xyz", "label"], "bench")


def tamis(clock: Clock, dp: int = 1) -> None:
    """The loop of `tamis train`, all of it: checks, log, meter, the checksum of every batch."""
    settings = settings_of(clock.size, dp)
    with tempfile.TemporaryDirectory() as folder, joined(settings.layout) as mesh:
        learner = Learner(task_of(settings), settings.layout, settings.trainer, mesh)
        trainer = Trainer(learner, -(-clock.size.clouds // mesh.replicas), Meter(STREAM + TRAIN))
        source: Any = clock  # a loader, as far as the loop can tell
        out = Path(mesh.gather(folder)[0])  # checkpoints are written together
        loop.train(settings, out, trainer, source, 0, Stop())


class Net(nn.Module):
    """The model with its loss: what every other loop wants."""

    def __init__(self, settings: Settings) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.task, self.settings = task_of(settings), settings.trainer
        self.model = whole_model(self.task)

    def forward(self, tensors: dict[str, Tensor]) -> Tensor:
        """The mean loss over the rows that count."""
        mask = tensors["mask"]
        scores = self.model(self.task.entry(tensors), **self.task.inputs(tensors, mask))
        labels = self.task.labels(tensors, mask, tensors["weight"])
        return self.task.loss(scores, labels) / counted(labels)

    @property
    def clip(self) -> float:
        """The largest norm that the whole gradient may have."""
        return Clipping(self.settings.clip).highest

    def optimiser(self) -> torch.optim.Optimizer:
        """The trainer's own."""
        return adamw(self.model, self.settings)


# ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Size:
    """A global batch of ``clouds`` clouds of ``points`` rows, ``steps`` steps a round, ``rounds`` rounds."""

    clouds: int
    points: int
    steps: int
    rounds: int


class Clock:
    """Batches that are there already, given out as a loader would, and when each was asked for."""

    _HELD = 8  # batches that it goes around
    _SKIPPED = 8  # first steps, which are slower: memory is touched for the first time

    def __init__(self, size: Size, share: int = 1) -> None:
        """``share``: ranks that a batch is for; each has other clouds."""
        self.size, self._asked_s, self._cpu_s = size, list[float](), list[float]()
        self._batches = [
            [batch_of(size.clouds // share, size.points, seed=(rank, i)) for i in range(self._HELD)]
            for rank in range(share)
        ]

    def __iter__(self) -> Iterator[Batch]:
        held = self.held
        for step in range(self.size.steps):
            self._asked_s.append(time.perf_counter())
            self._cpu_s.append(time.process_time())
            yield replace(held[step % self._HELD], step=step)

    @property
    def held(self) -> list[Batch]:
        """This rank's batches."""
        return self._batches[int(os.environ.get("RANK", "0"))]

    def state_dict(self) -> dict[str, Any]:
        """For the checkpoint at the end."""
        return {}

    def step_ms(self) -> dict[str, float]:
        """A step, from one batch that was asked for to the next: see `trainer.ABOUT`."""
        asked_s, cpu_s = self._asked_s[self._SKIPPED :], self._cpu_s[self._SKIPPED :]
        taken_ms = [(after - before) * 1e3 for before, after in pairwise(asked_s)]
        return {
            "median_ms": statistics.median(taken_ms),
            "mean_ms": statistics.fmean(taken_ms),
            "cpu_ms": (cpu_s[-1] - cpu_s[0]) * 1e3 / len(taken_ms),
        }


class Tensors:
    """A clock's batches as tensors."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock

    def __iter__(self) -> Iterator[dict[str, Tensor]]:
        for batch in self._clock:
            yield batch.torch()


def batch_of(clouds: int, points: int, seed: tuple[int, int]) -> Batch:
    rng = np.random.default_rng(seed)
    xyz = rng.uniform(0, 10, (clouds, points, 3)).astype(np.float32)
    transposed = np.empty((clouds, points), np.int64)
    for cloud, order in zip(xyz, transposed, strict=True):
        sort, order[:] = serialise(cloud, 0.1)
        cloud[:] = cloud[sort]
    label = rng.integers(-1, len(CLASSES), (clouds, points)).astype(np.int32)
    ids, weight = rng.integers(1, 2**63, clouds).astype(np.uint64), np.ones(clouds, np.float32)
    columns: dict[str, Any] = {"xyz": xyz, "label": label, "transposed": transposed}
    return Batch(0, 0, ids, columns, np.ones((clouds, points), bool), None, weight, points)


def plain(clock: Clock) -> None:
    """A loop in plain torch, with nothing beside the step itself."""
    _steps(clock, net := Net(settings_of(clock.size)), net)


def bare(clock: Clock) -> None:
    """The same on ranks, whose gradients DDP averages."""
    dist.init_process_group("gloo")
    net = Net(settings_of(clock.size))
    _steps(clock, net, nn.parallel.DistributedDataParallel(net))
    dist.barrier()
    dist.destroy_process_group()


def _steps(clock: Clock, net: Net, wrapped: nn.Module) -> None:
    optimiser = net.optimiser()
    for tensors in Tensors(clock):
        wrapped(tensors).backward()
        nn.utils.clip_grad_norm_(net.parameters(), net.clip)
        optimiser.step()
        optimiser.zero_grad()


def accelerate(clock: Clock) -> None:
    """Hugging Face's accelerate."""
    from accelerate import Accelerator

    accelerator = Accelerator(cpu=True)
    net = Net(settings_of(clock.size))
    wrapped, optimiser = accelerator.prepare(net, net.optimiser())
    for tensors in Tensors(clock):
        accelerator.backward(wrapped(tensors))
        accelerator.clip_grad_norm_(net.parameters(), net.clip)
        optimiser.step()
        optimiser.zero_grad()


def lightning(clock: Clock) -> None:
    """A LightningModule."""
    import lightning as library

    class Module(library.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.net = Net(settings_of(clock.size))

        def training_step(self, tensors: dict[str, Tensor], _: int) -> Tensor:
            loss: Tensor = self.net(tensors)
            return loss

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return self.net.optimiser()

    module = Module()
    quiet = dict.fromkeys(
        ("logger", "enable_checkpointing", "enable_progress_bar", "enable_model_summary"), False
    )
    trainer = library.Trainer(
        max_steps=clock.size.steps,
        accelerator="cpu",
        devices=1,
        gradient_clip_val=module.net.clip,
        **quiet,
    )
    trainer.fit(module, Tensors(clock))


def hf_trainer(clock: Clock) -> None:
    """The Trainer of Hugging Face's transformers."""
    import transformers

    class Module(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net = Net(settings_of(clock.size))

        def forward(self, **tensors: Tensor) -> dict[str, Tensor]:
            return {"loss": self.net(tensors)}

    class Trainer(transformers.Trainer):
        def get_train_dataloader(self) -> Any:
            return Tensors(clock)

    module = Module()
    with tempfile.TemporaryDirectory() as folder:
        arguments = transformers.TrainingArguments(
            folder,
            max_steps=clock.size.steps,
            max_grad_norm=module.net.clip,
            use_cpu=True,
            disable_tqdm=True,
            report_to=[],
            save_strategy="no",
            logging_strategy="no",
        )
        Trainer(module, arguments, optimizers=(module.net.optimiser(), None)).train()


Loop = Callable[[Clock], None]

PEERS: dict[str, tuple[Loop, str]] = {
    "accelerate": (accelerate, "accelerate"),
    "Lightning": (lightning, "lightning"),
    "HF Trainer": (hf_trainer, "transformers"),
}
"""Name -> loop, and the distribution it is from."""


def overhead(**size: int) -> dict[str, Any]:
    """Milliseconds a step of every loop in one process with one thread, in turn."""
    rows: dict[str, dict[str, Any]] = {}
    clock, versions = Clock(Size(**size)), {"torch": version("torch")}
    loops: dict[str, tuple[Loop, int]] = {"plain torch": (plain, 1), "tamis": (tamis, 1)}
    for name, (work, distribution) in PEERS.items():
        try:
            import_module(distribution)  # here, so that the forked processes have it
        except ImportError as error:
            rows[name] = {"loop": name, "failed": str(error)}
            continue
        loops[name], versions[distribution] = (work, 1), version(distribution)
    return {"rows": [*_in_turn(loops, {1: clock}), *rows.values()], "versions": versions}


def scaling(**size: int) -> dict[str, Any]:
    """Milliseconds a step of the same global batch on one rank and on two, one thread each, in turn."""
    loops: dict[str, tuple[Loop, int]] = {
        "tamis, one rank": (tamis, 1),
        "tamis, two ranks": (lambda clock: tamis(clock, dp=2), 2),
        "plain torch, one rank": (plain, 1),
        "bare DDP, two ranks": (bare, 2),
    }
    clocks = {world: Clock(Size(**size), world) for world in (1, 2)}
    return {"rows": _in_turn(loops, clocks), "versions": {"torch": version("torch")}}


def _in_turn(loops: dict[str, tuple[Loop, int]], clocks: dict[int, Clock]) -> list[dict[str, Any]]:
    figures = ("median_ms", "mean_ms", "cpu_ms")
    rows: dict[str, dict[str, Any]] = {n: {"loop": n, **{f: [] for f in figures}} for n in loops}
    names = list(loops)
    for turn in range(clocks[1].size.rounds):
        for name in (*names[turn % len(names) :], *names[: turn % len(names)]):
            work, world = loops[name]
            if "failed" in rows[name]:
                continue
            try:
                taken_ms = on_ranks(world, _timed, work, clocks[world])
            except RuntimeError as error:
                rows[name] = {"loop": name, "failed": str(error).splitlines()[-1][:500]}
                continue
            for figure in figures:
                rows[name][figure].append(taken_ms[figure])
    return list(rows.values())


def _timed(work: Loop, clock: Clock) -> dict[str, float]:
    warnings.simplefilter("ignore")  # of what the loops of others say of this one's batches
    logging.disable(logging.WARNING)
    work(clock)
    return clock.step_ms()
