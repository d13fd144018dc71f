from __future__ import annotations

import json
import pickle
import shutil
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import numpy as np
import pyarrow as pa
import pytest

from tamis.errors import DataError, UsageError
from tamis.pipelines.build import DataSettings, build
from tamis.pipelines.checks import blocks, running_of_columns
from tamis.pipelines.dataset import Dataset
from tamis.pipelines.records import sample_id


@pytest.fixture
def built(settings: DataSettings, tmp_path: Path) -> Dataset:
    return build(settings, tmp_path / "run")


def test_every_field_of_every_row_comes_back(built: Dataset, raw: Path) -> None:
    """V15, R03: types and values as in the source, through the column of source rows."""
    scans = {path.name: np.load(path) for path in raw.iterdir()}
    for row in range(len(built)):
        sample = built.sample(row)
        scan = scans[sample.source][sample.columns["row"]]
        for name in ("classification", "intensity", "normal", "gps_time"):
            assert sample.columns[name].dtype == scan[name].dtype
            assert np.array_equal(sample.columns[name], scan[name])
        wanted = np.stack([scan["x"], scan["y"], scan["z"]], axis=1)
        assert np.abs(sample.positions() - wanted).max() <= 0.5e-3
        classes = {2: 0, 3: 1, 4: 1, 5: 1}
        assert sample.columns["label"].tolist() == [
            classes.get(code, -1) for code in scan["classification"].tolist()
        ]
        assert sample.id == sample_id(sample.source, sample.tile) == built.ids[row]
        assert sample.rows == built.rows[row]
        assert sample.name == f"{sample.source}#{sample.tile}"


def test_every_evaluated_row_once(built: Dataset, raw: Path) -> None:
    (part,) = built.splits["test"]
    samples = [built.sample(row, ["row"]) for row in range(*part.rows)]
    assert {sample.source for sample in samples} == {"c.npy"}
    rows = np.concatenate([sample.columns["row"] for sample in samples])
    assert sorted(rows) == list(range(len(np.load(raw / "c.npy"))))


def test_positions_and_checks_say_where_bytes_are(built: Dataset) -> None:
    for row in range(len(built)):
        data = built.shard_path(built.shard[row]).read_bytes()
        rows, block = int(built.rows[row]), int(built.block[row])
        for name, field in built.schema.items():
            start = int(built.positions[name][row])
            part = data[start : start + rows * field.row_bytes]
            assert part == built.sample(row, [name]).columns[name].tobytes()
            sums = built.checks[name][block : block + blocks(rows)]
            whole = np.frombuffer(part, np.uint8)
            size = np.array([field.row_bytes])
            one = running_of_columns(whole, np.zeros((1, 1), np.int64), np.array([rows]), size)
            assert np.array_equal(sums, one[0])


def test_shards_never_mix_splits(built: Dataset) -> None:
    assert built.splits.keys() == {"train", "test"}
    covered: list[int] = []
    for parts in built.splits.values():
        for part in parts:
            covered += range(*part.rows)
            assert set(built.shard[slice(*part.rows)].tolist()) == set(range(*part.shards))
    assert sorted(covered) == list(range(len(built)))
    names = built.samples.column("split").to_pylist()
    assert {names[row] for part in built.splits["test"] for row in range(*part.rows)} == {"test"}


def test_counts_and_figures(built: Dataset) -> None:
    counts = built.manifest.counts
    assert counts.samples == len(built)
    assert counts.points == built.rows.sum()
    for split, (part,) in built.splits.items():
        samples = [built.sample(row) for row in range(*part.rows)]
        labels = np.concatenate([sample.columns["label"] for sample in samples])
        assert counts.splits[split].points == len(labels)
        assert counts.splits[split].ignored == (labels == -1).sum()
        assert counts.splits[split].classes == {
            name: (labels == number).sum() for number, name in enumerate(("ground", "vegetation"))
        }
        if split == "train":
            normals = np.concatenate([sample.columns["normal"] for sample in samples]).astype(float)
            assert built.statistics["normal"].mean == pytest.approx(normals.mean(axis=0).tolist())
            intensity = np.concatenate([sample.columns["intensity"] for sample in samples])
            assert built.statistics["intensity"].p99 == [np.percentile(intensity, 99)]


def test_other_tools_open_the_files(built: Dataset) -> None:
    table = pa.ipc.open_file(pa.memory_map(str(built.shard_path(0)))).read_all()
    assert not any(field.nullable for field in table.schema)
    assert table.schema.field("normal").type.list_size == 3
    for path in built.path.glob("*.arrow"):
        table = pa.ipc.open_file(pa.memory_map(str(path))).read_all()
        assert all(column.null_count == 0 for column in table.columns)
        assert table.schema.metadata is None


