from __future__ import annotations

import logging
import resource
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tamis.errors import DataError, TamisError, UsageError
from tamis.files import locked
from tamis.metrics import BUILD, FIGURES, Meter
from tamis.pipelines import finish
from tamis.pipelines.build import DataSettings, build
from tamis.pipelines.splits import BlocksSplit, FilesSplit
from tamis.pipelines.tiles import TileSettings
from tamis.pipelines.verify import verify
from tamis.samplers import farthest, random

Digests = Callable[[Path], dict[str, str]]


def changed(settings: DataSettings, **keys: Any) -> DataSettings:
    return settings.model_copy(update=keys)


@pytest.mark.parametrize("seed", range(2))
def test_the_first_rows_are_a_farthest_sample(settings: DataSettings, tmp_path: Path, seed: int) -> None:
    dataset = build(changed(settings, row_order="farthest"), tmp_path)
    rng = np.random.default_rng(seed)
    for row in rng.choice(len(dataset), 5, replace=False):
        xyz = dataset.sample(int(row), ["xyz"]).columns["xyz"]
        source = np.argsort(dataset.sample(int(row), ["row"]).columns["row"])  # how the rows stood before
        k = int(rng.integers(1, len(xyz) + 1))
        assert np.array_equal(farthest(xyz, k), np.arange(k))
        assert np.array_equal(xyz[source][farthest(xyz[source], k)], xyz[:k])


def test_random_and_source_order(settings: DataSettings, tmp_path: Path) -> None:
    shuffled = build(changed(settings, row_order="random"), tmp_path / "a").sample(2)
    straight = build(settings, tmp_path / "b").sample(2)
    assert np.array_equal(straight.columns["row"], np.sort(straight.columns["row"]))
    order = random(straight.rows, straight.rows, seed=0, id=straight.id)
    for name, column in straight.columns.items():
        assert np.array_equal(shuffled.columns[name], column[order])


def test_the_same_build_gives_the_same_bytes(
    settings: DataSettings, tmp_path: Path, digests: Digests
) -> None:
    build(settings, tmp_path / "a")
    elsewhere = tmp_path / "elsewhere"
    shutil.copytree(settings.root or "", elsewhere)
    build(changed(settings, root=elsewhere, verify="always"), tmp_path / "b")
    assert digests(tmp_path / "a") == digests(tmp_path / "b")
    assert [path.name for path in (tmp_path / "a").iterdir()] == ["dataset"]


def test_shards_are_cut_by_size(settings: DataSettings, tmp_path: Path, raw: Path) -> None:
    for name in ("a.npy", "b.npy", "c.npy"):
        scan = np.load(raw / name)
        np.save(raw / name, np.tile(scan, 20))
    dataset = build(changed(settings, fields=["gps_time"]), tmp_path / "run")
    sizes = [dataset.shard_path(number).stat().st_size for number in range(int(dataset.shard[-1]) + 1)]
    assert len(sizes) > 3
    assert max(sizes) < 1.3 * 2**20
    assert verify(dataset.path) == []
    assert (np.diff(dataset.shard) >= 0).all()


def test_stages_are_counted(settings: DataSettings, tmp_path: Path) -> None:
    meter = Meter(BUILD)
    dataset = build(settings, tmp_path, meter)
    figures = {stage: dict(zip(FIGURES, meter.table[i], strict=False)) for i, stage in enumerate(BUILD)}
    assert figures["build.read"]["items"] == 3
    assert figures["build.read"]["points_out"] == 3100
    for stage in BUILD[1:]:
        assert figures[stage]["items"] == len(dataset)
        assert figures[stage]["points_out"] == dataset.rows.sum()
    assert figures["build.write"]["bytes"] == figures["build.pack"]["bytes"] > 0
    assert all(figures[stage]["busy_s"] > 0 for stage in BUILD)


