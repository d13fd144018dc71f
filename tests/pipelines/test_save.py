"""How `tamis sample` writes: whole or not at all, as far as types reach, with errors that name the file."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tamis.errors import DataError, system_error
from tamis.files import atomic
from tamis.pipelines.sample import sample


@pytest.fixture
def scan(tmp_path: Path) -> Path:
    """4,000 points of three numbers, 96 kB."""
    path = tmp_path / "in.npy"
    np.save(path, np.random.default_rng(0).random((4000, 3)))
    return path


def test_a_file_that_is_there_is_replaced_whole_or_not(
    scan: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "out.npz"
    out.write_bytes(b"old")
    monkeypatch.setattr("numpy.lib.format.write_array", lambda *_, **__: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        sample(scan, out, "farthest", 10)
    assert out.read_bytes() == b"old"
    assert not list(tmp_path.glob(".*"))
    monkeypatch.undo()
    sample(scan, out, "farthest", 10)
    first = out.read_bytes()
    sample(scan, out, "farthest", 10)
    assert out.read_bytes() == first != b"old"


@pytest.mark.parametrize("kind", ["u1", "i1", "i2", ">u2", "f2"])
@pytest.mark.parametrize("names", [[], ["xyz"], ["x", "y", "z"]])
def test_positions_that_the_type_does_not_hold_are_refused(
    tmp_path: Path, kind: str, names: list[str]
) -> None:
    table: Any = np.array([[100, 90, 50], [10, 10, 10]], kind)
    if names:
        plain, table = table, np.zeros(2, [(name, kind, (3,) if name == "xyz" else ()) for name in names])
        for i, name in enumerate(names):
            table[name] = plain if name == "xyz" else plain[:, i]
    np.save(tmp_path / "in.npy", table)
    out = tmp_path / "out.npy"
    with pytest.raises(DataError, match=r"in\.npy: positions from 4.* do not fit its type .*another --pick"):
        sample(tmp_path / "in.npy", out, "voxel", 1e6, pick="center")
    assert not out.exists()
    sample(tmp_path / "in.npy", tmp_path / "out.arrow", "voxel", 1e6, pick="center")
    for pick in ("centroid", "first"):
        assert "2 -> 1 points" in sample(tmp_path / "in.npy", out, "voxel", 1e6, pick=pick)
        assert np.load(out).dtype == table.dtype
    new = np.load(tmp_path / "out.npy")
    assert new.tobytes() == table[:1].tobytes()


def test_a_field_that_is_called_xyz_and_is_no_position_stays(tmp_path: Path) -> None:
    table = np.array([(0, 2, 4, 7), (2, 4, 6, 7)], [("x", "f8"), ("y", "f8"), ("z", "f8"), ("xyz", "f8")])
    np.save(tmp_path / "in.npy", table)
    sample(tmp_path / "in.npy", tmp_path / "out.npy", "voxel", 100.0)
    new = np.load(tmp_path / "out.npy")
    np.testing.assert_allclose(new.tolist(), [(1, 3, 5, 7)], atol=1e-4)


def test_a_mean_at_the_end_of_a_type_fits(tmp_path: Path) -> None:
    for kind, end in (("f2", 65504), ("u1", 255), ("i2", -32768)):
        np.save(tmp_path / "in.npy", np.full((7, 3), end, kind))
        sample(tmp_path / "in.npy", tmp_path / "out.npy", "voxel", 1000.0)
        assert np.load(tmp_path / "out.npy").tolist() == [[end] * 3]


def run(program: str, *arguments: str) -> subprocess.Popen[str]:
    """`tamis sample` in a process that runs ``program`` first."""
    lines = ["import sys", "from tamis.cli import main", program]
    lines += [f"sys.argv = {['tamis', 'sample', *arguments]}", "main()"]
    return subprocess.Popen(
        [sys.executable, "-c", "\n".join(lines)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


@pytest.mark.parametrize("suffix", [".laz", ".las", ".npy", ".npz", ".arrow", ".parquet"])
def test_a_full_disk_is_one_line(shipped_laz: Path, scan: Path, tmp_path: Path, suffix: str) -> None:
    """A process that may write little stands for it: the system refuses the write in the same way."""
    out = tmp_path / f"out{suffix}"
    file = scan if suffix == ".npy" else shipped_laz
    limited = (
        "import resource, signal\n"
        "signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (50_000, 50_000))"
    )
    done = run(limited, str(file), str(out), "--random", "0.9")
    _, err = done.communicate()
    assert done.returncode == 1
    assert err.startswith(f"tamis: {out}: File too large; "), err
    assert err.count("\n") == 1, err
    assert list(tmp_path.iterdir()) == [scan], "nothing is left behind"


@pytest.mark.parametrize(
    ("number", "advice"),
    [
        (errno.ENOSPC, "No space left on device; make room"),
        (errno.EROFS, "Read-only file system; see to its permissions, or choose another folder"),
    ],
)
def test_an_error_of_the_system_names_the_file_and_fits(tmp_path: Path, number: int, advice: str) -> None:
    path = tmp_path / "out.npy"
    for hidden in (False, True):
        with pytest.raises(OSError, match="out") as caught, atomic(path) as temporary:
            raise OSError(number, os.strerror(number), *([str(temporary)] if hidden else []))
        assert str(system_error(caught.value, "elsewhere")).startswith(f"{path}: {advice}")
    with pytest.raises(OSError, match="another") as caught, atomic(path):
        raise OSError(number, os.strerror(number), "another")
    assert system_error(caught.value, "elsewhere").where == "another"


def test_a_folder_that_may_not_be_written_is_told_before_the_work(
    scan: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(path: Path) -> None:
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))

    monkeypatch.setattr(Path, "touch", refuse)
    monkeypatch.setattr("tamis.pipelines.sample.read", lambda _: 1 / 0)
    with pytest.raises(DataError) as caught:
        sample(scan, tmp_path / "out.npy", "random", 1)
    words = "Permission denied; see to its permissions, or choose another folder"
    assert str(caught.value) == f"{tmp_path / 'out.npy'}: {words}"


KERNEL = """
import hashlib, tamis.pipelines.sample
def farthest(*_):
    print("begun", flush=True)
    hashlib.pbkdf2_hmac("sha256", b"", b"", 2**31 - 1)  # minutes, in which Python answers no signal
