"""Fetching: the bytes of a mapped file, checked, with failures that name file and offset."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from tamis.errors import DataError
from tamis.loaders import fetch
from tamis.loaders.checks import Verify
from tamis.loaders.fetch import Fetcher
from tamis.pipelines import run_threads
from tamis.pipelines.dataset import Dataset
from tamis.pipelines.run_threads import Threads

Make = Callable[..., Dataset]


def mapped(dataset: Dataset, name: str, row: int, first: int, stop: int) -> NDArray[Any]:
    """The reference: a slice of the mapped shard."""
    field = dataset.schema[name]
    shape = (int(dataset.rows[row]),) if field.width == 1 else (int(dataset.rows[row]), field.width)
    if not shape[0]:
        return field.empty(0)
    path, offset = dataset.shard_path(int(dataset.shard[row])), int(dataset.positions[name][row])
    return np.memmap(path, field.dtype, "r", offset, shape)[first:stop]


def fetcher(dataset: Dataset, verify: Verify = "first", columns: list[str] | None = None) -> Fetcher:
    return Fetcher(dataset, columns or list(dataset.schema), verify, Threads(1))


def ints(*values: int) -> NDArray[np.int64]:
    return np.array(values, np.int64)


def damage(dataset: Dataset, name: str, row: int, at: int) -> tuple[Path, int]:
    """Flip a bit of a column at row ``at`` of a sample: the shard, and where its block begins."""
    path = dataset.shard_path(int(dataset.shard[row]))
    start = int(dataset.positions[name][row])
    with path.open("r+b") as file:
        file.seek(start + at * dataset.schema[name].row_bytes)
        byte = file.read(1)[0]
        file.seek(-1, os.SEEK_CUR)
        file.write(bytes([byte ^ 16]))
    return path, start + at // 256 * 256 * dataset.schema[name].row_bytes


@pytest.fixture
def some(make: Make) -> Dataset:
    return make([700, 256, 257, 1, 0, 90, 1500, 512], per_shard=3)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data(), verify=st.sampled_from(["first", "always", "never"]))
def test_fetch_equals_slices_of_the_mapped_file(some: Dataset, data: st.DataObject, verify: Verify) -> None:
    reads = fetcher(some, verify)
    for _ in range(2):
        rows = data.draw(st.lists(st.integers(0, len(some.ids) - 1), max_size=6))
        cuts = [sorted(data.draw(st.tuples(*[st.integers(0, int(some.rows[r]))] * 2))) for r in rows]
        found = reads.fetch(ints(*rows), ints(*[a for a, _ in cuts]), ints(*[b for _, b in cuts]))
        for row, (first, stop), cloud in zip(rows, cuts, found, strict=True):
            assert list(cloud) == list(some.schema)
            for name, values in cloud.items():
                want = mapped(some, name, row, first, stop)
                assert (values.dtype, values.shape) == (want.dtype, want.shape)
                assert np.array_equal(values, want)
    reads.close()


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data(), verify=st.sampled_from(["first", "always", "never"]), whole_blocks=st.booleans())
def test_rows_are_read_to_their_place_and_nowhere_else(
    some: Dataset, data: st.DataObject, verify: Verify, whole_blocks: bool
) -> None:
    reads = fetcher(some, verify)
    for _ in range(2):
        rows = data.draw(st.lists(st.integers(0, len(some.ids) - 1), max_size=6))
        cuts = [sorted(data.draw(st.tuples(*[st.integers(0, int(some.rows[r]))] * 2))) for r in rows]
        if whole_blocks:
            cuts = [[a // 256 * 256, int(some.rows[r])] for r, (a, _) in zip(rows, cuts, strict=True)]
        first, stop = ints(*[a for a, _ in cuts]), ints(*[b for _, b in cuts])
        at = np.cumsum(stop - first + 1) - (stop - first)  # a row between each two that nobody may touch
        found = {name: field.empty(int((stop - first + 1).sum()) + 1) for name, field in some.schema.items()}
        for values in found.values():
            values[...] = 77
        want = {name: values.copy() for name, values in found.items()}
        for name, values in want.items():
            for row, start, (a, b) in zip(rows, at, cuts, strict=True):
                values[start : start + b - a] = mapped(some, name, row, a, b)
        reads.fetch_into(found, at, ints(*rows), first, stop)
        assert all(np.array_equal(found[name], want[name]) for name in want)
    reads.close()


@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize("verify", ["first", "always", "never"])
def test_portions_that_threads_share_are_the_same_rows(
    make: Make, monkeypatch: pytest.MonkeyPatch, verify: Verify, threads: int
) -> None:
    some = make([700, 256, 257, 1, 0, 90, 1500, 512, 3000, 0, 40], per_shard=2)
    monkeypatch.setattr(run_threads, "_LITTLE_BYTES", 0)
    pool, rng = Threads(threads), np.random.default_rng(threads)
    for portion_bytes in (1, 9_000, 40_000, 1 << 20):
        monkeypatch.setattr(fetch, "_PORTION_BYTES", portion_bytes)
        reads = Fetcher(some, list(some.schema), verify, pool)
        for _ in range(4):
            rows = rng.integers(0, len(some.ids), 20 if portion_bytes > 1 else 2)
            first = rng.integers(0, some.rows[rows] + 1) // 256 * 256
            stop = some.rows[rows]
            at = np.cumsum(stop - first) - (stop - first)
            columns = {name: field.empty(int((stop - first).sum())) for name, field in some.schema.items()}
            reads.fetch_into(columns, at, rows, first, stop)
            clouds = reads.fetch(rows, first, stop)
            for name, values in columns.items():
                want = [mapped(some, name, *one) for one in zip(rows, first, stop, strict=True)]
                assert np.array_equal(values, np.concatenate(want))
                assert np.array_equal(values, np.concatenate([cloud[name] for cloud in clouds]))
        reads.close()
    pool.close()


@pytest.mark.parametrize("threads", [1, 3])
def test_damage_in_any_portion_is_found(make: Make, monkeypatch: pytest.MonkeyPatch, threads: int) -> None:
    sizes = [700, 300, 256, 900, 1, 600]
    some, pool = make(sizes, per_shard=2), Threads(threads)
    monkeypatch.setattr(run_threads, "_LITTLE_BYTES", 0)
    monkeypatch.setattr(fetch, "_PORTION_BYTES", 9_000)
    every, stop = np.arange(len(sizes)), ints(*sizes)
    for row, size in enumerate(sizes):
        path, offset = damage(some, "normal", row, size - 1)
        reads = Fetcher(some, list(some.schema), "first", pool)
        for _ in range(2):  # what failed does not count as checked
            with pytest.raises(DataError, match=f"block at offset {offset} .*column normal") as caught:
                reads.fetch(every, 0 * stop, stop)
            assert caught.value.where == str(path)
        damage(some, "normal", row, size - 1)  # flips it back
        reads.fetch(every, 0 * stop, stop)
        reads.close()
    pool.close()


@pytest.mark.parametrize("verify", ["first", "always"])
def test_what_is_read_to_its_place_is_checked_there(make: Make, verify: Verify) -> None:
    some = make([700, 900, 300], per_shard=2)
    path, offset = damage(some, "intensity", 1, 600)
    reads = fetcher(some, verify, ["xyz", "intensity"])
    columns = {name: some.schema[name].empty(1700) for name in ("xyz", "intensity")}
    for _ in range(2):  # what failed does not count as checked
        with pytest.raises(DataError, match=f"block at offset {offset} .*column intensity") as caught:
            reads.fetch_into(columns, ints(0, 700), ints(0, 1), ints(0, 0), ints(700, 900))
        assert caught.value.where == str(path)
    reads.close()


@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize("name", ["xyz", "intensity"])
def test_a_damaged_block_is_named_with_shard_and_offset(make: Make, threads: int, name: str) -> None:
    some = make([700, 900, 300], per_shard=2)
    path, offset = damage(some, name, 1, 600)
    pool = Threads(threads)
    reads = Fetcher(some, list(some.schema), "first", pool)
    with pytest.raises(DataError, match=rf"block at offset {offset} .*column {name}\)") as caught:
        reads.fetch(ints(0, 1, 2), ints(0, 0, 0), ints(700, 900, 300))
    assert caught.value.where == str(path)
    assert some.samples.column("name")[1].as_py() in str(caught.value)
    # Rows before the damaged block are whole, and so are the other samples.
    assert len(reads.fetch(ints(1), ints(0), ints(500))[0]["xyz"]) == 500
    assert len(reads.fetch(ints(0, 2), ints(0, 0), ints(700, 300))) == 2
    with pytest.raises(DataError, match=f"offset {offset} "):
        reads.fetch(ints(1), ints(700), ints(701))
    pool.close()


def test_first_checks_once_always_checks_always_never_never(make: Make) -> None:
    some = make([900])
    readers = {verify: fetcher(some, verify) for verify in ("first", "always", "never")}
    for reads in readers.values():
        reads.fetch(ints(0), ints(0), ints(300))
    damage(some, "xyz", 0, 100)
    readers["first"].fetch(ints(0), ints(0), ints(300))
    readers["never"].fetch(ints(0), ints(0), ints(900))
    with pytest.raises(DataError, match="damaged"):
        readers["always"].fetch(ints(0), ints(0), ints(300))
    with pytest.raises(DataError, match="damaged"):  # blocks of which one was never read are read together
        readers["first"].fetch(ints(0), ints(0), ints(900))
    for reads in readers.values():
        reads.close()


def test_a_checked_read_is_widened_to_whole_blocks(make: Make) -> None:
    some = make([900])
    for verify, rows in (("first", 512), ("never", 250)):
        reads = fetcher(some, verify, ["xyz"])  # type: ignore[arg-type]
        reads.fetch(ints(0), ints(250), ints(500))
        assert reads.bytes == rows * 12
        reads.fetch(ints(0), ints(250), ints(500))
        assert reads.bytes == (rows + 250) * 12  # what was checked need not be read whole again


def test_a_shard_that_ends_early_is_named_with_the_byte(make: Make) -> None:
    some = make([900])
    path, end = some.shard_path(0), int(some.positions["xyz"][0]) + 5000
    os.truncate(path, end)
    with pytest.raises(DataError, match=f"ends at offset {end}, inside a sample") as caught:
        fetcher(some, columns=["xyz"]).fetch(ints(0), ints(0), ints(900))
    assert caught.value.where == str(path)


def test_a_shard_that_is_missing_or_unreadable_is_named(make: Make) -> None:
    some = make([900])
    path = some.shard_path(0)
    path.unlink()
    with pytest.raises(DataError, match=r"cannot be opened \(No such file"):
        fetcher(some).fetch(ints(0), ints(0), ints(900))
    path.mkdir()
    with pytest.raises(
        DataError, match=f"cannot be read at offset {some.positions['xyz'][0]} .Is a directory"
    ) as e:
        fetcher(some, columns=["xyz"]).fetch(ints(0), ints(0), ints(900))
    assert e.value.where == str(path)


def test_open_files_are_bounded_and_closed(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fetch, "OPEN_FILES", 3)
    some = make([300] * 8, per_shard=1)

    def held() -> int:
        links = [link for link in Path("/proc/self/fd").iterdir() if link.is_symlink()]
        return sum(link.resolve().match(f"{some.path}/shard-*") for link in links)

    reads, rows = fetcher(some), np.random.default_rng(0).permutation(8)
    found = reads.fetch(rows, np.zeros(8, np.int64), np.full(8, 300))
    for row, cloud in zip(rows, found, strict=True):
        assert np.array_equal(cloud["xyz"], mapped(some, "xyz", int(row), 0, 300))
    assert held() == 3
    reads.fetch(ints(2, 5), ints(0, 0), ints(300, 300))
    assert held() == 3
    reads.close()
    reads.close()
    assert held() == 0
    other = fetcher(some)
    other.fetch(ints(1), ints(0), ints(10))
    del other
    assert held() == 0