def test_a_finished_dataset_is_returned_or_refused_by_key(
    settings: DataSettings, tmp_path: Path, raw: Path, scan_writer: Any, digests: Digests
) -> None:
    first = build(settings, tmp_path / "run")
    before = digests(tmp_path / "run")
    assert build(changed(settings, verify="never"), tmp_path / "run").fingerprint == first.fingerprint
    other = changed(settings, row_order="random", tiles=TileSettings(size=10.0, stride=2.5, min_points=20))
    with pytest.raises(DataError, match=r"another data\.row_order, data\.tiles\.stride"):
        build(other, tmp_path / "run")
    np.save(raw / "a.npy", np.load(raw / "a.npy")[::-1])  # the same size
    with pytest.raises(DataError, match=r"a\.npy: has changed since"):
        build(settings, tmp_path / "run")
    scan_writer(raw / "d.npy", 100)
    with pytest.raises(DataError, match=r"built without d\.npy"):
        build(settings, tmp_path / "run")
    for name in ("d.npy", "a.npy"):
        (raw / name).unlink()
    with pytest.raises(DataError, match=r"built from a\.npy"):
        build(settings, tmp_path / "run")
    assert digests(tmp_path / "run") == before


def test_a_failed_build_keeps_what_is_finished(
    settings: DataSettings, tmp_path: Path, raw: Path, digests: Digests
) -> None:
    build(settings, tmp_path / "uncut")
    whole = (raw / "c.npy").read_bytes()
    (raw / "c.npy").write_bytes(whole[:-1])
    with pytest.raises(DataError, match=r"c\.npy"):
        build(settings, tmp_path / "run")
    building = tmp_path / "run" / "dataset.building"
    assert sorted(path.suffix for path in building.iterdir()) == [".arrow", ".arrow", ".json", ".json"]
    assert not (tmp_path / "run" / "dataset").exists()
    (raw / "c.npy").write_bytes(whole)
    meter = Meter(BUILD)
    build(settings, tmp_path / "run", meter)
    assert meter.table[0, 0] == 1  # only c was read
    assert digests(tmp_path / "run") == digests(tmp_path / "uncut")


def test_the_order_of_the_classes_counts(
    settings: DataSettings, tmp_path: Path, raw: Path, digests: Digests
) -> None:
    turned = changed(settings, classes=dict(reversed(settings.classes.items())))
    whole = (raw / "c.npy").read_bytes()
    (raw / "c.npy").write_bytes(b"")
    with pytest.raises(DataError):
        build(turned, tmp_path / "run")
    (raw / "c.npy").write_bytes(whole)
    build(settings, tmp_path / "run")
    build(settings, tmp_path / "uncut")
    assert digests(tmp_path / "run") == digests(tmp_path / "uncut")
    with pytest.raises(DataError, match=r"built with another data\.classes"):
        build(turned, tmp_path / "run")


def test_fields_may_stand_in_another_order(settings: DataSettings, tmp_path: Path, raw: Path) -> None:
    scan = np.load(raw / "b.npy")
    turned = np.zeros(len(scan), [(name, scan.dtype[name]) for name in reversed(scan.dtype.names)])
    for name in scan.dtype.names:
        turned[name] = scan[name]
    first = build(settings, tmp_path / "first")
    np.save(raw / "b.npy", turned)
    second = build(settings, tmp_path / "second")
    assert first.fingerprint == second.fingerprint
    assert verify(second.path) == []


@pytest.mark.parametrize("code", [5, 2_000_000_000])
def test_a_source_field_called_label_is_no_class_number(tmp_path: Path, code: int) -> None:
    scan = np.zeros(9, [("x", "f8"), ("y", "f8"), ("z", "f8"), ("label", "i4")])
    scan["label"] = code
    np.save(tmp_path / "a.npy", scan)
    dataset = build(DataSettings(root=tmp_path, row_order="source"), tmp_path / "run")
    assert dataset.samples.column("label").to_pylist() == [-1]
    assert set(dataset.sample(0).columns["label"]) == {code}


