"""Folders of texts become token samples, and the samples are the texts again."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tamis.config import check
from tamis.errors import DataError, TamisError, UsageError
from tamis.metrics import BUILD, FIGURES, Meter
from tamis.pipelines import text
from tamis.pipelines.build import build
from tamis.pipelines.dataset import Dataset
from tamis.pipelines.inspect import inspect
from tamis.pipelines.records import SPLITS, sample_id
from tamis.pipelines.settings import DataSettings, TextSettings
from tamis.pipelines.splits import HashSplit
from tamis.pipelines.verify import verify

Digests = Callable[[Path], dict[str, str]]
DOCUMENTS = {
    "a.txt": b"one two three " * 40,
    "b/c.txt": "Größe \U0001f40c".encode() * 9,
    "b/d.txt": b"",
    "e.txt": bytes(range(256)) * 5,
    "f.txt": b"\xff\xfe no text at all \x00",
}


def write(root: Path, documents: Mapping[str, bytes]) -> Path:
    for name, content in documents.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_bytes(content)
    return root


def settings_of(root: Path, length: int = 64, **keys: Any) -> DataSettings:
    values = {"root": str(root), "text": {"length": length}, "files": ["**/*.txt"], **keys}
    return check(values, DataSettings, where="data")


def tokens_of(dataset: Dataset, split: str) -> list[int]:
    """All tokens of a split, in order: the reference's side."""
    rows = [row for part in dataset.splits.get(split, []) for row in range(*part.rows)]
    return [token for row in rows for token in dataset.sample(row).annotations["tokens"].tolist()]


def expected(documents: Mapping[str, bytes]) -> list[int]:
    return [token for name in sorted(documents) for token in [*documents[name], text.END]]


@settings(max_examples=40, deadline=None)
@given(
    documents=st.dictionaries(
        st.text("abc", min_size=1, max_size=3).map(lambda name: f"{name}.txt"),
        st.binary(max_size=300),
        min_size=1,
        max_size=8,
    ),
    length=st.integers(2, 80),
    test=st.sampled_from([0.0, 0.5]),
    chunk=st.integers(1, 50),
    samples=st.integers(1, 9),
)
def test_samples_are_the_documents_again(
    documents: dict[str, bytes], length: int, test: float, chunk: int, samples: int
) -> None:
    split = HashSplit(kind="hash", test=test)
    with pytest.MonkeyPatch.context() as patch, tempfile.TemporaryDirectory() as folder:
        patch.setattr(text, "_CHUNK", chunk)
        whole, regroup = settings_of(Path(folder), length, split=split.model_dump()), text.regroup
        patch.setattr(text, "regroup", lambda pieces, _size: regroup(pieces, samples * length))
        dataset = build(whole, Path(write(Path(folder), documents), "run"))
        assert verify(dataset.path) == []
        for name in SPLITS:
            own = {source: content for source, content in documents.items() if split.of(source) == name}
            assert tokens_of(dataset, name) == expected(own)
            for part in dataset.splits.get(name, []):
                sizes = dataset.rows_of("tokens")[slice(*part.rows)]
                assert (sizes[:-1] == length).all()
                assert 0 < sizes[-1] <= length
        for row in range(len(dataset)):
            sample = dataset.sample(row)
            document = [*documents[sample.source], text.END]
            n = min(len(document) - sample.tile, length)
            assert sample.annotations["tokens"].tolist()[:n] == document[sample.tile :][:n]
            assert sample.id == sample_id(sample.source, sample.tile)
            assert (sample.rows, dict(sample.columns)) == (0, {})
        counts = dataset.manifest.counts
        assert counts.samples == len(dataset)
        total = sum(split.annotations["tokens"] for split in counts.splits.values())
        assert total == sum(map(len, documents.values())) + len(documents)


@pytest.mark.parametrize("size", [1, 5, 64, 1000])
def test_tokens_are_regrouped(size: int) -> None:
    rng = np.random.default_rng(size)
    pieces = [rng.integers(0, 257, n).astype(np.uint16) for n in (0, 3, 200, 1, 64, 0)]
    found = [group.copy() for group in text.regroup(pieces, size)]
    assert [len(group) for group in found[:-1]] == [size] * (len(found) - 1)
    assert np.array_equal(np.concatenate(found), np.concatenate(pieces))


def test_a_build_is_a_function_of_names_and_content(tmp_path: Path, digests: Digests) -> None:
    first = write(tmp_path / "a", DOCUMENTS)
    build(settings_of(first), tmp_path / "one")
    second = write(tmp_path / "b", dict(reversed(DOCUMENTS.items())))
    os.utime(second / "a.txt", (0, 0))
    dataset = build(settings_of(second, verify="always"), tmp_path / "two")
    assert digests(tmp_path / "one") == digests(tmp_path / "two")
    names = sorted(path.name for path in dataset.path.iterdir())
    assert names == [
        "checksums.tokens.arrow", "dataset.json", "index.arrow", "samples.arrow", "shard-00000.tokens.arrow"
    ]  # fmt: skip
    assert dataset.manifest.sources["e.txt"].sha256 == hashlib.sha256(DOCUMENTS["e.txt"]).hexdigest()
    assert (dataset.row_order, dataset.schema, list(dataset.annotations)) == ("source", {}, ["tokens"])
    assert dataset.annotations["tokens"].dtype == np.uint16


