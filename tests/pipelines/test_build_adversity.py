"""Builds where something goes wrong around them: full disks, files that vanish, odd names, other builds."""

from __future__ import annotations

import os
import resource
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tamis.errors import DataError
from tamis.metrics import BUILD, Meter
from tamis.pipelines.build import DataSettings, build
from tamis.pipelines.dataset import Dataset
from tamis.pipelines.progress import Progress
from tamis.pipelines.readers import ReadSettings
from tamis.pipelines.verify import verify

Digests = Callable[[Path], dict[str, str]]


def command(config: Path, out: Path) -> list[str]:
    return [sys.executable, "-W", "ignore", "-m", "tamis", "build", str(config), f"--out={out}"]


def ran(config: Path, out: Path, **others: Any) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command(config, out), capture_output=True, text=True, timeout=100, **others)


def finished(stderr: str) -> list[str]:
    """The sources that a build said it has finished."""
    return [line.split(": ")[1] for line in stderr.splitlines() if "(file " in line]


def read_now(stdout: str) -> int:
    """How many sources a build has read, by the table that it ends with."""
    rows = (line.split() for line in stdout.splitlines() if line.startswith("build.read"))
    return next((int(row[1]) for row in rows), 0)


def last(stderr: str) -> str:
    """The error of a build: its last line, and no traceback above it."""
    assert "Traceback" not in stderr
    return stderr.splitlines()[-1]


@pytest.mark.slow
def test_a_process_that_may_write_no_more_goes_on_later(
    config: Callable[..., Path], settings: DataSettings, tmp_path: Path, digests: Digests
) -> None:
    """What was finished before is not made again."""
    build(settings, tmp_path / "uncut")
    sizes = [path.stat().st_size for path in (tmp_path / "uncut").rglob("shard-*.arrow")]
    limit = max(sizes) * 3 // 4

    def limited() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))

    path = config()
    done = ran(path, tmp_path / "run", preexec_fn=limited)
    assert done.returncode == 1
    assert "File too large; mend that and run it again, it continues" in last(done.stderr)
    first = finished(done.stderr)
    assert not (tmp_path / "run" / "dataset").exists()
    done = ran(path, tmp_path / "run")
    assert done.returncode == 0, done.stderr
    assert digests(tmp_path / "run") == digests(tmp_path / "uncut")
    assert read_now(done.stdout) == 3 - len(first)