tamis.pipelines.sample.farthest = farthest
"""
WRITING = """
import time, tamis.pipelines.save
def write(file, *_, **__):
    file.write(b"half")
    file.flush()
    print("begun", flush=True)
    time.sleep(600)
tamis.pipelines.save.np.save = write
"""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("slow", [KERNEL, WRITING], ids=["sampling", "writing"])
def test_a_signal_ends_it_at_once_and_nothing_is_left(
    scan: Path, tmp_path: Path, slow: str, number: signal.Signals
) -> None:
    with run(slow, str(scan), str(tmp_path / "out.npy"), "--farthest", "10") as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "begun\n"
        process.send_signal(number)
        try:
            _, err = process.communicate(timeout=60)
        finally:
            process.kill()
    assert process.returncode == 128 + number
    assert err.startswith("tamis: ")
    assert err.endswith("; the same command starts over\n")
    assert err.count("\n") == 1
    assert list(tmp_path.iterdir()) == [scan]


def test_what_killed_runs_left_is_removed(scan: Path, tmp_path: Path) -> None:
    with run(WRITING, str(scan), str(tmp_path / "out[1].npy"), "--farthest", "10") as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "begun\n"
        process.kill()
    (left,) = tmp_path.glob(".*")
    kept = {f".out[1].npy.{os.getppid()}.tmp", ".out[1].npy.a.tmp", left.name.replace("[1]", "1")}
    for name in kept:
        (tmp_path / name).touch()
    sample(scan, tmp_path / "out[1].npy", "farthest", 10)
    assert {path.name for path in tmp_path.iterdir()} == {*kept, scan.name, "out[1].npy"}
