"""The DALI engine gives the bits of the threads engine, and its errors."""

from __future__ import annotations

import importlib
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tamis.errors import DataError, UsageError
from tamis.pipelines.ops import (
    TABLE,
    Call,
    Columns,
    FarthestSettings,
    FlipSettings,
    FunctionSettings,
    JitterSettings,
    NormaliseSettings,
    Operator,
    OperatorSettings,
    RandomSettings,
    RotateSettings,
    ScaleSettings,
    VoxelSettings,
)
from tamis.pipelines.records import Field
from tamis.pipelines.run_dali import DaliEngine
from tamis.pipelines.run_threads import Engine, Threads, ThreadsEngine
from tamis.pipelines.user_code import UserCode
from tamis.samplers import draw
from tamis.samplers.fields import Kind

pytest.importorskip("nvidia.dali")

DTYPES = [
    "?",
    "i1",
    "i2",
    "i4",
    "i8",
    "u1",
    "u2",
    "u4",
    "u8",
    "f2",
    "f4",
    "f8",
    ">f4",
    ">u2",
    "M8[ns]",
    "m8[s]",
]
FIELDS = {
    "xyz": Field(np.dtype("f4"), 3, "point"),
    "normal": Field(np.dtype("f4"), 3, "vector"),
    "label": Field(np.dtype("i4"), 1, "class"),
    "rgb": Field(np.dtype("u2"), 3, "colour"),
    "gps_time": Field(np.dtype("f8"), 1, "time"),
    "stamp": Field(np.dtype("M8[ns]"), 1, "none"),
}
OPERATORS: list[OperatorSettings] = [
    RotateSettings(),
    FlipSettings(axes=("x", "y", "z")),
    ScaleSettings(low=0.5, high=2.0),
    JitterSettings(sigma=0.1, clip=0.2),
    NormaliseSettings(),
    VoxelSettings(size=0.5),
    RandomSettings(),
    FarthestSettings(),
]
SIZES = [0, 1, 1000, 4096]


def column(field: Field, n: int, rng: np.random.Generator) -> Any:
    values: Any = rng.integers(0, 100, n * field.width)
    if field.dtype.kind == "f":
        values = rng.normal(scale=10, size=n * field.width)
    return values.astype(field.dtype).reshape(field.shape(n))


def cloud(n: int, seed: int, fields: dict[str, Field] = FIELDS) -> Columns:
    rng = np.random.default_rng(seed)
    return {name: column(field, n, rng) for name, field in fields.items()}


def kinds(fields: dict[str, Field]) -> dict[str, Kind]:
    return {name: field.kind for name, field in fields.items()}


def key(i: int, operator: Operator) -> int:
    return draw.key(3, 0, i, operator.place)


@pytest.fixture(params=[1, 3])
def threads(request: pytest.FixtureRequest) -> Iterator[Threads]:
    made = Threads(request.param)
    yield made
    made.close()


def engines(
    threads: Threads, graph: list[OperatorSettings], fields: dict[str, Field] = FIELDS
) -> list[Engine]:
    operators = [Operator(place, one) for place, one in enumerate(graph)]
    made: list[Engine] = [
        ThreadsEngine(threads, operators, kinds(fields)),
        DaliEngine(threads, operators, kinds(fields), fields),
    ]
    return made


def ran(engine: Engine, clouds: list[Columns], k: int | None) -> list[Columns]:
    given = list(clouds)
    engine.run(given, key, k)
    return given


def same(found: list[Columns], wanted: list[Columns]) -> None:
    assert len(found) == len(wanted)
    for a, b in zip(found, wanted, strict=True):
        assert list(a) == list(b)
        for name, values in b.items():
            assert (a[name].dtype, a[name].shape) == (values.dtype, values.shape), name
            assert a[name].tobytes() == values.tobytes(), name


@pytest.mark.parametrize("operator", OPERATORS, ids=lambda o: o.kind)
def test_d03_every_operator_gives_the_bits_of_the_threads(
    operator: OperatorSettings, threads: Threads
) -> None:
    ours, theirs = engines(threads, [operator])
    for seed, sizes in enumerate((SIZES, SIZES[::-1], [0], [7] * 6, [0, 0])):
        clouds = [cloud(n, seed + n) for n in sizes]
        before = [{name: values.copy() for name, values in c.items()} for c in clouds]
        same(ran(theirs, clouds, 512), ran(ours, clouds, 512))
        same(clouds, before)  # no input was changed
    theirs.close()


def test_every_operator_of_the_table_is_tested_here() -> None:
    known = {name for name, back_end in TABLE if back_end == "threads"}
    assert known - {"function"} == {operator.kind for operator in OPERATORS}