def test_a_shard_has_at_most_so_many_bytes(tmp_path: Path) -> None:
    root = write(tmp_path / "raw", {"a.txt": bytes(2_600_000), "b.txt": b"b" * 10})
    dataset = build(settings_of(root, 1000, shard_mb=1, split={"kind": "files", "test": ["b.txt"]}), tmp_path)
    sizes = [dataset.rows_of("tokens")[dataset.shard == shard].sum() for shard in range(7)]
    assert sizes == [524_000] * 4 + [504_001, 11, 0]
    assert [part.model_dump() for part in dataset.splits["test"]] == [
        {"shards": (5, 6), "rows": (2601, 2602)}
    ]
    assert verify(dataset.path) == []


def test_files_named_otherwise_and_none_named(tmp_path: Path) -> None:
    root = write(tmp_path / "raw", {"a.txt": b"a", "b/c.txt": b"c", "d.md": b"d"})
    every = build(settings_of(root, files=[]), tmp_path / "one")
    assert tokens_of(every, "train") == expected({"a.txt": b"a", "b/c.txt": b"c"})
    other = build(settings_of(root, files=["*.md"]), tmp_path / "two")
    assert tokens_of(other, "train") == expected({"d.md": b"d"})


def test_names_and_contents_are_taken_as_they_are(tmp_path: Path) -> None:
    documents = {
        "a b/#1 [x].txt": b"\xff\xfe\x00 not UTF-8",
        "a b/%20{y}.md": b"",
        "\u732b/z.jsonl": b'{"a": 1}\r\n{"b": "\\ud800"}\n',
        "A.TXT": "\ufeffGr\u00f6\u00dfe".encode(),
        "no suffix": b"\0" * 70,
        "new\nline.txt": b"n",
    }
    root = write(tmp_path / "raw", documents)
    write(root, {"left out.pdf": b"%PDF"})
    files = ["**/*.txt", "**/*.md", "**/*.jsonl", "*.TXT", "no suffix", "**/*x].txt"]
    dataset = build(settings_of(root, files=files), tmp_path / "run")
    assert tokens_of(dataset, "train") == expected(documents)
    assert sorted(dataset.manifest.sources) == sorted(documents)
    assert verify(dataset.path) == []


def test_files_of_no_byte_are_a_token_each(tmp_path: Path) -> None:
    documents = dict.fromkeys((f"{i:04}.txt" for i in range(300)), b"")
    dataset = build(settings_of(write(tmp_path / "raw", documents)), tmp_path / "run")
    assert tokens_of(dataset, "train") == [text.END] * 300


def test_hidden_files_are_taken_where_they_are_named(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    hidden = {".a.txt": b"h", "b/._c.txt": b"\0\5", ".git/d.txt": b"g"}
    root = write(tmp_path / "raw", hidden)
    with pytest.raises(DataError, match=r"raw: holds no \*\.txt file but hidden ones; name others"):
        build(settings_of(root, files=[]), tmp_path / "none")
    write(root, {"b/c.txt": b"c"})
    dataset = build(settings_of(root, files=[]), tmp_path / "one")
    assert tokens_of(dataset, "train") == expected({"b/c.txt": b"c"})
    assert f"{root}: left out 3 hidden files, as .a.txt: data.files may name them" in caplog.messages
    named = build(settings_of(root, files=["**/*.txt"]), tmp_path / "two")
    assert tokens_of(named, "train") == expected({**hidden, "b/c.txt": b"c"})


@pytest.mark.slow
def test_a_file_larger_than_what_it_may_take_is_built(tmp_path: Path) -> None:
    """300 MB: what the process takes beyond its start is less than half of that."""
    (tmp_path / "raw").mkdir()
    block = np.random.default_rng().integers(0, 256, 1 << 20, np.uint8).tobytes()
    with (tmp_path / "raw" / "a.txt").open("wb") as file:
        for _ in range(300):
            file.write(block)
    code = r"""
import re, sys
from pathlib import Path
from tamis.pipelines.build import build
from tamis.pipelines.settings import DataSettings, TextSettings

def most():
    return int(re.search(r"VmHWM:\s+(\d+) kB", Path("/proc/self/status").read_text())[1])

start = most()
out = Path(sys.argv[1])
dataset = build(DataSettings(root=out / "raw", text=TextSettings(length=1 << 14), shard_mb=16), out)
print(dataset.manifest.counts.splits["train"].annotations["tokens"], most() - start)
"""
    run = [sys.executable, "-c", code, str(tmp_path)]
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(entry or os.curdir for entry in sys.path)}
    out = subprocess.run(run, capture_output=True, text=True, check=True, env=env)
    tokens, kilobytes = map(int, out.stdout.split())
    assert tokens == (300 << 20) + 1
    assert kilobytes < 150 << 10


