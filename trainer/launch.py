"""``tamis train``: prepare the folder, start the ranks, print the report."""

from __future__ import annotations

import json
import logging
import os
import shutil
import signal
import sys
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..config import differences, dumps, load
from ..errors import DataError, TamisError, UsageError, from_plain
from ..files import locked, write_atomic
from ..metrics import BUILD, Meter, stage_rows
from ..pipelines.build import build_held
from ..pipelines.dataset import Dataset
from .settings import Settings
from .summary import read, text

if TYPE_CHECKING:
    from torch.distributed.elastic.multiprocessing.errors import ProcessFailure

log = logging.getLogger(__name__)

MAY_DIFFER = {
    "data.bad_files",
    "data.engine",
    "data.max_bad",
    "data.root",
    "data.workers",
    "layout.dp",
    "layout.microbatches",
    "layout.pp",
    "layout.reshard",
    "layout.schedule",
    "layout.shard",
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

    With one rank this happens in this process; with more, torchrun's agent starts the others from here,
    unless torchrun started this process (then rank 0 prepares and prints, and others return None). The same
    call with the same ``out`` goes on where the last one was cut, and only prints the report of a finished
    run. ``TAMIS_START`` in the environment, in seconds since 1970, is when ``wall_s`` begins.

    Raises UsageError where ``out`` holds another run (only ``trainer.steps`` may be raised), DataError where
    the data, a checkpoint or a rank fails, or where another process is writing to ``out``.
    """
    out = out.absolute()
    started_s = float(os.environ.get("TAMIS_START", time.time()))
    os.environ.setdefault("OMP_NUM_THREADS", "1")  # ranks share the cores; read when torch is imported
    if "RANK" in os.environ:
        return _joined(settings, out, started_s)
    with locked(out):
        if not prepare(settings, out):
            if settings.layout.ranks == 1:
                _run_here(settings, out, started_s)
            else:
                _run_ranks(settings.layout.ranks, out, started_s)
    return _printed(out)


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
        loop.run(settings, Dataset(settings.dataset_path(out)), out, mesh, started_s)


def _joined(settings: Settings, out: Path, started_s: float) -> dict[str, Any] | None:
    """One of the ranks that torchrun started."""
    from . import loop
    from .mesh import joined

    with joined(settings.layout) as mesh:
        with locked(out) if mesh.rank == 0 else nullcontext():
            finished = mesh.first(lambda: prepare(settings, out))
            if not finished:
                loop.run(settings, Dataset(settings.dataset_path(out)), out, mesh, started_s)
        return _printed(out) if mesh.rank == 0 else None


def _run_ranks(size: int, out: Path, started_s: float) -> None:
    """Start the ranks with torchrun's agent, which ends them all when one fails."""
    from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs, SignalException
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    from torch.distributed.launcher.api import LaunchConfig, elastic_launch

    # The agent tells of a failed rank at length; the rank's own error says it in a line.
    for name in ("torch.distributed.elastic", "torch.distributed.elastic.agent.server.api"):
        logging.getLogger(name).setLevel(logging.CRITICAL)
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")  # all ranks are here, whatever the host's name means
    with _empty(out / ".ranks") as logs:
        config = LaunchConfig(
            min_nodes=1,
            max_nodes=1,
            nproc_per_node=size,
            run_id=uuid.uuid4().hex,
            rdzv_backend="c10d",
            rdzv_endpoint="127.0.0.1:0",
            local_addr="127.0.0.1",
            max_restarts=0,
            logs_specs=DefaultLogsSpecs(log_dir=str(logs)),
        )
        worker = ("-m", "tamis.trainer.worker", str(out), repr(started_s), str(os.getpid()))
        try:
            elastic_launch(config, sys.executable)(*worker)
        except ChildFailedError as error:
            raise _cause(out, error.failures, logs) from None
        except SignalException as stop:
            if stop.sigval == signal.SIGINT:
                raise KeyboardInterrupt from None
            log.error("stopped by %s; the same command continues", signal.Signals(stop.sigval).name)
            raise SystemExit(128 + stop.sigval) from None


@contextmanager
def _empty(folder: Path) -> Iterator[Path]:
    """A folder for a while, in place of what a killed process left of it."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _cause(out: Path, failures: dict[int, ProcessFailure], logs: Path) -> TamisError:
    """The error to show: one rank's failure makes the others fail too, and the agent may see those first."""
    told = {int(path.parent.name): json.loads(path.read_bytes()) for path in logs.rglob("error.json")}
    for error in sorted(told.values(), key=lambda error: float(error["told_s"])):
        if "cause" in error:  # the first: others may be of what the end of that rank broke
            return from_plain(error)
    for rank, failure in failures.items():
        # The agent itself ends the other ranks with SIGTERM.
        if failure.exitcode < 0 and failure.exitcode != -signal.SIGTERM:
            cause = f"rank {rank} was killed by {failure.signal_name()}"
            return DataError(out, cause, "see that memory suffices; the same command goes on")
    if not told:
        return DataError(out, "ranks ended without an error", "the same command goes on")
    rank = min(told, key=lambda r: float(told[r]["told_s"]))
    log.error("rank %d:\n%s", rank, told[rank]["message"]["extraInfo"]["py_callstack"].rstrip())
    return DataError(out, f"rank {rank} stopped with an error, see above", "the same command goes on")


def _printed(out: Path) -> dict[str, Any]:
    report: dict[str, Any] = read(out / "report.json")
    sys.stdout.write(text(report) + "\n")
    return report
