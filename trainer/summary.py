"""A report as text, for a console."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

from ..errors import DataError
from ..metrics import render


def read(path: Path, default: Any = None) -> Any:
    """One of a run's JSON files; ``default`` where it is not there. Raises DataError where it is damaged."""
    if default is not None and not path.exists():
        return default
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise DataError(path, f"cannot be read ({error.strerror})", "run the same command again") from None
    except ValueError as error:
        raise DataError(path, f"is damaged ({error})", "remove it and run the same command") from None
    if default is not None and type(found) is not type(default):
        cause = f"is damaged (it holds {type(found).__name__}, not {type(default).__name__})"
        raise DataError(path, cause, "remove it and run the same command")
    return found


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
    if report.get("setbacks"):
        each = ", ".join(f"{number} {why}" for why, number in report["setbacks"].items())
        lines.append(f"steps that did not go as others: {each}")
    lines += _spread(report)
    if report["loss_first"] is not None:
        lines.append(f"loss {report['loss_first']:.4f} at first, {report['loss_last']:.4f} at last")
    if report["eval"]:
        lines += learned(report["eval"])
    return "\n".join(lines)


def _run(report: dict[str, Any]) -> list[str]:
    resumed = f", resumed from step {report['resumed_from']}" if report["resumed_from"] else ""
    training = f"training {report['train_wall_s']:.1f} s ({report['train_cpu_s']:.1f} CPU s)"
    return [
        f"{report['steps']} steps, {report['updates']} updates on {report['world_size']} rank(s){resumed}",
        f"{training}, evaluation {report['eval_wall_s']:.1f} s, the whole command {report['wall_s']:.1f} s",
    ]


def _spread(report: dict[str, Any]) -> list[str]:
    """What a layout of more than one rank did."""
    lines, layout = [], report["layout"]
    if layout["pp"] > 1 and report["bubble_predicted"] is not None:
        lines.append(
            f"{layout['schedule']}: stages waited {report['bubble_fraction']:.1%} of the time, "
            f"{report['bubble_predicted']:.1%} by the order of passes alone"
        )
    if report["collectives"]:
        level = max(report["collectives"], key=int)
        sent = report["collectives"][level]
        each = ", ".join(f"{axis} {figures['wire_bytes'] / 1e6:.3f}" for axis, figures in sent.items())
        held = sorted(set(report["parameters_per_rank"]))
        span = f"{held[0]:,}" + (f" to {held[-1]:,}" if len(held) > 1 else "")
        lines.append(f"each rank held {span} parameters and sent, a step at {level} rows, MB by axis: {each}")
    return lines


def learned(evaluation: dict[str, Any], split: str = "test") -> list[str]:
    """What an evaluation on ``split`` found."""
    unit = evaluation["unit"]
    best = "token" if unit == "tokens" else "class"
    judged = (
        f"accuracy {evaluation['accuracy']:.4f} (the most frequent {best} alone {evaluation['majority']:.4f})"
    )
    if evaluation["mean_iou"] is not None:
        each = ", ".join(f"{name} {iou:.3f}" for name, iou in evaluation["iou"].items())
        judged += f", mean IoU {evaluation['mean_iou']:.4f} ({each})"
    if "perplexity" in evaluation:
        perplexity = math.inf if evaluation["perplexity"] is None else evaluation["perplexity"]
        judged += f", perplexity {perplexity:.3f}, {evaluation['bits_per_byte']:.3f} bits a byte"
    total = evaluation["samples"] if unit == "clouds" else evaluation["points"]
    counts = f"{evaluation['labelled']:,} labelled of {total:,} {unit}, {evaluation['dropped']:,} dropped"
    return [f"{split}: {judged}, loss {evaluation['loss']:.4f}", f"{split}: {counts}"]
