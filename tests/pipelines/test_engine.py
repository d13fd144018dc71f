"""Parts made by several processes: equal to those of one, whatever happens to the processes."""

from __future__ import annotations

import io
import json
import logging
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rich.console import Console

from tamis.errors import DataError, UsageError
from tamis.metrics import BUILD, FIGURES, Meter
from tamis.pipelines import engine, spawn
from tamis.pipelines.bad import BadFiles, Killed
from tamis.pipelines.build import DataSettings, build
from tamis.pipelines.inspect import inspect
from tamis.pipelines.journal import Finished, Journal
from tamis.pipelines.parts import Work
from tamis.pipelines.progress import Progress
from tamis.pipelines.splits import HashSplit
from tamis.pipelines.user_messages import message
from tamis.pipelines.verify import verify
from tamis.pipelines.watched import watched
from tamis.pipelines.worker import plain

Digests = Callable[[Path], dict[str, str]]

# Where the library is loaded to read a file, it does what the file is named.
IN_WORKER = """
with open(os.environ["HANGING"], "a") as file:
    file.write(f"{os.getpid()}\\n")
how = frame.f_locals["path"].stem
if how.startswith("hang"):
    time.sleep(600)
elif how == "segfault":
    ctypes.string_at(0)
elif how == "exit":
    os._exit(3)
else:
    os.kill(os.getpid(), int(how))
"""


def changed(settings: DataSettings, **keys: Any) -> DataSettings:
    return settings.model_copy(update=keys)


@pytest.fixture
def settings(settings: DataSettings, raw: Path, scan_writer: Any) -> DataSettings:
    for number in range(4):
        scan_writer(raw / f"more {number}.npy", 50 + 300 * number, seed=9 + number, corner=(0, 40))
    return settings


@pytest.fixture
def deadly(raw: Path, fake_laspy: Callable[[str], Path]) -> Callable[..., Path]:
    """``deadly(name, size)``: a file whose reader dies as ``name`` says, or hangs."""
    fake_laspy(IN_WORKER)

    def write(name: str, size: int = 500) -> Path:
        path = raw / f"{name}.las"
        path.write_bytes(b"LASF" + bytes(size))
        return path

    return write


def finished(out: Path) -> list[str]:
    return sorted(path.name for path in (out / "dataset.building").glob("part-*.json"))


def work_in(folder: Path, settings: DataSettings) -> Work:
    folder.mkdir()
    assert settings.root
    return Work(settings.root, settings, {}, Journal(folder, "these settings"))


def test_parts_datasets_and_figures_are_equal_for_any_number_of_workers(
    settings: DataSettings, tmp_path: Path, digests: Digests
) -> None:
    settings = changed(settings, row_order="random", split=HashSplit(kind="hash", test=0.3))
    names = sorted(path.name for path in (settings.root or tmp_path).iterdir())
    counts = []
    for workers in (1, 4):
        work, meter = work_in(tmp_path / str(workers), settings), Meter(BUILD)
        sizes = {name: engine.size(work, name) for name in names}
        made = dict(engine.made(work, sizes, workers, meter))
        assert sorted(made) == names
        assert all(isinstance(part, Finished) for part in made.values())
        assert digests(tmp_path / str(workers)) == digests(tmp_path / "1")
        counts.append(meter.table[:, : FIGURES.index("busy_s")].tolist())
    shards = sum(len(one.part.files) for one in made.values() if isinstance(one, Finished))
    assert len(digests(tmp_path / "1")) == len(names) + shards
    assert counts[0] == counts[1]
    first = build(settings, tmp_path / "one")
    second = build(changed(settings, workers=2), tmp_path / "two")
    assert first.fingerprint == second.fingerprint
    assert digests(tmp_path / "one") == digests(tmp_path / "two")
    # Nor does the number stand in the way of a dataset that is there.
    assert build(changed(settings, workers=5), tmp_path / "one").fingerprint == first.fingerprint


