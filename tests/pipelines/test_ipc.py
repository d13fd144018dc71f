"""Shards against pyarrow, which writes the same bytes, one record batch after another."""

from __future__ import annotations

import io
import itertools
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from tamis.errors import DataError
from tamis.pipelines import shard_writer, shards
from tamis.pipelines.checks import chunk_sums, crc_sums
from tamis.pipelines.ipc import Layout
from tamis.pipelines.journal import Journal, Part, PartSample
from tamis.pipelines.manifest import Column
from tamis.pipelines.part_writer import PartWriter
from tamis.pipelines.records import Field
from tamis.pipelines.shard_writer import ShardWriter, write_shard
from tamis.pipelines.stored import Stored, stored

Arrays = dict[str, NDArray[Any]]

DTYPES = ["i1", "u1", "i2", "u2", "i4", "u4", "i8", "u8", "f2", "f4", "f8"]

one_field = st.builds(
    lambda dtype, width: Field(np.dtype(dtype), width, "count"), st.sampled_from(DTYPES), st.integers(1, 7)
)
some_fields = st.lists(one_field, min_size=1, max_size=9).map(
    lambda those: {f"c{number}": field for number, field in enumerate(those)}
)
some_rows = st.lists(st.one_of(st.just(0), st.integers(0, 20), st.integers(250, 600)), max_size=6)

FIELDS = {
    "xyz": Field(np.dtype("f4"), 3, "point"),
    "label": Field(np.dtype("i4"), 1, "class"),
    "flag": Field(np.dtype("u1"), 1, "class"),
}


def arrays_of(fields: Mapping[str, Field], rows: int, seed: int = 0) -> Arrays:
    """Any bytes: of floats, those that are not numbers too."""
    rng = np.random.default_rng(seed)
    return {
        name: np.frombuffer(rng.bytes(rows * field.row_bytes), field.dtype).reshape(field.shape(rows))
        for name, field in fields.items()
    }


def by_sample(arrays: Arrays, rows: Sequence[int]) -> list[Arrays]:
    ends = np.cumsum([0, *rows]).tolist()
    return [
        {name: values[begin:end] for name, values in arrays.items()}
        for begin, end in itertools.pairwise(ends)
    ]


def by_pyarrow(fields: Mapping[str, Field], samples: Sequence[Arrays]) -> bytes:
    sink, schema = io.BytesIO(), shards.arrow_schema(fields)
    with pa.ipc.new_file(sink, schema) as writer:
        for arrays in samples:
            writer.write_batch(shards.to_batch(schema, arrays))
    return sink.getvalue()


def check_known(path: Path, fields: Mapping[str, Field], known: Stored) -> None:
    """What is known of a shard that was written is what is read back from it."""
    found = stored(path, fields)
    assert known.rows.tolist() == found.rows.tolist()
    assert [*known.positions] == [*known.sums] == [*fields]
    for name in fields:
        assert known.positions[name].tolist() == found.positions[name].tolist()
        assert known.sums[name].tolist() == found.sums[name].tolist()
    assert known.digest is not None
    assert (known.digest.bytes, known.digest.sha256, known.digest.crc32c) == chunk_sums(path)


@settings(deadline=None)
@given(fields=some_fields, rows=some_rows, together=st.sampled_from([1, 5000, 1 << 21]))
def test_a_shard_is_what_pyarrow_writes(
    tmp_path_factory: pytest.TempPathFactory, fields: dict[str, Field], rows: list[int], together: int
) -> None:
    path = tmp_path_factory.mktemp("shard") / "shard.arrow"
    arrays = arrays_of(fields, sum(rows))
    samples = by_sample(arrays, rows)
    with pytest.MonkeyPatch.context() as patch, ShardWriter(path, fields) as shard:
        patch.setattr(shard_writer, "_TOGETHER", together)
        shard.write(arrays, rows)
        known = shard.finish()
    data = path.read_bytes()
    if rows:
        assert data == by_pyarrow(fields, samples)
    check_known(path, fields, known)
    for reader in (pa.ipc.open_file(data), pa.ipc.open_stream(data[8:])):
        assert reader.schema == shards.arrow_schema(fields)
        table = reader.read_all()
        table.validate(full=True)
        batches = table.to_batches()
        assert [len(batch) for batch in batches if len(batch)] == [n for n in rows if n]
    for arrays, found in zip(samples, shards.samples(path), strict=True):
        assert {name: values.tobytes() for name, values in arrays.items()} == {
            name: values.tobytes() for name, values in found.items()
        }


