"""Starts that are killed at any time: whoever is left ends, soon, and nothing stays behind."""

from __future__ import annotations

import logging
import os
import random
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tamis.pipelines.dataset import Dataset

_log = logging.getLogger(__name__)

STARTS = int(os.environ.get("TAMIS_KILLS", "24"))
SPAN_S = 2.5  # of which a feeder takes about one third to start
TIMEOUT_S = 5.0


def feeder_of(rank: Any) -> int:
    """The process that a rank started, before it says which."""
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            if int(path.read_text().rpartition(")")[2].split()[1]) == rank.pid:
                return int(path.parent.name)
        except OSError:  # it has ended
            continue
    raise AssertionError("no feeder was started")


@pytest.mark.slow
@pytest.mark.timeout(60 + 5 * STARTS)
def test_d05_s03_s17_starts_killed_at_random(make: Callable[..., Dataset], ranks: Any) -> None:
    data, seed = make([64] * 12), random.randrange(2**32)
    draw, told = random.Random(seed), dict[str, int]()
    descriptors = len(os.listdir("/proc/self/fd"))  # noqa: PTH208
    for _ in range(STARTS // 2):
        runs = [ranks(data, *[{}] * draw.randint(1, 2), timeout_s=TIMEOUT_S) for _ in (1, 2)]
        for run in runs:
            for rank in run:
                rank.tell("take", None)
        kills = []
        for run in runs:
            victim = draw.choice([feeder_of(run[0]), *(rank.pid for rank in run)])
            kills.append((time.monotonic() + draw.uniform(0, SPAN_S), victim))
        for at_s, victim in sorted(kills):
            time.sleep(max(0.0, at_s - time.monotonic()))
            os.kill(victim, signal.SIGKILL)
        for run, (_, victim) in zip(runs, kills, strict=True):
            for rank in run:
                if rank.pid == victim:
                    assert rank.answer() is None, seed
                    continue
                error = rank.answer(3 * TIMEOUT_S)["error"]
                assert error.startswith("loader.feeder: "), (seed, error)
                kind = " ".join(word for word in error.split() if not any(c.isdigit() for c in word))
                told[kind] = told.get(kind, 0) + 1
                assert rank.end() == "", seed
            for rank in run:
                rank.kill()
        until_s = time.monotonic() + 10
        while left := ranks.left():
            assert time.monotonic() < until_s, (seed, left)
            time.sleep(0.01)
    assert len(os.listdir("/proc/self/fd")) == descriptors  # noqa: PTH208
    _log.info("%d starts killed by seed %d: %s", STARTS, seed, told)
    assert sum(told.values()) >= STARTS // 4
    assert len(told) >= 2, told
