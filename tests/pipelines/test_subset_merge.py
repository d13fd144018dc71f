"""Datasets of datasets: what is chosen is what numpy chooses, copies are the samples themselves."""

from __future__ import annotations

import fcntl
import os
import resource
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tamis import cli
from tamis.errors import DataError, TamisError, UsageError
from tamis.loaders.loader import Loader
from tamis.pipelines.build import DataSettings, build
from tamis.pipelines.convert import convert
from tamis.pipelines.dataset import Dataset
from tamis.pipelines.inspect import inspect
from tamis.pipelines.made import made_of
from tamis.pipelines.manifest import Column, seal
from tamis.pipelines.merge import merge
from tamis.pipelines.records import Sample
from tamis.pipelines.splits import FilesSplit
from tamis.pipelines.subset import subset
from tamis.pipelines.text import END
from tamis.pipelines.tiles import TileSettings
from tamis.pipelines.verify import verify

Digests = Callable[[Path], dict[str, str]]
Change = dict[str, Any]


@pytest.fixture
def built(settings: DataSettings, tmp_path: Path) -> Dataset:
    return build(settings.model_copy(update={"row_order": "random"}), tmp_path / "run")


def samples(dataset: Dataset) -> list[Sample]:
    return [dataset.sample(row) for row in range(len(dataset))]


def said(dataset: Dataset, columns: set[str] | None = None) -> dict[str, Any]:
    """Name of a sample -> all that is stored of it, arrays as their bytes."""
    found = {}
    for row, sample in enumerate(samples(dataset)):
        arrays = {**sample.columns, **sample.annotations}
        found[sample.name] = (
            sample.id,
            dataset.samples.slice(row, 1).to_pylist(),
            {n: (a.dtype, a.shape, a.tobytes()) for n, a in arrays.items() if not columns or n in columns},
        )
    return found


def names(dataset: Dataset, wanted: Callable[[Sample], Any]) -> set[str]:
    return {sample.name for sample in samples(dataset) if wanted(sample)}


def test_a_split_is_copied_whole_and_described_anew(built: Dataset, tmp_path: Path) -> None:
    one = subset(built.path.parent, tmp_path / "one", split="test")
    assert verify(one.path) == []
    everything = said(built)
    own = {name: value for name, value in everything.items() if value[1][0]["split"] == "test"}
    assert said(one) == own
    assert 0 < len(own) < len(everything)
    assert [*one.splits] == ["test"]
    rows = {name: np.concatenate([s.columns[name] for s in samples(one)]) for name in one.schema}
    count, label = one.manifest.counts.splits["test"], rows["label"]
    assert (count.points, count.ignored) == (len(label), int((label < 0).sum()))
    assert [*count.classes.values()] == [int((label == number).sum()) for number in range(2)]
    for name, values in rows.items():
        figures, flat = one.statistics[name], values.reshape(len(values), -1).astype(np.float64)
        assert figures.mean == pytest.approx(flat.mean(0))
        assert figures.std == pytest.approx(flat.std(0))
        assert (figures.min, figures.max) == (flat.min(0).tolist(), flat.max(0).tolist())
    assert [*one.manifest.sources] == ["c.npy"]
    assert one.manifest.sources["c.npy"] == built.manifest.sources["c.npy"]
    assert (one.row_order, one.classes) == ("random", built.classes)


@pytest.mark.parametrize(
    ("where", "holds"),
    [
        ("points > 250", lambda s: s.rows > 250),
        ("label_share('ground') > 0.15", lambda s: np.mean(s.columns["label"] == 0) > 0.15),
        ("label_share(4) < 0.5", lambda s: np.mean(s.columns["label"] == 1) < 0.5),
        ("width < 9.98 or height > 3.99", lambda s: _extent(s, 0) < 9.98 or _extent(s, 2) > 3.99),
        ('mean("intensity") > 30000', lambda s: s.columns["intensity"].astype(float).mean() > 30000),
    ],
)
def test_a_condition_chooses_in_every_split(
    built: Dataset, tmp_path: Path, where: str, holds: Callable[[Sample], Any]
) -> None:
    wanted = names(built, holds)
    assert 0 < len(wanted) < len(built)
    assert {*said(subset(built.path, tmp_path / "out", where=where))} == wanted


def _extent(sample: Sample, axis: int) -> float:
    return float(np.ptp(sample.columns["xyz"][:, axis]))


