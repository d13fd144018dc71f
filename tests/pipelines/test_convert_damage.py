"""`tamis convert` where something goes wrong: kills, a full disk, damage, files that do not fit together."""

from __future__ import annotations

import io
import json
import os
import re
import resource
import shutil
import subprocess
import sys
import tarfile
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from crc32c import crc32c

from tamis.errors import DataError
from tamis.pipelines.convert import To, convert
from tamis.pipelines.dataset import Dataset
from tamis.pipelines.manifest import Column

FORMATS: tuple[To, ...] = ("webdataset", "tfrecord")
FILES = {"webdataset": "*.tar", "tfrecord": "*.tfrecord"}
XYZ = Column(name="xyz", dtype="float32", width=3, kind="point")
RING = Column(name="ring", dtype="uint8", width=1, kind="none")
BOXES = Column(name="boxes", dtype="float64", width=7, kind="box")


@pytest.fixture
def dataset(tmp_path: Path, write_dataset: Callable[..., Dataset]) -> Dataset:
    """Three samples with two columns and an annotation."""
    rng = np.random.default_rng()
    samples = [
        {
            "xyz": rng.normal(size=(rows, 3)).astype(np.float32),
            "ring": rng.integers(0, 64, rows).astype(np.uint8),
            "boxes": rng.normal(size=(number, 7)),
        }
        for number, rows in enumerate((40, 0, 7))
    ]
    return write_dataset(tmp_path / "dataset", samples, [range(3)], [XYZ, RING], [BOXES])


def said(dataset: Dataset) -> list[Any]:
    """All that a dataset says of its samples, numbers as their bytes."""
    found: list[Any] = [dataset.manifest.columns, dataset.manifest.annotations]
    for row in range(len(dataset)):
        sample = dataset.sample(row)
        arrays = {**sample.columns, **sample.annotations}
        found.append({name: (v.dtype.str, v.shape, v.tobytes()) for name, v in arrays.items()})
        found.append((sample.id, sample.origin.tobytes(), dataset.samples.slice(row, 1).to_pylist()))
    return found


Digests = Callable[[Path], dict[str, str]]

KILLED = """
import os, random, shutil, signal, sys
from pathlib import Path
from tamis.pipelines.convert import convert

flush = os.fsync
seed, warm, *rest = sys.argv[1:]
chance = random.Random(seed)
convert(Path(rest[0]), Path(warm))  # imports what the children would import each
shutil.rmtree(warm)
for path, out, to in zip(*[iter(rest)] * 3):
    path, out = Path(path), Path(out)
    last = 0
    while not out.exists():
        last += chance.randrange(1, 3)
        child = os.fork()
        if not child:
            left = last
            def counted(fd):
                global left
                left -= 1
                if not left:
                    os.kill(os.getpid(), signal.SIGKILL)
                flush(fd)
            os.fsync = counted
            convert(path, out, to)
            os._exit(0)
        status = os.waitpid(child, 0)[1]
        print(to, "finished" if status == 0 else "killed", out.exists(), flush=True)
"""


def names(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}


@pytest.mark.slow
def test_a_kill_leaves_nothing_of_half(tmp_path: Path, dataset: Dataset, digests: Digests) -> None:
    """At flushes to the disk, a process each."""
    convert(dataset.path, tmp_path / "tars")
    convert(dataset.path, tmp_path / "records", "tfrecord")
    convert(tmp_path / "tars", tmp_path / "back")
    wanted = {"webdataset": "tars", "tfrecord": "records", "dataset": "back"}
    given = []
    for to in wanted:
        path = tmp_path / "tars" if to == "dataset" else dataset.path
        given += [str(path), str(tmp_path / f"out-{to}"), to]
    there = names(tmp_path)
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", KILLED, os.urandom(4).hex(), str(tmp_path / "warm"), *given],
        capture_output=True,
        text=True,
        timeout=100,
        check=True,
    )
    for to, same in wanted.items():
        lines = [line.split()[1:] for line in done.stdout.splitlines() if line.startswith(to)]
        assert len(lines) > 2
        assert all(line == ["killed", "False"] for line in lines[:-1])
        assert lines[-1][1] == "True"  # killed after it had its name, if at all
        assert digests(tmp_path / f"out-{to}") == digests(tmp_path / same)
    assert names(tmp_path) - there == {f"out-{to}" for to in wanted}, "what killed runs left is removed"


