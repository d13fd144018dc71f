"""Parts made through Ray: equal to a local build's, whatever happens to the processes."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from tamis import __version__
from tamis.errors import DataError, UsageError
from tamis.metrics import BUILD, Meter
from tamis.pipelines import engine_ray
from tamis.pipelines.build import DataSettings, build
from tamis.pipelines.engine import heard
from tamis.pipelines.engine_ray import made_by_ray
from tamis.pipelines.journal import Finished, Journal
from tamis.pipelines.parts import Work
from tamis.pipelines.tiles import TileSettings
from tamis.pipelines.verify import verify

Digests = Callable[[Path], dict[str, str]]

# Found, not imported: the engine has a word to say before Ray is.
needs_ray = pytest.mark.skipif(find_spec("ray") is None, reason="the extra `ray` is not installed")

# In a worker the library breaks, or says who that is and hangs, as the file is named.
IN_WORKER = """
if frame.f_locals["path"].stem == "segfault":
    ctypes.string_at(0)
with open(os.environ["HANGING"], "a") as file:
    file.write(f"{os.getpid()}\\n")
time.sleep(600)
"""

BUILD_IT = """
import json, signal, sys
sys.path[:] = json.loads(sys.argv[3])
signal.signal(signal.SIGTERM, lambda *_: sys.exit(17))
from pathlib import Path
from tamis.pipelines.build import DataSettings, build
build(DataSettings.model_validate_json(sys.argv[1]), Path(sys.argv[2]))
"""


@pytest.fixture
def settings(settings: DataSettings, monkeypatch: pytest.MonkeyPatch) -> DataSettings:
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    return changed(settings, workers=2, bad_files="skip", engine="ray")


@pytest.fixture
def hanging(tmp_path: Path) -> Path:
    """The file in which processes say that they hang."""
    return tmp_path / "hanging"


@pytest.fixture
def deadly(raw: Path, hanging: Path, fake_laspy: Callable[[str], Path]) -> Callable[[str], Path]:
    """``deadly(name)``: a file, larger than the others, whose reader dies or hangs as ``name`` says."""
    assert fake_laspy(IN_WORKER) == hanging

    def write(name: str) -> Path:
        path = raw / f"{name}.las"
        path.write_bytes(b"LASF" + bytes(1 << 20))
        return path

    return write


def changed(settings: DataSettings, **keys: Any) -> DataSettings:
    return settings.model_copy(update=keys)


def hang_in(file: Path, n: int, ended: Callable[[], bool] = lambda: False) -> list[int]:
    """Wait until ``n`` processes hang: Ray may take long to start where there is much to do."""
    until = time.monotonic() + 120
    while time.monotonic() < until and not ended():
        if file.exists() and (text := file.read_text()).count("\n") >= n:
            return [int(pid) for pid in text.split()]
        time.sleep(0.05)
    raise AssertionError("nothing hangs")


def parents() -> dict[int, int]:
    """Process -> its parent."""
    found = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = stat.read_text().rpartition(")")[2].split()
        except OSError:
            continue
        found[int(stat.parent.name)] = int(fields[1])
    return found


def descendants(pid: int) -> list[int]:
    found, known = [pid], parents()
    for one in found:
        found += [child for child, parent in known.items() if parent == one]
    return found[1:]


def folders_of(pid: int) -> list[Path]:
    """What a process's Ray has left: others may run beside it."""
    return [*Path("/tmp").glob(f"tamis-ray-{pid}-*")]


@needs_ray
@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_build_through_ray_equals_a_local_one(
    settings: DataSettings,
    tmp_path: Path,
    raw: Path,
    deadly: Callable[[str], Path],
    hanging: Path,
    gone: Callable[[int], bool],
    digests: Digests,
) -> None:
    """Also what it says of a damaged file, of one that breaks its reader, and of one that a process of Ray
    was at that is killed."""
    deadly("segfault")
    (raw / "damaged.npy").write_bytes((raw / "a.npy").read_bytes()[:-1])
    hangs, killed = deadly("hang"), list[int]()

    def kill() -> None:
        (worker,) = hang_in(hanging, 1)
        os.kill(parents()[worker], signal.SIGKILL)
        killed.append(worker)

    killer = threading.Thread(target=kill)
    killer.start()
    on_term = signal.getsignal(signal.SIGTERM)
    through_ray = build(settings, tmp_path / "ray", update=True)
    killer.join()
    assert gone(killed[0])
    assert not sys.modules["ray"].is_initialized()
    assert signal.getsignal(signal.SIGTERM) == on_term
    assert folders_of(os.getpid()) == []
    # It may be none of the file's fault: the next build tries it again.
    assert len(list(tmp_path.glob("ray/dataset.building/bad-*"))) == 2
    assert verify(through_ray.path) == []

    hangs.unlink()
    local = build(changed(settings, engine="local"), tmp_path / "local")
    assert local.manifest.sources.keys() == {"a.npy", "b.npy", "c.npy"}
    assert local.manifest.skipped["segfault.las"].reason == "the process that read it was killed by SIGSEGV"
    skipped = dict(through_ray.manifest.skipped)
    assert skipped.pop("hang.las").reason == "the process that read it was lost by Ray"
    assert through_ray.manifest.model_copy(update={"skipped": skipped}) == local.manifest
    files = [digests(dataset.path) for dataset in (through_ray, local)]
    assert files[0].pop("dataset.json") != files[1].pop("dataset.json")
    assert files[0] == files[1]
    assert len(files[0]) >= 4
    # Nor does the engine stand in the way of a dataset that is there.
    assert build(settings, tmp_path / "local").fingerprint == local.fingerprint


