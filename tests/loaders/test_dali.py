"""The loader over files that DALI reads: whole epochs, equal engines, exact resumption, errors that name."""

from __future__ import annotations

import copy
import json
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tamis.errors import DataError, UsageError
from tamis.loaders.dali import DaliLoader
from tamis.loaders.pack import Batch
from tamis.pipelines.ops import TABLE, JitterSettings, Operator, RandomSettings, SerialiseSettings
from tamis.pipelines.run_threads import Threads, ThreadsEngine
from tamis.samplers import draw

pytest.importorskip("nvidia.dali")

Write = Callable[[Path, Mapping[str, Any]], Path]
Source = dict[str, Any]
COLUMNS = {"xyz": "xyz.npy", "label": "label.npy"}
GRAPH: list[dict[str, Any]] = [
    {"kind": "rotate"},
    {"kind": "scale", "low": 0.5, "high": 2.0},
    {"kind": "jitter", "sigma": 0.1},
    {"kind": "voxel", "size": 0.3},
    {"kind": "farthest"},
    {"kind": "normalise"},
]


def cloud(n: int, seed: int) -> dict[str, Any]:
    rng = np.random.default_rng(seed)
    xyz = rng.normal(size=(n, 3)).astype(np.float32)
    return {"xyz": xyz, "label": np.full(n, seed, np.int32)}


def samples(sizes: list[int]) -> dict[str, Any]:
    return {f"{i:03d}.{COLUMNS[c]}": v for i, n in enumerate(sizes) for c, v in cloud(n, i).items()}


