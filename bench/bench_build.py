"""The benchmark of the build: raw LAZ tiles to a dataset, beside decoding alone and a script by hand.

Every run is a process of its own on CPUs of its own, with the files in the page cache; all ways take turns,
after one round that is not counted, and medians count. What the last run wrote is flushed to the disk before
the next starts. That the build and the script give the same is checked before anything is timed.

LAZ is decoded by lazrs for all of them, on one thread.
"""

from __future__ import annotations

import json
import logging
import os
import resource
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from ..errors import DataError
from ..files import write_atomic
from ..pipelines import sources
from .build_check import differs
from .build_script import CLASSES
from .build_table import ABOUT, DECODE, EVERY, OURS, SCRIPT, figures
from .compare import Report, Row
from .loader import machine

log = logging.getLogger(__name__)

POINTS = 10_000_000
"""About as many points are read where ``copies`` is not given, over all kinds of files."""

ROUNDS = 5
_TIMEOUT_S = 1800


@dataclass(frozen=True)
class Kind:
    """Files with equal fields, by a pattern below the folder of data, and the ``size`` of their tiles.

    ``fields``: what is kept beside position, label and row; None is every field.
    """

    name: str
    files: str
    size: float
    fields: tuple[str, ...] | None = None


KINDS = (
    Kind("ign_dense", "ign_dense/*.laz", 10),
    Kind("ign_wide", "big/*.laz", 100),
    Kind("colour", "reader/*a*[3m].laz", 50),
    Kind("ign_dense_few", "ign_dense/*.laz", 10, ("intensity",)),
    Kind("ign_wide_few", "big/*.laz", 100, ("intensity",)),
)


@dataclass(frozen=True)
class Way:
    """How it is done, on how many CPUs."""

    name: str
    workers: int


WAYS = (Way(DECODE, 1), Way(SCRIPT, 1), Way(OURS, 1), Way(SCRIPT, 2), Way(OURS, 2))


def run(
    folder: Path,
    data: Path | None,
    *,
    copies: int | None = None,
    rounds: int = ROUNDS,
    out: Path | None = None,
    kinds: Sequence[Kind] = KINDS,
) -> Report:
    """Measure with files below ``folder``, made from those in ``data``; write the report to ``out``.

    ``copies`` of each file. Raises DataError where none of the files is there, and where the build and the
    script do not give the same.
    """
    root = sources.folder(data)
    found = {kind: sorted(root.glob(kind.files)) for kind in kinds}
    for kind, files in found.items():
        if not files:
            log.info("%s: no %s in %s, left out", kind.name, kind.files, root)
    there = [kind for kind in kinds if found[kind]]
    if not there:
        raise DataError(root, "holds no LAZ file of this benchmark", "name another --data")
    share = POINTS / len(there)
    points = {kind.name: _copied(folder / kind.name, found[kind], copies, share) for kind in there}
    report: Report = {
        **machine(),
        "about": ABOUT,
        "rounds": rounds,
        "points": points,
        "rows": [],
        "stages": {},
        "figures": [],
    }
    for kind in there:
        _check(kind, folder)
    runs: dict[tuple[Kind, Way], list[Row]] = {}
    cpus = len(os.sched_getaffinity(0))
    ways = [way for way in WAYS if way.workers <= cpus]
    for number in range(1 + rounds):
        # Another one begins in each round, so that none always follows the same.
        for way in [*ways[number % len(ways) :], *ways[: number % len(ways)]]:
            for kind in there:
                one = measured(kind, way, folder)
                log.info("round %d of %d: %s, %s", number, rounds, kind.name, told(way, one))
                if number:
                    runs.setdefault((kind, way), []).append(one)
        if number and out:
            _fill(report, runs)
            write_atomic(out, json.dumps(report, indent=1) + "\n")
    _fill(report, runs)
    return report


def told(way: Way, one: Row) -> str:
    """A run as plain text."""
    return f"{way.name}, {way.workers} CPU: {one['wall_s']:.2f} s wall, {one['cpu_s']:.2f} s CPU"


