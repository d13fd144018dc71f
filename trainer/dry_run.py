"""``tamis train --dry-run``: what each rank of a run would hold, do and send."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from ..errors import UsageError
from ..pipelines.dataset import Dataset
from .estimate import Estimator, parameters_of
from .mesh import AXES
from .model_settings import TokenSettings
from .settings import Settings
from .tasks import NextToken, Task, TaskState, cloud_task, task_of

_LEGEND = """\
state: parameters, gradients and the optimiser's; gathered: what is whole for a while of what is sharded;
GFLOP, and MB sent along each axis: of a step at {k} rows a sample"""


def text(settings: Settings, task: Task) -> str:
    """The estimates as a table, one line a rank, of the axes that have more than one."""
    estimator = Estimator(settings, task)
    ranks, layout = estimator.ranks(), settings.layout
    axes = [axis for axis, size in zip(AXES, estimator.sizes, strict=True) if size > 1]
    head = ["rank", *axes, "blocks", "parameters", "state MB", "gathered MB", "activations MB", "GFLOP"]
    rows = [[*head, *(f"{axis} MB" for axis in axes)]]
    for r in ranks:
        state = sum(r.memory[name] for name in ("parameters", "gradients", "optimiser"))
        held = [state, r.memory["gathered"], r.memory["activations"]]
        row = [str(r.rank), *(str(r.place[axis]) for axis in axes), _ranges(r.blocks), f"{r.parameters:,}"]
        row += [f"{value / 1e6:.2f}" for value in held]
        row += [f"{r.flops / 1e9:.2f}", *(f"{r.wire_bytes.get(axis, 0.0) / 1e6:.3f}" for axis in axes)]
        rows.append(row)
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = ["  ".join(f"{cell:>{w}}" for cell, w in zip(row, widths, strict=True)) for row in rows]
    whole = sum(p.held(1, 0) for part in estimator.parts for p in parameters_of(task, part, 1, 0))
    told = f"{layout.ranks} rank(s), {whole:,} parameters"
    if layout.pp > 1:
        told += f"; {layout.schedule} over {layout.parts} microbatches, bubble {estimator.bubble():.1%}"
    return "\n".join([told, *lines, _LEGEND.format(k=estimator.k)])


def planned_task(settings: Settings, out: Path) -> Task:
    """The task of a run, be its dataset built or not. Raises UsageError where its classes are not known."""
    path, model = settings.dataset_path(out), settings.model
    if path.exists():
        return task_of(model, Dataset(path))
    if isinstance(model, TokenSettings):
        return NextToken(model, True, str(path))
    if not settings.data.classes:
        raise UsageError(
            path, "is not built, and data.classes is empty", "name the classes or build it first"
        )
    return cloud_task(model, TaskState(classes=tuple(settings.data.classes)), model.columns, str(path))


def _ranges(blocks: Sequence[int]) -> str:
    """Blocks as 0-3,8."""
    starts = [i for i in blocks if i - 1 not in blocks]
    ends = [i for i in blocks if i + 1 not in blocks]
    return ",".join(str(a) if a == b else f"{a}-{b}" for a, b in zip(starts, ends, strict=True))
