"""Samples without points: an annotation's rows are the sample's rows, and all that holds of clouds holds."""

from __future__ import annotations

import ast
import json
import logging
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from crc32c import crc32c

from tamis.errors import DataError, UsageError
from tamis.loaders import fetch
from tamis.loaders.checks import Verify
from tamis.loaders.loader import Batch, Loader
from tamis.loaders.settings import Form
from tamis.metrics import FIGURES, STREAM, Meter
from tamis.pipelines.build import build
from tamis.pipelines.dataset import Dataset
from tamis.pipelines.manifest import Column
from tamis.pipelines.settings import DataSettings, TextSettings
from tamis.samplers.ratio import RatioSchedule

FEWER = RatioSchedule("linear", start=1.0, end=0.25, steps=6)
LENGTH = 700


@pytest.fixture(params=[0, 1])
def data(tmp_path: Path, request: pytest.FixtureRequest) -> Dataset:
    """Texts of random bytes in samples of 700 tokens and a shorter one."""
    rng = np.random.default_rng(request.param)
    for i, size in enumerate(rng.integers(0, 4000, 7)):
        (tmp_path / f"{i}.txt").write_bytes(rng.bytes(size))
    (tmp_path / "end.txt").write_bytes(
        b"e" * (1400 - sum(p.stat().st_size + 1 for p in tmp_path.iterdir()) % 700)
    )
    return build(DataSettings(root=tmp_path, text=TextSettings(length=LENGTH)), tmp_path / "run")


def content(batch: Batch) -> tuple[Any, ...]:
    edge = batch.mask if batch.mask is not None else batch.offsets
    assert edge is not None
    arrays = {**batch.columns, "ids": batch.ids, "weight": batch.weight, "edge": edge}
    return batch.step, batch.k, {name: (a.dtype.str, a.shape, a.tobytes()) for name, a in arrays.items()}


def read(data: Dataset, **arguments: Any) -> list[tuple[Any, ...]]:
    with Loader(data, **{"global_batch": 4, "k": LENGTH, "epochs": 2, **arguments}) as loader:
        return [content(batch) for batch in loader]


@pytest.mark.parametrize("verify", ["first", "always", "never"])
@pytest.mark.parametrize("form", ["dense", "ragged"])
def test_a_batch_holds_the_first_tokens(data: Dataset, form: Form, verify: Verify) -> None:
    tokens = {int(data.ids[i]): data.sample(i).annotations["tokens"] for i in range(len(data))}
    seen = []
    with Loader(
        data, global_batch=4, k=LENGTH, ratio=FEWER, epochs=2, form=form, columns=["tokens"], verify=verify
    ) as loader:
        for batch in loader:
            assert list(batch.columns) == ["tokens"]
            values = batch.columns["tokens"]
            assert values.dtype == np.uint16
            assert batch.k == FEWER.count(batch.step, LENGTH)
            for i in np.flatnonzero(batch.weight):
                wanted = tokens[int(batch.ids[i])][: batch.k]
                if batch.mask is not None:
                    assert values.shape == batch.mask.shape == (len(batch.ids), batch.k)
                    found = values[i][batch.mask[i]]
                    assert batch.mask[i].sum() == len(wanted)
                    assert np.array_equal(values[i], np.resize(wanted, batch.k))  # padding repeats
                else:
                    assert batch.offsets is not None
                    found = values[batch.offsets[i] : batch.offsets[i + 1]]
                assert np.array_equal(found, wanted)
            seen += batch.ids[batch.weight > 0].tolist()
    assert sorted(seen) == sorted(2 * data.ids.tolist())


def test_all_annotations_are_read_where_there_are_no_columns(data: Dataset) -> None:
    assert read(data) == read(data, columns=["tokens"])
    whole = read(data, k=None, form="ragged")
    assert sum(len(one[2]["tokens"][2]) for one in whole) == 2 * 2 * data.rows_of("tokens").sum()


@pytest.mark.parametrize("data", [0], indirect=True)
@pytest.mark.parametrize("form", ["dense", "ragged"])
def test_a_feeder_gives_what_inline_gives(data: Dataset, ranks: Callable[..., Any], form: Form) -> None:
    arguments = {"k": LENGTH, "form": form, "columns": ["tokens"], "global_batch": 3, "epochs": 2}
    pair = ranks(data, {"replica": 0}, {"replica": 0}, slots=3, replicas=1, **arguments)
    for one in pair:
        one.tell("take")
    first, second = (one.answer() for one in pair)
    assert first == second
    sums = [
        {name: crc32c(values) for name, (_, _, values) in arrays.items()}
        for _, _, arrays in read(data, **arguments)
    ]
    edge = "mask" if form == "dense" else "offsets"
    assert [{"edge": one.pop(edge), **one} for _, _, _, one in first] == sums
    for one in pair:
        one.end()


