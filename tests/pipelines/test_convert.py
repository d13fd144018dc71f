"""`tamis convert`: a dataset to tars and TFRecord files, and back as it was."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tamis.errors import DataError, UsageError
from tamis.pipelines import dali, shards
from tamis.pipelines.build import DataSettings, build
from tamis.pipelines.convert import To, convert
from tamis.pipelines.dali_files import WebdatasetSource
from tamis.pipelines.dali_opened import Opened
from tamis.pipelines.dali_sources import opened
from tamis.pipelines.dali_tfrecord import FeatureColumn, TfrecordSource
from tamis.pipelines.dataset import Dataset
from tamis.pipelines.finish import About, Described, finish
from tamis.pipelines.manifest import Column, Counts, SplitCounts
from tamis.pipelines.records import SPLITS
from tamis.pipelines.shard_writer import write_shard
from tamis.pipelines.statistics import moments_of
from tamis.pipelines.verify import verify

Digests = Callable[[Path], dict[str, str]]
FORMATS: tuple[To, ...] = ("webdataset", "tfrecord")
FILES = {"webdataset": "*.tar", "tfrecord": "*.tfrecord"}


@pytest.fixture
def built(settings: DataSettings, tmp_path: Path) -> Dataset:
    return build(settings.model_copy(update={"row_order": "random"}), tmp_path / "run")


@dataclass
class Made:
    """A sample for `made`."""

    source: str
    tile: int
    split: str
    origin: list[float]
    label: int
    arrays: dict[str, Any] = field(default_factory=dict)


def made(folder: Path, samples: Sequence[Made], columns: Sequence[Column], own: Sequence[Column]) -> Dataset:
    """A dataset of columns and annotations (``own``), a shard a split."""
    folder.mkdir()
    samples = sorted(samples, key=lambda s: (SPLITS.index(s.split), s.source, s.tile))
    splits = [sample.split for sample in samples]
    layout = shards.divide([0] * len(samples), splits, [""] * len(samples), 1)
    for listed in [*([columns] if columns else []), *([one] for one in own)]:
        fields = {column.name: column.field() for column in listed}
        for number, rows in enumerate(layout):
            path = folder / shards.shard_name(number, None if listed is columns else listed[0].name)
            write_shard(path, fields, (samples[i].arrays for i in rows))
    points = [len(s.arrays[columns[0].name]) if columns else 0 for s in samples]
    counts = {
        split: SplitCounts(
            samples=splits.count(split),
            points=sum(n for n, one in zip(points, splits, strict=True) if one == split),
            classes={},
            ignored=0,
            dropped=3,
            annotations={
                o.name: sum(len(s.arrays[o.name]) for s in samples if s.split == split) for o in own
            },
        )
        for split in dict.fromkeys(splits)
    }
    described = Described(
        columns=[*columns],
        annotations=[*own],
        counts=Counts(samples=len(samples), points=sum(points), dropped=9, outside=4, splits=counts),
        moments=moments_of({column.name: column.field() for column in columns}),
        row_order="source",
        sources={},
    )
    about = About(
        [s.source for s in samples],
        [s.tile for s in samples],
        splits,
        np.array([s.origin for s in samples]),
        np.array([[*s.origin, *s.origin] for s in samples]),
        [s.label for s in samples],
    )
    finish(folder, about, layout, described, DataSettings(row_order="source"))
    return Dataset(folder)


def said(dataset: Dataset) -> list[Any]:
    """All that a dataset says of its samples, numbers as their bytes."""
    found: list[Any] = [dataset.manifest.columns, dataset.manifest.annotations, dataset.row_order]
    for row in range(len(dataset)):
        sample = dataset.sample(row)
        arrays = {**sample.columns, **sample.annotations}
        found.append({name: (v.dtype.str, v.shape, v.tobytes()) for name, v in arrays.items()})
        found.append(
            (sample.id, sample.kinds, sample.origin.tobytes(), dataset.samples.slice(row, 1).to_pylist())
        )
    return found


@pytest.mark.parametrize("to", FORMATS)
def test_a_build_comes_back_to_the_byte(built: Dataset, tmp_path: Path, digests: Digests, to: To) -> None:
    assert len({*built.samples.column("split").to_pylist()}) > 1
    told = convert(built.path.parent, tmp_path / "out", to)
    assert told.startswith(f"{tmp_path / 'out'}: {len(built)} samples in ")
    assert len([*(tmp_path / "out" / "train").glob(FILES[to])]) == 1
    convert(tmp_path / "out", tmp_path / "back")
    assert digests(tmp_path / "back") == digests(built.path)
    assert verify(tmp_path / "back") == []


@pytest.mark.parametrize("to", FORMATS)
def test_the_bytes_depend_on_the_dataset_alone(
    built: Dataset, tmp_path: Path, digests: Digests, to: To, monkeypatch: pytest.MonkeyPatch
) -> None:
    convert(built.path, tmp_path / "out", to)
    copy = shutil.copytree(built.path, tmp_path / "elsewhere" / "dataset")
    monkeypatch.setattr("time.time", lambda: 86400.0)
    old = os.umask(0o077)
    try:
        convert(copy, tmp_path / "again", to)
    finally:
        os.umask(old)
    assert digests(tmp_path / "out") == digests(tmp_path / "again")
    for path in (tmp_path / "out").rglob("*.tar"):
        with tarfile.open(path) as tar:
            for one in tar:
                assert (one.mtime, one.uid, one.gid, one.mode, one.uname) == (0, 0, 0, 0o644, "")


DTYPES = ["i1", "u1", "i2", "u2", "i4", "u4", "i8", "u8", "f2", "f4", "f8"]
TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
ODD = st.sampled_from(
    ["a/b", "a b", "a%20b", "%", "A", "ä.ö", "json", "x;y", "sample/json", "xyz/dtype", ".", "点"]
)


@st.composite
def datasets(draw: st.DrawFn) -> tuple[list[Made], list[Column], list[Column]]:
    """Samples of random columns; the bytes of their numbers are random, and so are some no numbers."""

    def column(name: str) -> Column:
        dtype = np.dtype(draw(st.sampled_from(DTYPES)))
        return Column(name=name, dtype=dtype.name, width=draw(st.integers(1, 4)), kind="none")

    names = draw(st.lists(st.one_of(ODD, TEXT.filter(lambda t: "\0" not in t)), max_size=4, unique=True))
    xyz = Column(name="xyz", dtype="float32", width=3, kind="point")
    columns = [xyz, *(column(name) for name in names if name != "xyz")] if draw(st.booleans()) else []
    own = [column(name) for name in ("boxes", "im.age", "ü")[: draw(st.integers(0 if columns else 1, 3))]]
    own = [one for one in own if one.name not in names]
    if not columns and not own:
        columns = [xyz]
    keys = draw(st.lists(st.tuples(TEXT, st.integers(0, 2**62)), min_size=1, max_size=5, unique=True))
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))

    def array(one: Column, rows: int) -> Any:
        data = rng.bytes(rows * one.field().row_bytes)
        return np.frombuffer(data, one.dtype).reshape(one.field().shape(rows))

    samples = []
    for source, tile in keys:
        rows = draw(st.integers(0, 5))
        arrays = {one.name: array(one, rows) for one in columns}
        arrays |= {one.name: array(one, draw(st.integers(0, 5))) for one in own}
        split, label = draw(st.sampled_from(SPLITS)), draw(st.integers(-1, 9))
        origin = draw(st.lists(st.floats(allow_nan=False, allow_infinity=False), min_size=3, max_size=3))
        samples.append(Made(source, tile, split, origin, label, arrays))
    return samples, columns, own


@pytest.mark.filterwarnings("ignore:overflow:RuntimeWarning", "ignore:invalid:RuntimeWarning")
@settings(max_examples=15, deadline=None)
@given(content=datasets(), to=st.sampled_from(FORMATS), described=st.booleans())
def test_any_samples_come_back(content: Any, to: To, described: bool) -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        dataset = made(folder / "dataset", *content)
        convert(dataset.path, folder / "out", to)
        if not described:
            (folder / "out" / "tamis.json").unlink()
        convert(folder / "out", folder / "back")
        back = Dataset(folder / "back")
        assert said(back) == said(dataset)
        assert verify(folder / "back") == []
        if described:
            ours, theirs = back.manifest.counts, dataset.manifest.counts
            assert ours == theirs


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # it closes no file
def test_webdataset_reads_the_tars(built: Dataset, tmp_path: Path) -> None:
    wds = pytest.importorskip("webdataset")
    convert(built.path, tmp_path / "out")
    row = 0
    for split in ("train", "test"):
        urls = [str(path) for path in sorted((tmp_path / "out" / split).glob("*.tar"))]
        for got in wds.WebDataset(urls, shardshuffle=False).decode():
            sample = built.sample(row)
            assert got["__key__"] == f"{row:08d}"
            assert {n.removesuffix(".npy") for n in got if n.endswith(".npy")} == sample.columns.keys()
            for name, values in sample.columns.items():
                assert got[f"{name}.npy"].dtype == values.dtype
                assert np.array_equal(got[f"{name}.npy"], values)
            about = got["json"]
            assert (about["name"], about["source"], about["tile"]) == (
                sample.name,
                sample.source,
                sample.tile,
            )
            assert about["origin"] == sample.origin.tolist()
            assert about["split"] == split
            row += 1
    assert row == len(built)


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_what_webdataset_writes_is_read(tmp_path: Path) -> None:
    wds = pytest.importorskip("webdataset")
    rng = np.random.default_rng()
    clouds = [rng.normal(size=(n, 3)).astype(np.float32) for n in (3, 0, 8)]
    with wds.TarWriter(str(tmp_path / "a.tar")) as writer:
        for number, xyz in enumerate(clouds):
            writer.write({"__key__": f"k{number}", "xyz.npy": xyz, "cls": number, "note.json": {"a": "ü"}})
    convert(tmp_path / "a.tar", tmp_path / "out")
    back = Dataset(tmp_path / "out")
    assert back.samples.column("name").to_pylist() == ["a.tar/k0#0", "a.tar/k1#0", "a.tar/k2#0"]
    assert back.samples.column("label").to_pylist() == [0, 1, 2]
    for row, xyz in enumerate(clouds):
        assert np.array_equal(back.sample(row).columns["xyz"], xyz)
        assert json.loads(back.sample(row).annotations["note.json"].tobytes()) == {"a": "ü"}


Read = Callable[[Opened], list[tuple[int, Any]]]


@pytest.mark.parametrize("to", FORMATS)
def test_dali_reads_them(built: Dataset, tmp_path: Path, read_all: Read, to: To) -> None:
    convert(built.path, tmp_path / "out", to)
    paths = tuple(sorted((tmp_path / "out" / "train").glob(FILES[to])))
    source: Any
    if to == "webdataset":
        source = WebdatasetSource(paths=paths, columns={name: f"{name}.npy" for name in built.schema})
    else:
        features = {
            name: FeatureColumn(feature=name, dtype=one.dtype.name, width=one.width)
            for name, one in built.schema.items()
        }
        source = TfrecordSource(paths=paths, columns=features)
    found = read_all(opened(source))
    assert len(found) == built.splits["train"][0].rows[1]
    for row, columns in found:
        for name, values in built.sample(row).columns.items():
            assert columns[name].dtype == values.dtype
            assert np.array_equal(columns[name], values)


def test_the_index_is_what_dali_s_tool_writes(built: Dataset, tmp_path: Path) -> None:
    tool = Path(sys.executable).with_name("tfrecord2idx")
    if not tool.exists():
        pytest.skip(f"no {tool}: DALI is not installed")
    convert(built.path, tmp_path / "out", "tfrecord", shard_mb=1)
    for path in (tmp_path / "out").rglob("*.tfrecord"):
        subprocess.run([tool, path, tmp_path / "index"], check=True)
        assert path.with_suffix(".idx").read_bytes() == (tmp_path / "index").read_bytes()
    tf, fn = dali.module("tfrecord"), dali.module("fn")
    path = tmp_path / "out" / "test" / "shard-00000.tfrecord"

    def graph() -> tuple[Any, ...]:
        read = fn.readers.tfrecord(
            path=[str(path)],
            index_path=[str(path.with_suffix(".idx"))],
            features={
                "xyz": tf.FixedLenFeature((), tf.string, ""),
                "xyz/shape": tf.FixedLenFeature([2], tf.int64, 0),
            },
        )
        return read["xyz"], read["xyz/shape"]

    (first, stop), n = built.splits["test"][0].rows, len(built)
    assert stop == n
    outputs = dali.built(graph, batch_size=n - first, num_threads=1).run()
    for i, row in enumerate(range(first, stop)):
        xyz = built.sample(row).columns["xyz"]
        assert np.asarray(outputs[0][i]).tobytes() == xyz.tobytes()
        assert tuple(np.asarray(outputs[1][i])) == xyz.shape


@pytest.mark.parametrize("to", FORMATS)
def test_shards_are_as_large_as_asked_for(tmp_path: Path, to: To) -> None:
    xyz = Column(name="xyz", dtype="float32", width=3, kind="point")
    sizes = [60_000, 20_000, 20_000, 100_000, 1, 1]  # 720, 240, 240, 1200 kB
    samples = [
        Made("a", i, "train", [0.0] * 3, -1, {"xyz": np.full((n, 3), i, np.float32)})
        for i, n in enumerate(sizes)
    ]
    dataset = made(tmp_path / "dataset", samples, [xyz], [])
    convert(dataset.path, tmp_path / "out", to, shard_mb=1)
    files = sorted((tmp_path / "out" / "train").glob(FILES[to]))
    assert [path.stem for path in files] == ["shard-00000", "shard-00001", "shard-00002", "shard-00003"]
    weights = [path.stat().st_size // 1000 for path in files]
    for weight, wanted in zip(weights, (960, 240, 1200, 0), strict=True):
        assert wanted <= weight < wanted + 30
    convert(tmp_path / "out", tmp_path / "back", shard_mb=100)
    assert len(Dataset(tmp_path / "back").manifest.files) == 4
    assert said(Dataset(tmp_path / "back")) == said(dataset)


def test_one_file_or_folder_of_them_will_do(built: Dataset, tmp_path: Path) -> None:
    convert(built.path, tmp_path / "out", "tfrecord")
    convert(tmp_path / "out" / "test", tmp_path / "test")
    convert(tmp_path / "out" / "test" / "shard-00000.tfrecord", tmp_path / "file")
    start = built.splits["test"][0].rows[0]
    for name in ("test", "file"):
        back = Dataset(tmp_path / name)
        assert back.ids.tolist() == built.ids[start:].tolist()
        assert back.classes == built.classes
        assert np.array_equal(back.sample(0).positions(), built.sample(start).positions())


def test_an_out_that_will_not_do_is_refused(built: Dataset, tmp_path: Path, digests: Digests) -> None:
    before = digests(built.path)
    (tmp_path / "file").touch()
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "a").touch()
    for out in (tmp_path / "file", tmp_path / "full"):
        with pytest.raises(UsageError, match="exists and is no empty folder"):
            convert(built.path, out)
    with pytest.raises(UsageError, match="lies in the input"):
        convert(built.path, built.path / "tars")
    with pytest.raises(UsageError, match="is a dataset already"):
        convert(built.path, tmp_path / "out", "dataset")
    with pytest.raises(UsageError, match="is no dataset, which alone becomes tfrecord"):
        convert(tmp_path / "full", tmp_path / "out", "tfrecord")
    with pytest.raises(UsageError, match="--shard-mb: is 0"):
        convert(built.path, tmp_path / "out", shard_mb=0)
    with pytest.raises(DataError, match="no such file or folder"):
        convert(tmp_path / "none", tmp_path / "out")
    with pytest.raises(DataError, match=r"full/a: is neither a tar nor a TFRecord file"):
        convert(tmp_path / "full", tmp_path / "out")
    assert not (tmp_path / "out").exists()
    assert not [*tmp_path.glob(".*")]
    (tmp_path / "empty").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "empty")
    convert(built.path, tmp_path / "link")
    assert (tmp_path / "empty" / "train").is_dir()
    convert(built.path.parent, built.path.parent / "tars")
    assert digests(built.path) == before


def test_the_command(tmp_path: Path) -> None:
    samples = [Made(split, 0, split, [0.0] * 3, -1, {"tokens": np.arange(9)}) for split in SPLITS]
    own = Column(name="tokens", dtype="int64", width=1, kind="none")
    dataset = made(tmp_path / "dataset", samples, [], [own])
    out = str(tmp_path / "out")
    command = [sys.executable, "-m", "tamis", "convert", str(dataset.path), out, "--to", "tfrecord"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == f"{out}: 3 samples in 3 files\n"
    convert(tmp_path / "out", tmp_path / "back")
    assert said(Dataset(tmp_path / "back")) == said(dataset)