@pytest.mark.parametrize("to", ["webdataset", "tfrecord", "dataset"])
def test_a_full_disk_is_one_line(dataset: Dataset, tmp_path: Path, to: To) -> None:
    """A process that may write little stands for it: the system refuses the write in the same way."""
    path = dataset.path
    if to == "dataset":
        path = tmp_path / "tars"
        convert(dataset.path, path)
    there = names(tmp_path)
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    with pytest.raises(DataError, match="File too large") as error:
        try:
            resource.setrlimit(resource.RLIMIT_FSIZE, (2_000, before[1]))
            convert(path, tmp_path / "out", to)
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert str(error.value).startswith(f"{tmp_path / 'out'}: ")
    assert "\n" not in str(error.value)
    assert names(tmp_path) == there


def outcome(path: Path, folder: Path) -> list[Any] | str:
    """What comes of files: all that is said, or the one line of an error, and then there is nothing."""
    shutil.rmtree(folder, ignore_errors=True)
    try:
        convert(path, folder)
    except DataError as error:
        left = folder.exists() or "\n" in str(error)
        return "" if left else str(error)
    return said(Dataset(folder))


@pytest.mark.parametrize("described", [True, False])
@pytest.mark.parametrize("to", FORMATS)
def test_s06_a_cut_file_is_damaged(tmp_path: Path, dataset: Dataset, to: To, described: bool) -> None:
    convert(dataset.path, tmp_path / "out", to)
    if not described:
        (tmp_path / "out" / "tamis.json").unlink()
    wanted = outcome(tmp_path / "out", tmp_path / "back")
    (path,) = (tmp_path / "out" / "train").glob(FILES[to])
    data = path.read_bytes()
    rng = np.random.default_rng()
    places = [0, 1, 511, 512, 1024, *rng.integers(1, len(data), 25)]
    if to == "webdataset":
        end = len(data.rstrip(b"\0")) // 512 * 512 + 512
        places = [int(at) for at in places if at < end] + [end, end + 512]
    else:
        starts = [int(line.split()[0]) for line in path.with_suffix(".idx").read_text().splitlines()]
        places += [*starts, starts[-1] + 1]
    for at in places:
        path.write_bytes(data[:at])
        found = outcome(tmp_path / "out", tmp_path / "back")
        if to == "tfrecord" and not described and at in starts:
            assert found != wanted  # the records before are whole: only the description tells that more were
            continue
        assert isinstance(found, str), at
        if to == "tfrecord" and at in starts:
            assert f"{tmp_path / 'out'}: holds " in found
            assert "3 were converted" in found or "holds no sample" in found
        else:
            assert found.startswith(str(path))
            assert "byte" in found or "not a whole, plain tar" in found
    path.write_bytes(data)
    assert outcome(tmp_path / "out", tmp_path / "back") == wanted


@pytest.mark.parametrize("to", FORMATS)
def test_flipped_bits_give_an_error_or_what_was_written(tmp_path: Path, dataset: Dataset, to: To) -> None:
    convert(dataset.path, tmp_path / "out", to)
    wanted = outcome(tmp_path / "out", tmp_path / "back")
    paths = [tmp_path / "out" / "tamis.json", *(tmp_path / "out").rglob(FILES[to])]
    rng = np.random.default_rng()
    told = 0
    for _ in range(60):
        path = paths[rng.integers(len(paths))]
        data = path.read_bytes()
        end = len(data.rstrip(b"\0"))
        at, bit = int(rng.integers(end)), int(rng.integers(8))
        changed = bytearray(data)
        changed[at] ^= 1 << bit
        path.write_bytes(changed)
        found = outcome(tmp_path / "out", tmp_path / "back")
        path.write_bytes(data)
        assert found == wanted or (isinstance(found, str) and str(path) in found), (path, at, bit, found)
        if to == "tfrecord" or path.suffix == ".json":
            assert isinstance(found, str), (path, at, bit)
        told += isinstance(found, str)
    assert told > 20


def rewritten(path: Path, change: Callable[[dict[str, bytes]], Any]) -> None:
    """A tar written again by another program, with some change of its members."""
    with tarfile.open(path) as tar:
        contents = {one.name: tar.extractfile(one).read() for one in tar}  # type: ignore[union-attr]
    change(contents)
    with tarfile.open(path, "w", format=tarfile.PAX_FORMAT) as tar:
        for name, data in contents.items():
            member = tarfile.TarInfo(name)
            member.size, member.mtime = len(data), 1.5
            tar.addfile(member, io.BytesIO(data))


