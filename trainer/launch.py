"""``tamis train``: prepare the folder, start the ranks, print the report."""

from __future__ import annotations

import json
import logging
import os
import sys
import time
from contextlib import nullcontext
from pathlib import Path
from typing import Any

from ..config import differences, dumps, load
from ..errors import UsageError
from ..files import locked, write_atomic
from ..metrics import BUILD, Meter, stage_rows
from ..pipelines.build import build_held
from ..pipelines.dataset import Dataset
from .faults.orphans import die_with
from .faults.place import place, place_in
from .faults.stopping import TOLD, Stopped
from .faults.supervisor import supervise
from .settings import Settings
from .summary import read, text

log = logging.getLogger(__name__)

MAY_DIFFER = {
    "data.bad_files",
    "data.engine",
    "data.max_bad",
    "data.root",
    "data.workers",
    "layout.dp",
    "layout.microbatches",
    "layout.min_dp",
    "layout.pp",
    "layout.reshard",
    "layout.schedule",
    "layout.shard",
    "layout.timeout_s",
    "layout.tp",
    "loader.slots",
    "loader.threads",
    "loader.timeout_s",
    "report.every",
    "report.prometheus_port",
    "report.tensorboard",
    "trainer.check_steps",
    "trainer.checkpoint_minutes",
    "trainer.checkpoint_steps",
    "trainer.checkpoints_kept",
}
"""Keys that say nothing about what is learned from what."""


def train(settings: Settings, out: Path) -> dict[str, Any] | None:
    """Build the dataset if there is none, train, evaluate; print the report and return it.

    With one rank this happens in this process; more are started from here, and again where one is lost,
    unless torchrun started this process (then rank 0 prepares and prints, and others return None). The same
    call with the same ``out`` goes on where the last one was cut, and only prints the report of a finished
    run. SIGTERM while steps are taken saves what was learned and gives None: the run is not finished.
    ``TAMIS_START`` in the environment, in seconds since 1970, is when ``wall_s`` begins.

    Raises UsageError where ``out`` holds another run (only ``trainer.steps`` may be raised), DataError where
    the data or a checkpoint is at fault, or where another process is writing to ``out``, LostError where
    ranks were lost again and again.
    """
    out = out.absolute()
    started_s = float(os.environ.get("TAMIS_START", time.time()))
    os.environ.setdefault("OMP_NUM_THREADS", "1")  # ranks share the cores; read when torch is imported
    if "RANK" in os.environ:
        _joined(settings, out, started_s)
        if os.environ["RANK"] != "0":
            return None
    else:
        with locked(out):
            if not prepare(settings, out):
                run = _run_here if settings.layout.ranks == 1 else _run_ranks
                run(settings, out, started_s)
    return _printed(out) if _finished(settings, out) else None


def prepare(settings: Settings, out: Path) -> bool:
    """Build the dataset and write the configuration, as far as that is not done. Is the run finished?"""
    for left in {*out.glob(".*.tmp"), *out.glob(".predictions.arrow.*")}:  # by a process that was killed
        left.unlink()
    _check_same(settings, out)
    length = settings.data.text.length if settings.data.text else settings.trainer.points
    if length != settings.trainer.points:
        told = "data.text.length %d is not trainer.points %d: %s"
        longer = (
            "what is beyond is never learned" if length > settings.trainer.points else "the rest is padding"
        )
        log.warning(told, length, settings.trainer.points, longer)
    finished = _finished(settings, out)
    if not finished:
        if settings.data.path is None:
            _build(settings, out)
        write_atomic(out / "config.toml", dumps(settings))
    return finished


def _check_same(settings: Settings, out: Path) -> None:
    path = out / "config.toml"
    if not path.exists() or not any((out / "checkpoints").glob("step-*")):
        return  # nothing was learned yet under other settings
    before = load(path, [], Settings)
    for key in differences(before, settings):
        raised = key == "trainer.steps" and settings.trainer.steps > before.trainer.steps
        if key not in MAY_DIFFER and not raised:
            old, new = _value(before, key), _value(settings, key)
            cause = f"the run in this folder has another {key}: {old}, not {new}"
            raise UsageError(
                out, cause, "choose another --out, or the same value (only trainer.steps may rise)"
            )


def _value(settings: Settings, key: str) -> str:
    value: Any = settings.model_dump(mode="json")
    for part in key.split("."):
        value = value.get(part) if isinstance(value, dict) else None
    return json.dumps(value)


def _finished(settings: Settings, out: Path) -> bool:
    report = read(out / "report.json", {})
    return bool(report.get("steps", 0) >= settings.trainer.steps)


def _build(settings: Settings, out: Path) -> None:
    meter = Meter(BUILD)
    build_held(settings.data, out, meter)
    rows = stage_rows(BUILD, meter.table[None], time.perf_counter() - meter.started_s)
    if rows:
        write_atomic(out / "build.json", json.dumps(rows))


def _run_here(settings: Settings, out: Path, started_s: float) -> None:
    from . import loop
    from .mesh import joined

    with joined(settings.layout) as mesh:
        try:
            loop.run(settings, Dataset(settings.dataset_path(out)), out, mesh, started_s)
        except Stopped:
            log.warning(TOLD)
            raise


def _run_ranks(settings: Settings, out: Path, started_s: float) -> None:
    worker = ("-m", "tamis.trainer.worker", str(out), repr(started_s), str(os.getpid()))
    supervise(worker, settings.layout.ranks, out, lambda: _saved(out))


def _joined(settings: Settings, out: Path, started_s: float) -> None:
    """Be one of the ranks that torchrun started: there may be fewer of them since machines were lost."""
    from . import loop
    from .mesh import joined

    if "TORCHELASTIC_RUN_ID" in os.environ:  # torchrun's agent started this process
        die_with(os.getppid())
    layout = settings.layout.on(place().world)
    first = place_in(layout).rank == 0
    if layout != settings.layout and first:
        log.warning("going on with %d of %d replicas, and the same batches", layout.dp, settings.layout.dp)
    with locked(out) if first else nullcontext():
        finished = first and prepare(settings, out)  # before the others wait, as a build may take hours
        with joined(layout) as mesh:
            if not mesh.gather(finished)[0]:
                here = settings.model_copy(update={"layout": layout})
                loop.run(here, Dataset(settings.dataset_path(out)), out, mesh, started_s)


def _saved(out: Path) -> int:
    """The step of the last checkpoint; 0 where there is none."""
    steps = [int(path.name.removeprefix("step-")) for path in (out / "checkpoints").glob("step-*")]
    return max(steps, default=0)


def _printed(out: Path) -> dict[str, Any]:
    report: dict[str, Any] = read(out / "report.json")
    sys.stdout.write(text(report) + "\n")
    return report
