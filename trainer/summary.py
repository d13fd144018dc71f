"""A report as text, for a console."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from ..errors import DataError
from ..metrics import render


def read(path: Path, default: Any = None) -> Any:
    """One of a run's JSON files; ``default`` where it is not there. Raises DataError where it is damaged."""
    if default is not None and not path.exists():
        return default
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise DataError(path, f"cannot be read ({error.strerror})", "run the same command again") from None
    except ValueError as error:
        raise DataError(path, f"is damaged ({error})", "remove it and run the same command") from None


def text(report: dict[str, Any]) -> str:
    """The stages of ``report.json``, how fast the run was, and what was learned."""
    lines = [render(report["stages"], report["limiting_stage"]), "", *_run(report)]
    if report["samples_per_s"]:
        rates = {unit: report[f"{unit}_per_s"] for unit in ("points", "tokens")}
        rows = "".join(f"{rate / 1e3:.1f} thousand {unit}/s, " for unit, rate in rates.items() if rate)
        lines.append(
            f"in the steady state {report['samples_per_s']:.1f} samples/s, {rows}"
            f"{report['data_wait_fraction']:.1%} of the time waiting for data"
        )
    if report["loss_first"] is not None:
        lines.append(f"loss {report['loss_first']:.4f} at first, {report['loss_last']:.4f} at last")
    if report["eval"]:
        lines += _learned(report["eval"])
    return "\n".join(lines)


def _run(report: dict[str, Any]) -> list[str]:
    resumed = f", resumed from step {report['resumed_from']}" if report["resumed_from"] else ""
    training = f"training {report['train_wall_s']:.1f} s ({report['train_cpu_s']:.1f} CPU s)"
    return [
        f"{report['steps']} steps, {report['updates']} updates on {report['world_size']} rank(s){resumed}",
        f"{training}, evaluation {report['eval_wall_s']:.1f} s, the whole command {report['wall_s']:.1f} s",
    ]


def _learned(evaluation: dict[str, Any]) -> list[str]:
    unit = evaluation["unit"]
    best = "token" if unit == "tokens" else "class"
    judged = (
        f"accuracy {evaluation['accuracy']:.4f} (the most frequent {best} alone {evaluation['majority']:.4f})"
    )
    if evaluation["mean_iou"] is not None:
        each = ", ".join(f"{name} {iou:.3f}" for name, iou in evaluation["iou"].items())
        judged += f", mean IoU {evaluation['mean_iou']:.4f} ({each})"
    if "perplexity" in evaluation:
        judged += (
            f", perplexity {evaluation['perplexity']:.3f}, {evaluation['bits_per_byte']:.3f} bits a byte"
        )
    total = evaluation["samples"] if unit == "clouds" else evaluation["points"]
    return [
        f"test: {judged}, loss {evaluation['loss']:.4f}",
        f"test: {evaluation['labelled']:,} labelled of {total:,} {unit}, {evaluation['dropped']:,} dropped",
    ]
