"""The workers of user code are shared, end with what they serve, and leave nothing behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
import warnings
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
from pydantic import ValidationError

from tamis.errors import DataError, UsageError
from tamis.pipelines.engines import EngineName, engine_of
from tamis.pipelines.ops import (
    Columns,
    FarthestSettings,
    FunctionSettings,
    Operator,
    OperatorSettings,
    RandomSettings,
    RotateSettings,
    SerialiseSettings,
    resolve,
)
from tamis.pipelines.records import Field
from tamis.pipelines.run_threads import Threads, ThreadsEngine
from tamis.pipelines.user_code import UserCode
from tamis.samplers.fields import Kind

KINDS: dict[str, Kind] = {"xyz": "point", "label": "class"}


def cloud(n: int = 10, seed: int = 0) -> Columns:
    rng = np.random.default_rng(seed)
    return {
        "xyz": rng.normal(size=(n, 3)).astype(np.float32),
        "label": rng.integers(-1, 5, n).astype(np.int32),
    }


def equal(a: Columns, b: Columns) -> bool:
    return list(a) == list(b) and all(np.array_equal(a[name], b[name]) for name in a)


def worker_of(user: UserCode) -> int:
    """The process of an idle worker."""
    facts = {"facts": np.zeros((0, 4), np.int64)}
    return int(user.call("user_functions:about", facts, 0, "scan")["facts"][0, 0])


def held() -> tuple[set[int], int]:
    """Children of this process, those not reaped among them, and how many descriptors it has."""
    tasks = Path("/proc/self/task").glob("*/children")
    pids = {int(pid) for task in tasks for pid in task.read_text().split()}
    return pids, len(list(Path("/proc/self/fd").iterdir()))


@pytest.mark.parametrize("workers", [1, 3])
def test_threads_share_the_workers(functions: ModuleType, workers: int) -> None:
    before, user = held(), UserCode(workers, 20.0)

    def work(i: int) -> int:
        found = user.call("user_functions:augment", cloud(100 * i, i), i, str(i))
        assert equal(found, functions.augment(cloud(100 * i, i), i))
        return worker_of(user)

    with ThreadPoolExecutor(8) as pool:
        pids = set(pool.map(work, range(80)))
    assert len(pids) <= workers
    assert pids <= held()[0] - before[0]
    user.close()
    assert held() == before


def test_nothing_is_held_after_errors_of_every_sort(functions: ModuleType) -> None:
    before, user = held(), UserCode(1, 1.0)
    for name in ("raises", "killed", "leaves_at_once", "hangs", "same", "killed"):
        if name == "same":
            user.call("user_functions:same", cloud(), 0, "scan")
            continue
        with pytest.raises(DataError):
            user.call(f"user_functions:{name}", cloud(), 0, "scan")
    user.close()
    assert held() == before


@pytest.mark.parametrize("end", [UserCode.stop, UserCode.close])
def test_calls_in_progress_and_waiting_ones_end_when_it_is_stopped(
    functions: ModuleType,
    hanging: Callable[[int], list[int]],
    gone: Callable[[int], bool],
    end: Callable[[UserCode], None],
) -> None:
    user, said = UserCode(2, 100.0), list[str]()

    def call() -> None:
        with pytest.raises(RuntimeError) as caught:
            user.call("user_functions:hangs", cloud(), 0, "scan")
        said.append(str(caught.value))

    threads = [threading.Thread(target=call) for _ in range(5)]
    for thread in threads:
        thread.start()
    pids, start = hanging(2), time.monotonic()
    end(user)
    for thread in threads:
        thread.join(10)
    assert sorted(said) == ["user code was stopped"] * 3 + ["user code was stopped while it worked"] * 2
    assert time.monotonic() - start < 5
    with pytest.raises(RuntimeError, match="stopped"):
        user.call("user_functions:same", cloud(), 0, "scan")
    for _ in range(2):
        user.close()
        user.stop()
    assert all(gone(pid) for pid in pids)


def test_closing_takes_bounded_time_whatever_a_worker_does(
    functions: ModuleType, gone: Callable[[int], bool]
) -> None:
    user = UserCode(2, 20.0)
    user.call("user_functions:lingers", cloud(), 0, "scan")  # a thread keeps the process from ending
    pid = worker_of(user)
    os.kill(pid, signal.SIGSTOP)
    start = time.monotonic()
    user.close()
    assert time.monotonic() - start < 5
    assert gone(pid)


def test_one_that_is_dropped_ends_its_workers(functions: ModuleType) -> None:
    before, user = held(), UserCode(1, 20.0)
    assert worker_of(user) in held()[0]
    del user
    assert held() == before


def test_a_worker_outlives_the_thread_that_needed_it_first(functions: ModuleType) -> None:
    user, pids = UserCode(1, 20.0), list[int]()
    for _ in range(2):
        thread = threading.Thread(target=lambda: pids.append(worker_of(user)))
        thread.start()
        thread.join()
        time.sleep(0.1)
    assert pids[0] == pids[1] == worker_of(user)
    user.close()


def test_a_forked_process_is_told_to_make_its_own_and_disturbs_nothing(functions: ModuleType) -> None:
    user = UserCode(1, 20.0)
    pid = worker_of(user)
    ours, theirs = os.pipe()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # forking beside threads is the point
        child = os.fork()
    if not child:
        try:
            user.call("user_functions:same", cloud(), 0, "scan")
        except UsageError as error:
            user.stop()
            user.close()
            os.write(theirs, str(error).encode())
        finally:
            os._exit(0)
    os.waitpid(child, 0)
    says = "user_functions:same: its workers belong to another process; open a Loader in each process"
    assert os.read(ours, 1000).decode() == says
    assert worker_of(user) == pid
    user.close()
    os.close(ours)
    os.close(theirs)


PARENT = """
import os, sys, threading, time
import numpy as np
from tamis.pipelines.user_code import UserCode
sys.path.insert(0, sys.argv[1])
user, how = UserCode(3, 100.0), sys.argv[2]
facts = {"facts": np.zeros((0, 4), np.int64)}
hang = ("user_functions:hangs", facts, 0, "scan")
calls = [threading.Thread(target=user.call, args=hang) for _ in range(2)]
for call in calls if how != "idle" else ():
    call.start()
