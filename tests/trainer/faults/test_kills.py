"""Ranks of a run are killed, stopped and lost, and what comes out is what an uncut run gives."""

from __future__ import annotations

import json
import logging
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tamis.config import check, dumps
from tamis.pipelines.build import build
from tamis.pipelines.dataset import Dataset
from tamis.trainer import loop
from tamis.trainer.log import read_lines
from tamis.trainer.mesh import Mesh
from tamis.trainer.settings import LayoutSettings, Settings

Make = Callable[..., Any]


def with_layout(settings: Settings, sizes: dict[str, Any]) -> Settings:
    values = settings.model_dump(mode="json", exclude_none=True)
    values["layout"] |= sizes
    values["loader"]["feeder"] = "node"
    return check(values, Settings, where="here")


class Command:
    """``tamis train`` on a configuration, and the processes that it started."""

    def __init__(self, settings: Settings, config: Path, out: Path) -> None:
        config.write_text(dumps(settings))
        self.out = out
        self._lines = 0  # the inode of steps.jsonl at the last signal: each start writes it anew
        self.process = subprocess.Popen(
            [sys.executable, "-m", "tamis", "train", str(config), "--out", str(out)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={k: v for k, v in os.environ.items() if k != "RANK"} | {"OMP_NUM_THREADS": "1"},
        )

    def await_step(self, step: int) -> None:
        """Until so many are done since the last start, by the lines on the disk."""
        lines, until = self.out / "steps.jsonl", time.monotonic() + 100
        while not lines.exists() or lines.stat().st_ino == self._lines or len(read_lines(lines)) < step:
            assert self.process.poll() is None, self.process.communicate()
            assert time.monotonic() < until, f"step {step} did not come"
            time.sleep(0.005)

    def send(self, number: int, kind: str) -> None:
        """A signal to a rank, ``kind`` being its number, or to the feeder."""
        self._lines = (self.out / "steps.jsonl").stat().st_ino
        ranks = {arguments[-1]: pid for pid, arguments in children(self.process.pid)}
        wanted = ranks.get(str(self.out / ".ranks" / f"{kind}.json"), 0)
        if kind == "feeder":
            started = [child for rank in ranks.values() for child in children(rank)]
            (wanted,) = [pid for pid, words in started if words[-1] == "tamis.loaders.feeder"]
        os.kill(wanted, number)

    def end(self) -> str:
        """What it said, when it has ended well."""
        printed, errors = self.process.communicate(timeout=200)
        assert self.process.returncode == 0, errors
        assert "rank(s)" in printed
        return errors


def children(pid: int) -> Iterator[tuple[int, list[str]]]:
    """The processes that one has started, with their arguments."""
    for task in Path(f"/proc/{pid}/task").iterdir():
        for child in (task / "children").read_text().split():
            words = Path(f"/proc/{child}/cmdline").read_bytes().decode().split("\0")[:-1]
            yield int(child), words or [""]


def uncut(settings: Settings, dataset: Dataset, out: Path, run_ranks: Make) -> None:
    port = str(20000 + os.getpid() % 20000)  # names the feeder of these ranks
    out.mkdir(exist_ok=True)

    def go(mesh: Mesh) -> None:
        world = {"LOCAL_RANK": str(mesh.rank), "LOCAL_WORLD_SIZE": str(mesh.world), "MASTER_PORT": port}
        os.environ.update(world)
        loop.run(settings, dataset, out, mesh, 0.0)

    run_ranks(settings.layout, go)


def cut_and_compared(
    settings: Settings, cuts: Sequence[tuple[int, int, str]], folder: Path, run_ranks: Make
) -> str:
    """A run that gets each signal at a step (signal, step, kind): it ends as one that gets none."""
    dataset = build(settings.data, folder / "whole")
    uncut(settings, dataset, folder / "whole", run_ranks)
    run = Command(settings, folder / "small.toml", folder / "cut")
    try:
        for number, step, kind in cuts:
            run.await_step(step)
            run.send(number, kind)
        errors = run.end()
    finally:
        run.process.kill()
    for name in ("steps.jsonl", "predictions.arrow"):
        assert (folder / "cut" / name).read_bytes() == (folder / "whole" / name).read_bytes(), name
    assert errors.count("all ranks start again") == len(cuts)
    return errors


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_run_that_loses_ranks_is_that_which_lost_none(
    run_settings: Make, tmp_path: Path, run_ranks: Make
) -> None:
    settings = with_layout(run_settings(steps=150, checkpoint_steps=10), {"dp": 2, "timeout_s": 4.0})
    cuts = [(signal.SIGKILL, 15, "0"), (signal.SIGSTOP, 52, "1"), (signal.SIGKILL, 94, "feeder")]
    errors = cut_and_compared(settings, cuts, tmp_path, run_ranks)
    assert "rank 0: was killed by SIGKILL; all ranks start again" in errors
    assert "rank 1 said nothing when asked" in errors
    assert re.search(r"the feeder \(process \d+\) has ended", errors)


LAYOUTS: dict[str, tuple[dict[str, Any], int]] = {
    "dp2": ({"dp": 2}, 6),
    "tp2": ({"tp": 2}, 6),
    "pp2-dp2": ({"pp": 2, "dp": 2, "microbatches": 2}, 8),
}
"""Layouts, and how often a process of a run is killed: 20 times in all."""


@pytest.mark.soak
@pytest.mark.timeout(900)
@pytest.mark.parametrize("name", LAYOUTS)
def test_kill_9_of_each_kind_of_process_at_random_steps(
    name: str, run_settings: Make, tmp_path: Path, run_ranks: Make
) -> None:
    sizes, kills = LAYOUTS[name]
    settings = with_layout(run_settings(steps=300, checkpoint_steps=10), sizes)
    kinds = [*map(str, range(settings.layout.ranks)), "feeder"]  # what each rank does differs with its place
    seed = int(time.time())
    steps = np.sort(np.random.default_rng(seed).choice(np.arange(2, 280), kills, replace=False)).tolist()
    cuts = [(signal.SIGKILL, step, kinds[i % len(kinds)]) for i, step in enumerate(steps)]
    logging.getLogger(__name__).warning("%s, seed %d: %s", name, seed, cuts)
    cut_and_compared(settings, cuts, tmp_path, run_ranks)


def test_with_a_machine_less_the_batches_and_losses_stay(
    run_settings: Make, dataset: Dataset, tmp_path: Path, run_ranks: Make, killed_in: Make
) -> None:
    """Five ranks, then four: batches of six samples are shared out as 2 1 1 1 1, then as 2 2 1 1."""
    base = run_settings(steps=8, checkpoint_steps=2)
    loader = base.loader.model_copy(update={"batch": 6})
    layout = LayoutSettings(dp=5, min_dp=4)
    settings = base.model_copy(update={"loader": loader, "layout": layout})

    def go(mesh: Mesh, out: Path, layout: LayoutSettings, cut: int | None) -> None:
        out.mkdir(exist_ok=True)
        with killed_in(cut):
            loop.run(settings.model_copy(update={"layout": layout}), dataset, out, mesh, 0.0)

    run_ranks(layout, go, tmp_path / "five", layout, None)
    run_ranks(layout, go, tmp_path / "four", layout, 5)
    run_ranks(layout.on(4), go, tmp_path / "four", layout.on(4), None)
    five, four = (read_lines(tmp_path / name / "steps.jsonl") for name in ("five", "four"))
    for mine, theirs in zip(four, five, strict=True):
        for key in ("step", "epoch", "samples", "points", "crc", "lr"):
            assert mine[key] == theirs[key], key
        assert mine["loss"] == pytest.approx(theirs["loss"], rel=1e-5)
    report = json.loads((tmp_path / "four" / "report.json").read_text())
    assert (report["world_size"], report["resumed_from"]) == (4, 4)