def mounted(script: str, *arguments: object, **others: Any) -> subprocess.CompletedProcess[str]:
    """Run a shell script with mounts of its own; skips where it may not make any."""
    unshare = ["unshare", "-m", "--propagation", "private"]
    probe = [*unshare, "mount", "-t", "tmpfs", "tmpfs", "/mnt"]
    if not shutil.which("unshare") or subprocess.run(probe, capture_output=True).returncode:
        pytest.skip("no private mount can be made here")
    return subprocess.run(
        [*unshare, "sh", "-euc", script, "sh", *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=100,
        **others,
    )


FULL = """
out="$1" kept="$2" size="$3"; shift 3
mount -t tmpfs -o "size=$size" tmpfs "$out"
if "$@" 2>"$kept/error"; then exit 9; fi
ls -A "$out" "$out"/* >"$kept/left"
mount -o remount,size=64m "$out"
"$@" >"$kept/said"
cp -r "$out" "$kept/copy"
"""


@pytest.mark.parametrize("workers", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_a_disk_that_is_full_leaves_what_was_finished(
    config: Callable[..., Path], settings: DataSettings, tmp_path: Path, digests: Digests, workers: int
) -> None:
    """And the build goes on when there is room: the finished sources are not made again."""
    build(settings, tmp_path / "uncut")
    (tmp_path / "run").mkdir()
    (tmp_path / "kept").mkdir()
    size = sum(path.stat().st_size for path in (tmp_path / "uncut").rglob("*.*")) * 7 // 10
    run, kept = tmp_path / "run", tmp_path / "kept"
    done = mounted(FULL, run, kept, size, *command(config(workers=workers), run))
    assert done.returncode == 0, done.stderr
    said = (tmp_path / "kept" / "error").read_text()
    assert "No space left on device; mend that and run it again, it continues" in last(said)
    before = finished(said)
    assert 0 < len(before) < 3, "choose another size: some sources have to be finished, and some not"
    assert "dataset.json" not in (tmp_path / "kept" / "left").read_text()
    assert read_now((tmp_path / "kept" / "said").read_text()) == 3 - len(before)
    copy = tmp_path / "kept" / "copy"
    assert digests(copy) == digests(tmp_path / "uncut")
    assert verify(copy) == []


class Hooked(Progress):
    """Calls a function when the first source is finished."""

    def __init__(self, meter: Meter, then: Callable[[], object]) -> None:
        super().__init__(meter)
        self._then = then

    def add(self, source: str, samples: int | None) -> None:
        super().add(source, samples)
        if self.done == 1:
            self._then()


def hooked(settings: DataSettings, out: Path, then: Callable[[], object]) -> Dataset:
    meter = Meter(BUILD)
    return build(settings, out, meter, Hooked(meter, then))


@pytest.mark.parametrize("kind", ["gone", "cut", "a folder"])
def test_a_source_that_breaks_while_others_are_read(
    settings: DataSettings, tmp_path: Path, raw: Path, digests: Digests, kind: str
) -> None:
    """The smallest is read last. The build stops at it, or leaves it out, and goes on when it is back."""
    build(settings, tmp_path / "uncut")
    last, whole = raw / "c.npy", (raw / "c.npy").read_bytes()

    def breaks() -> None:
        last.unlink()
        if kind == "cut":
            last.write_bytes(whole[: len(whole) // 2])
        elif kind == "a folder":
            last.mkdir()

    def mended() -> None:
        shutil.rmtree(last) if last.is_dir() else last.unlink(missing_ok=True)
        last.write_bytes(whole)

    with pytest.raises(DataError, match=r"c\.npy: "):
        hooked(settings, tmp_path / "run", breaks)
    assert not (tmp_path / "run" / "dataset").exists()
    mended()
    meter = Meter(BUILD)
    build(settings, tmp_path / "run", meter)
    assert digests(tmp_path / "run") == digests(tmp_path / "uncut")
    assert meter.table[0, 0] == 1, "what was finished was read again"
    skips = settings.model_copy(update={"bad_files": "skip"})
    left = hooked(skips, tmp_path / "skipped", breaks).manifest
    assert [*left.skipped] == ["c.npy"]
    assert [*left.sources] == ["a.npy", "b.npy"]


def test_a_source_that_is_replaced_before_it_is_read(
    settings: DataSettings, tmp_path: Path, raw: Path, digests: Digests, scan_writer: Any
) -> None:
    """The dataset is of what was read, and says so."""

    def replaced() -> None:
        scan_writer(raw / "c.npy", 650, seed=9, corner=(40, -10))

    dataset = hooked(settings, tmp_path / "run", replaced)
    assert verify(dataset.path) == []
    build(settings, tmp_path / "uncut")
    assert digests(tmp_path / "run") == digests(tmp_path / "uncut")


READER = """
import numpy as np

def read(path):
    scan = np.load(path)
    if path.name == "c.npy" and not path.with_name("again").exists():
        path.with_name("again").touch()
        {change}
    return {{name: scan[name] for name in scan.dtype.names}}
"""


@pytest.mark.parametrize(
    "change",
    [
        "np.save(path, scan[:-1])",
        "np.save(path, scan[::-1])",
        "np.save(path.with_name('new.npy'), scan[::-1]); path.with_name('new.npy').rename(path)",
        "path.unlink()",
    ],
    ids=["shorter", "in place", "another file", "gone"],
)
def test_a_source_that_changes_while_it_is_read(
    settings: DataSettings,
    tmp_path: Path,
    raw: Path,
    digests: Digests,
    monkeypatch: pytest.MonkeyPatch,
    change: str,
    request: pytest.FixtureRequest,
) -> None:
    """What was read then is no part of a dataset, nor recorded as bad: the next build reads it again."""
    name = f"changing_{abs(hash(request.node.name))}"
    (tmp_path / f"{name}.py").write_text(READER.format(change=change))
    monkeypatch.syspath_prepend(str(tmp_path))
    read = ReadSettings(function=f"{name}:read")
    settings = settings.model_copy(update={"read": read, "files": ["*.npy"]})
    whole = (raw / "c.npy").read_bytes()
    with pytest.raises(DataError, match=r"c\.npy: ") as caught:
        build(settings, tmp_path / "run")
    assert ("cannot be read" if change == "path.unlink()" else "changed while it was read") in str(
        caught.value
    )
    assert not (tmp_path / "run" / "dataset").exists()
    (raw / "c.npy").write_bytes(whole)
    build(settings, tmp_path / "run")
    build(settings, tmp_path / "uncut")
    assert digests(tmp_path / "run") == digests(tmp_path / "uncut")


def test_a_second_build_into_one_folder_is_refused(
    config: Callable[..., Path], settings: DataSettings, tmp_path: Path, digests: Digests
) -> None:
    """While the first is at work, and without harm to it."""
    build(settings, tmp_path / "alone")
    path, second = config(), list[subprocess.CompletedProcess[str]]()
    hooked(settings, tmp_path / "run", lambda: second.append(ran(path, tmp_path / "run")))
    assert second[0].returncode == 1
    assert "another tamis process is writing here" in last(second[0].stderr)
    assert digests(tmp_path / "run") == digests(tmp_path / "alone")


READ_ONLY = """
raw="$1" kept="$2"; shift 2
mount --bind "$raw" "$raw"
mount -o remount,ro,bind "$raw"
if touch "$raw/new" 2>/dev/null; then exit 9; fi
"$@"
"""


@pytest.mark.slow
def test_a_folder_of_sources_that_is_read_only(
    config: Callable[..., Path], settings: DataSettings, tmp_path: Path, raw: Path, digests: Digests
) -> None:
    build(settings, tmp_path / "uncut")
    done = mounted(READ_ONLY, raw, tmp_path, *command(config(), tmp_path / "run"))
    assert done.returncode == 0, done.stderr
    assert digests(tmp_path / "run") == digests(tmp_path / "uncut")


SMALL = """
small="$1"; shift
mount -t tmpfs -o size=4k tmpfs "$small"
head -c 4096 /dev/zero >"$small/full"
TMPDIR="$small" "$@"
"""


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["unwritable", "full", "missing"])
def test_a_temporary_folder_that_cannot_be_used(
    config: Callable[..., Path], settings: DataSettings, tmp_path: Path, digests: Digests, kind: str
) -> None:
    """Nothing is written there, by the build or by its workers."""
    build(settings, tmp_path / "uncut")
    (tmp_path / "small").mkdir()
    path = config(workers=2)
    if kind == "full":
        done = mounted(SMALL, tmp_path / "small", *command(path, tmp_path / "run"))
    else:
        where = "/proc" if kind == "unwritable" else str(tmp_path / "none")
        done = ran(path, tmp_path / "run", env={**os.environ, "TMPDIR": where})
    assert done.returncode == 0, done.stderr
    assert digests(tmp_path / "run") == digests(tmp_path / "uncut")


MANY = """
import json, sys
from pathlib import Path
from tamis.config import check
from tamis.pipelines.build import DataSettings, build
from tamis.processes import peak_bytes

settings = check(json.loads(sys.argv[1]), DataSettings, where="data")
for name in ("few", "many"):
    build(settings.model_copy(update={"root": settings.root / name}), Path(sys.argv[2]) / name)
    print(peak_bytes())
"""


@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    "count",
    [pytest.param(3_000, marks=pytest.mark.slow), pytest.param(10_000, marks=pytest.mark.soak)],
)
def test_thousands_of_small_files(count: int, tmp_path: Path) -> None:
    """Each becomes a sample; memory stays small, and a file more takes next to nothing of it."""
    rng = np.random.default_rng()
    clouds = rng.uniform(0, 10, (count, 20, 3))
    for number, cloud in enumerate(clouds):
        for name in ("many", "few") if number < 300 else ("many",):
            path = tmp_path / "raw" / name / f"{number // 100:02d}" / f"{number % 100:02d}.npy"
            path.parent.mkdir(parents=True, exist_ok=True)
            np.save(path, cloud)
    settings = DataSettings(root=tmp_path / "raw", row_order="source", workers=1)
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", MANY, settings.model_dump_json(), str(tmp_path / "run")],
        capture_output=True,
        text=True,
        timeout=800,
    )
    assert done.returncode == 0, done.stderr
    few, many = map(int, done.stdout.split())
    dataset = Dataset(tmp_path / "run" / "many")
    assert len(dataset) == count
    assert verify(dataset.path) == []
    for row in rng.integers(0, count, 20).tolist():
        sample = dataset.sample(row)
        number = int(sample.source.replace("/", "").removesuffix(".npy"))
        assert np.abs(sample.positions() - clouds[number]).max() < 1e-5
    assert many < 400e6
    assert (many - few) / (count - 300) < 25e3
