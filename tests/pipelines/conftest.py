"""Small raw scans, and how to build them."""

from __future__ import annotations

import hashlib
import textwrap
import time
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import tomli_w

from tamis.errors import DataError
from tamis.pipelines import dali
from tamis.pipelines.build import DataSettings
from tamis.pipelines.dali_opened import Opened
from tamis.pipelines.layouts.layout import Layout
from tamis.pipelines.ops import Columns
from tamis.pipelines.splits import FilesSplit
from tamis.pipelines.tiles import TileSettings

FIELDS = [
    ("x", "f8"),
    ("y", "f8"),
    ("z", "f8"),
    ("classification", "u1"),
    ("intensity", "u2"),
    ("normal", "f4", 3),
    ("gps_time", "f8"),
]


def write_scan(
    path: Path, rows: int, *, seed: int = 0, corner: tuple[float, float] = (0, 0), size: float = 20
) -> Any:
    """A structured NPY scan of ``rows`` points over a square, with labels and fields."""
    rng = np.random.default_rng(seed)
    scan = np.zeros(rows, FIELDS)
    scan["x"], scan["y"] = (rng.uniform(low, low + size, rows).round(3) for low in corner)
    scan["z"] = rng.uniform(5, 9, rows).round(3)
    scan["classification"] = rng.integers(1, 7, rows)
    scan["intensity"] = rng.integers(0, 60_000, rows)
    scan["normal"] = rng.normal(size=(rows, 3))
    scan["gps_time"] = 3e8 + rng.uniform(0, 10, rows)
    path.parent.mkdir(parents=True, exist_ok=True)
    np.save(path, scan)
    return scan


@pytest.fixture
def raw(tmp_path: Path) -> Path:
    """Three scans side by side."""
    folder = tmp_path / "raw"
    for number, rows in enumerate((1500, 900, 700)):
        write_scan(folder / f"{'abc'[number]}.npy", rows, seed=number, corner=(20.0 * number, -10))
    return folder


@pytest.fixture
def settings(raw: Path) -> DataSettings:
    """Tiles of 10 units, the third scan for test, rows as they came."""
    return DataSettings(
        root=raw,
        classes={"ground": [2], "vegetation": [3, 4, 5]},
        tiles=TileSettings(size=10.0, stride=5.0, min_points=20),
        split=FilesSplit(kind="files", test=["c.npy"]),
        row_order="source",
        shard_mb=1,
        workers=1,  # others take longer to start than this takes to build
    )


@pytest.fixture
def config(settings: DataSettings, tmp_path: Path) -> Callable[..., Path]:
    """``config(**changes)``: a configuration file of a build with other settings."""

    def write(**changes: Any) -> Path:
        data = settings.model_copy(update=changes).model_dump(mode="json", exclude_none=True)
        path = tmp_path / "config.toml"
        path.write_text(tomli_w.dumps({"name": "made", "data": data, "loader": {}, "model": {}}))
        return path

    return write


@pytest.fixture
def digests() -> Callable[[Path], dict[str, str]]:
    """SHA-256 of every file below a folder."""

    def of(folder: Path) -> dict[str, str]:
        return {
            str(p.relative_to(folder)): hashlib.sha256(p.read_bytes()).hexdigest()
            for p in sorted(folder.rglob("*"))
            if p.is_file()
        }

    return of


@pytest.fixture
def scan_writer() -> Callable[..., Any]:
    return write_scan


@pytest.fixture
def functions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The module of users' functions: it, and one written into ``tmp_path``, can be imported by workers."""
    monkeypatch.setenv("HANGING", str(tmp_path / "hanging"))
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.syspath_prepend(str(Path(__file__).parent))
    return import_module("user_functions")


@pytest.fixture
def hanging(tmp_path: Path) -> Callable[[int], list[int]]:
    """Waits until ``n`` functions hang, and gives the processes."""

    def wait(n: int) -> list[int]:
        file, until = tmp_path / "hanging", time.monotonic() + 30
        while time.monotonic() < until:
            if file.exists() and (text := file.read_text()).count("\n") >= n:
                return [int(pid) for pid in text.split()]
            time.sleep(0.01)
        raise AssertionError("nothing hangs")

    return wait


@pytest.fixture
def gone() -> Callable[[int], bool]:
    """Whether a process ends soon; one that only waits to be reaped by who adopted it has ended."""

    def lives(pid: int) -> bool:
        try:
            stat = Path(f"/proc/{pid}/stat").read_text()
        except (FileNotFoundError, ProcessLookupError):
            return False
        return stat.rpartition(")")[2].split()[0] not in "ZX"

    def wait(pid: int) -> bool:
        until = time.monotonic() + 5
        while lives(pid) and time.monotonic() < until:
            time.sleep(0.01)
        return not lives(pid)

    return wait


@pytest.fixture
def read_all(tmp_path: Path) -> Callable[[Opened], list[tuple[int, Columns]]]:
    """``read_all(source)``: number and columns of every sample, in the order in which DALI reads them."""
    pytest.importorskip("nvidia.dali")

    def read(source: Opened) -> list[tuple[int, Columns]]:
        n = len(source.names)
        pipeline = dali.built(
            lambda: source.nodes(tmp_path, seed=1, pad_last_batch=True),
            batch_size=n,
            num_threads=2,
            exec_dynamic=True,
        )
        outputs = pipeline.run()
        return [source.cloud([np.asarray(values[i]) for values in outputs]) for i in range(n)]

    return read


@pytest.fixture
def told_of_damage() -> Callable[[Path, Layout, str, int], int]:
    """``told_of_damage(root, layout, name, seed)``: how often damage to files below ``root`` was told.

    Sixty times bytes of one file are changed, and a source is found and read. Only DataErrors come.
    """

    def damaged(root: Path, layout: Layout, name: str, seed: int) -> int:
        rng = np.random.default_rng(seed)
        files = sorted(path for path in root.rglob("*") if path.is_file())
        told = 0
        for _ in range(60):
            path = files[rng.integers(len(files))]
            whole = path.read_bytes()
            changed = bytearray(whole)
            for at in rng.integers(0, len(whole), rng.integers(1, 4)):
                changed[at] = rng.integers(256)
            path.write_bytes(changed)
            try:
                layout.find(root)
                layout.files(root, name, sweeps=3)
                layout.read(root, name, sweeps=3)
            except DataError:
                told += 1
            path.write_bytes(whole)
        return told

    return damaged


# Stands for a library that a reader needs: in a worker it does something else, elsewhere it is the real one.
_LASPY = """
import ctypes, importlib, os, pathlib, sys, time
if sys.argv[0] != "-c":  # no worker: give it the real one
    here = str(pathlib.Path(__file__).parent)
    sys.path.remove(here)
    del sys.modules[__name__]
    importlib.invalidate_caches()
    importlib.import_module(__name__)
    sys.path.insert(0, here)
else:
    frame = sys._getframe()
    while "path" not in frame.f_locals or not str(frame.f_locals["path"]).endswith(".las"):
        frame = frame.f_back
"""


@pytest.fixture
def fake_laspy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], Path]:
    """``fake_laspy(code)``: workers that read LAS files run ``code``; ``frame.f_locals["path"]`` is the file.

    Returns the file that the environment's HANGING names for them.
    """

    def use(code: str) -> Path:
        (tmp_path / "fake").mkdir()
        (tmp_path / "fake" / "laspy.py").write_text(_LASPY + textwrap.indent(code, "    "))
        monkeypatch.syspath_prepend(str(tmp_path / "fake"))
        monkeypatch.setenv("HANGING", str(tmp_path / "hanging"))
        return tmp_path / "hanging"

    return use
