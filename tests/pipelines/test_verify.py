from __future__ import annotations

import shutil
from pathlib import Path
from threading import Barrier

import numpy as np
import pytest

from tamis.errors import DataError, UsageError
from tamis.pipelines import manifest, shards
from tamis.pipelines.build import DataSettings, build
from tamis.pipelines.checks import chunk_sums
from tamis.pipelines.dataset import Dataset, table
from tamis.pipelines.manifest import FileDigest
from tamis.pipelines.verify import verify


@pytest.fixture
def built(settings: DataSettings, tmp_path: Path) -> Path:
    return build(settings.model_copy(update={"fields": ["intensity"]}), tmp_path / "run").path


def test_a_whole_dataset_has_no_problem(built: Path) -> None:
    assert verify(built) == verify(built.parent) == []


@pytest.mark.parametrize("seed", range(6))
def test_one_flipped_bit_anywhere_is_named_with_file_and_byte(built: Path, seed: int) -> None:
    rng = np.random.default_rng(seed)
    for path in sorted(built.iterdir()):
        whole = path.read_bytes()
        at, bit = int(rng.integers(len(whole))), int(rng.integers(8))
        changed = bytearray(whole)
        changed[at] ^= 1 << bit
        path.write_bytes(changed)
        assert [(problem.file, problem.offset) for problem in verify(built)] == [(path.name, at)]
        path.write_bytes(whole)


@pytest.mark.parametrize("seed", range(3))
def test_more_damage_is_placed_by_blocks_of_rows(built: Path, seed: int) -> None:
    dataset = Dataset(built)
    rng = np.random.default_rng(seed)
    row = int(rng.integers(len(dataset)))
    size = int(dataset.rows[row]) * 12
    start = int(dataset.positions["xyz"][row])
    at = int(rng.integers(size - 8))
    path = dataset.shard_path(dataset.shard[row])
    data = bytearray(path.read_bytes())
    data[start + at : start + at + 8] = bytes(byte ^ 0x5A for byte in data[start + at : start + at + 8])
    path.write_bytes(data)
    (problem,) = verify(built)
    assert problem.file == path.name
    assert problem.offset == start + at // 3072 * 3072
    name = dataset.samples.column("name")[row].as_py()
    assert f"sample {name}, column xyz, rows {at // 3072 * 256} to" in problem.cause
    assert str(problem).startswith(f"{path.name}: offset {problem.offset}: ")


def test_missing_extra_short_and_long_files(built: Path, tmp_path: Path) -> None:
    for name in ("shard-00001.arrow", "samples.arrow"):
        copy = tmp_path / name
        shutil.copytree(built, copy)
        data = (copy / name).read_bytes()
        (copy / name).write_bytes(data + b"x")
        (copy / "notes.txt").write_text("hello")
        assert {(p.file, p.offset) for p in verify(copy)} == {(name, len(data)), ("notes.txt", 0)}
        (copy / "notes.txt").unlink()
        (copy / name).write_bytes(data[:-9])
        assert [(p.file, p.offset) for p in verify(copy)] == [(name, len(data) - 9)]
        (copy / name).unlink()
        assert [(p.file, p.cause) for p in verify(copy)] == [(name, "is missing")]


def test_an_index_that_lies_is_found(built: Path) -> None:
    """A consistent forgery: the digests fit the index, the index does not fit the shards."""
    described = manifest.unseal(built, (built / manifest.NAME).read_bytes())
    names = [column.name for column in described.columns]
    index = {name: values.copy() for name, values in table(built / shards.INDEX).items()}
    index["pos_intensity"][3] += 64
    shards.write_table(built / shards.INDEX, shards.index_schema(names), index)
    size, sha256, sums = chunk_sums(built / shards.INDEX)
    files = described.files | {shards.INDEX: FileDigest(bytes=size, sha256=sha256, crc32c=sums)}
    forged = described.model_copy(update={"files": files})
    (built / manifest.NAME).write_bytes(manifest.seal(forged))
    (problem,) = verify(built)
    assert "position of intensity does not agree" in problem.cause


def test_nothing_to_verify(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="holds no dataset"):
        verify(tmp_path)


@pytest.mark.parametrize("seed", range(3))
def test_any_number_of_threads_finds_the_same(built: Path, seed: int) -> None:
    """Damage in several shards at once, each named by sample and column, in the order of the files."""
    rng = np.random.default_rng(seed)
    dataset = Dataset(built)
    wanted = []
    for shard in np.unique(dataset.shard).tolist():
        row = int(rng.choice(np.flatnonzero(dataset.shard == shard)))
        at = int(dataset.positions["intensity"][row]) + int(rng.integers(2 * int(dataset.rows[row])))
        path = dataset.shard_path(shard)
        data = bytearray(path.read_bytes())
        data[at] ^= 1 << int(rng.integers(8))
        path.write_bytes(data)
        wanted.append((path.name, at, dataset.samples.column("name")[row].as_py()))
    assert len(wanted) > 1
    (built / "notes.txt").write_text("hello")
    found = verify(built)
    assert found[0].file == "notes.txt"
    assert [(one.file, one.offset) for one in found[1:]] == [one[:2] for one in wanted]
    assert all(
        f"sample {name}, column intensity" in one.cause
        for one, (*_, name) in zip(found[1:], wanted, strict=True)
    )
    assert verify(built, threads=1) == verify(built, threads=3) == found


def test_files_are_read_side_by_side(built: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two shards are open at once: each reader waits for the other."""
    both, real = Barrier(2, timeout=20), chunk_sums

    def waiting(path: Path) -> tuple[int, str, list[int]]:
        if path.name in ("shard-00000.arrow", "shard-00001.arrow"):
            both.wait()
        return real(path)

    monkeypatch.setattr("tamis.pipelines.verify.chunk_sums", waiting)
    assert verify(built, threads=2) == []


def test_threads_that_are_no_number(built: Path) -> None:
    with pytest.raises(UsageError, match="threads"):
        verify(built, threads=0)
