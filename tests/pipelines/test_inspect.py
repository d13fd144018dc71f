from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tamis.errors import DataError
from tamis.pipelines.build import DataSettings, build
from tamis.pipelines.inspect import inspect


def test_a_dataset_is_described(settings: DataSettings, tmp_path: Path) -> None:
    dataset = build(settings, tmp_path / "run")
    text = inspect(tmp_path / "run")
    assert dataset.fingerprint in text
    lines = {line.split()[0]: line.split() for line in text.splitlines() if line}
    test = dataset.manifest.counts.splits["test"]
    assert lines["split"][3:] == ["ground", "vegetation", "ignored"]
    assert lines["test"][1:] == [
        str(n) for n in (test.samples, 700, test.classes["ground"], test.classes["vegetation"], test.ignored)
    ]
    assert lines["normal"][1:5] == ["float32", "x", "3", "vector"]
    assert lines["row"][:1] == ["row"]
    assert "row order    source" in text
    assert "points per square unit" in text
    assert "bounds       x 0.0" in text


def test_a_dataset_without_points_or_classes(tmp_path: Path) -> None:
    np.save(tmp_path / "none.npy", np.empty((0, 4)))
    build(DataSettings(root=tmp_path, row_order="source"), tmp_path / "run")
    text = inspect(tmp_path / "run")
    assert "density" not in text
    assert "column_3" in text


def test_a_raw_file_is_described(shipped_laz: Path, tmp_path: Path) -> None:
    text = inspect(shipped_laz)
    assert "points       37805 (0 not finite)" in text
    assert "1: 355, 2: 22859" in text
    assert "rgb" in text
    np.save(tmp_path / "a.npy", np.array([[0, 0, 0, np.nan], [np.nan, 1, 1, 5]]))
    assert "points       2 (1 not finite)" in inspect(tmp_path / "a.npy")
    np.save(tmp_path / "none.npy", np.empty((0, 5)))
    assert "points       0" in inspect(tmp_path / "none.npy")


def test_neither(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="no such dataset"):
        inspect(tmp_path / "missing")
    (tmp_path / "dangling.laz").symlink_to("nowhere")
    with pytest.raises(DataError, match=r"dangling\.laz: cannot be read \(No such file"):
        inspect(tmp_path / "dangling.laz")
    np.save(tmp_path / "text.npy", np.zeros(2, [("x", "f8"), ("y", "f8"), ("z", "f8"), ("name", "U4")]))
    assert "<U4" in inspect(tmp_path / "text.npy") or "str" in inspect(tmp_path / "text.npy")
    np.save(tmp_path / "far.npy", np.array([[-1e308] * 4, [1e308, 1e308, 0, np.nan]]))
    assert "density" not in inspect(tmp_path / "far.npy")
    (tmp_path / "text").write_text("hello")
    with pytest.raises(DataError, match="neither LAS/LAZ nor NPY"):
        inspect(tmp_path / "text")