def test_every_cut_resumes_to_the_same_bytes(data: Dataset) -> None:
    whole, states = [], []
    with Loader(data, global_batch=4, k=LENGTH, ratio=FEWER, epochs=2) as loader:
        states.append(loader.state_dict())
        for batch in loader:
            whole.append(content(batch))
            states.append(json.loads(json.dumps(loader.state_dict())))
    for cut, state in enumerate(states):
        with Loader(data, global_batch=4, k=LENGTH, ratio=FEWER, epochs=2) as loader:
            loader.load_state_dict(state)
            assert [content(batch) for batch in loader] == whole[cut:]


def test_replicas_share_the_batches_of_one(data: Dataset) -> None:
    ids = [np.frombuffer(one[2]["ids"][2], np.uint64).tolist() for one in read(data)]
    parts = [read(data, replica=i, replicas=3) for i in range(3)]
    for step, own in enumerate(ids):
        together = [np.frombuffer(part[step][2]["ids"][2], np.uint64) for part in parts]
        weights = [np.frombuffer(part[step][2]["weight"][2], np.float32) for part in parts]
        assert [int(i) for t, w in zip(together, weights, strict=True) for i in t[w > 0]] == own


def test_a_prefix_reads_fewer_bytes(data: Dataset) -> None:
    read_bytes = []
    for k in (LENGTH, 100):
        meter = Meter(STREAM)
        with Loader(data, global_batch=2, k=k, epochs=1, verify="never", meter=meter) as loader:
            for _ in loader:
                pass
        figures = dict(zip(FIGURES, meter.table[STREAM.index("stream.fetch")], strict=False))
        read_bytes.append(int(figures["bytes"]))
    rows = data.rows_of("tokens")
    assert read_bytes == [2 * int(rows.sum()), 2 * int(np.minimum(rows, 100).sum())]


def test_damage_is_an_error_or_left_out(data: Dataset, caplog: pytest.LogCaptureFixture) -> None:
    row = len(data) // 2
    path, at = data.shard_path(0, "tokens"), int(data.positions["tokens"][row]) + 2 * 300
    with path.open("r+b") as file:
        file.seek(at)
        byte = file.read(1)[0]
        file.seek(at)
        file.write(bytes([byte ^ 4]))
    block = at // 1 - 2 * 300 + 2 * 256
    with pytest.raises(DataError, match=rf"shard-00000\.tokens\.arrow: is damaged .* offset {block} "):
        read(data)
    with (
        caplog.at_level(logging.WARNING),
        Loader(data, global_batch=4, k=LENGTH, epochs=1, max_damaged=1) as loader,
    ):
        left = [int(i) for b in loader for i, w in zip(b.ids, b.weight, strict=True) if i and not w]
    assert left == [int(data.ids[row])]
    assert "is left out" in caplog.text
    path.unlink()
    with pytest.raises(DataError, match=r"tokens\.arrow: cannot be opened"):
        read(data)


@pytest.mark.parametrize("engine", ["threads", "dali"])
def test_a_function_gets_the_tokens(
    data: Dataset, engine: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if engine == "dali":
        pytest.importorskip("nvidia.dali")
    (tmp_path / "turning.py").write_text(
        "def turn(columns, seed):\n    return {'tokens': columns['tokens'][::-1].copy()}\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    graph = [{"kind": "function", "function": "turning:turn"}]
    with Loader(data, global_batch=4, k=64, epochs=1, graph=graph, engine=engine, threads=1) as loader:  # type: ignore[arg-type]
        for batch in loader:
            for i in np.flatnonzero(batch.weight):
                whole = data.sample(int(np.flatnonzero(data.ids == batch.ids[i])[0])).annotations["tokens"]
                assert np.array_equal(batch.columns["tokens"][i], np.resize(whole[:64][::-1], 64))


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"columns": ["xyz"]}, "no column 'xyz' in .*it has tokens"),
        ({"graph": [{"kind": "rotate"}]}, "rotate needs a column 'xyz'"),
        ({"graph": [{"kind": "farthest"}]}, "farthest needs a column 'xyz'"),
        ({"graph": [{"kind": "random"}]}, "random would take a sequence apart"),
        ({"graph": [{"kind": "serialise", "cell": 1.0}]}, "serialise needs a column 'xyz'"),
        ({"split": "test"}, "no split 'test'"),
        ({"k": None}, "loader.k: is missing"),
    ],
)
def test_what_cannot_be_is_one_line(data: Dataset, change: dict[str, Any], says: str) -> None:
    with pytest.raises(UsageError, match=says) as caught:
        read(data, **change)
    assert "\n" not in str(caught.value)