def test_sources_and_fields(built: Dataset, tmp_path: Path) -> None:
    only = subset(built.path, tmp_path / "only", sources=["[ab]*", "!b.npy"], fields=["normal"])
    assert said(only).keys() == names(built, lambda s: s.source == "a.npy")
    assert [*only.schema] == ["xyz", "label", "row", "normal"]
    assert [*only.manifest.sources] == ["a.npy"]
    kept = said(built, {*only.schema})
    assert said(only) == {name: kept[name] for name in said(only)}
    others = subset(built.path, tmp_path / "others", sources=["!a*"])
    assert said(others).keys() == names(built, lambda s: s.source != "a.npy")


@pytest.mark.parametrize("seed", range(2))
def test_a_share_is_drawn_in_each_split_and_grows(built: Dataset, tmp_path: Path, seed: int) -> None:
    drawn = [said(subset(built.path, tmp_path / f"{s}", share=s, seed=seed)) for s in (0.1, 0.5, 1.0)]
    assert drawn[0].items() <= drawn[1].items() <= drawn[2].items()
    assert drawn[2] == said(built)
    splits = [value[1][0]["split"] for value in drawn[1].values()]
    counts = {split: count.samples for split, count in built.manifest.counts.splits.items()}
    assert {split: splits.count(split) for split in counts} == {s: round(n / 2) for s, n in counts.items()}
    other = said(subset(built.path, tmp_path / "other", share=0.5, seed=seed + 1))
    assert len(other) == len(drawn[1])
    assert other.keys() != drawn[1].keys()


@pytest.mark.parametrize(
    ("options", "kind", "words"),
    [
        ({"split": "val"}, UsageError, "--split: there is no 'val'; choose of train, test"),
        ({"fields": ["colour"]}, UsageError, "--fields: there is no 'colour'"),
        ({"share": 0.0}, UsageError, "--share: is 0"),
        ({"share": 1.5}, UsageError, "--share: is 1.5"),
        ({"share": float("nan")}, UsageError, "--share: is nan"),
        ({"where": "points >"}, UsageError, "--where: 'points >' cannot be read"),
        ({"where": "label_share('sea') > 0"}, UsageError, "--where: there is no class 'sea'"),
        ({"where": "mean('normal') > 0"}, UsageError, "--where: there is no field 'normal' with one number"),
        ({"where": "mean('none') > 0"}, UsageError, "--where: there is no field 'none'"),
        ({"sources": ["d*"]}, UsageError, "--sources: 'd*' matches no source"),
        ({"where": "points > 1e9"}, DataError, "none of its samples is chosen"),
        ({"split": "test", "sources": ["a*"]}, DataError, "none of its samples is chosen"),
    ],
)
def test_what_cannot_be_chosen_is_told(
    built: Dataset, tmp_path: Path, options: Change, kind: type[TamisError], words: str
) -> None:
    with pytest.raises(kind) as told:
        subset(built.path, tmp_path / "out", **options)
    assert words in str(told.value)
    assert not (tmp_path / "out").exists()


def test_a_finished_one_is_returned_and_another_refused(built: Dataset, tmp_path: Path) -> None:
    out = tmp_path / "out"
    before = subset(built.path, out, split="train").path.stat()
    built.path.parent.rename(tmp_path / "moved")
    assert subset(tmp_path / "moved", out, split="train").path.stat() == before
    others: list[Change] = [{"split": "test"}, {"split": "train", "where": "points > 1"}]
    for refused in others:
        with pytest.raises(DataError, match="was made of other datasets, or in another way; choose another"):
            subset(tmp_path / "moved", out, **refused)
    with pytest.raises(DataError, match=r"moved/dataset: was built; choose another OUT"):
        subset(out, tmp_path / "moved")
    for place in (tmp_path / "moved", tmp_path / "moved" / "dataset" / "in"):
        with pytest.raises(UsageError, match="is where an input is"):
            subset(tmp_path / "moved", place)
    with pytest.raises(UsageError, match="is a dataset itself"):
        subset(tmp_path / "moved", out / "dataset")
    made = made_of(Dataset(out).manifest)
    assert made is not None
    assert (made.by, made.of[0].name, made.of[0].fingerprint) == ("subset", "run", built.fingerprint)
    assert "made         by subset of run\n" in inspect(out)
    text = (out / "dataset" / "dataset.json").read_text()
    assert str(tmp_path) not in text


def test_a_build_does_not_write_over_it(settings: DataSettings, tmp_path: Path, digests: Digests) -> None:
    subset(build(settings, tmp_path / "run").path, tmp_path / "out")
    before = digests(tmp_path / "out")
    for update in (False, True):
        with pytest.raises(DataError, match=r"was made with `tamis subset`, not built .* data\.path"):
            build(settings, tmp_path / "out", update=update)
    assert digests(tmp_path / "out") == before