@settings(deadline=None)
@given(fields=some_fields, rows=st.lists(some_rows, min_size=1, max_size=4))
def test_a_packed_shard_is_one_written_at_once(
    tmp_path_factory: pytest.TempPathFactory, fields: dict[str, Field], rows: list[list[int]]
) -> None:
    folder = tmp_path_factory.mktemp("shards")
    every = arrays_of(fields, sum(map(sum, rows)))
    parts = by_sample(every, [sum(own) for own in rows])
    with ShardWriter(folder / "packed", fields) as packed:
        for number, (arrays, own) in enumerate(zip(parts, rows, strict=True)):
            with ShardWriter(folder / f"part-{number}", fields, sha256=False) as part:
                part.write(arrays, own)
                there = part.finish()
            assert there.digest is not None
            assert there.digest.sha256 is None
            packed.copy(part.path, there)
        known = packed.finish()
    again = write_shard(folder / "whole", fields, by_sample(every, [n for own in rows for n in own]))
    assert (folder / "packed").read_bytes() == (folder / "whole").read_bytes()
    assert known.digest == again.digest
    check_known(folder / "packed", fields, known)


@settings(deadline=None)
@given(fields=some_fields, rows=st.lists(st.integers(0, 40), min_size=1, max_size=5))
def test_padding_is_zero_whatever_was_in_memory(fields: dict[str, Field], rows: list[int]) -> None:
    layout, every = Layout(fields), np.array(rows)
    lying = layout.lying(every)
    ones = {name: np.full(field.shape(sum(rows)), 1, field.dtype) for name, field in fields.items()}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(np, "empty", lambda size, dtype: np.full(size, 255, dtype))
        data = layout.messages(every, lying, ones)
    used = np.zeros(len(data), bool)
    for begin, first in zip(lying.starts, lying.columns[:, 0], strict=False):
        used[begin:first] = True
    for at, size in zip(lying.columns.ravel(), lying.sizes.ravel(), strict=True):
        assert at % 8 == 0
        used[at : at + size] = True
    assert not data[~used].any()
    assert (~used).sum() == sum(-size % 8 for size in lying.sizes.ravel().tolist())


def test_many_mib(tmp_path: Path) -> None:
    """Sums of MiB that are written in pieces of other sizes."""
    rows = [70_000, 0, 3, 90_000, 257]
    arrays = arrays_of(FIELDS, sum(rows))
    known = write_shard(tmp_path / "shard", FIELDS, by_sample(arrays, rows))
    assert known.digest is not None
    assert len(known.digest.crc32c) > 2
    assert (tmp_path / "shard").read_bytes() == by_pyarrow(FIELDS, by_sample(arrays, rows))
    check_known(tmp_path / "shard", FIELDS, known)


def test_polars_reads_it(tmp_path: Path) -> None:
    polars = pytest.importorskip("polars", reason="polars is not installed")
    rows = [5, 0, 300]
    arrays = arrays_of({"label": FIELDS["label"], "flag": FIELDS["flag"]}, sum(rows))
    fields = {name: FIELDS[name] for name in arrays}
    write_shard(tmp_path / "shard.arrow", fields, by_sample(arrays, rows))
    found = polars.read_ipc(tmp_path / "shard.arrow")
    assert {name: found[name].to_list() for name in arrays} == {
        name: values.tolist() for name, values in arrays.items()
    }


def test_arrays_are_stored_in_the_types_of_the_fields(tmp_path: Path) -> None:
    given = {
        "xyz": np.arange(12, dtype=">f8").reshape(4, 3)[:, ::-1],
        "label": np.arange(4, dtype=np.int64),
        "flag": np.ones(4, np.uint8),
        "beside": np.zeros(9),
    }
    write_shard(tmp_path / "shard", FIELDS, [given])
    (found,) = shards.samples(tmp_path / "shard")
    assert {name: (values.dtype, values.tolist()) for name, values in found.items()} == {
        name: (field.dtype, given[name].tolist()) for name, field in FIELDS.items()
    }


