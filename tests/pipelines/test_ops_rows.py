"""Operators that choose or merge rows, and the threads that run a graph."""

from __future__ import annotations

import threading

import numpy as np
import pytest

from tamis.errors import UsageError
from tamis.pipelines.ops import (
    TABLE,
    Call,
    Columns,
    FarthestSettings,
    FlipSettings,
    Operator,
    OperatorSettings,
    RandomSettings,
    RotateSettings,
    ScaleSettings,
    SerialiseSettings,
    VoxelSettings,
    resolve,
)
from tamis.pipelines.records import Field
from tamis.pipelines.run_threads import Threads, ThreadsEngine
from tamis.samplers import draw
from tamis.samplers.farthest import farthest
from tamis.samplers.fields import Kind

KINDS: dict[str, Kind] = {"xyz": "point", "normal": "vector", "label": "class", "row": "none"}


def cloud(n: int, seed: int = 0) -> Columns:
    rng = np.random.default_rng(seed)
    return {
        "xyz": rng.uniform(-5, 5, (n, 3)).astype(np.float32),
        "normal": np.tile(np.array([0, 0, 1], np.float32), (n, 1)),
        "label": rng.integers(0, 3, n).astype(np.int32),
        "row": np.arange(n),
    }


def applied(settings: OperatorSettings, columns: Columns, k: int | None = None, key: int = 1) -> Columns:
    after: Columns = TABLE[settings.kind, "threads"](columns, Call(settings, KINDS, key, k))
    return after


@pytest.mark.parametrize("settings", [RandomSettings(), FarthestSettings()])
@pytest.mark.parametrize(("n", "k"), [(100, 30), (20, 30), (1, 1), (0, 5)])
def test_samplers_take_at_most_k_whole_rows(settings: OperatorSettings, n: int, k: int) -> None:
    before = cloud(n)
    after = applied(settings, before, k)
    rows = after["row"]
    assert len(set(rows.tolist())) == len(rows) == min(n, k)
    for name, values in before.items():
        assert np.array_equal(after[name], values[rows])
        assert after[name].dtype == values.dtype


def test_random_rows_follow_the_key_and_farthest_rows_do_not() -> None:
    before = cloud(200)
    drawn = [applied(RandomSettings(), before, 20, key)["row"].tolist() for key in (1, 1, 2)]
    assert drawn[0] == drawn[1] != drawn[2]
    for key in (1, 2):
        picked = applied(FarthestSettings(), before, 20, key)["row"]
        assert np.array_equal(picked, farthest(before["xyz"], 20))


def test_voxel_merges_every_column_by_its_kind() -> None:
    xyz = np.array([[0.1, 0.1, 0.1], [0.3, 0.3, 0.3], [0.2, 0.2, 0.2], [1.5, 0.1, 0.1]], np.float32)
    before = {
        "xyz": xyz,
        "normal": np.array([[1, 0, 0], [0, 1, 0], [0, 0, 0], [0, 0, 1]], np.float32),
        "label": np.array([7, 4, 7, -1], np.int32),
        "row": np.array([10, 11, 12, 13]),
    }
    after = applied(VoxelSettings(size=1.0), before)
    assert np.allclose(after["xyz"], [[0.2, 0.2, 0.2], [1.5, 0.1, 0.1]], atol=1e-6)
    assert after["label"].tolist() == [7, -1]
    assert after["row"].tolist() == [10, 13]
    assert np.allclose(after["normal"], [[0.5**0.5, 0.5**0.5, 0], [0, 0, 1]], atol=1e-6)
    assert {name: values.dtype for name, values in after.items()} == {n: v.dtype for n, v in before.items()}
    assert np.array_equal(applied(VoxelSettings(size=1.0, pick="first"), before)["xyz"], xyz[[0, 3]])


ROTATE, VOXEL, RANDOM, FARTHEST = (
    RotateSettings(),
    VoxelSettings(size=1.0),
    RandomSettings(),
    FarthestSettings(),
)


XYZ = {"xyz": Field(np.dtype("float32"), 3, "point")}


@pytest.mark.parametrize(
    ("graph", "row_order", "k", "read", "kinds"),
    [
        ([], "farthest", 8, "prefix", []),
        ([], "random", 8, "window", []),
        ([], "source", 8, "whole", ["random"]),
        ([], "source", None, "whole", []),
        ([FARTHEST], "farthest", 8, "prefix", []),
        ([FARTHEST], "random", 8, "whole", ["farthest"]),
        ([RANDOM], "random", 8, "window", []),
        ([RANDOM], "farthest", 8, "whole", ["random"]),
        ([ROTATE], "farthest", 8, "prefix", ["rotate"]),
        ([ROTATE, FARTHEST], "farthest", 8, "whole", ["rotate", "farthest"]),
        ([ROTATE, VOXEL], "farthest", 8, "whole", ["rotate", "voxel", "farthest"]),
        ([VOXEL, ROTATE], "random", 8, "whole", ["voxel", "random", "rotate"]),
        ([RANDOM, VOXEL], "random", 8, "window", ["voxel"]),
        ([VOXEL], "random", None, "whole", ["voxel"]),
    ],
)
def test_a_graph_reads_no_more_than_it_needs(
    graph: list[OperatorSettings], row_order: str, k: int | None, read: str, kinds: list[str]
) -> None:
    found = resolve(graph, row_order=row_order, k=k, dense=k is not None, fields=XYZ)
    assert (found.read, [o.settings.kind for o in found.operators]) == (read, kinds)
    places = {operator.settings: operator.place for operator in found.operators}
    assert all(places[operator] == i for i, operator in enumerate(graph) if operator in places)


