"""The benchmark of loaders: tamis and its peers on the same clouds, in one run.

The page cache is warm, loaders have at most two threads or processes for their work, and the consumer reads
every byte of every batch. Each setting is measured in a process of its own, one at a time; those that the
comparisons rest on are measured again, in turn, and the medians count.
"""

from __future__ import annotations

import json
import logging
import os
import platform
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ..errors import DataError, UsageError
from ..files import write_atomic
from . import clouds, jobs, peers
from .clouds import Shape
from .compare import ABOUT, Report, Row, figures, line
from .envs import python_for
from .readers import readers
from .sweep import Effort, Sweep

log = logging.getLogger(__name__)

EFFORT = Effort()
SIZES: Mapping[str, Mapping[str, int]] = {"on_the_way": {}, "prefix": {}}

_FREE_GB = 12


def run(
    folder: Path,
    envs: Path,
    *,
    only: Sequence[str] = (),
    out: Path | None = None,
    shapes: Sequence[Shape] = clouds.SHAPES,
    sizes: Mapping[str, Mapping[str, int]] = SIZES,
    effort: Effort = EFFORT,
) -> Report:
    """Measure, with files below ``folder``, and write the report to ``out`` after every setting.

    ``only``: names of files in `peers`; what ``out`` holds of others is kept then. ``sizes``: of the
    comparisons in `sampling`. Raises UsageError for a name that is no peer, DataError for a disk without
    room.
    """
    for name in only:
        if name not in peers.FILES:
            raise UsageError("--only", f"there is no '{name}'", f"choose among {', '.join(peers.FILES)}")
    folder.mkdir(parents=True, exist_ok=True)
    free_gb = shutil.disk_usage(folder).free / 1e9
    if shapes == clouds.SHAPES and free_gb < _FREE_GB:
        raise DataError(folder, f"has {free_gb:.0f} GB free, {_FREE_GB} are needed", "name another --folder")
    files = [name for name in peers.FILES if name in (only or peers.FILES)]
    report = _begun(out if only else None, {peers.load(name).NAME for name in files})

    def save() -> None:
        if out:
            report["figures"] = [figure.values() for figure in figures(report)]
            write_atomic(out, json.dumps(report, indent=1) + "\n")

    def add(row: Row) -> None:
        report["rows"].append(row)
        log.info("%s, %s: %s", row["set"], row["delivery"], line(row))
        save()

    for shape in shapes:
        sweep = Sweep(shape, folder / shape.name, envs, effort, report["versions"])
        sweep.measure(files, add)
        log.info("%s: measuring the best again", shape.name)
        sweep.again(report["rows"])
        if shape.name == "8mb":
            report["readers"] += readers(sweep, report["rows"])
        save()
    if "tamis" in files:
        report["sampling"] = {name: _sampling(folder, envs, name, sizes[name], effort) for name in sizes}
    save()
    return report


def _sampling(folder: Path, envs: Path, name: str, sizes: Mapping[str, int], effort: Effort) -> Row:
    job = {"task": "sampling", "name": name, "folder": str(folder / "sampling"), "sizes": dict(sizes)}
    log.info("sampling: %s", name.replace("_", " "))
    try:
        return jobs.start(python_for(peers.load("tamis"), envs), job, envs).answer(effort.timeout_s)
    except jobs.Failed as error:
        return {"failed": str(error)}


def _begun(out: Path | None, names: set[str]) -> Report:
    """An empty report, or the one in ``out`` without the rows of these loaders."""
    if out is not None and out.is_file():
        try:
            report: Report = json.loads(out.read_text())
            for part in ("rows", "readers"):
                report[part] = [row for row in report[part] if row["loader"] not in names]
        except (ValueError, KeyError, TypeError) as error:
            raise DataError(out, f"is no report of this benchmark ({error})", "name another --json") from None
        return report
    return {
        **machine(),
        "about": ABOUT,
        "versions": {},
        "rows": [],
        "readers": [],
        "sampling": {},
        "figures": [],
    }


def machine() -> dict[str, Any]:
    """What a benchmark runs on."""
    return {
        "machine": platform.machine(),
        "processor": _processor(),
        "cpus": len(os.sched_getaffinity(0)),
        "python": platform.python_version(),
    }


def _processor() -> str:
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), "")
