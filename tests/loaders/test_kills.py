"""Real starts, and a kill at a random moment: whoever lives is told, and nothing is left.

CI runs some; `pytest -m "slow or soak" tests/loaders/test_kills.py` runs all.
"""

from __future__ import annotations

import os
import random
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tamis.pipelines.dataset import Dataset

Make = Callable[..., Dataset]

IN_CI, ALL = 20, 200
SOON_S = 20  # of readers that would wait for 100 s; they are told in a second where the machine is idle


def feeder_of(rank: Any) -> int | None:
    """The process that a rank has started, if it lives."""
    try:
        children = Path(f"/proc/{rank.pid}/task/{rank.pid}/children").read_text().split()
    except OSError:
        return None
    return int(children[0]) if children else None


@pytest.mark.parametrize(
    "seed",
    [pytest.param(seed, marks=pytest.mark.slow if seed < IN_CI else pytest.mark.soak) for seed in range(ALL)],
)
def test_s03_s17_a_kill_at_any_moment(make: Make, ranks: Any, seed: int) -> None:
    rng = random.Random(seed)
    readers = ranks(make([64] * 12), *[{}] * rng.choice([1, 2, 2]))
    for rank in readers:
        rank.tell("take", None)
    time.sleep(rng.choice([0.05, 0.3, 1.5]) * rng.random())  # while it starts, attaches, or streams
    victims = [*(rank.pid for rank in readers), feeder_of(readers[0])]
    victim = rng.choice([pid for pid in victims if pid])
    os.kill(victim, signal.SIGKILL)
    living = [rank for rank in readers if rank.pid != victim]
    for rank in living:
        answer = rank.answer(SOON_S)
        assert "error" in answer, answer
        assert "ended" in answer["error"] or "could not start" in answer["error"], answer
        rank.end()
    end = time.monotonic() + SOON_S
    for rank in readers:
        rank.process.wait(SOON_S)
    while left := ranks.left():
        assert time.monotonic() < end, left
        time.sleep(0.05)