@pytest.mark.parametrize(
    "change", [{"label": np.zeros(3, np.int32)}, {"xyz": np.zeros((4, 2), np.float32)}], ids=["rows", "width"]
)
def test_arrays_of_other_shapes_are_refused(tmp_path: Path, change: Arrays) -> None:
    with ShardWriter(tmp_path / "shard", FIELDS) as shard, pytest.raises(ValueError, match="reshape"):
        shard.write(arrays_of(FIELDS, 4) | change, [4])


def test_a_part_that_became_shorter_is_not_packed(tmp_path: Path) -> None:
    there = write_shard(tmp_path / "part", FIELDS, [arrays_of(FIELDS, 500)])
    whole = (tmp_path / "part").read_bytes()
    with ShardWriter(tmp_path / "shard", FIELDS) as shard:
        (tmp_path / "part").write_bytes(whole[:-600])
        with pytest.raises((OSError, pa.ArrowInvalid)):
            shard.copy(tmp_path / "part", there)


def sample(rows: int, split: str = "train") -> PartSample:
    return PartSample(split=split, tile=0, rows=rows, origin=[0.0] * 3, bounds=[0.0] * 6, label=-1)


COLUMNS = [Column(name=n, dtype=f.dtype.name, width=f.width, kind=f.kind) for n, f in FIELDS.items()]


def test_nothing_stays_of_a_part_that_fails(tmp_path: Path) -> None:
    boxes = Column(name="boxes", dtype="float32", width=7, kind="none")
    journal = Journal(tmp_path, "")
    limit = 60 * sum(field.row_bytes for field in FIELDS.values())
    with pytest.raises(DataError), PartWriter(journal, "a", COLUMNS, [boxes], limit) as writer:
        beside = [{"boxes": np.zeros((n, 7), np.float32)} for n in (0, 2)]
        for split in ("train", "test"):
            writer.add([sample(50, split), sample(40, split)], arrays_of(FIELDS, 90), beside)
        assert len(writer.temporary) == len([*tmp_path.iterdir()]) == 8
        raise DataError(tmp_path, "is torn", "mend it")
    assert [*tmp_path.iterdir()] == []


@pytest.mark.parametrize("together", [True, False], ids=["at once", "one by one"])
def test_a_part_is_divided_and_has_the_digests_it_needs(tmp_path: Path, together: bool) -> None:
    """SHA-256 of what stays a shard alone; what is packed is found damaged by the sums of its MiB."""
    journal, size = Journal(tmp_path, ""), sum(field.row_bytes for field in FIELDS.values())
    rows = [700, 300, 1, 1001, 20]
    arrays = arrays_of(FIELDS, sum(rows))
    with PartWriter(journal, "a", COLUMNS, [], 1000 * size) as writer:
        if together:
            writer.add([sample(n) for n in rows], arrays, [{}] * len(rows))
        else:
            for n, own in zip(rows, by_sample(arrays, rows), strict=True):
                writer.add([sample(n)], own, [{}])
        files, found = writer.close()
        assert [[one.rows for one in file.samples] for file in files] == [[700, 300], [1], [1001], [20]]
        for file, (one,), path in zip(files, found, writer.temporary, strict=True):
            (digest,) = file.digests
            assert one.digest == digest
            assert (digest.bytes, digest.crc32c) == crc_sums(path)
            alone = sum(own.rows for own in file.samples) > 20
            assert digest.sha256 == (chunk_sums(path)[1] if alone else None)
        part = Part(
            settings="",
            source="a",
            bytes=0,
            sha256="",
            dropped=0,
            outside=0,
            objects=False,
            columns=COLUMNS,
            annotations=[],
            files=files,
            figures={},
        )
        journal.finish(part, writer.temporary)
    assert [own for _, own in by_path(journal, part)] == [rows[:2], rows[2:3], rows[3:4], rows[4:]]
    for number in range(len(files)):
        path = journal.path("a", number)
        whole = path.read_bytes()
        assert journal._whole(journal.record("a")) == part
        path.write_bytes(whole[:-100] + bytes([whole[-100] ^ 8]) + whole[-99:])
        assert journal._whole(journal.record("a")) is None
        path.write_bytes(whole)


def by_path(journal: Journal, part: Part) -> list[tuple[Path, list[int]]]:
    return [
        (path, [len(own["label"]) for own in shards.samples(path)])
        for _, paths in journal.paths(part)
        for path in paths
    ]
