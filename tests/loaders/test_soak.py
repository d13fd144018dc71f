"""Memory, files and threads stay as they are over a long run: ``TAMIS_SOAK_S`` seconds, half an hour."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tamis.loaders.loader import Loader
from tamis.pipelines.dataset import Dataset

Make = Callable[..., Dataset]

log = logging.getLogger(__name__)


def figures(pid: int) -> tuple[float, int, int]:
    """Proportional memory in MB, open files, threads."""
    rollup = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    pss = next(int(line.split()[1]) for line in rollup if line.startswith("Pss:")) / 1e3
    return pss, len(os.listdir(f"/proc/{pid}/fd")), len(os.listdir(f"/proc/{pid}/task"))  # noqa: PTH208


@pytest.mark.soak
@pytest.mark.timeout(0)
def test_a_feeder_and_its_reader_do_not_grow(make: Make) -> None:
    seconds = float(os.environ.get("TAMIS_SOAK_S", 1800))
    data = make(np.random.default_rng(0).integers(2000, 20_000, 300).tolist())
    graph: list[Any] = [{"kind": "voxel", "size": 0.5}, {"kind": "rotate"}]
    with Loader(data, global_batch=32, k=2048, graph=graph, feeder="node", verify="always") as loader:
        kept = None  # a batch that is held over the next one, as trainers do
        batches, start = 0, time.monotonic()
        seen: list[tuple[float, ...]] = []
        while (now := time.monotonic() - start) < seconds:
            kept = next(loader)
            batches += 1
            if now > len(seen) * seconds / 30:
                feeder = loader._feed._link._feeder_pid  # type: ignore[attr-defined]
                seen.append((*figures(os.getpid()), *figures(feeder)))
                log.warning("%.0f s, %d batches: %s", now, batches, seen[-1])
        assert kept is not None
        del kept
    early, late = np.array(seen[5:10]).mean(axis=0), np.array(seen[-5:]).mean(axis=0)
    assert late[0] <= early[0] * 1.02 + 1
    assert late[3] <= early[3] * 1.02 + 1
    for files_or_threads in (1, 2, 4, 5):
        assert late[files_or_threads] == early[files_or_threads]
