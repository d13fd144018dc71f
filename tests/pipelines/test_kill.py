"""A build that is killed, at any moment and again and again, ends in the same bytes as an uncut one."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tamis.pipelines.build import DataSettings, build
from tamis.pipelines.settings import TextSettings
from tamis.pipelines.verify import verify

# A process of its own that forks: each child goes on with the build until it is killed.
SCRIPT = """
import os, random, signal, sys, time
from pathlib import Path
from tamis.config import check
from tamis.pipelines.build import DataSettings, build
import json

settings = check(json.loads(sys.argv[1]), DataSettings, where="data")
out, chance = Path(sys.argv[2]), random.Random(int(sys.argv[3]))

def at_a_step(left):
    def counted(step):
        def call(*about, **more):
            nonlocal left
            left -= 1
            if left < 0:
                os.kill(os.getpid(), signal.SIGKILL)
            return step(*about, **more)
        return call
    for name in ("fsync", "replace", "link", "rename"):
        setattr(os, name, counted(getattr(os, name)))

for cut in range(60):
    steps, delay_s = chance.randrange(2, 25), chance.uniform(0.001, 0.05)
    child = os.fork()
    if not child:
        if cut % 2:
            at_a_step(steps)
        build(settings, out)
        os._exit(0)
    if not cut % 2:
        time.sleep(delay_s)
        os.kill(child, signal.SIGKILL)
    status = os.waitpid(child, 0)[1]
    print("finished" if status == 0 else "killed", (out / "dataset").exists(), flush=True)
    if status == 0:
        break
"""


@pytest.mark.parametrize("kind", ["scans", "texts"])
@pytest.mark.parametrize("seed", range(2))
def test_a_killed_build_goes_on_to_the_same_bytes(
    settings: DataSettings, tmp_path: Path, digests: Callable[[Path], dict[str, str]], seed: int, kind: str
) -> None:
    if kind == "texts":
        for number in range(4):
            (tmp_path / f"{number}.txt").write_bytes(os.urandom(100_000))
        settings = DataSettings(root=tmp_path, files=["*.txt"], text=TextSettings(length=2048), shard_mb=1)
    build(settings, tmp_path / "uncut")
    done = subprocess.run(
        [
            sys.executable,
            "-W",
            "ignore",
            "-c",
            SCRIPT,
            settings.model_dump_json(),
            str(tmp_path / "cut"),
            str(seed),
        ],
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    outcomes = done.stdout.split("\n")[:-1]
    assert any(outcome.startswith("killed False") for outcome in outcomes)
    build(settings, tmp_path / "cut")
    assert digests(tmp_path / "cut") == digests(tmp_path / "uncut")
    assert verify(tmp_path / "cut") == []


BUILD = """
import json, sys
from pathlib import Path
from tamis.config import check
from tamis.pipelines.build import DataSettings, build

build(check(json.loads(sys.argv[1]), DataSettings, where="data"), Path(sys.argv[2]))
"""

KILLS = int(os.environ.get("TAMIS_KILLS", "3"))


def pieces(out: Path) -> int:
    """Parts that are finished, and files of the dataset that are begun."""
    building = out / "dataset.building"
    parts = len([*building.glob("part-*.json")])
    return parts + len([*(out / "dataset").glob("*"), *(building / "dataset").glob("*")])


def killed(settings: DataSettings, out: Path, at: int, later_s: float) -> bool:
    """Whether a build could be killed, with its process group, when ``at`` pieces were there."""
    process = subprocess.Popen(
        [sys.executable, "-W", "ignore", "-c", BUILD, settings.model_dump_json(), str(out)],
        start_new_session=True,
        stderr=subprocess.DEVNULL,
    )
    while process.poll() is None and pieces(out) < at:
        time.sleep(0.0005)
    until = time.monotonic() + later_s
    while process.poll() is None and time.monotonic() < until:
        time.sleep(0.0005)
    if process.poll() is None:
        os.killpg(process.pid, signal.SIGKILL)
    return process.wait() == -signal.SIGKILL


def check_kills(
    settings: DataSettings,
    tmp_path: Path,
    scan_writer: Any,
    digests: Callable[[Path], dict[str, str]],
    kills: int,
) -> None:
    """Kill builds by 1, 2 and 4 workers in turn at random moments; another number of workers goes on."""
    root = settings.root or tmp_path
    for number in range(6):
        scan_writer(root / f"more {number}.npy", 4_000 * (number + 1), seed=number, corner=(0, 30 * number))
    settings = settings.model_copy(update={"row_order": "random"})
    build(settings, tmp_path / "uncut")
    right = digests(tmp_path / "uncut")
    most = 9 + len(right)
    seed = random.randrange(2**32)
    chance, in_time = random.Random(seed), 0
    for kill in range(kills):
        out = tmp_path / f"cut {kill}"
        with_workers = settings.model_copy(update={"workers": (1, 2, 4)[kill % 3]})
        in_time += killed(with_workers, out, chance.randint(1, most), chance.uniform(0, 0.02))
        assert pieces(out), f"seed {seed}, kill {kill}"
        build(settings.model_copy(update={"workers": (1, 1, 2)[kill % 3]}), out)
        assert digests(out) == right, f"seed {seed}, kill {kill}"
    assert in_time >= kills // 2, f"seed {seed}: {in_time} builds were killed, the others had ended"


@pytest.mark.slow
def test_a_build_by_several_workers_goes_on_to_the_same_bytes(
    settings: DataSettings, tmp_path: Path, scan_writer: Any, digests: Callable[[Path], dict[str, str]]
) -> None:
    check_kills(settings, tmp_path, scan_writer, digests, KILLS)


@pytest.mark.soak
@pytest.mark.timeout(1200)
def test_forty_kills(
    settings: DataSettings, tmp_path: Path, scan_writer: Any, digests: Callable[[Path], dict[str, str]]
) -> None:
    check_kills(settings, tmp_path, scan_writer, digests, 40)