def test_others_work_is_not_touched(built: Dataset, tmp_path: Path) -> None:
    out = tmp_path / "out"
    (out / "dataset.building").mkdir(parents=True)
    (out / "dataset.building" / "part-1.json").touch()
    with pytest.raises(DataError, match="holds an unfinished build"):
        subset(built.path, out)
    assert [*(out / "dataset.building").iterdir()] == [out / "dataset.building" / "part-1.json"]
    shutil.rmtree(out / "dataset.building")
    fd = os.open(out, os.O_RDONLY)
    fcntl.flock(fd, fcntl.LOCK_EX)
    with pytest.raises(DataError, match="another tamis process is writing here"):
        subset(built.path, out)
    os.close(fd)
    assert said(subset(built.path, out)) == said(built)


def test_a_key_of_another_version_is_told(built: Dataset, tmp_path: Path) -> None:
    path = built.path / "dataset.json"
    there = built.manifest.model_copy(update={"configuration": {**built.manifest.configuration, "sieve": 3}})
    path.write_bytes(seal(there))
    assert "made " not in inspect(built.path)
    with pytest.raises(DataError, match=r"dataset\.json: 'sieve' of the configuration is not known to this"):
        subset(built.path, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def _flip(path: Path, offset: int) -> None:
    data = bytearray(path.read_bytes())
    data[offset] ^= 1
    path.write_bytes(data)


@pytest.mark.parametrize("seed", range(3))
def test_damage_is_found_where_it_is(built: Dataset, tmp_path: Path, seed: int) -> None:
    rng = np.random.default_rng(seed)
    row, name = int(rng.integers(len(built))), str(rng.choice([*built.schema]))
    size = int(built.rows[row]) * built.schema[name].row_bytes
    offset = int(built.positions[name][row]) + int(rng.integers(size))
    path = built.shard_path(int(built.shard[row]))
    _flip(path, offset)
    with pytest.raises(DataError) as told:
        subset(built.path, tmp_path / "out")
    sample = built.samples.column("name")[row].as_py()
    assert f"{path}: is damaged at offset {offset} (sample {sample}, column {name})" in str(told.value)
    assert not (tmp_path / "out").exists()
    source = sample.partition("#")[0]
    assert len(subset(built.path, tmp_path / "out", sources=[f"!{source}"])) > 0


@contextmanager
def largest_file(size: int) -> Iterator[None]:
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_a_full_disk_leaves_nothing(built: Dataset, tmp_path: Path) -> None:
    for size in (1000, 60_000):
        with largest_file(size), pytest.raises(DataError, match="File too large"):
            subset(built.path, tmp_path / "out")
        assert not (tmp_path / "out").exists()


def test_a_killed_one_is_made_again(built: Dataset, tmp_path: Path, digests: Digests) -> None:
    out = tmp_path / "out"
    code = (
        "import os, sys; from tamis.pipelines import out_of_sight, subset\n"
        "out_of_sight.sync = lambda path: os.kill(os.getpid(), 9)\n"
        "subset.subset(sys.argv[1], sys.argv[2], split='train')"
    )
    killed = subprocess.run([sys.executable, "-c", code, built.path, out], check=False)
    assert killed.returncode == -9
    with pytest.raises(DataError, match="holds an unfinished build"):
        Dataset(out)
    subset(built.path, out, split="train")
    subset(built.path, tmp_path / "uncut", split="train")
    assert digests(out) == digests(tmp_path / "uncut")


def test_parts_make_the_whole_again(built: Dataset, tmp_path: Path, digests: Digests) -> None:
    parts = [subset(built.path, tmp_path / name, sources=[name]).path for name in ("b*", "c*", "a*")]
    parts.append(subset(built.path, tmp_path / "again", share=0.5).path)
    whole = merge([*parts, tmp_path / "again"], tmp_path / "whole")
    assert verify(whole.path) == []
    assert said(whole) == said(built)
    once = subset(built.path, tmp_path / "once")
    assert whole.fingerprint == once.fingerprint
    assert whole.manifest.counts.splits == once.manifest.counts.splits
    assert [*whole.manifest.sources] == ["a.npy", "b.npy", "c.npy"]
    mine, its = digests(whole.path), digests(once.path)
    assert mine.pop("dataset.json") != its.pop("dataset.json")
    assert mine == its
    before = digests(tmp_path / "whole")
    assert merge([*parts, tmp_path / "again"], tmp_path / "whole").fingerprint == whole.fingerprint
    assert digests(tmp_path / "whole") == before
    with pytest.raises(DataError, match="was made of other datasets"):
        merge(parts, tmp_path / "whole")


def test_a_loader_reads_it_and_a_tar_brings_it_back(built: Dataset, tmp_path: Path, digests: Digests) -> None:
    small = subset(built.path, tmp_path / "small", where="points > 250", fields=[])
    train = small.manifest.counts.splits["train"].samples
    with Loader(small.path, global_batch=1, k=128, epochs=1) as loader:
        assert sorted(int(batch.ids[0]) for batch in loader) == sorted(small.ids[:train].tolist())
    convert(small.path, tmp_path / "tars")
    convert(tmp_path / "tars", tmp_path / "back")
    assert digests(tmp_path / "back") == digests(small.path)


def _other(settings: DataSettings, tmp_path: Path, change: Change) -> Dataset:
    return build(settings.model_copy(update=change), tmp_path / "other")


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"fields": ["intensity"]}, "has no column 'classification', "),
        ({"classes": {}}, "has no column 'label', "),
        ({"classes": {"ground": [2], "plants": [3]}}, "has the classes ground, plants, "),
        (
            {"classes": {"vegetation": [3, 4, 5], "ground": [2]}},
            "has the classes in another order than ",
        ),
        ({"row_order": "random"}, "has rows in the order 'random', "),
        ({"tiles": TileSettings(size=8.0)}, "has cut a.npy with another data.tiles than "),
        (
            {"classes": {"ground": [1], "vegetation": [3]}},
            "has another sample a.npy#0 than ",
        ),
        (
            {"split": FilesSplit(kind="files", val=["b.npy"], test=["c.npy"])},
            "has b.npy in val, ",
        ),
    ],
)
def test_what_does_not_go_together_is_named(
    settings: DataSettings, tmp_path: Path, change: Change, words: str
) -> None:
    one = build(settings, tmp_path / "one")
    other = _other(settings, tmp_path, change)
    with pytest.raises(DataError) as told:
        merge([one.path, other.path], tmp_path / "out")
    assert str(told.value).startswith(f"{other.path}: {words}")
    assert str(one.path) in str(told.value)
    assert not (tmp_path / "out").exists()