def test_no_time_and_no_place_in_the_description(built: Dataset, raw: Path) -> None:
    text = (built.path / "dataset.json").read_text()
    assert str(raw) not in text
    assert str(built.path.parent) not in text
    assert "mtime" not in text
    assert json.loads(text)["configuration"]["classes"] == {"ground": [2], "vegetation": [3, 4, 5]}


def test_opened_by_either_folder_and_across_processes(built: Dataset) -> None:
    for opened in (Dataset(built.path), Dataset(str(built.path.parent)), pickle.loads(pickle.dumps(built))):
        assert opened.fingerprint == built.fingerprint
        assert np.array_equal(opened.ids, built.ids)


def test_wrong_rows_and_columns_are_named(built: Dataset) -> None:
    for row in (-1, len(built)):
        with pytest.raises(UsageError, match="not among"):
            built.sample(row)
    with pytest.raises(UsageError, match="no 'ring'"):
        built.sample(0, ["ring"])


def refused(path: Path) -> str:
    with pytest.raises(DataError) as caught:
        Dataset(path)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_what_is_no_dataset(tmp_path: Path, built: Dataset) -> None:
    assert "no such dataset" in refused(tmp_path / "missing")
    (tmp_path / "empty").mkdir()
    assert "holds no dataset" in refused(tmp_path / "empty")
    (tmp_path / "half" / "dataset.building").mkdir(parents=True)
    assert "unfinished build" in refused(tmp_path / "half")


def damaged(built: Dataset, tmp_path: Path) -> Path:
    copy = tmp_path / "copy"
    shutil.rmtree(copy, ignore_errors=True)
    shutil.copytree(built.path, copy)
    return copy


def test_s06_missing_short_and_damaged_files_are_refused_by_name(built: Dataset, tmp_path: Path) -> None:
    """S06: a file cut on a sample's border counts as damage."""
    for name in built.manifest.files:
        copy = damaged(built, tmp_path)
        data = (copy / name).read_bytes()
        (copy / name).write_bytes(data[: len(data) // 2])
        assert f"{copy / name}: has {len(data) // 2} bytes" in refused(copy)
        (copy / name).unlink()
        assert f"{copy / name}: cannot be read (No such file" in refused(copy)
    copy = damaged(built, tmp_path)
    values: dict[str, Any] = json.loads((copy / "dataset.json").read_text()) | {"version": 7}
    (copy / "dataset.json").write_text(json.dumps(values))
    assert "version 7" in refused(copy)


@pytest.mark.parametrize("seed", range(4))
def test_s06_a_damaged_byte_is_never_read_as_data(built: Dataset, tmp_path: Path, seed: int) -> None:
    """S06: the error names shard, sample, column and byte."""
    rng = np.random.default_rng(seed)
    row, name = int(rng.integers(len(built))), str(rng.choice(list(built.schema)))
    at = int(built.positions[name][row] + rng.integers(built.rows[row] * built.schema[name].row_bytes))
    copy = damaged(built, tmp_path)
    path = copy / built.shard_path(built.shard[row]).name
    data = bytearray(path.read_bytes())
    data[at] ^= 1 << int(rng.integers(8))
    path.write_bytes(data)
    opened = Dataset(copy)
    with pytest.raises(
        DataError, match=rf"{path.name}: is damaged at offset {at} \(sample .*, column {name}\)"
    ):
        opened.sample(row)
    others = [column for column in built.schema if column != name]
    assert opened.sample(row, others).rows == built.rows[row]


def test_a_name_changed_in_the_checksums_is_damage_there(built: Dataset, tmp_path: Path) -> None:
    copy = damaged(built, tmp_path)
    data = bytearray((copy / "checksums.arrow").read_bytes())
    at = data.index(b"intensity")
    data[at] ^= 4
    (copy / "checksums.arrow").write_bytes(data)
    with pytest.raises(DataError, match=rf"checksums\.arrow: is damaged at offset {at}"):
        Dataset(copy).sample(0)


def test_only_a_missing_file_is_mended_by_a_copy(
    built: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    copy = damaged(built, tmp_path)
    (copy / "shard-00000.arrow").unlink()
    assert "copy the dataset again" in refused(copy)
    opened = Dataset(built.path)
    assert opened.samples.num_rows == len(opened) <= len(opened.checks["row"])
    monkeypatch.setattr(Path, "open", Mock(side_effect=OSError(24, "Too many open files")))
    with pytest.raises(DataError, match=r"cannot be read \(Too many open files\); check its rights"):
        opened.sample(0)


@pytest.mark.parametrize("name", ["index.arrow", "samples.arrow", "checksums.arrow"])
def test_damaged_tables_are_refused(built: Dataset, tmp_path: Path, name: str) -> None:
    copy = damaged(built, tmp_path)
    data = bytearray((copy / name).read_bytes())
    data[len(data) // 2] ^= 16
    (copy / name).write_bytes(data)
    with pytest.raises(DataError, match=f"{name}: is damaged at offset {len(data) // 2}"):
        Dataset(copy).sample(0)