@pytest.fixture
def tars(tmp_path: Path, write_tar: Write) -> Callable[[list[int]], Source]:
    """``tars(sizes)``: a source of that many samples, whose label is their number, in three tars."""

    def made(sizes: list[int]) -> Source:
        files = [*samples(sizes).items()]
        third = -(-len(sizes) // 3) * 2
        parts = [dict(files[at : at + third]) for at in range(0, len(files), third)]
        paths = [write_tar(tmp_path / f"{i}.tar", part) for i, part in enumerate(parts)]
        return {"kind": "webdataset", "paths": [str(path) for path in paths], "columns": COLUMNS}

    return made


@pytest.fixture
def folder(tmp_path: Path) -> Source:
    (tmp_path / "npy").mkdir()
    for name, values in samples([5 + i for i in range(42)]).items():
        np.save(tmp_path / "npy" / name, values)
    return {"kind": "numpy", "root": str(tmp_path / "npy"), "columns": COLUMNS}


def numbers(batch: Batch) -> list[int]:
    """The samples of a ragged batch of clouds that are not empty."""
    assert batch.offsets is not None
    return [int(i) for i in batch.columns["label"][batch.offsets[:-1]]]


def same(found: Batch, wanted: Batch) -> None:
    assert (found.step, found.epoch, found.k) == (wanted.step, wanted.epoch, wanted.k)
    a, b = found.torch(), wanted.torch()
    assert list(a) == list(b)
    for name, values in b.items():
        assert a[name].dtype == values.dtype
        assert a[name].numpy().tobytes() == values.numpy().tobytes(), name


@pytest.mark.parametrize("shuffle", [0, 1, 8, 1000])
@pytest.mark.parametrize("kind", ["tars", "folder"])
def test_d01_the_last_batch_is_short_and_the_next_epoch_starts_clean(
    tars: Callable[[list[int]], Source], folder: Source, kind: str, shuffle: int
) -> None:
    source = folder if kind == "folder" else tars([5 + i for i in range(42)])
    with DaliLoader(source, batch=16, form="ragged", epochs=3, shuffle=shuffle) as loader:
        assert (loader.samples, loader.batches_per_epoch) == (42, 3)
        batches = list(loader)
        with pytest.raises(UsageError, match="has given all its epochs"):
            iter(loader)
    assert [len(batch.ids) for batch in batches] == [16, 16, 10] * 3
    assert [(batch.step, batch.epoch) for batch in batches] == [(i, i // 3) for i in range(9)]
    orders = []
    for epoch in range(3):
        order = [i for batch in batches[3 * epoch : 3 * epoch + 3] for i in numbers(batch)]
        assert sorted(order) == list(range(42))
        orders.append(order)
    if shuffle == 0:
        assert orders == [list(range(42))] * 3
    if shuffle > 1:
        assert list(range(42)) != orders[0] != orders[1] != orders[2]
    for batch in batches:
        assert (batch.weight == 1).all()
        for i, number in enumerate(numbers(batch)):
            rows = slice(batch.offsets[i], batch.offsets[i + 1])  # type: ignore[index]
            assert np.array_equal(batch.columns["xyz"][rows], cloud(5 + number, number)["xyz"])
    assert len({int(i) for batch in batches for i in batch.ids}) == 42


@pytest.mark.parametrize("engine", ["threads", "dali"])
def test_d03_clouds_of_any_size_share_a_batch(tars: Callable[[list[int]], Source], engine: Any) -> None:
    source = tars([0, 1, 1000, 4096])
    with DaliLoader(source, batch=4, form="ragged", epochs=1, engine=engine) as loader:
        (batch,) = loader
    assert batch.offsets is not None
    assert np.diff(batch.offsets).tolist() == [0, 1, 1000, 4096]
    graph: list[dict[str, Any]] = [{"kind": "jitter", "sigma": 0.1}, {"kind": "farthest"}]
    with DaliLoader(source, batch=4, k=512, graph=graph, epochs=1, engine=engine) as loader:
        (batch,) = loader
    assert batch.mask is not None
    assert batch.mask.sum(axis=1).tolist() == [0, 1, 512, 512]
    assert {values.shape[:2] for values in batch.columns.values()} == {(4, 512)}
    assert (batch.columns["label"][~batch.mask] == -1).all()
    assert not batch.columns["xyz"][0].any()


@pytest.mark.parametrize("form", ["dense", "ragged"])
def test_the_engines_give_the_same_batches_and_any_sample_draws_alone(
    tars: Callable[[list[int]], Source], form: Any
) -> None:
    source = tars([30 + 7 * i for i in range(10)])
    close = [SerialiseSettings(cell=0.1)] if form == "dense" else []
    found: list[list[Batch]] = []
    for engine, threads, batch in (("threads", 1, 4), ("dali", 2, 4), ("dali", 1, 3)):
        arguments: dict[str, Any] = {"graph": [*GRAPH, *close], "k": 32, "form": form, "seed": 5}
        with DaliLoader(source, batch=batch, epochs=2, engine=engine, threads=threads, **arguments) as loader:  # type: ignore[arg-type]
            found.append(list(loader))
    for a, b in zip(found[0], found[1], strict=True):
        same(a, b)
    if form == "dense":
        for name in found[0][0].columns:
            by_four, by_three = (np.concatenate([b.columns[name] for b in batches]) for batches in found[::2])
            assert by_four.tobytes() == by_three.tobytes()


def key(batch: Batch, i: int, operator: Operator) -> int:
    return draw.key(9, batch.epoch, int(batch.ids[i]), operator.place)


def test_draws_follow_seed_epoch_name_and_place(tars: Callable[[list[int]], Source]) -> None:
    source = tars([20, 30])
    operator = JitterSettings(sigma=0.5)
    with DaliLoader(source, batch=2, form="ragged", seed=9, epochs=2, graph=[operator]) as loader:
        for batch in loader:
            clouds = [cloud(20, 0), cloud(30, 1)]
            threads = Threads(1)
            engine = ThreadsEngine(threads, [Operator(0, operator)], {"xyz": "point", "label": "class"})
            engine.run(clouds, partial(key, batch), None)
            wanted = np.concatenate([c["xyz"] for c in clouds])
            assert np.array_equal(batch.columns["xyz"], wanted)


@pytest.mark.parametrize("kind", ["tars", "folder"])
@pytest.mark.parametrize("shuffle", [0, 8])
def test_every_cut_point_resumes_to_the_same_batches(
    tars: Callable[[list[int]], Source], folder: Source, kind: str, shuffle: int
) -> None:
    source = folder if kind == "folder" else tars([5 + i for i in range(42)])
    arguments: dict[str, Any] = {
        "batch": 16, "k": 8, "graph": [{"kind": "jitter", "sigma": 1.0}], "shuffle": shuffle, "epochs": 3
    }  # fmt: skip
    with DaliLoader(source, **arguments) as loader:
        states = [loader.state_dict()]
        batches = []
        for batch in loader:
            batches.append(batch)
            states.append(loader.state_dict())
    assert len(batches) == 9
    for cut, state in enumerate(states):
        with DaliLoader(source, **arguments) as loader:
            loader.load_state_dict(json.loads(json.dumps(state)))
            assert loader.state_dict() == state
            rest = [*loader] if cut < 9 else []
            for found, wanted in zip(rest, batches[cut:], strict=True):
                same(found, wanted)
            loader.load_state_dict(states[4])  # back again
            same(next(loader), batches[4])
            assert loader.state_dict()["step"] == 5


def test_a_state_of_something_else_is_refused(tars: Callable[[list[int]], Source], tmp_path: Path) -> None:
    source = tars([5] * 6)
    with DaliLoader(source, batch=2, form="ragged") as loader:
        next(loader)
        state = loader.state_dict()
        for change, says in (
            ({"version": 2}, "version is 2"),
            ({"plan": "x"}, "plan is x"),
            ({"step": -1}, "step"),
            ({"reader": "!"}, "none of DALI's checkpoints"),
            ({"reader": ""}, "none of DALI's checkpoints"),
            ({"reader": state["reader"][:-8]}, "none of DALI's checkpoints"),
            ({"surplus": 1}, "surplus"),
        ):
            with pytest.raises(UsageError, match=says):
                loader.load_state_dict({**state, **change})
        assert loader.state_dict() == state
        plain: dict[str, Any] = {"batch": 2, "form": "ragged"}
        for changes in ({"batch": 3}, {"seed": 1}, {"shuffle": 4}, {"graph": [{"kind": "rotate"}]}, {"k": 4}):
            with (
                DaliLoader(source, **{**plain, **changes}) as other,
                pytest.raises(UsageError, match="its plan is"),
            ):
                other.load_state_dict(state)
        shorter = {**source, "paths": source["paths"][:2]}
        with (
            DaliLoader(shorter, batch=2, form="ragged") as other,
            pytest.raises(UsageError, match="its source"),
        ):
            other.load_state_dict(state)


def test_an_error_leaves_the_loader_before_the_batch(
    tars: Callable[[list[int]], Source], monkeypatch: pytest.MonkeyPatch
) -> None:
    function = TABLE["random", "threads"]
    broken = [3]

    def refuse(columns: Any, call: Any) -> Any:
        if columns["label"][0] in broken:
            raise ZeroDivisionError("sample 3")
        return function(columns, call)

    monkeypatch.setitem(TABLE, ("random", "threads"), refuse)
    source = tars([5] * 6)
    with DaliLoader(source, batch=2, k=4, graph=[RandomSettings()], epochs=1, engine="dali") as loader:
        first = next(loader)
        for _ in range(2):
            with pytest.raises(ZeroDivisionError, match="sample 3"):
                next(loader)
            assert loader.state_dict()["step"] == 1
        broken.clear()
        rest = list(loader)
    assert [int(b.columns["label"][i, 0]) for b in [first, *rest] for i in range(2)] == list(range(6))


def test_a_file_that_is_cut_while_it_is_read_is_an_error(tars: Callable[[list[int]], Source]) -> None:
    source = tars([500] * 30)
    with DaliLoader(source, batch=2, form="ragged") as loader:
        next(loader)
        for path in source["paths"]:
            os.truncate(path, 10_000)
        with pytest.raises(DataError, match=r"DALI cannot read it: .*outside of the archive"):
            for _ in range(20):
                next(loader)


def test_d08_a_sample_without_a_component_is_named_at_once(tmp_path: Path, write_tar: Write) -> None:
    files = samples([3, 4])
    del files["001.label.npy"]
    path = write_tar(tmp_path / "a.tar", files)
    with pytest.raises(
        DataError, match=r"a.tar: sample '001' lacks 'label.npy': wanted .* present 'xyz.npy'"
    ):
        DaliLoader({"kind": "webdataset", "paths": [str(path)], "columns": COLUMNS}, batch=2, k=2)


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"batch": 0}, "loader.batch"),
        ({"seed": -1}, "loader.seed"),
        ({"shuffle": 1.5}, "loader.shuffle"),
        ({"epochs": 0}, "loader.epochs"),
        ({"threads": 0}, "loader.threads"),
        ({"engine": "gpu"}, "'gpu' is not available"),
        ({"form": "wide"}, "'wide' is not available"),
        ({"k": None}, "loader.k: is missing"),
        ({"graph": [{"kind": "function", "function": "a:b"}]}, "a function of your own"),
        ({"graph": [{"kind": "spin"}]}, "spin"),
        ({"source": {"kind": "webdataset"}}, "paths"),
        ({"source": 5}, "key 'source'"),
    ],
)
def test_arguments_are_checked(
    tars: Callable[[list[int]], Source], changes: dict[str, Any], says: str
) -> None:
    arguments = {"source": tars([3]), "batch": 1, "k": 2, **changes}
    with pytest.raises(UsageError, match=says):
        DaliLoader(**arguments)


