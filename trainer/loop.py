"""The run of one rank: resume, train, evaluate, report."""

from __future__ import annotations

import logging
import time
from pathlib import Path

from ..loaders.device import Mover, device_of
from ..loaders.loader import Loader
from ..metrics import STREAM, TRAIN, Meter
from ..pipelines.dataset import Dataset
from . import report
from .checkpoints import checkpoint
from .checkpoints.drift import refuse_drifted
from .checkpoints.saver import Saver
from .checkpoints.weights import begin_with
from .faults.stopping import Stop
from .feed import loader_of, tally
from .learner import Learner
from .mesh import Mesh
from .profile import profiled
from .progress import Progress
from .report import Measured
from .settings import Settings
from .speed import Speed
from .step import Trainer, refuse_broken
from .tasks import task_of

log = logging.getLogger(__name__)

AGAIN = "the same command continues"


def run(settings: Settings, dataset: Dataset, out: Path, mesh: Mesh, started_s: float) -> None:
    """Train until ``trainer.steps``, from the last checkpoint on if there is one; evaluate; write the report.

    Every rank calls this. ``started_s``: when the command started, in seconds since 1970. SIGTERM on any rank
    while steps are taken has all of them save and return after the step; else it ends the process at once.
    """
    with Stop() as stop:
        _run(settings, dataset, out, mesh, started_s, stop)


def _run(settings: Settings, dataset: Dataset, out: Path, mesh: Mesh, started_s: float, stop: Stop) -> None:
    task = task_of(settings.model, dataset)
    learner = Learner(task, settings.layout, settings.learning, mesh)
    meter = Meter(STREAM + TRAIN)
    trainer = Trainer(learner, settings.layout.share(settings.loader.batch), meter)
    columns = None if trainer.first else task.sight_columns + (settings.model.targets if trainer.last else ())
    with loader_of(settings, dataset, meter, mesh.replica, mesh.replicas, columns=columns) as loader:
        done = resume(out / "checkpoints", learner, loader)
        if done == 0 and settings.trainer.init is not None:
            begin_with(settings.trainer.init, learner)
        measured = train(settings, out, trainer, loader, done, stop)
    if measured is None:
        return
    if done < settings.trainer.steps:
        report.measure(out, trainer, measured, resumed_from=done)
    evaluating_s = time.perf_counter()
    with learner.precisions.exact():  # as `tamis predict` and other layouts judge it
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


def train(
    settings: Settings, out: Path, trainer: Trainer, loader: Loader, done: int, stop: Stop
) -> Measured | None:
    """Take the steps from ``done`` to ``trainer.steps``; what was measured here, None where SIGTERM came."""
    learner, meter, steps = trainer.learner, trainer.meter, settings.trainer.steps
    mesh, speed = learner.mesh, Speed(meter, steps - done)
    saved_s = time.monotonic()
    batches = iter(loader)
    with (
        Progress(out, settings, learner.task, mesh, meter, done) as progress,
        Mover(loader, device_of(mesh.device)) as mover,
        Saver(out / "checkpoints", learner, settings.trainer.checkpoints_kept) as saver,
        profiled(out / "profile", mesh.rank, meter, steps - done) as profile_step,
    ):
        stop.stepping = True
        for step in range(done, steps):
            with meter.wait("train.wait"):
                mover.make_room()
                batch = next(batches)
            # Rank 0 looks for all, at its clock and at what is being written: both are everybody's work.
            late_s = saved_s + 60 * settings.trainer.checkpoint_minutes
            late = mesh.rank == 0 and (time.monotonic() > late_s or saver.failed)
            own = (*tally(batch, mesh.leads), int(late), int(stop.asked))
            with progress.traffic.step(batch.k):
                outcome = trainer.step(batch, own, mover.move)
            *_, some_late, some_stop = outcome.tally
            progress.after(batch, outcome)
            last = bool(some_stop) or step + 1 == steps
            save = some_late or last or _due(step + 1, settings.trainer.checkpoint_steps)
            check_steps = settings.trainer.check_steps
            if _due(step + 1, check_steps) or (save and check_steps):
                refuse_drifted(learner, step)
            if save:
                refuse_broken(learner, step)
                progress.flush()
                with meter.time("train.save"):
                    saver.save(loader.state_dict(), step + 1)
                    if last:
                        saver.wait()
                saved_s = time.monotonic()
            if some_stop:
                if mesh.rank == 0:
                    log.warning("stopped by SIGTERM after step %d of %d: saved; %s", step + 1, steps, AGAIN)
                return None
            speed.count(batch.k, outcome)
            profile_step()
    stop.stepped()
    speed.stop()
    return Measured(speed, progress.traffic.levels)


def _due(step: int, every: int) -> bool:
    return every > 0 and step % every == 0