print(user.call("user_functions:about", facts, 0, "scan")["facts"][0, 0], flush=True)
sys.stdin.readline()
if how == "fork" and not os.fork():
    time.sleep(30)  # holds every descriptor that this process has
if how != "exit":
    print("ready", flush=True)
    time.sleep(100)
"""


@pytest.mark.parametrize("how", ["idle", "hanging", "fork", "exit"])
def test_workers_end_with_their_parent(
    functions: ModuleType, hanging: Callable[[int], list[int]], gone: Callable[[int], bool], how: str
) -> None:
    with subprocess.Popen(
        [sys.executable, "-W", "ignore", "-c", PARENT, str(Path(__file__).parent), how],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        start_new_session=True,
    ) as parent:
        assert parent.stdin
        assert parent.stdout
        pids = [int(parent.stdout.readline()), *(hanging(2) if how != "idle" else ())]
        parent.stdin.write("go on\n")
        parent.stdin.flush()
        if how != "exit":
            assert parent.stdout.readline() == "ready\n"
            parent.kill()
        parent.wait(20)
        assert all(gone(pid) for pid in pids)
        if how == "fork":
            os.killpg(parent.pid, signal.SIGKILL)


FUNCTION = FunctionSettings(function="user_functions:augment")


FIELDS = {"xyz": Field(np.dtype("float32"), 3, "point"), "label": Field(np.dtype("int32"), 1, "class")}


def ran(
    graph: list[OperatorSettings], threads: int, clouds: list[Columns], name: EngineName = "threads"
) -> list[Columns]:
    operators = [Operator(place, one) for place, one in enumerate(graph)]
    pool, user = Threads(threads), UserCode(threads, 20.0)
    engine = engine_of(name, pool, operators, KINDS, FIELDS, user)
    engine.run(clouds, lambda i, operator: 10 * i + operator.place, None)
    engine.close()
    user.close()
    pool.close()
    return clouds


def test_a_function_in_a_graph_draws_by_its_key_whatever_the_threads(functions: ModuleType) -> None:
    one, three = (
        ran([RotateSettings(), FUNCTION], threads, [cloud(20 * i, i) for i in range(8)]) for threads in (1, 3)
    )
    dali = ran([RotateSettings(), FUNCTION], 2, [cloud(20 * i, i) for i in range(8)], "dali")
    turned = ran([RotateSettings()], 1, [cloud(20 * i, i) for i in range(8)])
    for i in range(8):
        assert equal(one[i], functions.augment(turned[i], 10 * i + 1))
        assert equal(one[i], three[i])
        assert equal(one[i], dali[i])


@pytest.mark.parametrize(
    ("graph", "k", "read", "kinds"),
    [
        ([FUNCTION], None, "whole", ["function"]),
        ([FUNCTION], 8, "whole", ["function", "farthest"]),
        (
            [RotateSettings(), FUNCTION, RotateSettings()],
            8,
            "whole",
            ["rotate", "function", "farthest", "rotate"],
        ),
        ([FarthestSettings(), FUNCTION], 8, "prefix", ["function"]),
    ],
)
def test_a_function_may_change_the_number_of_rows(
    graph: list[OperatorSettings], k: int | None, read: str, kinds: list[str]
) -> None:
    box = {"xyz": Field(np.dtype("float32"), 3, "point"), "box": Field(np.dtype("float32"), 7, "box")}
    fields = box if graph == [FUNCTION] else {"xyz": box["xyz"]}
    found = resolve(graph, row_order="farthest", k=k, dense=k is not None, fields=fields)
    assert (found.read, [o.settings.kind for o in found.operators]) == (read, kinds)


def test_a_function_needs_no_column_and_a_sort_may_follow_it() -> None:
    tokens = {"tokens": Field(np.dtype("int32"), 1, "none")}
    found = resolve([FUNCTION], row_order="source", k=8, dense=True, fields=tokens)
    assert [o.settings.kind for o in found.operators] == ["function", "random"]
    close = SerialiseSettings(cell=1.0)
    xyz = {"xyz": Field(np.dtype("float32"), 3, "point")}
    found = resolve([FUNCTION, close], row_order="source", k=8, dense=True, fields=xyz)
    assert found.serialise == close
    assert [o.settings for o in found.operators] == [FUNCTION, RandomSettings()]


def test_an_engine_without_workers_refuses_a_function() -> None:
    engine = ThreadsEngine(Threads(1), [Operator(0, FUNCTION)], KINDS)
    with pytest.raises(UsageError, match="there are no workers to call it in; give the engine a UserCode"):
        engine.run([cloud()], lambda i, _: i, None)


@pytest.mark.parametrize("engine", ["threads", "dali"])
@pytest.mark.parametrize("threads", [1, 3])
def test_a_failing_function_names_the_sample_and_the_rest_of_the_batch_is_left(
    functions: ModuleType, threads: int, engine: EngineName
) -> None:
    pool, user, named = Threads(threads), UserCode(threads, 20.0), list[int]()
    operator = Operator(0, FunctionSettings(function="user_functions:raises"))
    made = engine_of(engine, pool, [operator], KINDS, FIELDS, user)

    def name(i: int) -> str:
        named.append(i)
        return f"scan-{i}"

    with pytest.raises(DataError, match=r"sample 'scan-\d+': worker \d+ raised ValueError: no good"):
        made.run([cloud() for _ in range(200)], lambda i, _: i, None, name)
    assert len(named) <= 2 * threads
    made.close()
    user.close()
    pool.close()


def test_stopping_the_engine_ends_its_functions(
    functions: ModuleType, hanging: Callable[[int], list[int]], gone: Callable[[int], bool]
) -> None:
    pool, user = Threads(2), UserCode(2, 100.0)
    engine = ThreadsEngine(
        pool, [Operator(0, FunctionSettings(function="user_functions:hangs"))], KINDS, user
    )

    def stop() -> None:
        hanging(2)
        engine.stop()

    stopper = threading.Thread(target=stop)
    stopper.start()
    with pytest.raises(RuntimeError, match="stopped"):
        engine.run([cloud() for _ in range(6)], lambda i, _: i, None)
    stopper.join()
    user.close()
    pool.close()
    assert all(gone(pid) for pid in hanging(2))


@pytest.mark.parametrize(
    "name",
    ["", "a", "a:", ":a", "a b:c", "a:b.c", "a..b:c", ".a:b", "1a:b", "a:b\n", "a:b:c", "a/b:c", "a:b-c"],
)
def test_a_function_is_given_as_module_and_name(name: str) -> None:
    with pytest.raises(ValidationError, match="pattern"):
        FunctionSettings(function=name)
    assert FunctionSettings(function="a.b_1:c").function == "a.b_1:c"
