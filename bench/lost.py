"""What the loss of a rank costs: `python -m tamis.bench.lost [RANKS]` prints the table.

The quickstart on RANKS replicas (2), of which the last is killed with kill -9 after each second checkpoint.
Times are from the kill on: until the command says that all start again, until the checkpoint is read, and
until the first step is done again; what came after the checkpoint is learned again on top.
"""

from __future__ import annotations

import os
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path

ROUNDS, EVERY = 5, 20


def lost_s(ranks: int, folder: Path) -> list[tuple[float, float, float]]:
    """For each kill, the seconds until ranks start again, go on from a checkpoint, and have done a step."""
    sets = {"layout.dp": ranks, "trainer.steps": 2 * EVERY * (ROUNDS + 1), "trainer.checkpoint_steps": EVERY}
    args = [word for key, value in sets.items() for word in ("--set", f"{key}={value}")]
    command = [sys.executable, "-m", "tamis", "train", "quickstart", "--out", str(folder), *args]
    run = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    said: list[tuple[float, str]] = []

    def listen() -> None:
        assert run.stderr is not None
        said.extend((time.monotonic(), line) for line in run.stderr)

    threading.Thread(target=listen, daemon=True).start()
    found = [_kill(run, folder, 2 * EVERY * (i + 1), ranks, said) for i in range(ROUNDS)]
    run.kill()
    run.wait()
    return found


def _kill(
    run: subprocess.Popen[str], folder: Path, step: int, ranks: int, said: list[tuple[float, str]]
) -> tuple[float, float, float]:
    """Kill a rank after the checkpoint of a step."""
    lines, heard = folder / "steps.jsonl", len(said)
    _until((folder / "checkpoints" / f"step-{step:08d}").exists, run)
    before = lines.stat().st_ino  # each start writes the file anew
    killed_s = time.monotonic()
    os.kill(_last_rank(run.pid, ranks), signal.SIGKILL)
    _until(lambda: lines.stat().st_ino != before and lines.read_bytes().count(b"\n") > step, run)
    done_s = time.monotonic()
    again_s, resumed_s = (
        next(s for s, line in said[heard:] if words in line) for words in ("start again", "resumed from")
    )
    return again_s - killed_s, resumed_s - killed_s, done_s - killed_s


def _last_rank(command: int, ranks: int) -> int:
    children = Path(f"/proc/{command}/task/{command}/children").read_text().split()
    name = f"{ranks - 1}.json"
    return next(int(c) for c in children if name in Path(f"/proc/{c}/cmdline").read_text())


def _until(ready: Callable[[], bool], run: subprocess.Popen[str]) -> None:
    while not ready():
        if run.poll() is not None:
            raise RuntimeError(f"the run ended with {run.returncode}")
        time.sleep(0.005)


def main(ranks: int) -> None:
    """Measure and print."""
    with tempfile.TemporaryDirectory() as folder:
        found = lost_s(ranks, Path(folder))
    print(f"{ranks} ranks, {ROUNDS} kills, seconds from the kill on: median (worst)\n")
    for name, seconds in zip(
        ("the command starts all ranks again", "they go on from the checkpoint", "a step is done"),
        zip(*found, strict=True),
        strict=True,
    ):
        print(f"{name:36s} {statistics.median(seconds):6.2f} ({max(seconds):.2f})")


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 2)