@pytest.mark.parametrize("workers", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_a_full_disk_is_one_line_and_the_build_goes_on(
    settings: DataSettings, tmp_path: Path, digests: Digests, workers: int
) -> None:
    """Nor is it taken for a bad file."""
    build(settings, tmp_path / "uncut")
    settings = changed(settings, workers=workers, bad_files="skip")
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    for limit in (1_000, 30_000, 130_000):
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, hard))
        try:
            with pytest.raises(DataError, match=r"the build stopped: .*it continues"):
                build(settings, tmp_path / "run")
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        assert not (tmp_path / "run" / "dataset").exists()
    build(settings, tmp_path / "run")
    assert digests(tmp_path / "run") == digests(tmp_path / "uncut")


def test_two_builds_at_once(settings: DataSettings, tmp_path: Path) -> None:
    with locked(tmp_path / "run"), pytest.raises(DataError, match="another tamis process"):
        build(settings, tmp_path / "run")
    assert len(build(settings, tmp_path / "run"))


def write(path: Path, content: bytes) -> None:
    path.write_bytes(content)


@pytest.mark.parametrize(
    ("keys", "kind", "message"),
    [
        ({"path": Path("x")}, UsageError, "data.path"),
        ({"root": Path("/nowhere")}, DataError, "no such folder"),
        ({"files": ["*.xyz"]}, DataError, "no such file"),
        ({"files": ["empty.laz"], "split": None}, DataError, "is empty"),
        ({"files": ["text.laz"], "split": None}, DataError, "is no LAS file, whatever its name says"),
        ({"files": ["folder.laz"]}, DataError, "is a folder"),
        ({"files": ["a.npy", "plain.npy"], "split": None, "classes": {}}, DataError, "has no field"),
        (
            {"files": ["a.npy", "narrow.npy"], "split": None},
            DataError,
            "field 'intensity' is uint8 x 1.*; leave it out of data.fields",
        ),
        ({"label": "ring"}, DataError, "has no field 'ring'"),
        ({"fields": ["nope"]}, DataError, "has no field 'nope'"),
        ({"split": FilesSplit(kind="files", test=["d.npy"])}, DataError, "no such file"),
        (
            {"split": FilesSplit(kind="files", test=["plain.npy"]), "files": ["a.npy"]},
            UsageError,
            "names nothing that is among",
        ),
        (
            {"bounds": [1e6, 1e6, 2e6, 2e6], "tiles": TileSettings(size=4)},
            DataError,
            r"no sample came out; lower data\.tiles\.min_points or widen data\.bounds$",
        ),
        (
            {"where": "points > 1e9", "tiles": None, "split": None},
            DataError,
            r"no sample came out; loosen data\.where$",
        ),
        ({"label": "normal"}, DataError, "has 3 numbers a row"),
        (
            {"split": BlocksSplit(kind="blocks", size=[1e-300, 0])},
            DataError,
            r"too far from zero .*data\.split",
        ),
    ],
)
def test_bad_input_is_one_line_and_leaves_nothing(
    settings: DataSettings,
    tmp_path: Path,
    raw: Path,
    keys: dict[str, Any],
    kind: type[TamisError],
    message: str,
) -> None:
    (raw / "empty.laz").write_bytes(b"")
    (raw / "text.laz").write_bytes(b"hello, world")
    (raw / "folder.laz").mkdir()
    np.save(raw / "plain.npy", np.zeros((5, 3)))
    scan = np.load(raw / "a.npy")
    kinds = [(name, "u1" if name == "intensity" else scan.dtype[name]) for name in scan.dtype.names]
    np.save(raw / "narrow.npy", scan[:50].astype(kinds))
    wrong = changed(settings, **({"files": ["a.npy", "b.npy", "c.npy"]} | keys))
    with pytest.raises(kind, match=message) as caught:
        build(wrong, tmp_path / "run")
    assert type(caught.value) is kind
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "run" / "dataset").exists()
    building = tmp_path / "run" / "dataset.building"
    finished = [path.stem for path in building.glob("part-*.json")]
    assert not [path for path in building.glob("*.arrow") if path.stem.rpartition("-")[0] not in finished]
    assert not [*building.glob(".*")]