def test_a_finished_dataset_is_returned_or_refused(tmp_path: Path) -> None:
    root = write(tmp_path / "raw", DOCUMENTS)
    first = build(settings_of(root), tmp_path / "run")
    assert build(settings_of(root), tmp_path / "run").fingerprint == first.fingerprint
    with pytest.raises(DataError, match=r"built with another data\.text\.length"):
        build(settings_of(root, 65), tmp_path / "run")
    (root / "a.txt").write_bytes(b"x" * len(DOCUMENTS["a.txt"]))
    with pytest.raises(DataError, match=r"a\.txt: has changed since"):
        build(settings_of(root), tmp_path / "run")


def test_stages_are_counted(tmp_path: Path) -> None:
    meter = Meter(BUILD)
    dataset = build(settings_of(write(tmp_path / "raw", DOCUMENTS)), tmp_path / "run", meter)
    figures = {stage: dict(zip(FIGURES, meter.table[i], strict=False)) for i, stage in enumerate(BUILD)}
    size = sum(map(len, DOCUMENTS.values()))
    assert (figures["build.read"]["items"], figures["build.read"]["bytes"]) == (len(DOCUMENTS), size)
    assert figures["build.write"]["items"] == len(dataset)
    assert figures["build.write"]["points_out"] == size + len(DOCUMENTS)


def test_it_is_described(tmp_path: Path) -> None:
    root = write(tmp_path / "raw", DOCUMENTS)
    build(settings_of(root, split={"kind": "files", "test": ["e.txt"]}), tmp_path / "run")
    lines = {line.split()[0]: line.split() for line in inspect(tmp_path / "run").splitlines() if line}
    assert lines["split"] == ["split", "samples", "tokens"]
    assert lines["test"] == ["test", "21", "1281"]
    assert lines["tokens"] == ["tokens", "uint16", "none"]
    assert "points" not in lines


def test_an_unreadable_file_is_one_line_and_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = write(tmp_path / "raw", DOCUMENTS)
    opened = Path.open

    def refused(path: Path, *arguments: Any, **keys: Any) -> Any:
        if path.name == "e.txt":
            raise PermissionError(13, "Permission denied", str(path))
        return opened(path, *arguments, **keys)

    with monkeypatch.context() as patch:
        patch.setattr(Path, "open", refused)
        with pytest.raises(DataError, match=r"e\.txt: cannot be read \(Permission denied\); check") as caught:
            build(settings_of(root), tmp_path / "run")
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "run").exists()
    assert len(build(settings_of(root), tmp_path / "run")) > 0


@pytest.mark.parametrize(
    ("keys", "kind", "message"),
    [
        ({"classes": {"a": [1]}}, UsageError, "'classes' is for points"),
        ({"tiles": {"size": 1.0}}, UsageError, "'tiles' is for points"),
        ({"bounds": [0, 0, 1, 1]}, UsageError, "'bounds' is for points"),
        ({"fields": ["rgb"]}, UsageError, "'fields' is for points"),
        ({"split": {"kind": "blocks", "size": [1, 1]}}, UsageError, "a text has no ground"),
        ({"split": {"kind": "hash", "test": 0.6, "val": 0.4}}, UsageError, "leave nothing to train on"),
        ({"text": {"length": 1}}, UsageError, "greater than or equal to 2"),
        ({"text": {"size": 8}}, UsageError, "did you mean"),
        ({"files": ["*.md"]}, DataError, "no such file"),
    ],
)
def test_bad_settings_are_one_line(
    tmp_path: Path, keys: dict[str, Any], kind: type[TamisError], message: str
) -> None:
    root = write(tmp_path / "raw", DOCUMENTS)
    with pytest.raises(kind, match=message) as caught:
        build(settings_of(root, **keys), tmp_path / "run")
    assert "\n" not in str(caught.value)


def test_a_hash_moves_no_file_when_others_come(tmp_path: Path) -> None:
    names = [f"{i}.txt" for i in range(2000)]
    split = HashSplit(kind="hash", val=0.1, test=0.05)
    found = [split.of(name) for name in names]
    assert 60 < found.count("test") < 140
    assert 150 < found.count("val") < 250
    more = HashSplit(kind="hash", test=0.05)
    assert [name == "test" for name in found] == [more.of(name) == "test" for name in names]


def test_memory_does_not_grow_with_the_corpus(tmp_path: Path) -> None:
    """What is held is a shard, and a few hundred bytes a sample."""
    import tracemalloc

    peaks = []
    for size in (3, 12):
        root = write(tmp_path / f"raw-{size}", {f"{i}.txt": bytes(1 << 20) for i in range(size)})
        tracemalloc.start()
        build(settings_of(root, 4096, shard_mb=1), tmp_path / f"run-{size}")
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
        shutil.rmtree(root)
    assert peaks[1] - peaks[0] < 9 * 256 * 1000
    assert peaks[1] < 20e6


def test_text_settings_say_what_they_hold() -> None:
    assert TextSettings().length == 256
    assert text.VOCABULARY == text.END + 1 == 257