@settings(deadline=None, max_examples=25)
@given(
    graph=st.lists(st.sampled_from(OPERATORS), min_size=1, max_size=5),
    sizes=st.lists(st.integers(0, 60), min_size=1, max_size=6),
    seed=st.integers(0, 1000),
)
def test_any_graph_gives_the_bits_of_the_threads(
    graph: list[OperatorSettings], sizes: list[int], seed: int
) -> None:
    threads = Threads(2)
    ours, theirs = engines(threads, graph)
    clouds = [cloud(n, seed + i) for i, n in enumerate(sizes)]
    same(ran(theirs, clouds, 20), ran(ours, clouds, 20))
    threads.close()


@pytest.mark.parametrize("width", [1, 3])
def test_columns_of_any_dtype_come_through(width: int) -> None:
    threads = Threads(1)
    fields = {f"a {code}": Field(np.dtype(code), width, "none") for code in DTYPES}
    fields = {"xyz": FIELDS["xyz"], **fields}
    ours, theirs = engines(threads, [RandomSettings(), FlipSettings()], fields)
    clouds = [cloud(n, n, fields) for n in (0, 1, 30)]
    same(ran(theirs, clouds, 9), ran(ours, clouds, 9))


@pytest.mark.parametrize("code", ["f2", "f8", ">f4"])
def test_points_of_another_width_are_moved_alike(code: str) -> None:
    threads = Threads(1)
    fields = {"xyz": Field(np.dtype(code), 3, "point"), "normal": Field(np.dtype(code), 3, "vector")}
    ours, theirs = engines(
        threads, [FlipSettings(), ScaleSettings(low=0.5, high=2.0), RotateSettings()], fields
    )
    clouds = [cloud(n, n, fields) for n in (0, 1, 30)]
    wanted, found = ran(ours, clouds, None), ran(theirs, clouds, None)
    for a, b in zip(found, wanted, strict=True):
        assert all(np.array_equal(a[name], b[name]) for name in b)


def test_results_outlive_the_batches_after_them(threads: Threads) -> None:
    ours, theirs = engines(threads, [ScaleSettings(low=0.5, high=2.0), JitterSettings(sigma=1.0)])
    batches = [[cloud(n + 1, seed) for n in range(1 + seed % 4)] for seed in range(12)]
    found = [ran(theirs, clouds, None) for clouds in batches]
    for clouds, wanted in zip(found, (ran(ours, clouds, None) for clouds in batches), strict=True):
        same(clouds, wanted)


def test_arrays_that_are_strided_or_may_only_be_read_are_taken() -> None:
    ours, theirs = engines(Threads(1), [FlipSettings(), RandomSettings()])
    odd = [{name: values[::2] for name, values in cloud(40, 1).items()}]
    for values in odd[0].values():
        values.flags.writeable = False
    same(ran(theirs, odd, 8), ran(ours, odd, 8))


def test_an_empty_graph_and_an_empty_batch_need_no_pipeline() -> None:
    threads = Threads(1)
    _, theirs = engines(threads, [])
    clouds = [cloud(5, 1)]
    same(ran(theirs, clouds, None), clouds)
    _, theirs = engines(threads, [RotateSettings()])
    assert ran(theirs, [], None) == []


class Refused(Exception):
    pass


@pytest.mark.parametrize("raised", [Refused("no, not this"), UsageError("a", "b", "c"), KeyboardInterrupt()])
def test_an_operator_s_error_comes_out_as_it_was_and_the_next_batch_runs(
    raised: BaseException, monkeypatch: pytest.MonkeyPatch, threads: Threads
) -> None:
    function = TABLE["random", "threads"]

    def refuse(columns: Columns, call: Call[Any]) -> Columns:
        if len(columns["xyz"]) == 13:
            raise raised
        after: Columns = function(columns, call)
        return after

    monkeypatch.setitem(TABLE, ("random", "threads"), refuse)
    for engine in engines(threads, [ScaleSettings(low=0.5, high=2.0), RandomSettings()]):
        clouds = [cloud(n, n) for n in (5, 13, 6)]
        with pytest.raises(type(raised)) as info:
            engine.run(clouds, key, 4)
        assert info.value is raised
        after = ran(engine, [cloud(5, 1)], 4)
        assert len(after[0]["xyz"]) == 4