def test_the_largest_file_comes_first(settings: DataSettings, tmp_path: Path) -> None:
    work = work_in(tmp_path / "here", settings)
    sizes = {"a.npy": 5, "b.npy": 7, "c.npy": 7, "more 0.npy": 9}
    assert [name for name, _ in engine.made(work, sizes, 1, Meter(BUILD))] == [
        "more 0.npy",
        "b.npy",
        "c.npy",
        "a.npy",
    ]

    def workers_for(wanted: int | None, sources: int, size: int, **more: Any) -> int:
        sizes = dict.fromkeys(map(str, range(sources)), size)
        return engine.workers_for(DataSettings(workers=wanted, **more), sizes)

    cpus = len(os.sched_getaffinity(0))
    assert workers_for(None, 1, 1 << 40) == workers_for(3, 0, 0) == 1
    assert workers_for(None, 10**6, 1 << 20) == cpus
    assert workers_for(None, 1000, 1 << 10) == 1, "a process takes longer to start than they to be read"
    assert workers_for(None, 1000, 1 << 10, bad_files="skip") == cpus
    assert workers_for(9, 4, 0) == 4


def test_what_workers_log_is_logged_here(
    settings: DataSettings, tmp_path: Path, raw: Path, caplog: pytest.LogCaptureFixture
) -> None:
    scan = np.load(raw / "c.npy")
    scan["z"][:7] = np.nan
    np.save(raw / "c.npy", scan)
    with caplog.at_level(logging.WARNING):
        build(changed(settings, workers=2), tmp_path / "run")
    assert [record.name for record in caplog.records] == ["tamis.pipelines.cut"]
    assert "c.npy: dropped 7 rows" in caplog.text


def test_a_reader_that_dies_is_told_by_its_file(
    settings: DataSettings, tmp_path: Path, deadly: Callable[..., Path]
) -> None:
    path = deadly("segfault")
    with pytest.raises(DataError) as caught:
        build(changed(settings, workers=2), tmp_path / "run")
    assert str(caught.value).startswith(f"{path}: the process that read it was killed by SIGSEGV; ")
    assert "\n" not in str(caught.value)
    assert not list(tmp_path.glob("run/dataset.building/.*"))  # nothing half-made


def test_a_reader_that_dies_takes_only_its_worker_with_it(
    settings: DataSettings, tmp_path: Path, raw: Path, deadly: Callable[..., Path]
) -> None:
    """Also where more workers die than there are at a time, and the first and the last file kill."""
    good = [path.name for path in raw.glob("*.npy")]
    for name, size in {"segfault": 500_000, "exit": 20_000, "6": 200_000, "9": 10}.items():
        deadly(name, size)
    dataset = build(changed(settings, workers=2, bad_files="skip"), tmp_path / "run")
    without = build(changed(settings, files=good), tmp_path / "without")
    assert dataset.fingerprint == without.fingerprint
    assert dataset.manifest.sources == without.manifest.sources
    assert {name: skipped.reason for name, skipped in dataset.manifest.skipped.items()} == {
        "6.las": "the process that read it was killed by SIGABRT",
        "9.las": "the process that read it was killed by SIGKILL",
        "exit.las": "the process that read it ended with exit code 3",
        "segfault.las": "the process that read it was killed by SIGSEGV",
    }
    assert verify(dataset.path) == []


def test_an_end_that_a_reader_finds_is_not_that_of_the_parent(settings: DataSettings, tmp_path: Path) -> None:
    """A worker that a library's EOFError ends says so, and not that all is well."""
    program = """
import os
from tamis.pipelines import worker

def broken(*_):
    raise EOFError("the library's own file is cut")

worker.made = broken
worker.main(os.getppid())
"""
    work = Work(tmp_path, settings, {}, Journal(tmp_path, "x"))
    asked = b"".join([*message(plain(work)), *message("a.npy")])
    done = subprocess.run([sys.executable, "-c", program], input=asked, capture_output=True)
    assert done.returncode == 1
    assert b"EOFError: the library's own file is cut" in done.stderr
    done = subprocess.run([sys.executable, "-c", program], input=asked[:-1], capture_output=True, check=True)
    assert done.stderr == b""