def test_a_file_of_one_name_and_other_bytes_is_refused(
    settings: DataSettings, tmp_path: Path, raw: Path, scan_writer: Callable[..., Any]
) -> None:
    one = build(settings, tmp_path / "one")
    scan_writer(raw / "b.npy", 900, seed=9, corner=(20.0, -10))
    scan_writer(raw / "d.npy", 500, seed=10, corner=(90.0, -10))
    other = _other(settings, tmp_path, {})
    with pytest.raises(DataError) as told:
        merge([one.path, other.path], tmp_path / "out")
    assert f"{other.path}: has another file b.npy than {one.path}; leave it out" in str(told.value)
    left = subset(other.path, tmp_path / "left", sources=["!b.npy"])
    both = merge([one.path, left.path], tmp_path / "out")
    assert said(both) == {**said(one), **said(left)}
    assert {*both.manifest.sources} == {"a.npy", "b.npy", "c.npy", "d.npy"}
    with pytest.raises(UsageError, match=r"1 dataset\(s\) given"):
        merge([one.path], tmp_path / "none")


def test_builds_of_other_keys_are_recorded(settings: DataSettings, tmp_path: Path, raw: Path) -> None:
    one = build(settings.model_copy(update={"files": ["a.npy"], "split": None}), tmp_path / "one")
    tiles = TileSettings(size=8.0)
    two = build(
        settings.model_copy(update={"files": ["b.npy"], "split": None, "tiles": tiles}), tmp_path / "two"
    )
    both = merge([one.path, two.path], tmp_path / "both")
    made, configuration = made_of(both.manifest), both.manifest.configuration
    assert made is not None
    assert [origin.name for origin in made.of] == ["one", "two"]
    assert [origin.apart["tiles"]["size"] for origin in made.of] == [10.0, 8.0]
    assert [origin.apart["files"] for origin in made.of] == [["a.npy"], ["b.npy"]]
    assert (configuration["tiles"], configuration["classes"]) == (None, dict(settings.classes))
    assert said(both) == {**said(one), **said(two)}


