"""The benchmark of the training loop: what it adds to a step, beside other loops, and what two ranks give.

All loops train the bundled model on the same batches, which are there already, with the same optimiser and
clipping. Each round of each loop runs in processes of its own with one thread each; rounds take turns, and
ratios are of the same round: their median counts.
"""

from __future__ import annotations

import json
import logging
import statistics
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ..errors import DataError
from ..files import write_atomic
from . import jobs
from .compare import Figure, Report, Row, table
from .loader import machine

log = logging.getLogger(__name__)

OVERHEAD = {"clouds": 4, "points": 96, "steps": 120, "rounds": 11}
SCALING = {"clouds": 8, "points": 1024, "steps": 30, "rounds": 9}

ABOUT = {
    "median ms": "a step, median over the steps of a round; shown is the median over rounds",
    "mean ms": "a step, mean over the steps of a round: with what happens only now and then",
    "CPU ms": "user and system time a step of the first rank's process",
    "ratio": "to plain torch's or bare DDP's in the same round, median over rounds",
}

OF = ("median", "mean", "cpu")

_TIMEOUT_S = 3600.0
_BASE = {"overhead": "plain torch", "scaling": "bare DDP, two ranks"}


def run(
    out: Path | None = None, overhead: Mapping[str, int] = OVERHEAD, scaling: Mapping[str, int] = SCALING
) -> Report:
    """Measure and write the report to ``out``. Sizes: fields of `loops.Size`. DataError where that fails."""
    report: Report = {**machine(), "about": ABOUT, "versions": {}, "rows": {}, "sizes": {}}
    for name, size in (("overhead", overhead), ("scaling", scaling)):
        log.info("%s: %d rounds", name, size["rounds"])
        found = _measured(name, size)
        report["versions"] |= found["versions"]
        report["rows"][name] = [_with_ratios(row, found["rows"], _BASE[name]) for row in found["rows"]]
        report["sizes"][name] = dict(size)
    report["figures"] = [figure.values() for figure in figures(report)]
    if out:
        write_atomic(out, json.dumps(report, indent=1) + "\n")
    return report


def _measured(name: str, size: Mapping[str, int]) -> dict[str, Any]:
    with tempfile.TemporaryDirectory(prefix="tamis-bench-") as folder:
        job = {"task": "loops", "name": name, "folder": folder, "size": dict(size)}
        one_thread = {"OMP_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false"}
        try:
            return jobs.start(sys.executable, job, None, one_thread).answer(_TIMEOUT_S)
        except jobs.Failed as error:
            raise DataError(
                f"bench trainer, {name}", str(error), "see to the cause and run it again"
            ) from None


def _with_ratios(row: Row, rows: list[Row], base: str) -> Row:
    if "failed" in row:
        return row
    return {**row, **{f"{name}_ratio": _ratio(row, _row(rows, base), name) for name in OF}}


def _row(rows: list[Row], name: str) -> Row | None:
    return next((row for row in rows if row["loop"] == name and "failed" not in row), None)


def _ratio(one: Row | None, other: Row | None, of: str = "median") -> float | None:
    """Median over rounds of what a step of ``one`` takes, in steps of ``other``."""
    if one is None or other is None:
        return None
    ratios = [a / b for a, b in zip(one[f"{of}_ms"], other[f"{of}_ms"], strict=True)]
    return float(statistics.median(ratios))


def figures(report: Report) -> list[Figure]:
    """What has to be shown, from the rows of a run."""
    alone, ranks = report["rows"]["overhead"], report["rows"]["scaling"]
    one, two = _row(ranks, "tamis, one rank"), _row(ranks, "tamis, two ranks")
    return [
        Figure(
            "a step of tamis, of plain torch's",
            _ratio(_row(alone, "tamis"), _row(alone, "plain torch")),
            most=1.03,
        ),
        Figure(
            "two ranks: steps a second, of bare DDP's", _ratio(_row(ranks, "bare DDP, two ranks"), two), 0.97
        ),
        Figure("two ranks: steps a second, of one rank's", _ratio(one, two), 1.7),
    ]


def render(report: Report) -> str:
    """Rows and figures as plain text."""
    lines = []
    for name, rows in report["rows"].items():
        size = report["sizes"][name]
        lines += ["", f"{name}: {size['clouds']} clouds of {size['points']} points a batch", _HEAD]
        lines += [_line(row) for row in rows]
    lines += ["", *(f"{name}: {text}" for name, text in ABOUT.items()), "", *table(figures(report))]
    return "\n".join(lines[1:])


_HEAD = "  " + " ".join(f"{name:>9} ms {'ratio':>6}" for name in ("median", "mean", "CPU")) + "  loop"


def _line(row: Row) -> str:
    if "failed" in row:
        return f"  {'failed':>58}  {row['loop']}: {row['failed']}"
    cells = (f"{statistics.median(row[f'{of}_ms']):12.2f} {row[f'{of}_ratio'] or 0:6.3f}" for of in OF)
    return f"  {' '.join(cells)}  {row['loop']}"
