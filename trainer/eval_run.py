"""``tamis eval``: what a checkpoint of a run is worth, judged in one process whatever layout wrote it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from ..errors import DataError, UsageError
from ..files import locked, prepare, write_atomic
from ..pipelines.dataset import Dataset
from .checkpoints import checkpoint
from .checkpoints.checkpoint import Checkpoint
from .learner import whole_model
from .mesh import joined
from .models.trunk import Trunk
from .settings import LayoutSettings, settings_of
from .tasks import Task, task_of


def evaluate(
    run: str | Path, *, step: int | None = None, split: str = "test", out: Path | None = None
) -> dict[str, Any]:
    """Judge the last checkpoint of ``run``, or that of ``step``, on a split, as its report does.

    What is found, ``{step, split, scores}``, is returned and written to ``eval.json`` in ``out`` (by default
    the folder ``eval`` of the run), beside ``predictions.arrow`` where the task has such. The run may be
    going on, or have been killed. Raises UsageError for a split or step that is not there, DataError where
    there is no checkpoint, the dataset is not that of the run, or another process writes to ``out``.
    """
    run = Path(run)
    settings = settings_of(run)
    checkpoint.written(run, step)
    dataset = Dataset(settings.dataset_path(run))
    if split not in dataset.splits:
        raise UsageError(
            "--split", f"{dataset.path} has no split '{split}'", f"it has {', '.join(dataset.splits)}"
        )
    task = task_of(settings.model, dataset)
    out = run / "eval" if out is None else out
    with joined(LayoutSettings()) as mesh, locked(out):
        prepare(out / "eval.json")  # before it takes long
        state, model = checkpoint.reading(run, step, lambda path: _read(path, task, dataset))
        scores = task.evaluate(dataset, model.to(mesh.device), mesh, settings.trainer, out, split)
        if scores is None:
            raise DataError(
                dataset.path, f"split '{split}' has nothing to judge by", "label it, or give another"
            )
        found = {"step": state.step, "split": split, "scores": scores}
        write_atomic(out / "eval.json", json.dumps(found, indent=1, allow_nan=False) + "\n")
    return found


def _read(path: Path, task: Task, dataset: Dataset) -> tuple[Checkpoint, Trunk]:
    """A checkpoint and its model."""
    state = checkpoint.read(path)
    (learned_from,) = (part["fingerprint"] for part in state.loader["datasets"])
    if learned_from != dataset.fingerprint:
        cause = f"is not the dataset that {path} learned from: {dataset.fingerprint}, not {learned_from}"
        raise DataError(dataset.path, cause, "put the run's dataset back, or train on this one")
    model = whole_model(task)
    checkpoint.load_model(path, model)
    return state, model