def test_serialise_closes_a_dense_graph() -> None:
    close = SerialiseSettings(cell=1.0)
    found = resolve([ROTATE, close], row_order="farthest", k=8, dense=True, fields=XYZ)
    assert found.serialise == close
    with pytest.raises(UsageError, match="serialise stands at place 0"):
        resolve([close, ROTATE], row_order="farthest", k=8, dense=True, fields=XYZ)
    with pytest.raises(UsageError, match="dense"):
        resolve([close], row_order="farthest", k=None, dense=False, fields=XYZ)


def test_graphs_that_cannot_run_are_refused() -> None:
    with pytest.raises(UsageError, match="random needs a number of rows; give k"):
        resolve([RANDOM], row_order="random", k=None, dense=False, fields=XYZ)
    with pytest.raises(UsageError, match="rotate needs a column 'xyz'"):
        resolve(
            [ROTATE],
            row_order="random",
            k=None,
            dense=False,
            fields={"tokens": Field(np.dtype("int32"), 1, "none")},
        )


@pytest.mark.parametrize("operator", [ROTATE, FlipSettings(), ScaleSettings(low=0.5, high=2.0)])
@pytest.mark.parametrize(
    "field",
    [
        Field(np.dtype("int8"), 3, "vector"),
        Field(np.dtype("float32"), 1, "vector"),
        Field(np.dtype("float32"), 7, "box"),
        Field(np.dtype("float64"), 16, "pose"),
    ],
)
def test_a_column_that_cannot_be_moved_is_refused(operator: OperatorSettings, field: Field) -> None:
    with pytest.raises(UsageError, match=f"{operator.kind} cannot move column 'odd'"):
        resolve([operator], row_order="random", k=8, dense=True, fields={**XYZ, "odd": field})


def test_a_sample_without_coordinates_is_sampled_at_random() -> None:
    found = resolve(
        [], row_order="source", k=8, dense=True, fields={"tokens": Field(np.dtype("int32"), 1, "none")}
    )
    assert [o.settings for o in found.operators] == [RANDOM]


GRAPH: list[OperatorSettings] = [ROTATE, FlipSettings(), ScaleSettings(low=0.9, high=1.1), RANDOM]


def ran(seeds: list[int], threads: int) -> list[Columns]:
    clouds = [cloud(50 + seed, seed) for seed in seeds]
    pool = Threads(threads)
    operators = [Operator(place, operator) for place, operator in enumerate(GRAPH)]
    engine = ThreadsEngine(pool, operators, KINDS)
    engine.run(clouds, lambda i, o: draw.key(0, 0, seeds[i], o.place), 16)
    engine.close()
    pool.close()
    return clouds


def test_draws_depend_on_neither_threads_nor_the_other_samples() -> None:
    together = ran(list(range(10)), 1)
    for found in (ran(list(range(10)), 4), [ran([seed], 1)[0] for seed in range(10)]):
        for a, b in zip(together, found, strict=True):
            assert all(np.array_equal(a[name], b[name]) for name in a)
    assert len({c["row"].tobytes() for c in together}) == 10


@pytest.mark.parametrize("threads", [1, 3])
def test_each_item_is_done_once_and_an_error_comes_out(threads: int) -> None:
    pool, done, lock = Threads(threads), [0] * 100, threading.Lock()

    def work(i: int) -> None:
        with lock:
            done[i] += 1
        if i == 57:
            raise ValueError("item 57")

    with pytest.raises(ValueError, match="item 57"):
        pool.each(work, 100)
    assert max(done) == done[57] == 1
    pool.each(lambda i: done.__setitem__(i, 9), 100)
    assert done == [9] * 100
    pool.close()


@pytest.mark.parametrize("threads", [1, 3])
def test_stopping_ends_work_at_the_next_item(threads: int) -> None:
    pool, done = Threads(threads), []

    def work(i: int) -> None:
        done.append(i)
        pool.stop()

    with pytest.raises(RuntimeError, match="stopped"):
        pool.each(work, 100)
    assert 1 <= len(done) <= threads
    pool.close()


@pytest.mark.parametrize("threads", [1, 3])
def test_a_stopped_engine_ends_with_an_error(threads: int) -> None:
    pool = Threads(threads)
    engine = ThreadsEngine(pool, [Operator(0, ROTATE)], KINDS)
    engine.stop()
    with pytest.raises(RuntimeError, match="stopped"):
        engine.run([cloud(5), cloud(6)], lambda *_: 1, None)
    engine.close()
    pool.close()
