"""The run of one rank: resume, train, evaluate, report."""

from __future__ import annotations

import logging
import time
from contextlib import nullcontext
from pathlib import Path

import numpy as np
from crc32c import crc32c

from ..loaders.device import Mover, device_of
from ..loaders.loader import Batch, Loader
from ..metrics import STREAM, TRAIN, Meter
from ..pipelines.dataset import Dataset
from . import checkpoint, report
from .feed import loader_of
from .learner import Learner
from .log import StepLog
from .mesh import Mesh
from .settings import Settings, TrainerSettings
from .speed import Speed
from .step import Trainer, refuse_broken
from .tasks import task_of

log = logging.getLogger(__name__)


def run(settings: Settings, dataset: Dataset, out: Path, mesh: Mesh, started_s: float) -> None:
    """Train until ``trainer.steps``, from the last checkpoint on if there is one; evaluate; write the report.

    Every rank calls this. ``started_s``: when the command started, in seconds since 1970.
    """
    task = task_of(settings.model, dataset)
    learner = Learner(task, settings.layout, settings.trainer, mesh)
    meter = Meter(STREAM + TRAIN)
    trainer = Trainer(learner, -(-settings.loader.batch // mesh.replicas), meter)
    columns = None if trainer.first else task.sight_columns + (settings.model.targets if trainer.last else ())
    with loader_of(settings, dataset, meter, mesh.replica, mesh.replicas, columns=columns) as loader:
        done = resume(out / "checkpoints", learner, loader)
        speed = train(settings.trainer, out, trainer, loader, done)
    if done < settings.trainer.steps:
        report.measure(out, trainer, speed, resumed_from=done)
    evaluating_s = time.perf_counter()
    evaluation = task.evaluate(dataset, learner.whole(), mesh, settings.trainer, out)
    eval_wall_s = time.perf_counter() - evaluating_s
    report.write(out, settings, learner, evaluation, eval_wall_s, started_s)


def resume(folder: Path, learner: Learner, loader: Loader) -> int:
    """Go on from the last checkpoint in ``folder``; the steps that are done: 0 where there is none."""
    if learner.mesh.rank == 0 and folder.is_dir():
        checkpoint.clean(folder)
    # One rank looks, so that all see the same.
    last = learner.mesh.gather(checkpoint.complete(folder)[-1:])[0]
    if not last:
        return 0
    state = checkpoint.load(last[0], learner)
    loader.load_state_dict(state.loader)
    if learner.mesh.rank == 0:
        log.info("resumed from %s", last[0])
    return state.step


def train(settings: TrainerSettings, out: Path, trainer: Trainer, loader: Loader, done: int) -> Speed:
    """Take the steps from ``done`` to ``settings.steps``; how fast that went."""
    learner, meter = trainer.learner, trainer.meter
    rank, speed = learner.mesh.rank, Speed(meter, settings.steps - done)
    saved_s = time.monotonic()
    batches = iter(loader)
    with (
        StepLog(out / "steps.jsonl", settings.steps, done) if rank == 0 else nullcontext() as lines,
        Mover(loader, device_of(learner.mesh.device)) as mover,
    ):
        for step in range(done, settings.steps):
            with meter.wait("train.wait"):
                mover.make_room()
                batch = next(batches)
            # Rank 0 looks at its clock for all: a checkpoint is everybody's work.
            late = rank == 0 and time.monotonic() > saved_s + 60 * settings.checkpoint_minutes
            outcome = trainer.step(
                batch, (*(tally(batch) if learner.mesh.leads else (0, 0, 0)), int(late)), mover.move
            )
            samples, size, crc, some_late = outcome.tally
            if lines:
                lines.write(batch, outcome, samples, crc)
            if some_late or _due(step + 1, settings):
                refuse_broken(learner, step)
                with meter.time("train.save"):
                    checkpoint.save(out / "checkpoints", learner, loader.state_dict(), step + 1)
                saved_s = time.monotonic()
            speed.count(batch.k, samples, size)
    speed.stop()
    return speed


def tally(batch: Batch) -> tuple[int, int, int]:
    """Samples of a batch, the bytes of their rows, and the sum of a CRC32C of each one's id and rows.

    Sums over ranks, so that they describe the global batch, however it is shared out.
    """
    samples = np.flatnonzero(batch.weight > 0)
    size = crc = 0
    for i in samples:
        running = crc32c(batch.ids[i].tobytes())
        for name in sorted(batch.columns):
            rows = batch.columns[name][i]
            running = crc32c(rows, running)
            size += rows.nbytes
        crc += running
    return len(samples), size, crc


def _due(step: int, settings: TrainerSettings) -> bool:
    every = settings.checkpoint_steps
    return step == settings.steps or (every > 0 and step % every == 0)
