"""What only a process of its own can show: killed, it goes on; it reads no more than it needs."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tamis.pipelines.dataset import Dataset

RUN = """
import json, sys, time
from pathlib import Path
from crc32c import crc32c
from tamis.files import write_atomic
from tamis.loaders.loader import Loader
from tamis.pipelines.dataset import Dataset
from tamis.pipelines.ops import FlipSettings, RotateSettings, SerialiseSettings

dataset, out, pause_s = Dataset(sys.argv[1]), Path(sys.argv[2]), float(sys.argv[5])
share = {"replica": int(sys.argv[3]), "replicas": int(sys.argv[4])}
graph = [RotateSettings(), FlipSettings(), SerialiseSettings(cell=2.0)]
with Loader(dataset, global_batch=4, k=64, epochs=3, graph=graph, **share) as loader:
    state = out / "state.json"
    if state.exists():
        loader.load_state_dict(json.loads(state.read_text()))
    with (out / "log").open("a") as log:
        for batch in loader:
            samples = {
                int(batch.ids[i]): [crc32c(batch.columns[name][i]) for name in sorted(batch.columns)]
                for i in range(len(batch.ids)) if batch.weight[i]
            }
            log.write(json.dumps([batch.step, batch.epoch, samples]) + "\\n")
            log.flush()
            write_atomic(state, json.dumps(loader.state_dict()))
            time.sleep(pause_s)
"""

READ = """
import sys
from tamis.loaders.loader import Loader
from tamis.pipelines.dataset import Dataset

def moved():
    return int(open("/proc/self/io").readline().split()[1])

def read(dataset):
    before = moved()
    with Loader(dataset, global_batch=2, k=1024, epochs=1, verify=sys.argv[3]) as loader:
        rows = sum(int(batch.mask.sum()) for batch in loader)
    return moved() - before, rows

read(Dataset(sys.argv[1]))  # what is read once, such as compiled kernels, is no part of it
print(*read(Dataset(sys.argv[2])))
"""


def start(script: str, *arguments: object) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", script, *map(str, arguments)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


def logged(out: Path) -> list[Any]:
    path = out / "log"
    lines = path.read_text().splitlines(keepends=True) if path.exists() else []
    return [json.loads(line) for line in lines if line.endswith("\n")]


def killed_at(out: Path, lines: int, *arguments: object) -> None:
    """Run until the log has some lines, then kill -9."""
    with start(RUN, *arguments) as process:
        while len(logged(out)) < lines and process.poll() is None:
            time.sleep(0.005)
        process.kill()
    assert process.returncode == -signal.SIGKILL, "it ended before it could be killed"


def finished(*arguments: object) -> None:
    """Run to the end."""
    with start(RUN, *arguments) as process:
        assert process.wait() == 0


@pytest.mark.parametrize(("replicas", "kills"), [(1, (1, 5)), pytest.param(2, (4,), marks=pytest.mark.slow)])
def test_s10_s11_killed_in_the_middle_it_goes_on_to_the_same_bytes(
    make: Callable[..., Dataset], tmp_path: Path, replicas: int, kills: tuple[int, ...]
) -> None:
    data = make([300, 40, 500, 64, 1, 257, 90, 0, 700, 128], per_shard=3)  # 3 batches an epoch
    folders = [tmp_path / name for name in ("whole", *map(str, range(replicas)))]
    for folder in folders:
        folder.mkdir()
    finished(data.path, folders[0], 0, 1, 0)
    for replica, out in enumerate(folders[1:]):
        for lines in kills:
            killed_at(out, lines, data.path, out, replica, replicas, 0.05)
        finished(data.path, out, replica, replicas, 0)
    whole = logged(folders[0])
    assert [step for step, _, _ in whole] == list(range(9))
    for step, epoch, samples in whole:
        together: dict[str, Any] = {}
        for out in folders[1:]:
            # A batch that was logged before its state was written is logged again.
            entries = [e for e in logged(out) if e[0] == step]
            assert 1 <= len(entries) <= 1 + len(kills)
            assert all(e == entries[0] for e in entries)
            assert entries[0][1] == epoch
            together |= entries[0][2]
        assert together == samples


@pytest.mark.alone
@pytest.mark.parametrize("verify", ["first", "always"])
def test_a_prefix_of_1024_of_10000_rows_moves_at_most_12_percent_of_the_bytes(
    make: Callable[..., Dataset], verify: str
) -> None:
    small, data = make([1100], row_order="farthest"), make([10_000] * 8, row_order="farthest", per_shard=4)
    with start(READ, small.path, data.path, verify) as process:
        moved, rows = map(int, process.communicate()[0].split())
    stored = sum(field.row_bytes for field in data.schema.values()) * int(data.rows.sum())
    assert rows == 8 * 1024
    assert 0.10 * stored < moved <= 0.12 * stored


def test_s17_a_process_that_forgets_its_loader_ends(make: Callable[..., Dataset]) -> None:
    data = make([300] * 6)
    script = """
import sys
from tamis.loaders.loader import Loader
from tamis.pipelines.dataset import Dataset
loader = Loader(Dataset(sys.argv[1]), global_batch=2, k=128, threads=2)
print(next(loader).step, flush=True)
"""
    with start(script, data.path) as process:
        assert process.communicate(timeout=60)[0] == "0\n"
    assert process.returncode == 0