def _fill(report: Report, runs: Mapping[tuple[Kind, Way], Sequence[Row]]) -> None:
    """Medians of the rounds, the stages of the last, and what follows from them."""
    report["rows"] = []
    for (kind, way), of in runs.items():
        row: Row = {"kind": kind.name, "way": way.name, "workers": way.workers}
        row |= {"fields": ", ".join(kind.fields) if kind.fields else EVERY}
        row |= {"points": report["points"][kind.name]}
        row |= {name: median(one[name] for one in of) for name in of[0] if name != "stages"}
        report["rows"].append(row | {"walls_s": [one["wall_s"] for one in of]})
        if "stages" in of[-1]:
            report["stages"][f"{kind.name}, {way.workers} CPU"] = of[-1]["stages"]
    report["figures"] = [figure.values() for figure in figures(report["rows"])]


def _copied(folder: Path, files: Sequence[Path], copies: int | None, points: float) -> int:
    """Put copies of the files under other names into ``folder``; how many points they have in all."""
    import laspy

    held = 0
    for file in files:
        with laspy.open(file) as reader:
            held += reader.header.point_count
    copies = copies or max(round(points / held), 1)
    shutil.rmtree(folder, ignore_errors=True)
    source = folder / "source"
    source.mkdir(parents=True)
    for number in range(copies):
        for file in files:
            shutil.copyfile(file, source / f"{file.stem}_{number:03d}{file.suffix}")
    return held * copies


def _check(kind: Kind, folder: Path) -> None:
    """Raises DataError where the build and the script do not give the same."""
    for way in (Way(OURS, 1), Way(SCRIPT, 1)):
        measured(kind, way, folder, keep=True)
    difference = differs(folder / kind.name / OURS, folder / kind.name / SCRIPT)
    if difference:
        raise DataError(folder / kind.name, f"the build and the script differ: {difference}")
    log.info("%s: the build and the script give the same", kind.name)
    for name in (OURS, SCRIPT):
        shutil.rmtree(folder / kind.name / name)


def measured(kind: Kind, way: Way, folder: Path, *, keep: bool = False) -> Row:
    """One run: seconds from after its imports, ``whole`` ones with them, each wall and CPU."""
    source, written = folder / kind.name / "source", folder / kind.name / way.name
    shutil.rmtree(written, ignore_errors=True)
    _cache(source)
    os.sync()  # else the kernel writes for the last run while this one is timed
    job = None
    command = [sys.executable, "-P", "-W", "ignore"]
    if way.name == SCRIPT:
        script = str(Path(__file__).with_name("build_script.py"))
        command += [script, str(source), str(written), f"--size={kind.size}", f"--workers={way.workers}"]
        command += [f"--field={name}" for name in kind.fields or ()]
    else:
        command += ["-m", "tamis.bench.build_ways"]
        about = {"way": way.name, "source": str(source), "out": str(written), "size": kind.size}
        about |= {"fields": kind.fields}
        job = json.dumps({**about, "classes": CLASSES, "workers": way.workers})
    with _on(way.workers):
        before, start_s = _children_s(), time.perf_counter()
        done = subprocess.run(
            command,
            input=job,
            capture_output=True,
            text=True,
            timeout=_TIMEOUT_S,
            env=_environment(folder),
        )
        whole = {"whole_s": time.perf_counter() - start_s, "whole_cpu_s": _children_s() - before}
    if done.returncode:
        last = [f"ended with exit code {done.returncode}", *filter(None, done.stderr.splitlines())][-1]
        raise DataError(source, f"{way.name} failed: {last}")
    if not keep:
        shutil.rmtree(written, ignore_errors=True)
    return {**json.loads(done.stdout.splitlines()[-1]), **whole}


def _environment(folder: Path) -> dict[str, str]:
    """One thread for each library; bytecode is kept, else every run would compile what it imports."""
    kept = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    ours = {"RAYON_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}
    return {**kept, **ours, "PYTHONPYCACHEPREFIX": str(folder / "bytecode")}


def _cache(folder: Path) -> None:
    """Have the files in the page cache."""
    for path in folder.iterdir():
        path.read_bytes()


@contextmanager
def _on(cpus: int) -> Iterator[None]:
    """Have what is started in the block run on so many CPUs."""
    mine = os.sched_getaffinity(0)
    os.sched_setaffinity(0, sorted(mine)[-cpus:])
    try:
        yield
    finally:
        os.sched_setaffinity(0, mine)


def _children_s() -> float:
    """CPU seconds of the children that have been waited for, and of theirs."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime
