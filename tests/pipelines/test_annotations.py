"""Arrays with rows of their own: written, read back, checked, and damage in them named."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from tamis.errors import DataError, UsageError
from tamis.pipelines import shards
from tamis.pipelines.dataset import Dataset
from tamis.pipelines.inspect import inspect
from tamis.pipelines.manifest import Column
from tamis.pipelines.verify import verify

COLUMNS = [
    Column(name="xyz", dtype="float32", width=3, kind="point"),
    Column(name="intensity", dtype="uint16", width=1, kind="colour"),
]
ANNOTATIONS = [
    Column(name="boxes", dtype="float32", width=7, kind="box"),
    Column(name="tokens", dtype="uint16", width=1, kind="none"),
]
Arrays = dict[str, NDArray[Any]]
Write = Callable[..., Dataset]


def arrays(rng: np.random.Generator, sizes: dict[str, int]) -> Arrays:
    """Random values of each column and annotation."""
    made: Arrays = {}
    for one in [*COLUMNS, *ANNOTATIONS]:
        values = one.field().empty(sizes.get(one.name, sizes.get("rows", 0)))
        values[...] = rng.integers(0, 60_000, values.shape)
        made[one.name] = values
    return made


@pytest.fixture(params=["points", "none"])
def columns(request: pytest.FixtureRequest) -> list[Column]:
    return COLUMNS if request.param == "points" else []


@pytest.fixture
def built(tmp_path: Path, columns: list[Column], write_dataset: Write) -> Dataset:
    rng = np.random.default_rng(5)
    samples = [arrays(rng, {"rows": n, "boxes": n % 4, "tokens": 700 - n}) for n in (300, 1, 0, 600)]
    return write_dataset(tmp_path / "dataset", samples, [range(2), range(2, 4)], columns, ANNOTATIONS)


@settings(max_examples=20, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    sizes=st.lists(
        st.fixed_dictionaries({name: st.integers(0, 600) for name in ("rows", "boxes", "tokens")}),
        min_size=1,
        max_size=6,
    ),
    cut=st.integers(0, 6),
    seed=st.integers(0, 2**32 - 1),
)
def test_what_is_written_is_read(
    columns: list[Column], write_dataset: Write, sizes: list[dict[str, int]], cut: int, seed: int
) -> None:
    rng = np.random.default_rng(seed)
    samples = [arrays(rng, one) for one in sizes]
    layout = [part for part in (range(min(cut, len(sizes))), range(min(cut, len(sizes)), len(sizes))) if part]
    with tempfile.TemporaryDirectory() as folder:
        dataset = write_dataset(Path(folder) / "dataset", samples, layout, columns, ANNOTATIONS)
        assert verify(dataset.path) == []
        for row, sample in enumerate(samples):
            read = dataset.sample(row)
            assert list(read.columns) == [column.name for column in columns]
            assert list(read.annotations) == ["boxes", "tokens"]
            assert read.rows == (len(sample["xyz"]) if columns else 0)
            for name, values in {**read.columns, **read.annotations}.items():
                assert values.dtype == sample[name].dtype
                assert np.array_equal(values, sample[name])
                assert dataset.rows_of(name)[row] == len(values)


def test_any_arrow_reader_opens_an_annotation(built: Dataset) -> None:
    table = pa.ipc.open_file(pa.memory_map(str(built.path / "shard-00001.tokens.arrow"))).read_all()
    assert table["tokens"].to_pylist() == [
        token for row in (2, 3) for token in built.sample(row, ["tokens"]).annotations["tokens"].tolist()
    ]


@pytest.mark.parametrize("seed", range(4))
def test_one_flipped_bit_anywhere_is_named_with_file_and_byte(built: Dataset, seed: int) -> None:
    rng = np.random.default_rng(seed)
    for path in sorted(built.path.iterdir()):
        whole = path.read_bytes()
        at, bit = int(rng.integers(len(whole))), int(rng.integers(8))
        changed = bytearray(whole)
        changed[at] ^= 1 << bit
        path.write_bytes(changed)
        assert [(problem.file, problem.offset) for problem in verify(built.path)] == [(path.name, at)]
        path.write_bytes(whole)


def test_damage_in_an_annotation_is_named_by_who_reads_it(built: Dataset) -> None:
    at = int(built.positions["tokens"][3]) + 7
    path = built.path / "shard-00001.tokens.arrow"
    data = bytearray(path.read_bytes())
    data[at] ^= 8
    path.write_bytes(data)
    fresh = Dataset(built.path)
    assert len(fresh.sample(3, ["boxes"]).annotations["boxes"]) == 0
    with pytest.raises(DataError, match=f"shard-00001.tokens.arrow: is damaged at offset {at} .*tokens"):
        fresh.sample(3)
    (problem,) = verify(built.path)
    assert "column tokens, rows 0 to 99" in problem.cause
    data[at : at + 3] = b"abc"
    path.write_bytes(data)
    assert [(one.file, one.offset) for one in verify(built.path)] == [(path.name, at - 7)]


def test_an_index_that_lies_about_an_annotation_is_found(
    built: Dataset, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = shards.places

    def moved(path: Path, fields: Any) -> shards.Places:
        data, rows, positions = found(path, fields)
        moved = {name: at - 2 * (name == "tokens") for name, at in positions.items()}
        return shards.Places(data, rows, moved)

    monkeypatch.setattr(shards, "places", moved)
    problems = verify(built.path)
    assert len(problems) == len(built)
    assert "position of tokens does not agree" in problems[0].cause


def test_a_name_that_is_not_there(built: Dataset) -> None:
    with pytest.raises(UsageError, match=r"there is no 'poses'; choose among .*boxes, tokens"):
        built.sample(0, ["poses"])


def test_they_are_described(built: Dataset, columns: list[Column]) -> None:
    lines = {line.split()[0]: line.split() for line in inspect(built.path).splitlines() if line}
    assert lines["tokens"][1:] == ["uint16", "none"]
    assert lines["boxes"][1:] == ["float32", "x", "7", "box"]
    tokens, boxes = (str(int(built.rows_of(name).sum())) for name in ("tokens", "boxes"))
    assert lines["train"][1:] == ["4", *(["901"] if columns else []), boxes, tokens]
    assert ("points" in lines) == bool(columns)
