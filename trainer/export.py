"""What a run tells of itself while it runs: JSON lines, Prometheus and TensorBoard, written by rank 0.

All three hold the same numbers, those of a row: name -> number, or name -> {label: number} such as bytes by
mesh axis, or name -> {label: {figure: number}} such as the figures of each stage. None stands for a number
that there is not.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Self

from pydantic import Field

from ..config import Model
from ..errors import DataError, UsageError
from ..files import write_atomic

if TYPE_CHECKING:
    from prometheus_client.core import Metric
    from prometheus_client.registry import CollectorRegistry

Row = Mapping[str, Any]

LABELS = {
    "stages": "stage",
    "ranks": "rank",
    "wire_bytes": "axis",
    "grad_norms": "layer",
    "grad_zeros_fraction": "layer",
}
"""The tables of a row, and what their keys are."""

_NAMES = {
    "lr": "learning_rate",
    "grad_norm": "gradient_norm",
    "grad_norms": "layer_gradient_norm",
    "grad_zeros_fraction": "layer_gradient_zeros_fraction",
    "k": "rows_per_sample",
    "scale": "loss_scale",
}
_UNITS = {"_per_s": "_per_second", "_s": "_seconds", "_fraction": "_ratio"}  # in this order


class ReportSettings(Model):
    """How often a run tells of itself, in steps, and to whom beside files in its folder."""

    every: Annotated[int, Field(ge=1)] = 50
    prometheus_port: Annotated[int, Field(ge=1, le=65535)] | None = None
    tensorboard: bool = False

    def due(self, step: int, steps: int) -> bool:
        """Whether a row is written after ``step`` of ``steps``: also after the last."""
        return (step + 1) % self.every == 0 or step + 1 == steps


class Exporter:
    """Writes rows to ``out/metrics.jsonl``, ``out/metrics.prom`` and where `ReportSettings` says.

    ``done``: steps of the run so far; what an earlier process wrote after them is taken back. The Prometheus
    endpoint is on this host's own address, 127.0.0.1. Raises UsageError where its port is taken, DataError
    where ``metrics.jsonl`` is damaged.
    """

    def __init__(self, out: Path, settings: ReportSettings, done: int) -> None:
        self._latest = _Latest()
        self._prom, registry = out / "metrics.prom", _registry(self._latest)
        with ExitStack() as opened:
            if settings.prometheus_port is not None:
                _serve(settings.prometheus_port, registry, opened)
            path = out / "metrics.jsonl"
            _cut(path, done)
            self._lines = opened.enter_context(path.open("a", encoding="utf-8"))
            self._board = None
            if settings.tensorboard:
                from torch.utils.tensorboard import SummaryWriter  # takes seconds

                self._board = SummaryWriter(str(out / "tensorboard"), purge_step=done)
                opened.callback(self._board.close)
            self._opened = opened.pop_all()
        self._registry = registry

    def write(self, row: Row) -> None:
        """Write one row, of which ``step`` is the number of the global batch. Numbers are finite or None."""
        from prometheus_client import generate_latest

        self._lines.write(json.dumps(row, allow_nan=False) + "\n")
        self._lines.flush()
        self._latest.row = row
        # Renamed, so that a collector never sees half a file, but not flushed to the disk, which takes longer
        # than a step: after a crash of the machine nobody asks what the latest numbers were.
        temporary = self._prom.with_name(f".{self._prom.name}.{os.getpid()}.tmp")
        temporary.write_bytes(generate_latest(self._registry))
        temporary.replace(self._prom)
        if self._board is not None:
            for tag, value in _scalars(row):
                self._board.add_scalar(tag, value, row["step"])

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._opened.close()


def metric_name(name: str) -> str:
    """The Prometheus name of a number: units in full, a share is a ratio."""
    name = _NAMES.get(name, name)
    for short, whole in _UNITS.items():
        if name.endswith(short):
            return f"tamis_train_{name.removesuffix(short)}{whole}"
    return f"tamis_train_{name}"


class _Latest:
    """The latest row as gauges, for Prometheus to collect (from another thread, if it asks by HTTP)."""

    def __init__(self) -> None:
        self.row: Row = {}

    def collect(self) -> Iterator[Metric]:
        from prometheus_client.core import GaugeMetricFamily

        for name, value in self.row.items():
            told = f"{name} of metrics.jsonl"
            if not isinstance(value, Mapping):
                if value is not None:
                    yield GaugeMetricFamily(metric_name(name), told, value)
                continue
            label, gauges = LABELS[name], dict[str, GaugeMetricFamily]()
            for key, inner in value.items():
                figures = (
                    {f"{label}_{figure}": number for figure, number in inner.items()}
                    if isinstance(inner, Mapping)
                    else {name: inner}
                )
                for figure, number in figures.items():
                    if number is not None:
                        gauge = gauges.setdefault(
                            figure, GaugeMetricFamily(metric_name(figure), told, labels=[label])
                        )
                        gauge.add_metric([str(key)], number)
            yield from gauges.values()


def _registry(latest: _Latest) -> CollectorRegistry:
    from prometheus_client import CollectorRegistry  # here, as only one rank of a run needs it

    registry = CollectorRegistry()
    registry.register(latest)
    return registry


def _serve(port: int, registry: CollectorRegistry, opened: ExitStack) -> None:
    from prometheus_client import start_http_server

    try:
        server, thread = start_http_server(port, addr="127.0.0.1", registry=registry)
    except OSError as error:
        cause = f"cannot be listened on ({error.strerror})"
        raise UsageError(f"report.prometheus_port = {port}", cause, "choose another port") from None
    opened.callback(thread.join)
    opened.callback(server.server_close)
    opened.callback(server.shutdown)


def _cut(path: Path, done: int) -> None:
    """Leave the lines of the first ``done`` steps; what follows the last line's end was torn."""
    try:
        lines = path.read_text(encoding="utf-8").split("\n")[:-1] if path.exists() else []
        kept = [line for line in lines if json.loads(line)["step"] < done]
    except (ValueError, KeyError, TypeError) as error:
        raise DataError(path, f"is damaged ({error})", "remove it and run the same command") from None
    write_atomic(path, "".join(f"{line}\n" for line in kept))


def _scalars(row: Row, prefix: str = "") -> Iterator[tuple[str, float]]:
    """Tag and value of every number but the step's own."""
    for name, value in row.items():
        if isinstance(value, Mapping):
            yield from _scalars(value, f"{prefix}{name}/")
        elif value is not None and prefix + name != "step":
            yield prefix + name, value
