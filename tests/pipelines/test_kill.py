"""A build that is killed, at any moment and again and again, ends in the same bytes as an uncut one."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

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

def at_a_flush(left):
    flush = os.fsync
    def counted(fd):
        nonlocal left
        left -= 1
        if left < 0:
            os.kill(os.getpid(), signal.SIGKILL)
        flush(fd)
    os.fsync = counted

for cut in range(60):
    flushes, delay_s = chance.randrange(2, 9), chance.uniform(0.001, 0.05)
    child = os.fork()
    if not child:
        if cut % 2:
            at_a_flush(flushes)
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