def column(name: str, width: int = 1) -> Column:
    return Column(name=name, dtype="int32", width=width, kind="none")


@pytest.fixture
def mixed(tmp_path: Path, write_dataset: Callable[..., Dataset]) -> Dataset:
    """Clouds with boxes, and two annotations that have as many rows as each other."""
    rng = np.random.default_rng(1)
    samples = []
    for n in (300, 20, 0, 700, 5):
        sizes = {"xyz": n, "boxes": n % 7, "words": n + 3, "next": n + 3}
        widths = {"xyz": 3, "boxes": 4}
        samples.append(
            {
                name: rng.integers(0, 99, (rows, widths[name]) if name in widths else rows).astype(
                    np.float32 if name == "xyz" else np.int32
                )
                for name, rows in sizes.items()
            }
        )
    xyz = Column(name="xyz", dtype="float32", width=3, kind="point")
    annotations = [column("boxes", 4), column("words"), column("next")]
    return write_dataset(tmp_path / "dataset", samples, [range(2), range(2, 5)], [xyz], annotations)


def test_annotations_of_as_many_rows_come_together(mixed: Dataset) -> None:
    with Loader(mixed, global_batch=2, epochs=1, form="ragged", columns=["next", "words"]) as loader:
        for batch in loader:
            assert list(batch.columns) == ["words", "next"]
            assert batch.offsets is not None
            for i in np.flatnonzero(batch.weight):
                sample = mixed.sample(int(np.flatnonzero(mixed.ids == batch.ids[i])[0]))
                for name, values in batch.columns.items():
                    own = values[batch.offsets[i] : batch.offsets[i + 1]]
                    assert np.array_equal(own, sample.annotations[name])
    with Loader(mixed, global_batch=2, epochs=1, k=9, columns=["boxes"]) as loader:
        assert {batch.columns["boxes"].shape[1:] for batch in loader} == {(9, 4)}


def test_many_files_are_open_one_after_another(mixed: Dataset, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = read(mixed, k=64, columns=["words", "next"])
    monkeypatch.setattr(fetch, "OPEN_FILES", 2)
    assert read(mixed, k=64, columns=["words", "next"]) == whole


@pytest.mark.parametrize("columns", [["boxes", "words"], ["xyz", "boxes"], ["boxes", "next", "words"]])
def test_different_numbers_of_rows_are_refused(mixed: Dataset, columns: list[str]) -> None:
    """The advice is one that works."""
    with pytest.raises(UsageError) as caught:
        Loader(mixed, global_batch=2, k=8, columns=columns)
    assert caught.value.cause.endswith("have different numbers of rows")
    own, beside = (ast.literal_eval(f"[{part}]") for part in re.findall(r"\[(.*?)\]", caught.value.fix))
    assert {*own, *beside} == {*columns}
    assert caught.value.fix == f"use columns={own}, annotations={beside}"
    with Loader(mixed, global_batch=2, k=8, epochs=1, columns=own, annotations=beside) as loader:
        for batch in loader:
            assert {*batch.columns} == {*own}
            assert {*batch.annotations} == {*beside}


def test_no_columns_of_a_dataset_without_points(
    tmp_path: Path, write_dataset: Callable[..., Dataset]
) -> None:
    image = {"label": np.zeros(1, np.int32), "image": np.arange(3, dtype=np.int32)}
    dataset = write_dataset(tmp_path / "d", [image], [range(1)], [], [column("label"), column("image")])
    with pytest.raises(UsageError, match=r"columns: names none, .* has no points; name some of label, image"):
        Loader(dataset, global_batch=1, k=1, columns=[])
    with pytest.raises(UsageError, match=r"use columns=\['label'\], annotations=\['image'\]"):
        Loader(dataset, global_batch=1, k=1)


def test_points_are_read_where_nothing_else_is_named(mixed: Dataset) -> None:
    nothing: list[list[str] | None] = [None, []]
    for columns in nothing:
        with Loader(mixed, global_batch=2, epochs=1, k=8, columns=columns) as loader:
            assert {tuple(batch.columns) for batch in loader} == {("xyz",)}
