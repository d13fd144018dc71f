"""One run of a way to read raw files: a job on stdin as JSON, its figures on stdout.

    python -m tamis.bench.build_ways

`decode` reads every field of every file with laspy and does no more; `tamis` builds. Both are timed from
after their imports.
"""

from __future__ import annotations

import json
import resource
import sys
import time
from collections.abc import Callable
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any

Job = dict[str, Any]


def decode(files: list[str]) -> dict[str, Any]:
    """Every field of every file as a numpy array, coordinates as float64; nothing is kept."""
    import laspy
    import numpy as np

    points = 0
    for file in files:
        las = laspy.read(file)
        xyz = las.xyz
        fields = {n: np.array(las[n]) for n in las.point_format.dimension_names if n not in ("X", "Y", "Z")}
        points += len(xyz)
        assert all(len(values) == len(xyz) for values in fields.values())
    return {"points": points}


def settings_of(job: Job) -> Any:
    """Settings of a build that gives what the script gives."""
    from ..pipelines.settings import DataSettings
    from ..pipelines.tiles import TileSettings

    return DataSettings(
        root=Path(job["source"]),
        files=["*.laz"],
        classes=job["classes"],
        fields=job.get("fields"),
        tiles=TileSettings(size=job["size"]),
        row_order="random",
        workers=job["workers"],
    )


def tamis(job: Job) -> dict[str, Any]:
    """A build; with the rows of its stages."""
    from ..metrics import BUILD, Meter, stage_rows
    from ..pipelines.build import build

    settings = settings_of(job)
    meter, start_s = Meter(BUILD), time.perf_counter()
    dataset = build(settings, Path(job["out"]), meter)
    stages = stage_rows(meter.stages, meter.table[None], time.perf_counter() - start_s)
    return {"points": int(dataset.rows.sum()), "stages": stages}


def _cpu_s() -> float:
    used = (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return sum(one.ru_utime + one.ru_stime for one in used)


def work(job: Job) -> dict[str, Any]:
    """Do a job: with ``wall_s`` and ``cpu_s`` from after the imports."""
    needs = {"decode": ["laspy"], "tamis": ["laspy", "pyarrow", "tamis.pipelines.build"]}[job["way"]]
    for name in needs:
        import_module(name)
    run: Callable[[], dict[str, Any]] = (
        partial(decode, sorted(str(path) for path in Path(job["source"]).glob("*.laz")))
        if job["way"] == "decode"
        else partial(tamis, job)
    )
    start_s, cpu = time.perf_counter(), _cpu_s()
    found = run()
    wall_s, cpu = time.perf_counter() - start_s, _cpu_s() - cpu
    return {**found, "wall_s": wall_s, "cpu_s": cpu}


if __name__ == "__main__":
    print(json.dumps(work(json.load(sys.stdin))))
