"""Damaged datasets made whole from their raw files, byte for byte."""

from __future__ import annotations

import logging
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tamis import cli
from tamis.errors import DataError
from tamis.pipelines import shards
from tamis.pipelines.build import DataSettings, build
from tamis.pipelines.dataset import Dataset
from tamis.pipelines.readers import ReadSettings
from tamis.pipelines.repair import repair
from tamis.pipelines.settings import TextSettings
from tamis.pipelines.shard_writer import write_shard
from tamis.pipelines.splits import FilesSplit
from tamis.pipelines.subset import subset
from tamis.pipelines.verify import verify

Digests = Callable[[Path], dict[str, str]]


@pytest.fixture
def settings(settings: DataSettings, raw: Path, scan_writer: Any) -> DataSettings:
    """Shards of one source and of several, of two splits."""
    scan_writer(raw / "large.npy", 60_000, seed=7, corner=(0, 40))
    return settings.model_copy(update={"row_order": "random", "workers": 1})


@pytest.fixture
def built(settings: DataSettings, tmp_path: Path) -> Path:
    return build(settings, tmp_path / "run").path


def damage(path: Path, rng: np.random.Generator) -> None:
    """Flip a bit, cut or remove a file, or write nonsense to it."""
    data = bytearray(path.read_bytes())
    match int(rng.integers(4)):
        case 0:
            data[int(rng.integers(len(data)))] ^= 1 << int(rng.integers(8))
            path.write_bytes(data)
        case 1:
            path.write_bytes(data[: int(rng.integers(len(data)))])
        case 2:
            path.unlink()
        case _:
            path.write_bytes(rng.bytes(len(data)))


def made_again(caplog: pytest.LogCaptureFixture) -> set[str]:
    return {r.getMessage().partition(":")[0] for r in caplog.records if "made again (file" in r.getMessage()}


@pytest.mark.parametrize("seed", range(4))
def test_any_damage_is_made_good_byte_for_byte(
    built: Path, raw: Path, digests: Digests, seed: int, tmp_path: Path
) -> None:
    rng = np.random.default_rng(seed)
    whole = digests(tmp_path / "run")
    names = sorted(path.name for path in built.iterdir() if path.name != "dataset.json")
    assert len([name for name in names if shards.shard_of(name)]) >= 4
    for count in (1, 2, len(names)):
        chosen = sorted(rng.choice(names, count, replace=False).tolist())
        for name in chosen:
            damage(built / name, rng)
        assert repair(built.parent, raw) == chosen
        assert digests(tmp_path / "run") == whole
    assert verify(built) == []
    assert repair(built, raw) == []


def test_only_the_files_of_damaged_shards_are_read(
    built: Path, raw: Path, digests: Digests, caplog: pytest.LogCaptureFixture
) -> None:
    whole, dataset = digests(built), Dataset(built)
    source = np.array(dataset.samples.column("source").to_pylist())
    (number,) = set(dataset.shard[source == "c.npy"].tolist())
    assert {*source[dataset.shard == number].tolist()} == {"c.npy"}  # the test split
    (raw / "a.npy").unlink()
    (raw / "large.npy").write_bytes(b"another")
    (built / shards.shard_name(number)).unlink()
    with caplog.at_level(logging.INFO):
        assert repair(built, raw) == [shards.shard_name(number)]
    assert made_again(caplog) == {"c.npy"}
    assert digests(built) == whole