def test_workers_that_do_not_start_are_told(
    settings: DataSettings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(spawn, "_START", "raise SystemExit(5)")
    with pytest.raises(
        DataError, match=r"data\.workers: a process .* ended with exit code 5 before it began"
    ):
        build(changed(settings, workers=2), tmp_path / "run")


def test_settings_that_cannot_be_carried_out_stop_any_build(
    settings: DataSettings, tmp_path: Path, raw: Path
) -> None:
    for path in raw.iterdir():
        path.unlink()
    for name in "ab":
        (raw / f"{name}-images-idx3-ubyte").write_bytes(b"\0\0\x08\x03" + bytes((0, 0, 0, 1) * 3) + b"\7")
        (raw / f"{name}-labels-idx1-ubyte").write_bytes(b"\0\0\x08\x01\0\0\0\1\1")
    images = changed(settings, files=["*images*"], split=None, bad_files="skip", workers=2)
    with pytest.raises(UsageError, match=r"data\.tiles: cuts ground"):
        build(images, tmp_path / "run")


def test_bad_files_are_left_out_and_listed(
    settings: DataSettings,
    tmp_path: Path,
    raw: Path,
    digests: Digests,
    caplog: pytest.LogCaptureFixture,
) -> None:
    np.save(raw / "flat.npy", np.zeros((9, 3)))
    (raw / "empty.laz").write_bytes(b"")
    (raw / "a.npy").write_bytes((raw / "a.npy").read_bytes()[:-1])
    skip = changed(settings, bad_files="skip", workers=2)
    with caplog.at_level(logging.WARNING):
        dataset = build(skip, tmp_path / "run")
    skipped = {name: one.reason for name, one in dataset.manifest.skipped.items()}
    assert list(skipped) == ["a.npy", "empty.laz", "flat.npy"]
    assert skipped["empty.laz"] == "is empty"
    assert skipped["flat.npy"] == "has no field 'classification' (it has no field but x, y, z)"
    told = [record.getMessage() for record in caplog.records]
    assert told[-4:] == [*(f"{n}: left out: {why}" for n, why in skipped.items()), "bad files left out: 3"]
    assert str(tmp_path) not in (tmp_path / "run" / "dataset" / "dataset.json").read_text()
    build(changed(skip, workers=1), tmp_path / "one")
    assert digests(tmp_path / "one") == digests(tmp_path / "run")

    # What is there is taken, as long as everything is as it was, the bad files too.
    assert build(skip, tmp_path / "run").fingerprint == dataset.fingerprint
    with pytest.raises(DataError, match=r"was built without a\.npy, which is bad: .*data\.bad_files"):
        build(settings, tmp_path / "run")
    (raw / "empty.laz").write_bytes(b"x")
    with pytest.raises(DataError, match=r"empty\.laz: has changed since .* without it"):
        build(skip, tmp_path / "run")
    (raw / "empty.laz").unlink()
    with pytest.raises(DataError, match=r"was built from empty\.laz|built without empty\.laz"):
        build(skip, tmp_path / "run")


def test_a_field_that_few_files_lack_makes_these_the_bad_ones(
    settings: DataSettings, tmp_path: Path, raw: Path
) -> None:
    scan = np.load(raw / "a.npy")  # the first by name
    np.save(raw / "a.npy", scan[["x", "y", "z", "classification"]].copy())
    skip = changed(settings, bad_files="skip")
    dataset = build(skip, tmp_path / "run", update=True)
    assert {name: one.reason for name, one in dataset.manifest.skipped.items()} == {
        "a.npy": "has no field 'gps_time', b.npy has it"
    }
    for name in ("b.npy", "c.npy", *(f"more {number}.npy" for number in range(4))):
        np.save(raw / name, np.load(raw / name)[["x", "y", "z", "classification"]].copy())
    assert not build(skip, tmp_path / "run", update=True).manifest.skipped


def test_too_many_bad_files_stop_the_build(settings: DataSettings, tmp_path: Path, raw: Path) -> None:
    for number in range(3):
        (raw / f"{number}.laz").write_bytes(b"")
    with pytest.raises(DataError, match=r"\d\.laz: is empty; more than data\.max_bad = 2 files are bad"):
        build(changed(settings, bad_files="skip", max_bad=2), tmp_path / "run")
    assert len(finished(tmp_path / "run")) == 7  # empty files are the last
    assert len(build(changed(settings, bad_files="skip", max_bad=3), tmp_path / "run").manifest.skipped) == 3


def test_where_all_files_are_bad_the_first_is_told(tmp_path: Path, raw: Path, settings: DataSettings) -> None:
    for path in raw.glob("*.npy"):
        path.write_bytes(path.read_bytes()[:200])
    with pytest.raises(DataError, match=r"a\.npy: .*so are all files"):
        build(changed(settings, bad_files="skip", split=None), tmp_path / "run")


@pytest.mark.slow
def test_a_build_that_goes_on_does_not_try_bad_files_again(
    settings: DataSettings, tmp_path: Path, raw: Path, deadly: Callable[..., Path], digests: Digests
) -> None:
    def tries() -> int:
        return (tmp_path / "hanging").read_text().count("\n")

    skip = changed(settings, files=["segfault.las", "[abc].npy"], bad_files="skip", workers=2)
    deadly("segfault")
    uncut = build(skip, tmp_path / "uncut")
    assert uncut.manifest.skipped.keys() == {"segfault.las"}
    (raw / "b.npy").rename(tmp_path / "b.npy")
    (raw / "b.npy").write_bytes(b"")
    with pytest.raises(DataError, match="max_bad"):
        build(changed(skip, max_bad=1), tmp_path / "run")
    (tmp_path / "b.npy").replace(raw / "b.npy")
    assert tries() == 2
    build(changed(skip, workers=1), tmp_path / "run")  # it would not survive to try
    assert tries() == 2
    assert digests(tmp_path / "run") == digests(tmp_path / "uncut")


def test_only_what_cannot_have_come_from_outside_is_recorded_as_bad(
    settings: DataSettings, tmp_path: Path, raw: Path
) -> None:
    work = work_in(tmp_path / "here", changed(settings, bad_files="skip"))
    bad = BadFiles(work)
    bad.add("a.npy", Killed(raw / "a.npy", "the process that read it was killed by SIGKILL"))
    bad.add("b.npy", DataError(raw / "b.npy", f"is not as {raw}/c.npy is"))
    bad.add("gone.npy", DataError(raw / "gone.npy", "cannot be read"))
    assert bad.skipped["b.npy"].reason == "is not as c.npy is"
    assert [*BadFiles(work).untried(["a.npy", "b.npy", "gone.npy"])] == ["a.npy", "gone.npy"]
    stops = Work(raw, settings, {}, work.journal)
    assert [*BadFiles(stops).untried(["b.npy"])] == ["b.npy"]
    (raw / "b.npy").write_bytes(b"other")
    assert [*BadFiles(work).untried(["b.npy"])] == ["b.npy"]


def test_a_file_whose_reader_was_killed_from_outside_is_not_forgotten(
    settings: DataSettings, tmp_path: Path, raw: Path, deadly: Callable[..., Path]
) -> None:
    """As by a system without memory left: the next build says so, and ``update`` tries it again."""
    path = deadly("9", 300_000)
    skip = changed(settings, workers=2, bad_files="skip")
    dataset = build(skip, tmp_path / "run")
    assert dataset.manifest.skipped["9.las"].digest is None
    assert "9.las: the process that read it was killed by SIGKILL" in inspect(dataset.path)
    with pytest.raises(DataError, match=r"9\.las: is not in .*killed by SIGKILL; .*--update"):
        build(skip, tmp_path / "run")
    path.unlink()
    np.save(raw / "9.npy", np.load(raw / "a.npy"))
    (raw / "9.npy").rename(path)
    updated = build(skip, tmp_path / "run", update=True)
    assert "9.las" in updated.manifest.sources
    assert verify(updated.path) == []


def started(settings: DataSettings, out: Path) -> subprocess.Popen[str]:
    """`tamis build` in a process group of its own."""
    folder = out.parent
    data = settings.model_dump(mode="json", exclude_none=True)
    script = (
        "import json, sys; sys.path[:] = json.loads(sys.argv.pop()); sys.argv[0] = 'tamis'; "
        "from tamis.cli import main; main()"
    )
    (folder / "c.toml").write_text('name = "c"\n[data]\n[loader]\n[model]\n')
    command = [sys.executable, "-c", script, "build", str(folder / "c.toml"), "--out", str(out)]
    command += [part for key in data for part in ("--set", f"data.{key}={toml(data[key])}")]
    return subprocess.Popen(
        [*command, json.dumps(sys.path)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def toml(value: Any) -> str:
    if isinstance(value, dict):
        return "{" + ", ".join(f"{key} = {toml(one)}" for key, one in value.items()) + "}"
    return json.dumps(value)


@pytest.mark.parametrize(
    "number",
    [
        signal.SIGTERM,
        pytest.param(signal.SIGINT, marks=pytest.mark.slow),
        pytest.param(signal.SIGKILL, marks=pytest.mark.slow),
    ],
)
def test_a_build_that_is_ended_leaves_no_worker_and_what_was_finished(
    settings: DataSettings,
    tmp_path: Path,
    raw: Path,
    deadly: Callable[..., Path],
    digests: Digests,
    hanging: Callable[[int], list[int]],
    gone: Callable[[int], bool],
    number: signal.Signals,
) -> None:
    for name in ("hang", "hang too"):
        deadly(name, 20_000)  # in the middle of the others
    process = started(changed(settings, workers=2), tmp_path / "run")
    try:
        workers = hanging(2)
        os.killpg(process.pid, number)
        _, err = process.communicate(timeout=20)
    finally:
        process.kill()
    assert all(map(gone, workers))
    if number == signal.SIGKILL:
        assert process.returncode == -signal.SIGKILL
    else:
        told = "interrupted" if number == signal.SIGINT else "ended by SIGTERM"
        assert process.returncode == 128 + number
        assert err.splitlines()[-1] == f"tamis: {told}; the same command continues"
        assert "Traceback" not in err
        assert not list(tmp_path.glob("run/dataset.building/.*"))
    assert finished(tmp_path / "run")
    for path in raw.glob("*.las"):
        path.unlink()
    meter = Meter(BUILD)
    before = len(finished(tmp_path / "run"))
    build(settings, tmp_path / "run", meter)
    assert meter.table[0, 0] == 7 - before
    build(settings, tmp_path / "uncut")
    assert digests(tmp_path / "run") == digests(tmp_path / "uncut")


def test_a_line_tells_how_far_a_build_is(monkeypatch: pytest.MonkeyPatch) -> None:
    meter, now_s = Meter(BUILD), [100.0]
    monkeypatch.setattr("tamis.pipelines.progress.time.perf_counter", lambda: now_s[0])
    progress = Progress(meter)
    assert progress.text() == "looking for files"
    progress.begin(4, {"a": 6_000_000, "b": 5_000_000, "c": 1_000_000}, 2)  # and one known to be bad
    now_s[0] += 2
    assert progress.text() == "1 of 4 files, 0.00 million points/s, 0.0 MB/s, 1 failed"
    meter.add("build.read", items=1, points_out=3_000_000, bytes=6_000_000)
    progress.add("a", 7)
    assert progress.text() == "2 of 4 files, 1.50 million points/s, 3.0 MB/s, 2 s left, 1 failed"
    progress.add("c", None)
    now_s[0] += 118
    assert progress.text() == "3 of 4 files, 0.03 million points/s, 0.1 MB/s, 1 min 40 s left, 2 failed"
    progress.add("b", 5)
    assert progress.text() == "writing shards: 0 of 12 samples"
    meter.add("build.write", items=10)
    assert progress.text() == "writing shards: 10 of 12 samples"


def test_on_a_terminal_the_line_changes_and_what_is_logged_stands_above_it(
    settings: DataSettings, tmp_path: Path, raw: Path
) -> None:
    (raw / "z.laz").write_bytes(b"")
    screen, root = io.StringIO(), logging.getLogger()
    handler = logging.StreamHandler()
    root.addHandler(handler)
    stream = handler.stream
    try:
        console = Console(file=screen, force_terminal=True, width=120)
        text = watched(changed(settings, bad_files="skip"), tmp_path / "run", console, update=False)
    finally:
        root.removeHandler(handler)
    assert handler.stream is stream
    assert "looking for files" in screen.getvalue()
    assert "z.laz: left out: is empty\n" in screen.getvalue().replace("\x1b[2K", "").replace("\r", "")
    assert text.startswith("dataset ")
    assert "limiting stage: build." in text
    assert "workers" not in text  # it was one
    again = watched(changed(settings, bad_files="skip"), tmp_path / "run", update=False)
    assert "build.read" not in again  # nothing was done
