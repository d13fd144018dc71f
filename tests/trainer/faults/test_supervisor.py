"""Ranks are started again when one is lost, and only then. Small programs stand in for ranks."""

from __future__ import annotations

import json
import logging
import os
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tamis.errors import DataError, LostError, TamisError, UsageError
from tamis.trainer.faults.supervisor import RESTARTS, cause, supervise

RANK = """
import json, os, signal, sys, time
from pathlib import Path
from tamis.errors import DataError, LostError
from tamis.trainer.faults.stopping import STOPPED, let_in
from tamis.trainer.faults.told import tell

let_in()
file, rank = Path(sys.argv[-1]), int(os.environ["RANK"])
here = Path(sys.argv[1])
start = len(list(here.glob(f"start-{rank}-*")))
(here / f".{rank}").write_text(json.dumps(dict(os.environ)))
(here / f".{rank}").rename(here / f"start-{rank}-{start}")

def all_are_here():
    while len(list(here.glob(f"start-*-{start}"))) < 3:
        time.sleep(0.01)

def killed():
    os.kill(os.getpid(), signal.SIGKILL)

def hung():
    os.kill(os.getpid(), signal.SIGSTOP)

def fails(error):
    tell(file, error)
    os._exit(1)
"""

Run = Callable[..., list[Path]]


@pytest.fixture
def run(tmp_path: Path) -> Run:
    """``run(body, saved)``: what was started, of three ranks whose program ends with ``body``."""
    (tmp_path / "here").mkdir()
    (tmp_path / "out").mkdir()

    def go(body: str, saved: Callable[[], int] = lambda: 0) -> list[Path]:
        program = tmp_path / "rank.py"
        program.write_text(RANK + body)
        supervise((str(program), str(tmp_path / "here")), 3, tmp_path / "out", saved)
        assert not list((tmp_path / "out").iterdir())
        return sorted((tmp_path / "here").iterdir())

    return go


def names(paths: list[Path]) -> list[str]:
    return [path.name for path in paths]


def test_each_rank_is_told_its_place(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TORCHELASTIC_USE_AGENT_STORE", "True")  # left over: no agent serves a store here
    body = """
import socket
listening = socket.socket(fileno=int(os.environ["TAMIS_STORE_FD"])) if rank == 0 else None
if listening:
    assert listening.getsockname() == (os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]))
    assert listening.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN)
"""
    started = run(body)
    assert names(started) == ["start-0-0", "start-1-0", "start-2-0"]
    places = [json.loads(path.read_text()) for path in started]
    for rank, place in enumerate(places):
        assert (place["RANK"], place["LOCAL_RANK"]) == (str(rank), str(rank))
        assert place["TORCHELASTIC_USE_AGENT_STORE"] == "False"
        assert (place["WORLD_SIZE"], place["LOCAL_WORLD_SIZE"]) == ("3", "3")
    assert len({place["MASTER_PORT"] for place in places}) == 1


@pytest.mark.parametrize("other", ["time.sleep(100)", "hung()"])
def test_a_killed_rank_restarts_all(other: str, run: Run, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING)
    body = f"""
if start == 0:
    all_are_here()
    if rank == 1:
        killed()
    {other}
"""
    started = run(body, lambda: 40)
    assert names(started) == [f"start-{rank}-{start}" for rank in range(3) for start in range(2)]
    (told,) = caplog.messages
    assert told == "rank 1: was killed by SIGKILL; all ranks start again from step 40 (try 1 of 3)"
    ports = {json.loads(path.read_text())["MASTER_PORT"] for path in started}
    assert len(ports) == 2  # nothing of the first start is found by the second


def test_what_comes_again_and_again_ends_the_run(run: Run, tmp_path: Path) -> None:
    with pytest.raises(LostError, match="rank 2: was killed by SIGKILL"):
        run("if rank == 2: killed()\ntime.sleep(100)")
    assert len(list((tmp_path / "here").glob("start-2-*"))) == 1 + RESTARTS


def test_tries_count_from_the_last_progress(run: Run) -> None:
    steps = iter([0, 10, 10, 10, 20, 30, 30, 40, 50])  # each the last checkpoint's at a loss
    started = run("all_are_here()\nif start < 8: time.sleep(100) if rank else killed()", lambda: next(steps))
    assert len(started) == 3 * 9


@pytest.mark.parametrize("error", ["DataError('a.las', 'is cut', '')", "KeyError('nowhere')"])
def test_an_error_that_would_come_again_ends_the_run_at_once(error: str, run: Run, tmp_path: Path) -> None:
    body = f"""
if rank == 1: fails({error})
time.sleep(0.3 if rank else 100)
if rank == 2: fails(LostError("rank 2", "broken pipe", ""))
"""
    with pytest.raises(DataError, match="is cut" if "Data" in error else "rank 1 stopped with an error") as e:
        run(body)
    assert not isinstance(e.value, LostError)
    assert not list((tmp_path / "here").glob("start-*-1"))


def test_a_rank_that_ends_without_a_word(run: Run) -> None:
    with pytest.raises(LostError, match="rank 1: ended with exit code 7 and without an error"):
        run("if rank == 1: os._exit(7)\ntime.sleep(100)")


def stop_when(ready: Callable[[], bool]) -> None:
    def wait() -> None:
        while not ready():
            time.sleep(0.01)
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=wait, daemon=True).start()


