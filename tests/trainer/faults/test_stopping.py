"""SIGTERM: what was learned is saved, and the same call goes on as if nothing had been."""

from __future__ import annotations

import logging
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from threading import Thread
from typing import Any

import pytest

from tamis.loaders.loader import Batch
from tamis.pipelines.dataset import Dataset
from tamis.trainer import loop
from tamis.trainer.faults.stopping import Stop, held
from tamis.trainer.mesh import Mesh, alone
from tamis.trainer.step import Trainer

Make = Callable[..., Any]
AT = 4  # the step, from 0, in which SIGTERM comes
DONE = AT + 2  # all ranks hear of it in the next one, and save after it


@pytest.fixture
def terminated(monkeypatch: pytest.MonkeyPatch) -> Callable[[int], None]:
    """``terminated(rank)``: SIGTERM comes to that rank in the middle of step `AT`."""
    take = Trainer.step

    def arm(rank: int) -> None:
        def step(trainer: Trainer, batch: Batch, *args: Any) -> Any:
            if batch.step == AT and trainer.learner.mesh.rank == rank:
                os.kill(os.getpid(), signal.SIGTERM)
            return take(trainer, batch, *args)

        monkeypatch.setattr(Trainer, "step", step)

    return arm


def test_sigterm_saves_and_ends_the_run(
    terminated: Make,
    run_settings: Make,
    dataset: Dataset,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.WARNING)
    settings = run_settings(checkpoint_steps=100)
    out, whole = tmp_path / "out", tmp_path / "whole"
    for folder in (out, whole):
        folder.mkdir()
    loop.run(settings, dataset, whole, alone(), 0.0)

    before = signal.getsignal(signal.SIGTERM)
    with monkeypatch.context():
        terminated(0)
        loop.run(settings, dataset, out, alone(), 0.0)
    monkeypatch.undo()
    assert signal.getsignal(signal.SIGTERM) == before
    assert [path.name for path in (out / "checkpoints").iterdir()] == [f"step-{DONE:08d}"]
    assert len((out / "steps.jsonl").read_text().splitlines()) == DONE
    assert not (out / "report.json").exists()
    wanted = f"stopped by SIGTERM after step {DONE} of 8: saved; the same command continues"
    assert caplog.messages[-1] == wanted

    loop.run(settings, dataset, out, alone(), 0.0)
    for name in ("steps.jsonl", "predictions.arrow"):
        assert (out / name).read_bytes() == (whole / name).read_bytes(), name


def test_one_rank_that_is_told_has_all_save(
    terminated: Make, run_settings: Make, dataset: Dataset, tmp_path: Path, run_ranks: Make
) -> None:
    settings = run_settings(checkpoint_steps=100)
    out = tmp_path / "out"
    out.mkdir()
    terminated(1)

    def go(mesh: Mesh) -> None:
        loop.run(settings, dataset, out, mesh, 0.0)

    run_ranks(2, go)
    assert [path.name for path in (out / "checkpoints").iterdir()] == [f"step-{DONE:08d}"]
    assert not (out / "report.json").exists()


def test_outside_of_steps_the_process_ends_at_once_and_well() -> None:
    with pytest.raises(SystemExit) as ended, Stop():
        os.kill(os.getpid(), signal.SIGTERM)
    assert ended.value.code == 0


def test_too_late_for_the_loop_to_see() -> None:
    with pytest.raises(SystemExit) as ended, Stop() as stop:
        stop.stepping = True
        os.kill(os.getpid(), signal.SIGTERM)
        assert stop.asked
        stop.stepped()
    assert ended.value.code == 0


def test_another_thread_leaves_signals_alone() -> None:
    before, seen = signal.getsignal(signal.SIGTERM), []

    def work() -> None:
        with Stop() as stop:
            seen.append((signal.getsignal(signal.SIGTERM), stop.asked))

    thread = Thread(target=work)
    thread.start()
    thread.join()
    assert seen == [(before, False)]


HELD = """
import os, signal
for number in (signal.SIGINT, signal.SIGTERM):
    os.kill(os.getpid(), number)
from tamis.trainer.faults.stopping import let_in
signal.signal(signal.SIGINT, signal.SIG_DFL)
print("here", flush=True)
let_in()
print("not here", flush=True)
"""


def test_a_process_hears_of_signals_when_it_is_ready() -> None:
    """Not while Python starts: it would tell of Ctrl-C with a traceback."""
    with held():
        found = subprocess.run([sys.executable, "-c", HELD], capture_output=True, text=True, check=False)
    assert (found.stdout, found.stderr) == ("here\n", "")
    assert -found.returncode in (signal.SIGINT, signal.SIGTERM)
