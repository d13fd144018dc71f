"""A node's feeder for half an hour: its memory, and that of its readers, stays what it is."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from tamis.pipelines.dataset import Dataset

_log = logging.getLogger(__name__)

SOAK_S = float(os.environ.get("TAMIS_SOAK_S", "1800"))
SAMPLES = 180


class Sample(NamedTuple):
    """Of a process: its share of memory in MB, without that of files such as libraries, and its handles.

    What several processes map is divided among them.
    """

    pss_mb: float
    descriptors: int
    threads: int


def sample(pid: int) -> Sample:
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    pss_kb = sum(int(line.split()[1]) for line in lines if line.startswith(("Pss_Anon:", "Pss_Shmem:")))
    handles = (len(list(Path(f"/proc/{pid}/{name}").iterdir())) for name in ("fd", "task"))
    return Sample(pss_kb / 1e3, *handles)


@pytest.mark.soak
@pytest.mark.timeout(SOAK_S + 300)
def test_memory_stays_constant(make: Callable[..., Dataset], ranks: Any) -> None:
    data = make([5000 + 97 * i for i in range(40)], per_shard=8)
    graph = [{"kind": "rotate"}, {"kind": "jitter", "sigma": 0.01}]
    two = ranks(data, {"columns": ["label"]}, {}, k=None, form="ragged", graph=graph, global_batch=8)
    for rank in two:
        rank.tell("take", 20)
    for rank in two:
        rank.answer()
    pids = {"feeder": two[0].ask("feeder"), "rank 0": two[0].pid, "rank 1": two[1].pid}
    for rank in two:
        rank.tell("stroll", 0.002)
    seen: dict[str, list[Sample]] = {name: [] for name in pids}
    for _ in range(SAMPLES):
        time.sleep(SOAK_S / SAMPLES)
        for name, pid in pids.items():
            seen[name].append(sample(pid))
    for rank in two:
        os.kill(rank.pid, 2)
    steps = [rank.answer() and rank.ask("state")["step"] for rank in two]
    for name, samples in seen.items():
        early, late = samples[SAMPLES // 10 : SAMPLES // 4], samples[SAMPLES // 2 :]
        _log.info("%s after %s steps: first %s, last %s", name, steps, early[0], late[-1])
        for one in (early, late):
            _log.info("%s: %.2f to %.2f MB", name, min(s.pss_mb for s in one), max(s.pss_mb for s in one))
        assert max(s.pss_mb for s in late) <= max(s.pss_mb for s in early) * 1.01 + 0.5, name
        assert {s[1:] for s in late} == {s[1:] for s in early}, name
        assert len({s[1:] for s in late}) == 1, name
    assert min(steps) > 10 * SOAK_S
    assert abs(steps[0] - steps[1]) <= 4
