from __future__ import annotations

import hashlib
import logging
import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from tamis.errors import DataError
from tamis.metrics import BUILD, Meter
from tamis.pipelines.build import DataSettings, build
from tamis.pipelines.journal import Journal, Record
from tamis.pipelines.stored import Digest, digest_of

Digests = Callable[[Path], dict[str, str]]


def test_parts_of_other_settings_are_made_again(
    settings: DataSettings, tmp_path: Path, raw: Path, digests: Digests, caplog: pytest.LogCaptureFixture
) -> None:
    build(settings, tmp_path / "uncut")
    whole = (raw / "c.npy").read_bytes()
    (raw / "c.npy").write_bytes(b"")
    with pytest.raises(DataError):
        build(settings.model_copy(update={"row_order": "random"}), tmp_path / "run")
    (raw / "c.npy").write_bytes(whole)
    with caplog.at_level(logging.WARNING):
        build(settings, tmp_path / "run")
    assert "it is made again" in caplog.text
    assert digests(tmp_path / "run") == digests(tmp_path / "uncut")


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 64
    path.write_bytes(data)


def record_of(path: Path) -> Path:
    """The record of the part that a shard is of."""
    return path.with_name(path.stem.rpartition("-")[0] + ".json")


def edit(path: Path) -> None:
    record = record_of(path)
    text = record.read_text()
    assert '"rows":' in text
    record.write_text(text.replace('"rows":', '"rows":1', 1))


def stopped_at(source: Path, settings: DataSettings, run: Path) -> None:
    """A build that a damaged source stopped, which is whole again."""
    whole = source.read_bytes()
    source.write_bytes(b"")
    with pytest.raises(DataError):
        build(settings, run)
    source.write_bytes(whole)


@pytest.mark.parametrize(
    "damage",
    [
        flip,
        edit,
        lambda path: flip(record_of(path)),
        lambda path: record_of(path).write_bytes(b"[" * 10_000),
        lambda path: path.write_bytes(path.read_bytes()[:3000]),
        lambda path: path.write_bytes(b""),
        lambda path: path.unlink(),
    ],
    ids=["flipped", "edited", "record flipped", "no record", "cut", "empty", "gone"],
)
def test_a_damaged_part_is_made_again(
    settings: DataSettings,
    tmp_path: Path,
    raw: Path,
    digests: Digests,
    caplog: pytest.LogCaptureFixture,
    damage: Callable[[Path], object],
) -> None:
    build(settings, tmp_path / "uncut")
    stopped_at(raw / "c.npy", settings, tmp_path / "run")
    damage(next((tmp_path / "run" / "dataset.building").glob("*.arrow")))
    meter = Meter(BUILD)
    with caplog.at_level(logging.WARNING):
        build(settings, tmp_path / "run", meter)
    assert "is made again" in caplog.text
    assert meter.table[0, 0] == 2  # the damaged one, and c
    assert digests(tmp_path / "run") == digests(tmp_path / "uncut")


def test_a_record_with_more_digests_is_read(
    settings: DataSettings, tmp_path: Path, raw: Path, digests: Digests
) -> None:
    """An older version recorded the SHA-256 of every file."""
    build(settings, tmp_path / "uncut")
    stopped_at(raw / "c.npy", settings, tmp_path / "run")
    added = 0
    for path in (tmp_path / "run" / "dataset.building").glob("part-*.json"):
        part = Record.model_validate_json(path.read_bytes()).part
        journal = Journal(path.parent, part.settings)
        for file, paths in journal.paths(part):
            added += sum(digest.sha256 is None for digest in file.digests)
            file.digests[:] = [Digest(**digest_of(one).model_dump()) for one in paths]
        sha256 = hashlib.sha256(part.model_dump_json().encode()).hexdigest()
        path.write_text(Record(part=part, sha256=sha256).model_dump_json())
    assert added
    meter = Meter(BUILD)
    build(settings, tmp_path / "run", meter)
    assert meter.table[0, 0] == 1  # c alone
    assert digests(tmp_path / "run") == digests(tmp_path / "uncut")


def test_a_source_changed_behind_its_size_and_time_is_read_again(
    settings: DataSettings, tmp_path: Path, raw: Path, digests: Digests
) -> None:
    stopped_at(raw / "c.npy", settings, tmp_path / "run")
    stat = (raw / "a.npy").stat()
    np.save(raw / "a.npy", np.load(raw / "a.npy")[::-1])
    os.utime(raw / "a.npy", ns=(stat.st_atime_ns, stat.st_mtime_ns))
    build(settings, tmp_path / "run")
    build(settings, tmp_path / "uncut")
    assert digests(tmp_path / "run") == digests(tmp_path / "uncut")