def test_a_column_with_the_name_of_a_part_is_refused(tmp_path: Path, write_tar: Write) -> None:
    path = write_tar(tmp_path / "a.tar", samples([3]))
    source = {"kind": "webdataset", "paths": [str(path)], "columns": {"mask": "label.npy"}}
    with pytest.raises(UsageError, match="a column is named 'mask'"):
        DaliLoader(source, batch=1, form="ragged")


def test_a_loader_is_of_one_process_and_closes_for_good(tars: Callable[[list[int]], Source]) -> None:
    loader = DaliLoader(tars([3] * 4), batch=1, form="ragged")
    with pytest.raises(UsageError, match="cannot be copied"):
        copy.copy(loader)
    loader.close()
    loader.close()
    with pytest.raises(UsageError, match="was closed"):
        next(loader)


def test_threads_share_a_loader(tars: Callable[[list[int]], Source]) -> None:
    with DaliLoader(tars([3] * 60), batch=1, form="ragged", epochs=1, engine="dali") as loader:
        found: list[int] = []

        def take() -> None:
            found.extend(number for batch in loader for number in numbers(batch))

        threads = [threading.Thread(target=take) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert sorted(found) == list(range(60))


def test_d04_no_process_is_started_and_torch_is_not_loaded(tars: Callable[[list[int]], Source]) -> None:
    """Nothing can be forked after CUDA's start, or hang in a fork, where nothing is forked at all."""
    code = f"""
import os, sys
FORKS = ("os.fork", "os.forkpty", "os.posix_spawn", "subprocess.Popen")
sys.addaudithook(lambda event, _: sys.exit(f"{{event}} was called") if event in FORKS else None)
from tamis.loaders.dali import DaliLoader
with DaliLoader({tars([3] * 9)!r}, batch=2, k=2, engine="dali", epochs=2, shuffle=4) as loader:
    assert len(list(loader)) == 10
    assert not open(f"/proc/self/task/{{os.getpid()}}/children").read().split()
assert "torch" not in sys.modules
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.timeout(100)
def test_d05_loaders_are_opened_and_closed_without_a_hang(tars: Callable[[list[int]], Source]) -> None:
    source = tars([5] * 9)
    for number in range(200):
        arguments: dict[str, Any] = {"engine": "dali", "shuffle": number % 3, "threads": 4}
        loader = DaliLoader(source, batch=4, k=4, **arguments)
        if number % 2:
            next(loader)
        loader.close()