def test_samples_of_one_id_stop_the_build(
    settings: DataSettings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(finish, "sample_id", lambda _source, tile: tile)
    with pytest.raises(DataError, match="has the same id as"):
        build(settings, tmp_path)


def test_common_ground_of_train_and_test_is_named(
    settings: DataSettings, tmp_path: Path, raw: Path, scan_writer: Any, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        build(settings, tmp_path / "apart")
    assert not caplog.text
    scan_writer(raw / "c.npy", 700, seed=2, corner=(35, -10))
    with caplog.at_level(logging.WARNING):
        build(settings, tmp_path / "over")
    assert "c.npy (evaluated) and b.npy (trained on) cover common ground" in caplog.text


def test_an_empty_split_is_named(
    settings: DataSettings, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        dataset = build(changed(settings, split=FilesSplit(kind="files", test=["*"])), tmp_path / "run")
    assert "split train holds no sample" in caplog.text
    assert dataset.splits.keys() == {"test"}
    assert dataset.statistics["xyz"].max[2] is not None


def test_points_of_a_block_split_share_no_ground(settings: DataSettings, tmp_path: Path, raw: Path) -> None:
    dataset = build(changed(settings, split=BlocksSplit(kind="blocks", size=[10, 10])), tmp_path / "run")
    for split, number in (("train", 0), ("test", 1)):
        for part in dataset.splits[split]:
            for row in range(*part.rows):
                sample = dataset.sample(row, ["row"])
                scan = np.load(raw / sample.source)[sample.columns["row"]]
                block = (np.floor(scan["x"] / 10) + np.floor(scan["y"] / 10)) % 2
                assert set(block) == {number}


def test_without_tiles_a_file_is_a_sample(tmp_path: Path, raw: Path, settings: DataSettings) -> None:
    np.save(raw / "none.npy", np.load(raw / "a.npy")[:0])
    dataset = build(changed(settings, tiles=None), tmp_path / "run")
    assert dataset.rows.tolist() == [1500, 900, 0, 700]
    assert dataset.sample(2).columns["xyz"].shape == (0, 3)
    assert dataset.samples.column("label").to_pylist()[2] == -1
    assert verify(dataset.path) == []


def test_rows_that_are_not_finite_are_dropped_and_counted(
    tmp_path: Path, raw: Path, settings: DataSettings
) -> None:
    scan = np.load(raw / "c.npy")
    scan["z"][[3, 50, 51]] = np.nan
    np.save(raw / "c.npy", scan)
    dataset = build(settings, tmp_path / "run")
    counts = dataset.manifest.counts
    assert counts.dropped == counts.splits["test"].dropped == 3
    assert counts.splits["train"].dropped == 0
    blocks = build(changed(settings, split=BlocksSplit(kind="blocks", size=[5, 0])), tmp_path / "blocks")
    counts = blocks.manifest.counts
    assert (counts.dropped, [split.dropped for split in counts.splits.values()]) == (3, [0, 0])
    (part,) = dataset.splits["test"]
    rows = {row for i in range(*part.rows) for row in dataset.sample(i, ["row"]).columns["row"].tolist()}
    assert rows == set(range(700)) - {3, 50, 51}


def test_real_tiles(data_folder: Path, tmp_path: Path) -> None:
    """Six adjacent 50 m tiles: 24 points lie on an upper edge, and none is lost."""
    dataset = build(
        DataSettings(
            root=data_folder / "ign_dense",
            files=["*77060_627755*", "*77050_627760*"],
            classes={"ground": [2], "vegetation": [3, 4, 5], "building": [6]},
            tiles=TileSettings(size=10.0, stride=5.0, min_points=512),
            split=FilesSplit(kind="files", test=["*"]),
            row_order="random",
        ),
        tmp_path,
    )
    counts = dataset.manifest.counts.splits["test"]
    assert (counts.samples, counts.points) == (50, 139_553)
    assert counts.points - counts.ignored == 130_237


def test_an_update_redoes_what_has_changed_alone(
    settings: DataSettings, tmp_path: Path, raw: Path, scan_writer: Any, digests: Digests
) -> None:
    def updated() -> float:
        """Files that were read for it; what came out is what a build from nothing gives."""
        meter = Meter(BUILD)
        build(settings, tmp_path / "run", meter, update=True)
        build(settings, tmp_path / "new")
        assert digests(tmp_path / "run" / "dataset") == digests(tmp_path / "new" / "dataset")
        shutil.rmtree(tmp_path / "new")
        return float(meter.table[0, 0])

    assert updated() == 3
    assert updated() == 0
    np.save(raw / "b.npy", np.load(raw / "b.npy")[::-1])
    with pytest.raises(DataError, match=r"b\.npy: has changed since .*--update"):
        build(settings, tmp_path / "run")
    assert updated() == 1
    scan_writer(raw / "d.npy", 300, seed=5, corner=(0, 50))
    assert updated() == 1
    (raw / "a.npy").unlink()
    assert updated() == 0
    assert len([*(tmp_path / "run" / "dataset.building").iterdir()]) == 2 * 3
    with pytest.raises(DataError, match=r"another data\.row_order"):
        build(changed(settings, row_order="random"), tmp_path / "run", update=True)
    build(settings, tmp_path / "run")  # keeps nothing
    assert [path.name for path in (tmp_path / "run").iterdir()] == ["dataset"]
    (raw / "d.npy").unlink()
    assert updated() == 2


def test_an_update_with_a_smaller_file_leaves_none_of_its_shards(
    settings: DataSettings, tmp_path: Path, raw: Path, scan_writer: Any, digests: Digests
) -> None:
    scan_writer(raw / "b.npy", 60_000, seed=1)  # some shards of 1 MB
    build(settings, tmp_path / "run", update=True)
    scan_writer(raw / "b.npy", 900, seed=1)
    build(settings, tmp_path / "run", update=True)
    build(settings, tmp_path / "new", update=True)
    assert digests(tmp_path / "run") == digests(tmp_path / "new")


def test_an_update_that_is_cut_at_its_worst_moment_goes_on(
    settings: DataSettings, tmp_path: Path, raw: Path, digests: Digests
) -> None:
    build(settings, tmp_path / "run", update=True)
    building = tmp_path / "run" / "dataset.building"
    (tmp_path / "run" / "dataset").rename(building / "replaced")
    meter = Meter(BUILD)
    build(settings, tmp_path / "run", meter)
    assert meter.table[0, 0] == 0
    build(settings, tmp_path / "new")
    assert digests(tmp_path / "run") == digests(tmp_path / "new")


def test_the_advice_where_types_differ_works(settings: DataSettings, raw: Path, tmp_path: Path) -> None:
    scan = np.load(raw / "a.npy")
    named = [(name, "f8" if name == "intensity" else scan.dtype[name]) for name in scan.dtype.names]
    np.save(raw / "wide.npy", scan.astype(named))
    both = settings.model_copy(update={"files": ["a.npy", "wide.npy"], "split": None})
    for kept, refused in ((["intensity"], True), (["gps_time"], False), ([], False)):
        chosen = both.model_copy(update={"fields": kept})
        out = tmp_path / "-".join(kept)
        if refused:
            with pytest.raises(DataError, match=r"'intensity' is float64.*; leave it out of data\.fields"):
                build(chosen, out)
        else:
            assert [*build(chosen, out).schema] == ["xyz", "label", "row", *kept]