@pytest.mark.parametrize("late", [False, True])
def test_sigterm_is_passed_on_and_nothing_starts_again(late: bool, run: Run, tmp_path: Path) -> None:
    """Ranks that save end well; one that has not begun dies of it, which is no loss."""
    before = signal.getsignal(signal.SIGTERM)
    body = f"""
def save(*_):
    (here / f"saved-{{rank}}").touch()
    sys.exit(0)

if rank < 2 or not {late}:
    signal.signal(signal.SIGTERM, save)
(here / f"ready-{{rank}}").touch()
time.sleep(100)
"""
    stop_when(lambda: len(list((tmp_path / "here").glob("ready-*"))) == 3)
    found = names(run(body))
    assert [name for name in found if name.startswith("start")] == ["start-0-0", "start-1-0", "start-2-0"]
    if not late:
        assert [name for name in found if name.startswith("saved")] == ["saved-0", "saved-1", "saved-2"]
    assert signal.getsignal(signal.SIGTERM) == before


@pytest.mark.parametrize("ends", ["os.kill(os.getpid(), signal.SIGTERM)", "sys.exit(STOPPED)"])
def test_sigterm_to_one_rank_ends_all(ends: str, run: Run, caplog: pytest.LogCaptureFixture) -> None:
    found = names(run(f"all_are_here()\nif rank == 1: {ends}\ntime.sleep(100)"))
    assert found == ["start-0-0", "start-1-0", "start-2-0"]
    assert caplog.messages == ["stopped by SIGTERM; the same command goes on"]


def test_sigterm_between_two_starts_is_not_lost(run: Run, caplog: pytest.LogCaptureFixture) -> None:
    steps = iter([0, 10])

    def saved() -> int:
        if (step := next(steps)) == 10:  # no rank is left, and none is there again
            os.kill(os.getpid(), signal.SIGTERM)
        return step

    body = "if start == 0: all_are_here()\nif rank == 1 and start == 0: killed()\ntime.sleep(10)"
    run(body, saved)
    assert caplog.messages[-1] == "stopped by SIGTERM; the same command goes on"


def test_an_error_while_stopping_is_raised(run: Run, tmp_path: Path) -> None:
    body = """
signal.signal(signal.SIGTERM, lambda *_: fails(DataError("step-3", "No space left on device", "")))
(here / f"ready-{rank}").touch()
time.sleep(100)
"""
    stop_when(lambda: len(list((tmp_path / "here").glob("ready-*"))) == 3)
    with pytest.raises(DataError, match="No space left"):
        run(body)


def word(told_s: float, error: TamisError | None = None) -> dict[str, Any]:
    return {"told_s": told_s, "trace": f"Traceback: told at {told_s}", **(error.plain() if error else {})}


def test_the_error_shown_is_the_cause_and_not_its_echo(caplog: pytest.LogCaptureFixture) -> None:
    out = Path("run")
    wrong, cut = UsageError("x", "is wrong", "mend it"), DataError("y", "is cut")
    lost = {i: LostError(f"rank {i}", "all_reduce failed") for i in range(3)}

    def of(failed: dict[int, int], words: dict[int, dict[str, Any]]) -> TamisError:
        return cause(out, failed, words)

    # What the user must mend comes first, then a death, then whoever told first.
    words = {0: word(1.0, lost[0]), 1: word(3.0, wrong), 2: word(4.0, cut)}
    assert str(of({0: 1, 2: -9}, words)) == str(wrong)
    assert isinstance(of({0: 1, 2: -9}, words), UsageError)
    assert str(of({0: 1, 2: -9}, {0: words[0]})).startswith("rank 2: was killed by SIGKILL")
    assert str(of({0: 1, 2: 1}, {0: word(5.0, lost[0]), 2: word(4.0, lost[2])})) == str(lost[2])
    caplog.clear()
    found = of({0: 1, 1: 1}, {0: word(5.0, lost[0]), 1: word(4.0)})
    assert str(found) == "run: rank 1 stopped with an error, see above; the same command goes on"
    assert not isinstance(found, LostError)
    assert "rank 1:\nTraceback: told at 4.0" in caplog.text