@needs_ray
@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_build_that_is_interrupted_leaves_nothing_running_and_goes_on(
    settings: DataSettings,
    tmp_path: Path,
    raw: Path,
    deadly: Callable[[str], Path],
    hanging: Path,
    gone: Callable[[int], bool],
    digests: Digests,
) -> None:
    for name in ("hang", "hang too"):
        deadly(name)
    (tmp_path / "build.py").write_text(BUILD_IT)
    given = [settings.model_dump_json(), str(tmp_path / "run"), json.dumps(sys.path)]
    command = [sys.executable, str(tmp_path / "build.py"), *given]
    with (tmp_path / "said").open("w") as said, subprocess.Popen(command, stderr=said) as process:
        try:
            workers = hang_in(hanging, 2, lambda: process.poll() is not None)
            running = descendants(process.pid)
            assert set(workers) < set(running)
            process.send_signal(signal.SIGTERM)
            process.wait(30)
        finally:
            process.kill()
    assert process.returncode == 17, (tmp_path / "said").read_text()
    assert all(map(gone, running))
    assert folders_of(process.pid) == []
    for path in raw.glob("*.las"):
        path.unlink()
    build(changed(settings, engine="local"), tmp_path / "run")
    build(changed(settings, engine="local"), tmp_path / "uncut")
    assert digests(tmp_path / "run") == digests(tmp_path / "uncut")


def test_a_process_of_ray_that_serves_two_builds_tells_them_apart(
    settings: DataSettings, tmp_path: Path, raw: Path
) -> None:
    """Also where they write to one folder."""
    numbers = []
    try:
        for size in (10.0, 5.0):
            tiles = TileSettings(size=size, stride=5.0, min_points=20)
            work = Work(raw, changed(settings, tiles=tiles), {}, Journal(tmp_path, f"size {size}"))
            told = engine_ray._told(work, None)
            for name in ("a.npy", "b.npy"):
                told_back = engine_ray._part(told, name)
                made = heard(told_back["reply"], told_back["arrays"], Meter(BUILD))[1]
                here = work.part(name, Meter(BUILD))
                assert isinstance(made, Finished)
                assert made.part == here.part
                numbers.append(len(made.part.samples))
            (worker,) = engine_ray._WORKERS.values()
    finally:
        for worker in engine_ray._WORKERS.values():
            worker.end()
        engine_ray._WORKERS.clear()
    assert numbers[2] > numbers[0]


def test_without_ray_the_build_says_how_to_get_it(
    settings: DataSettings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(UsageError, match=r"^data\.engine: 'ray' needs .*pip install 'tamis\[ray\]'"):
        build(settings, tmp_path / "run")
    assert not (tmp_path / "run" / "dataset.building").exists()


@needs_ray
def test_a_cluster_that_does_not_answer_is_told(
    settings: DataSettings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"127.0.0.1:{server.getsockname()[1]}"
    monkeypatch.setenv("RAY_ADDRESS", address)
    with pytest.raises(DataError, match=r"^RAY_ADDRESS \(127\.0\.0\.1:\d+\): Ray does not start \(.*refused"):
        build(settings, tmp_path / "run")


def test_where_nothing_is_left_to_make_no_ray_is_started(
    settings: DataSettings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    work = Work(tmp_path, settings, {}, Journal(tmp_path, "these settings"))
    assert [*made_by_ray(work, {}, 2, Meter(BUILD))] == []


@pytest.mark.parametrize("lacks", ["raw files", "output"])
def test_a_machine_that_does_not_see_a_folder_is_named(
    settings: DataSettings, tmp_path: Path, raw: Path, lacks: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("platform.node", lambda: "node7")
    folder = tmp_path / "missing"
    root, out = (folder, tmp_path) if lacks == "raw files" else (raw, folder)
    told = engine_ray._told(Work(root, settings, {}, Journal(out, "these settings")), None)
    assert engine_ray._part(told, "a.npy")["stops"] == {
        "kind": "DataError",
        "where": str(folder),
        "cause": "is not on the machine node7",
        "fix": "mount it there under the same path, or set data.engine = 'local'",
    }


def test_a_machine_with_another_version_is_named(
    settings: DataSettings, tmp_path: Path, raw: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("platform.node", lambda: "node7")
    told = engine_ray._told(Work(raw, settings, {}, Journal(tmp_path, "these settings")), None)
    error = engine_ray._part({**told, "version": "0.0.9"}, "a.npy")["stops"]
    assert error["cause"] == f"node7 has version {__version__} of tamis, not 0.0.9"