def test_texts(tmp_path: Path) -> None:
    root, rng = tmp_path / "texts", np.random.default_rng()
    root.mkdir()
    texts = {f"{name}.txt": rng.integers(0, 256, 500 + 97 * i, np.uint8) for i, name in enumerate("abcd")}
    for name, data in texts.items():
        (root / name).write_bytes(data.tobytes())
    split = {"kind": "files", "test": ["b.txt"]}
    settings = DataSettings.model_validate(
        {"root": root, "text": {"length": 64}, "split": split}, strict=False
    )
    whole = build(settings, tmp_path / "run")
    parts = [subset(whole.path, tmp_path / name, split=name) for name in ("train", "test")]
    tokens = np.concatenate([s.annotations["tokens"] for s in samples(parts[1])])
    assert tokens.tolist() == [*texts["b.txt"].tolist(), END]
    assert parts[1].manifest.counts.splits["test"].annotations == {"tokens": len(tokens)}
    both = merge([part.path for part in parts], tmp_path / "both")
    assert said(both) == said(whole)
    assert both.fingerprint == whole.fingerprint
    assert verify(both.path) == []
    with pytest.raises(UsageError, match="--where: is for points"):
        subset(whole.path, tmp_path / "none", where="points > 1")
    drawn = [subset(whole.path, tmp_path / f"{seed}", share=0.5, seed=seed).path for seed in (1, 2)]
    with pytest.raises(DataError, match=r"has other pieces of \w\.txt than "):
        merge(drawn, tmp_path / "none")


def test_annotations_go_with_their_samples(
    write_dataset: Callable[..., Dataset], tmp_path: Path, digests: Digests
) -> None:
    rng = np.random.default_rng()
    columns = [Column(name="xyz", dtype="float32", width=3, kind="point")]
    own = [
        Column(name="boxes", dtype="float64", width=7, kind="box"),
        Column(name="box_class", dtype="int32", width=1, kind="class"),
    ]
    made: list[dict[str, Any]] = []
    for rows, boxes in ((300, 2), (0, 3), (5, 0), (700, 1)):
        arrays = {"xyz": rng.normal(size=(rows, 3)).astype(np.float32), "boxes": rng.normal(size=(boxes, 7))}
        made.append({**arrays, "box_class": rng.integers(0, 9, boxes, np.int32)})
    whole = write_dataset(tmp_path / "whole", made, [range(2), range(2, 4)], columns, own)
    copy = subset(whole.path, tmp_path / "copy")
    assert said(copy) == said(whole)
    assert verify(copy.path) == []
    assert copy.manifest.counts.splits["train"].annotations == {"boxes": 6, "box_class": 6}
    few = subset(whole.path, tmp_path / "few", where="points < 6", fields=["box_class"])
    assert [*few.fields] == ["xyz", "box_class"]
    assert [sample.annotations["box_class"].tolist() for sample in samples(few)] == [
        made[1]["box_class"].tolist(),
        [],
    ]
    rest = subset(whole.path, tmp_path / "rest", where="points > 5")
    few = subset(whole.path, tmp_path / "few_whole", where="points < 6")
    assert digests(merge([rest.path, few.path], tmp_path / "both").path).items() >= {
        (name, sha) for name, sha in digests(copy.path).items() if name != "dataset.json"
    }
    place = int(whole.positions["boxes"][3]) + 9
    _flip(whole.shard_path(1, "boxes"), place)
    with pytest.raises(DataError, match=rf"shard-00001\.boxes\.arrow: is damaged at offset {place}"):
        subset(whole.path, tmp_path / "out")


def test_commands(built: Dataset, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def run(*arguments: str | Path) -> tuple[int, str, str]:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(sys, "argv", ["tamis", *map(str, arguments)])
            with pytest.raises(SystemExit) as exit:
                cli.main()
        return int(exit.value.code or 0), *capsys.readouterr()

    small, rest, both = (tmp_path / name for name in ("small", "rest", "both"))
    code, told, _ = run(
        "subset", built.path, small, "--sources", "a*", "--sources", "c*", "--fields", "normal,"
    )
    assert (code, told.startswith(f"{small}/dataset: ")) == (0, True)
    assert "train), " not in told
    assert "columns xyz, label, row, normal" in told
    assert run("subset", built.path, rest, "--where", "points > 1", "--fields", "normal")[0] == 0
    assert run("merge", small, rest, both)[1].startswith(f"{both}/dataset: {len(built)} samples")
    assert run("merge", small, both)[0] == 2
    assert run("subset", built.path, small, "--split", "val")[0] == 2