def test_index_and_checksums_come_from_the_shards(
    built: Path, digests: Digests, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("TAMIS_DATA", raising=False)
    whole = digests(built)
    (built / shards.INDEX).write_bytes(b"")
    (built / shards.CHECKSUMS).unlink()
    assert repair(built) == [shards.CHECKSUMS, shards.INDEX]
    assert digests(built) == whole


@pytest.mark.parametrize("what", ["changed", "gone"])
def test_without_its_raw_files_everything_stays_as_it_was(
    built: Path, raw: Path, digests: Digests, what: str
) -> None:
    (built / shards.SAMPLES).write_bytes(b"damaged")
    before = digests(built.parent)
    for name in ("b.npy", "large.npy"):
        if what == "gone":
            (raw / name).unlink()
        else:
            (raw / name).write_bytes((raw / name).read_bytes() + b"\0")
    with pytest.raises(DataError) as caught:
        repair(built, raw)
    told = "missing or unreadable" if what == "gone" else "not what they were at the build"
    assert str(caught.value).startswith(f"{raw}: raw files are {told}: b.npy, large.npy; ")
    assert digests(built.parent) == before
    assert not (built.parent / "dataset.repairing").exists()


def test_what_is_not_what_was_written_is_not_put_in_place(
    built: Path, raw: Path, digests: Digests, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As where another version of a library rounds otherwise."""
    shard = shards.shard_name(0)
    (built / shard).unlink()
    before = digests(built.parent)
    monkeypatch.setattr(
        "tamis.pipelines.repair.write_shard",
        lambda path, fields, samples: write_shard(path, fields, [*samples][1:]),
    )
    with pytest.raises(DataError, match=rf"{shard}: made again, it is not what was written"):
        repair(built, raw)
    assert digests(built.parent) == before


def test_files_left_out_stay_left_out(
    settings: DataSettings, raw: Path, tmp_path: Path, digests: Digests
) -> None:
    (raw / "bad.npy").write_bytes(b"")
    built = build(settings.model_copy(update={"bad_files": "skip"}), tmp_path / "skip").path
    whole = digests(built)
    for name in (shards.SAMPLES, shards.shard_name(0)):
        (built / name).unlink()
    (raw / "bad.npy").unlink()
    scan = np.load(raw / "a.npy")
    np.save(raw / "new.npy", scan)  # as new files do
    assert repair(built, raw) == sorted([shards.SAMPLES, shards.shard_name(0)])
    assert digests(built) == whole


def test_texts_are_made_again_whole(tmp_path: Path, digests: Digests) -> None:
    rng = np.random.default_rng(3)
    (tmp_path / "texts").mkdir()
    for name in "abc":
        (tmp_path / "texts" / f"{name}.txt").write_bytes(rng.bytes(5000))
    texts = DataSettings(root=tmp_path / "texts", text=TextSettings(length=64))
    built = build(texts, tmp_path / "run").path
    whole = digests(built)
    damaged = sorted(name for name in whole if name != "dataset.json")
    for name in damaged[::2]:
        damage(built / name, rng)
    assert repair(built, tmp_path / "texts") == damaged[::2]
    assert digests(built) == whole


READER = """
import numpy as np

def read(path):
    rng = np.random.default_rng(len(path.name))
    n = int(rng.integers(1, 9))
    return {
        "xyz": np.load(path),
        "annotations": {
            "boxes": rng.uniform(0, 9, (n, 7)),
            "box_class": np.arange(n, dtype=np.int32),
            "pose": np.eye(4).reshape(1, 16),
        },
    }
"""


def test_annotations_are_made_again(
    tmp_path: Path, digests: Digests, monkeypatch: pytest.MonkeyPatch
) -> None:
    rng = np.random.default_rng(4)
    (tmp_path / "code").mkdir()
    (tmp_path / "code" / "reader_of_boxes.py").write_text(READER)
    monkeypatch.syspath_prepend(str(tmp_path / "code"))
    (tmp_path / "scans").mkdir()
    for name in ("a", "bb", "ccc", "dddd"):
        np.save(tmp_path / "scans" / f"{name}.npy", rng.uniform(0, 9, (int(rng.integers(5, 600)), 3)))
    settings = DataSettings(
        root=tmp_path / "scans",
        files=["*.npy"],
        read=ReadSettings(function="reader_of_boxes:read"),
        split=FilesSplit(kind="files", val=["ccc.npy"]),
        workers=1,
    )
    built = build(settings, tmp_path / "run").path
    whole = digests(built)
    assert len([name for name in whole if name.endswith(".boxes.arrow")]) == 3  # one of checksums
    for name in sorted(name for name in whole if name != "dataset.json"):
        damage(built / name, rng)
        assert repair(built, tmp_path / "scans") == [name]
        assert digests(built) == whole


def test_a_damaged_description_is_beyond_repair(built: Path, raw: Path) -> None:
    data = bytearray((built / "dataset.json").read_bytes())
    data[100] ^= 1
    (built / "dataset.json").write_bytes(data)
    with pytest.raises(
        DataError, match=r"dataset\.json: is damaged at offset 100, .*build the dataset again"
    ):
        repair(built, raw)


def test_what_was_made_of_datasets_is_made_of_them_again(built: Path, raw: Path, tmp_path: Path) -> None:
    part = subset(built, tmp_path / "part", split="test").path
    (part / shards.shard_name(0)).unlink()
    with pytest.raises(DataError, match=r"was made with `tamis subset`, .*; make it of run again"):
        repair(part, raw)


def test_a_repair_that_was_killed_goes_on(
    built: Path,
    raw: Path,
    digests: Digests,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    whole = digests(built)
    (built / shards.SAMPLES).unlink()
    monkeypatch.setattr(shutil, "rmtree", lambda *_args, **_more: None)  # as a kill leaves it
    monkeypatch.setattr("tamis.pipelines.repair.assemble", None)
    with pytest.raises(TypeError):
        repair(built, raw)
    monkeypatch.undo()
    left = built.parent / "dataset.repairing"
    parts = {path: path.stat().st_mtime_ns for path in left.glob("parts/*.arrow")}
    assert parts
    kept: dict[Path, int] = {}
    real = shutil.rmtree

    def remove(path: Path, **more: Any) -> None:
        if path == left:
            kept.update({part: part.stat().st_mtime_ns for part in left.glob("parts/*.arrow")})
        real(path, **more)

    monkeypatch.setattr(shutil, "rmtree", remove)
    assert repair(built, raw) == [shards.SAMPLES]
    assert kept == parts
    assert digests(built) == whole
    assert not left.exists()


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    """(exit code, stdout, stderr) of a command run in this process."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", ["tamis", *arguments])
        with pytest.raises(SystemExit) as exit:
            cli.main()
    captured = capsys.readouterr()
    return int(exit.value.code or 0), captured.out, captured.err


def test_the_command_repairs_and_verifies(built: Path, raw: Path, capsys: pytest.CaptureFixture[str]) -> None:
    name, run_folder = shards.shard_name(0), str(built.parent)
    (built / name).unlink()
    code, _, err = run(capsys, "verify", run_folder)
    assert code == 1
    assert "mend it with --repair" in err
    code, out, _ = run(capsys, "verify", run_folder, "--repair", "--root", str(raw))
    assert code == 0
    assert out == f"{name}: made again\n{run_folder}: every file is as it was written\n"
    code, _, err = run(capsys, "verify", run_folder, "--root", str(raw))
    assert code == 2
    assert err.startswith("tamis: --root: is for --repair")
    (built / "dataset.json").write_bytes((built / "dataset.json").read_bytes()[:-9])
    code, _, err = run(capsys, "verify", run_folder)
    assert code == 1
    assert "copy dataset.json from where it is whole" in err
    assert "mend it" not in err
    code, _, err = run(capsys, "verify", "s3://bucket/dataset", "--repair")
    assert code == 2
    assert err.startswith("tamis: --repair: is for a dataset on a disk")


def test_what_a_call_left_that_was_killed_at_its_end_is_removed(built: Path, raw: Path) -> None:
    """All was in place; a dataset that is whole needs no raw files for that."""
    (built.parent / "dataset.repairing" / "parts").mkdir(parents=True)
    (built.parent / "dataset.repairing" / "parts" / "part-0.arrow").write_bytes(b"left")
    assert repair(built) == []
    assert [path.name for path in built.parent.iterdir()] == ["dataset"]
