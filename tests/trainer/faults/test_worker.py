"""How a rank ends. What it runs is another matter here."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tamis.trainer.faults.stopping import STOPPED

PROGRAM = """
import os, signal, sys
from pathlib import Path
from tamis.trainer import worker
from tamis.trainer.faults.stopping import Stop

def run(*_):
    with Stop():
        os.kill(os.getpid(), int(sys.argv[2]))

signal.signal(signal.SIGINT, getattr(signal, sys.argv[1]))
worker._run = run
worker.main(Path("."), 0.0, os.getppid(), Path(sys.argv[3]))
"""


@pytest.mark.parametrize(
    ("before", "number", "code"),
    [
        ("default_int_handler", signal.SIGINT, -signal.SIGINT),
        ("SIG_IGN", signal.SIGINT, 0),  # as the command was started, so its ranks
        ("default_int_handler", signal.SIGTERM, STOPPED),
    ],
    ids=["ctrl-c", "ctrl-c ignored", "sigterm"],
)
def test_a_signal_ends_a_rank_without_a_word(before: str, number: int, code: int, tmp_path: Path) -> None:
    file = tmp_path / "0.json"
    words = [sys.executable, "-c", PROGRAM, before, str(int(number)), str(file)]
    found = subprocess.run(words, capture_output=True, text=True, check=False)
    assert (found.returncode, found.stdout, found.stderr) == (code, "", "")
    assert not file.exists()