def test_what_is_not_whole_is_told(tmp_path: Path, dataset: Dataset) -> None:
    out, back = tmp_path / "out", tmp_path / "back"
    convert(dataset.path, out)
    path = out / "train" / "shard-00000.tar"
    data = path.read_bytes()
    rewritten(path, lambda _: None)
    assert outcome(out, back) == said(dataset)

    def without(name: str) -> str:
        path.write_bytes(data)
        rewritten(path, lambda contents: contents.pop(name))
        return str(outcome(out, back))

    start = rf"{path}: sample '00000001' at byte \d+: "
    assert re.match(rf"{start}lacks 'ring.npy': present 'json', 'xyz.npy', ", without("00000001.ring.npy"))
    other = rf"{path}: sample '00000000' at byte \d+"
    assert re.match(rf"{start}has no card, {other} has one; ", without("00000001.json"))
    path.write_bytes(data)
    rewritten(path, lambda contents: contents.update({"00000000.xyz.npy": contents["00000001.xyz.npy"]}))
    shapes = r"column xyz has shape \(0, 3\) and .*, not \(40, 3\) of float32"
    assert re.match(rf"{path}: member 'xyz.npy' at byte \d+: {shapes}", str(outcome(out, back)))
    path.write_bytes(data)
    rewritten(path, lambda contents: [contents.pop(name) for name in [*contents] if "00000002" in name])
    wanted = f"{out}: holds 2 samples of split train, 3 were converted; fetch the missing files"
    assert str(outcome(out, back)).startswith(wanted)
    found = outcome(out / "train", back)
    assert isinstance(found, list), "a part may be asked for by name"
    assert len(found) == 2 + 2 * 2
    path.write_bytes(data)
    shutil.copy(path, out / "train" / "copy.tar")
    assert "is the same sample as" in str(outcome(out, back))


def test_samples_of_two_datasets_are_told(
    tmp_path: Path, dataset: Dataset, write_dataset: Callable[..., Dataset], tfrecord: SimpleNamespace
) -> None:
    out, back = tmp_path / "out", tmp_path / "back"
    convert(dataset.path, out)
    other = write_dataset(tmp_path / "other", [{"xyz": np.zeros((2, 3), np.float32)}], [range(1)], [XYZ], [])
    convert(other.path, tmp_path / "more")
    shutil.copy(tmp_path / "more" / "train" / "shard-00000.tar", out / "train" / "z.tar")
    found = str(outcome(out / "train", back))
    assert re.match(rf"{out}/train/z.tar: sample '00000000' at byte \d+: has 'xyz' \(float32 x 3\), ", found)
    assert "'ring' (uint8 x 1), 'boxes' (float64 x 7); convert" in found
    tfrecord.write(out / "a.tfrecord", [{"seg": np.arange(3)}])
    assert "holds tars and TFRecord files" in str(outcome(out, back))
    (out / "a.tfrecord").rename(tmp_path / "a.tfrecord")
    (out / "train" / "z.tar").unlink()
    convert(dataset.path, tmp_path / "records", "tfrecord")
    shutil.copy(tmp_path / "a.tfrecord", tmp_path / "records" / "z.tfrecord")
    assert "z.tfrecord: record 0 at byte 0: has no card, " in str(outcome(tmp_path / "records", back))
    shutil.copy(tmp_path / "a.tfrecord", tmp_path / "records" / "a.tfrecord")
    assert "a.tfrecord: record 0 at byte 0: has no card, " in str(outcome(tmp_path / "records", back))
    (tmp_path / "records" / "tamis.json").unlink()
    found = str(outcome(tmp_path / "records", back))
    assert "shard-00000.tfrecord: record 0 at byte 0: has a card, " in found


def test_a_card_of_another_version_is_told(tmp_path: Path, dataset: Dataset) -> None:
    convert(dataset.path, tmp_path / "out")
    path = tmp_path / "out" / "train" / "shard-00000.tar"

    def newer(contents: dict[str, bytes]) -> None:
        values = json.loads(contents["00000000.json"])
        del values["crc32c"]
        values["tamis"] = 2
        text = json.dumps(values, ensure_ascii=False).encode()
        contents["00000000.json"] = json.dumps(values | {"crc32c": crc32c(text)}, ensure_ascii=False).encode()

    rewritten(path, newer)
    found = str(outcome(tmp_path / "out", tmp_path / "back"))
    assert re.match(
        rf"{path}: sample '00000000' at byte \d+: member 'json' at byte \d+: is of version 2", found
    )
