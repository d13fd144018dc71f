"""What is told of a run after each step: a line in ``steps.jsonl``, and now and then a row of `export`."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path
from typing import Any, Self

from ..loaders.loader import Batch
from ..metrics import Meter
from .export import Exporter
from .flops import step_flops
from .log import StepLog, described
from .mesh import Mesh
from .settings import Settings
from .step import Outcome
from .tasks import Task
from .traffic import Traffic
from .window import Window


class Progress:
    """Tells of a run; all ranks count, rank 0 writes.

    ``done``: steps of the run so far; what an earlier process wrote after them is taken back.
    """

    def __init__(
        self, out: Path, settings: Settings, task: Task, mesh: Mesh, meter: Meter, done: int
    ) -> None:
        self._settings, self._task, self._mesh = settings, task, mesh
        self._window, self.traffic = Window(meter), Traffic(mesh)
        self._lines = self._exporter = None
        with ExitStack() as opened:
            if mesh.rank == 0:
                lines = StepLog(out / "steps.jsonl", settings.trainer.steps, done)
                self._lines = opened.enter_context(lines)
                self._exporter = opened.enter_context(Exporter(out, settings.report, done))
            self._opened = opened.pop_all()

    def after(self, batch: Batch, outcome: Outcome) -> None:
        """A step is done; ``outcome.tally`` begins as `feed.tally`. Every rank calls this."""
        samples, valid, _, crc, *_ = outcome.tally
        rows = {self._task.model.unit: valid}
        self._window.count(samples=samples, flops=int(step_flops(self._task, batch.k, samples)), **rows)
        if self._lines:
            self._lines.write(batch, outcome, samples, crc)
        if self._settings.report.due(batch.step, self._settings.trainer.steps):
            figures = self._window.take(self._mesh.gather)
            if self._exporter:
                self._exporter.write(self._row(batch, outcome) | figures)

    def flush(self) -> None:
        """Before a checkpoint: a run that goes on from it keeps the lines of its steps."""
        if self._lines:
            self._lines.flush()

    def _row(self, batch: Batch, outcome: Outcome) -> dict[str, Any]:
        sent = self.traffic.levels.get(batch.k, {})
        wire_bytes = {axis: figures["wire_bytes"] for axis, figures in sent.items()}
        row = described(batch, outcome) | {"wire_bytes": wire_bytes}
        row |= {"skipped": int(outcome.skipped is not None), "recomputed": int(outcome.recomputed)}
        if outcome.layers is None:
            return row
        figures = outcome.layers.items()
        return row | {
            "grad_norms": {layer: found.norm for layer, found in figures},
            "grad_zeros_fraction": {layer: found.zeros for layer, found in figures},
        }

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._opened.close()
