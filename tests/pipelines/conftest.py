"""Small raw scans, and how to build them."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tamis.pipelines.build import DataSettings
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
    )


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