def test_a_function_of_the_user_s_own_runs_as_with_the_threads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, threads: Threads
) -> None:
    code = """
def fewer(columns, seed):
    if len(columns["xyz"]) == 13:
        raise ValueError("thirteen")
    columns["xyz"] += seed % 7
    return {name: values[::2] for name, values in columns.items()}
"""
    (tmp_path / "own_operators.py").write_text(code)
    monkeypatch.syspath_prepend(tmp_path)
    user = UserCode(2, 60.0)
    graph: list[OperatorSettings] = [
        RotateSettings(),
        FunctionSettings(function="own_operators:fewer"),
        FlipSettings(),
    ]
    operators = [Operator(place, one) for place, one in enumerate(graph)]
    fields = {name: field for name, field in FIELDS.items() if field.dtype.kind != "M"}
    ours = ThreadsEngine(threads, operators, kinds(fields), user)
    theirs = DaliEngine(threads, operators, kinds(fields), fields, user)
    clouds = [cloud(n, n, fields) for n in (0, 1, 50, 400)]
    same(ran(theirs, clouds, None), ran(ours, clouds, None))
    with pytest.raises(DataError, match=r"the odd one.*thirteen"):
        theirs.run([cloud(13, 1, fields)], key, None, lambda _: "the odd one")
    same(ran(theirs, clouds, None), ran(ours, clouds, None))
    theirs.stop()
    with pytest.raises(RuntimeError, match="stopped"):
        theirs.run(clouds, key, None)
    user.close()


def test_a_stopped_engine_ends_with_an_error(threads: Threads) -> None:
    for graph in ([RotateSettings()], [ScaleSettings(low=0.5, high=2.0)]):
        _, theirs = engines(threads, list(graph))
        theirs.stop()
        with pytest.raises(RuntimeError, match="stopped"):
            theirs.run([cloud(5, 1)], key, None)


def test_stopping_ends_a_batch_in_work(monkeypatch: pytest.MonkeyPatch) -> None:
    threads = Threads(1)
    _, theirs = engines(threads, [RotateSettings()])
    done = []

    def stopping(columns: Columns, call: Call[Any]) -> Columns:
        done.append(call.key)
        theirs.stop()
        return columns

    monkeypatch.setitem(TABLE, ("rotate", "threads"), stopping)
    with pytest.raises(RuntimeError, match="stopped"):
        theirs.run([cloud(5, i) for i in range(9)], key, None)
    assert len(done) == 1


def test_d04_no_process_is_started() -> None:
    """Nothing can be forked after CUDA's start, or hang in a fork, where nothing is forked at all."""
    code = """
import os, sys, numpy as np
FORKS = ("os.fork", "os.forkpty", "os.posix_spawn", "subprocess.Popen")
sys.addaudithook(lambda event, _: sys.exit(f"{event} was called") if event in FORKS else None)
from tamis.pipelines.ops import Operator, RotateSettings
from tamis.pipelines.records import Field
from tamis.pipelines.run_dali import DaliEngine
from tamis.pipelines.run_threads import Threads
engine = DaliEngine(
    Threads(2), [Operator(0, RotateSettings())], {"xyz": "point"}, {"xyz": Field(np.dtype("f4"), 3, "point")}
)
clouds = [{"xyz": np.ones((5, 3), np.float32)} for _ in range(3)]
engine.run(clouds, lambda i, o: i, None)
assert not open(f"/proc/self/task/{os.getpid()}/children").read().split()
assert "torch" not in sys.modules
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.timeout(100)
def test_d05_pipelines_are_built_and_torn_down_without_a_hang() -> None:
    threads = Threads(4)
    graph: list[OperatorSettings] = [JitterSettings(sigma=1.0), ScaleSettings(low=0.5, high=2.0)]
    clouds = [cloud(n, n) for n in (0, 1, 40)]
    wanted = ran(engines(threads, graph)[0], clouds, None)
    for number in range(200):
        _, theirs = engines(threads, graph)
        same(ran(theirs, clouds, None), wanted)
        if number % 2:
            theirs.close()  # the others are dropped
    threads.close()


def test_dali_that_cannot_be_used_is_told_with_its_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(name: str) -> Any:
        raise OSError("libnvdali.so: file too short")

    monkeypatch.setattr(importlib, "import_module", broken)
    with pytest.raises(
        UsageError, match=r"engine: DALI cannot be used \(OSError: libnvdali.so: file too short"
    ):
        engines(Threads(1), [RotateSettings()])


def test_a_graph_that_dali_cannot_build_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    threads = Threads(1)
    _, theirs = engines(threads, [RotateSettings()])
    threads.most = -1
    with pytest.raises(UsageError, match=r"DALI cannot build the graph: .*num_threads"):
        theirs.run([cloud(5, 1)], key, None)
