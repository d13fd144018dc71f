"""Steps, conditions and layouts in a build."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tamis.errors import DataError, UsageError
from tamis.pipelines.build import DataSettings, build
from tamis.pipelines.dataset import Dataset


def with_keys(settings: DataSettings, **keys: Any) -> DataSettings:
    return DataSettings.model_validate(settings.model_dump(exclude_unset=True) | keys)


def columns(dataset: Dataset, name: str) -> Any:
    return np.concatenate([dataset.sample(i).columns[name] for i in range(len(dataset))])


def test_steps_come_before_the_cut(settings: DataSettings, tmp_path: Path) -> None:
    steps = [{"kind": "voxel", "size": 2.0}, {"kind": "deduplicate"}]
    thin = build(with_keys(settings, prepare=steps), tmp_path / "thin")
    whole = build(settings, tmp_path / "whole")
    assert 0 < thin.manifest.counts.points < whole.manifest.counts.points / 3
    test = [i for part in thin.splits["test"] for i in range(*part.rows)]
    places = np.concatenate([thin.sample(i).positions() for i in test])
    cells = np.floor((places + 2 / 1024) / 2).astype(int)
    assert len(np.unique(cells, axis=0)) == len(cells), "a voxel is not cut by a tile, nor doubled"
    with pytest.raises(DataError, match=r"was built with another data\.prepare"):
        build(with_keys(settings, prepare=steps[:1]), tmp_path / "thin")


@pytest.mark.parametrize("workers", [1, 2])
def test_training_samples_that_do_not_fulfil_the_condition_are_left_out(
    workers: int, settings: DataSettings, tmp_path: Path
) -> None:
    whole = build(settings, tmp_path / "whole")
    rows = [whole.sample(i).rows for i in range(len(whole))]
    least = int(np.median(rows))
    some = build(with_keys(settings, where=f"points >= {least}", workers=workers), tmp_path / "some")
    kept = {split: counts.samples for split, counts in some.manifest.counts.splits.items()}
    train = [i for part in whole.splits["train"] for i in range(*part.rows)]
    assert kept["train"] == sum(rows[i] >= least for i in train) < len(train)
    assert kept["test"] == whole.manifest.counts.splits["test"].samples, "evaluated samples are all kept"


def test_a_condition_is_refused_before_anything_is_read(settings: DataSettings, tmp_path: Path) -> None:
    for text, cause in (
        ("points >", "cannot be read"),
        ("label_share('tree') > 0", "there is no class 'tree'"),
    ):
        with pytest.raises(UsageError, match=cause):
            build(with_keys(settings, where=text), tmp_path / "run")
    with pytest.raises(UsageError, match="field 'height' is not there"):
        build(with_keys(settings, where="mean('height') > 0"), tmp_path / "run")


def kitti(root: Path) -> None:
    rng = np.random.default_rng(0)
    for sequence in ("00", "08", "11"):
        folder = root / "sequences" / sequence
        for part in ("velodyne", "labels"):
            (folder / part).mkdir(parents=True)
        rng.random((50, 4), np.float32).tofile(folder / "velodyne" / "000000.bin")
        if sequence != "11":
            codes = rng.choice(np.array([10, 40, 252, 0], np.uint32), 50)
            codes.tofile(folder / "labels" / "000000.label")


def test_a_layout_brings_splits_classes_and_labels(
    tmp_path: Path, digests: Callable[[Path], dict[str, str]]
) -> None:
    kitti(tmp_path / "raw")
    settings = DataSettings(root=tmp_path / "raw", layout="semantickitti", workers=1)
    dataset = build(settings, tmp_path / "run")
    assert {split: n.samples for split, n in dataset.manifest.counts.splits.items()} == {
        "train": 1,
        "val": 1,
        "test": 1,
    }
    assert dataset.classes[:3] == ["car", "bicycle", "motorcycle"]
    codes = columns(dataset, "classification")
    right = np.where(np.isin(codes, [10, 252]), 0, np.where(codes == 40, dataset.classes.index("road"), -1))
    assert columns(dataset, "label").tolist() == right.tolist()
    before = digests(tmp_path / "run" / "dataset")
    build(settings, tmp_path / "run")
    build(settings.model_copy(update={"workers": 2}), tmp_path / "again")
    assert digests(tmp_path / "again" / "dataset") == before
    labels = tmp_path / "raw/sequences/00/labels/000000.label"
    labels.write_bytes(bytes(200))
    with pytest.raises(DataError, match=r"000000\.bin: has changed since"):
        build(settings, tmp_path / "run")
    updated = build(settings, tmp_path / "run", update=True)
    assert updated.manifest.counts.splits["train"].ignored == 50


def test_what_a_layout_leaves_is_the_settings_own(tmp_path: Path) -> None:
    kitti(tmp_path / "raw")
    settings = DataSettings(
        root=tmp_path / "raw",
        layout="semantickitti",
        files=["sequences/0*/velodyne/*.bin"],
        classes={"vehicle": [10, 252]},
        workers=1,
    )
    dataset = build(settings, tmp_path / "run")
    assert dataset.classes == ["vehicle"]
    assert sorted(dataset.manifest.sources) == [f"sequences/{s}/velodyne/000000.bin" for s in ("00", "08")]
    (tmp_path / "empty").mkdir()
    with pytest.raises(DataError, match="holds nothing of the layout 'semantickitti'"):
        build(DataSettings(root=tmp_path / "empty", layout="semantickitti"), tmp_path / "other")
