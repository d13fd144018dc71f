"""User code in workers: equal to a direct call, and every way to fail is one line that names it."""

from __future__ import annotations

import os
import re
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from tamis.errors import DataError, UsageError
from tamis.pipelines.ops import Columns
from tamis.pipelines.user_code import UserCode
from tamis.pipelines.user_worker import called

NAMES = st.sampled_from(["augment", "doubled", "turned_round"])


def cloud(n: int = 10, seed: int = 0) -> Columns:
    rng = np.random.default_rng(seed)
    return {
        "xyz": rng.normal(size=(n, 3)).astype(np.float32),
        "label": rng.integers(-1, 5, n).astype(np.int32),
        "wide": rng.integers(0, 2**63, n).astype(np.uint64),
    }


def assert_equal(found: Columns, wanted: Columns) -> None:
    assert list(found) == list(wanted)
    for name, values in wanted.items():
        assert found[name].dtype == values.dtype
        assert np.array_equal(found[name], values)
        assert found[name].flags.owndata
        assert found[name].flags.writeable
        assert found[name].flags.c_contiguous


def worker_of(user: UserCode) -> list[int]:
    """What an idle worker says about itself: process, parent, checksum of its path, threads."""
    facts = {"facts": np.zeros((0, 4), np.int64)}
    (found,) = user.call("user_functions:about", facts, 0, "scan")["facts"].tolist()
    return list(found)


@pytest.fixture
def user(functions: ModuleType) -> Iterator[UserCode]:
    """One worker."""
    made = UserCode(1, 20.0)
    yield made
    made.close()


@pytest.fixture
def fails(user: UserCode, gone: Callable[[int], bool]) -> Callable[..., str]:
    """Calls a function that fails, checks what every failure must be, and that the next call works."""

    def call(function: str) -> str:
        with pytest.raises(DataError) as caught:
            user.call(function, cloud(), 0, "scan #3")
        text = str(caught.value)
        found = re.fullmatch(rf"{function}: sample 'scan #3': worker (\d+) (.*; .*)", text)
        assert found, text
        assert len(text) < 1000
        assert gone(int(found[1]))
        assert_equal(user.call("user_functions:same", cloud(), 1, "next"), cloud())
        return found[2]

    return call


@given(n=st.integers(0, 200), seed=st.integers(0, 2**64 - 1), name=NAMES)
@settings(deadline=None, max_examples=50, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_a_worker_makes_what_a_direct_call_makes(
    functions: ModuleType, user: UserCode, n: int, seed: int, name: str
) -> None:
    before = cloud(n, seed)
    found = user.call(f"user_functions:{name}", before, seed, "scan")
    assert_equal(before, cloud(n, seed))
    direct = getattr(functions, name)(before, seed)
    assert_equal(found, {column: np.array(direct[column], order="C") for column in before})


@given(values=arrays.arrays(st.sampled_from("?bhilqBHILQefd"), st.tuples(st.integers(0, 20), st.just(3))))
@settings(deadline=None, max_examples=50, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_every_dtype_and_bit_comes_back(user: UserCode, values: Any) -> None:
    found = user.call("user_functions:same", {"a b\n": values[::-1], "é": values[:, 0]}, 0, "scan")
    assert found["a b\n"].dtype == values.dtype
    assert found["a b\n"].tobytes() == values[::-1].tobytes()
    assert found["é"].tobytes() == values[:, 0].tobytes()


def test_arrays_of_many_megabytes_and_of_no_rows_pass(user: UserCode) -> None:
    for n in (500_000, 0, 1):
        assert_equal(user.call("user_functions:same", cloud(n), 0, "scan"), cloud(n))
    found = user.call("user_functions:doubled", cloud(300_000), 0, "scan")
    assert_equal(found, {name: np.repeat(values, 2, axis=0) for name, values in cloud(300_000).items()})


def test_what_a_function_prints_goes_to_stderr(user: UserCode, capfd: pytest.CaptureFixture[str]) -> None:
    for _ in range(2):
        assert_equal(user.call("user_functions:noisy", cloud(), 0, "scan"), cloud())
    out, err = capfd.readouterr()
    assert out == ""
    assert [err.count(said) for said in ("printed", "from a child", "to the descriptor")] == [2, 2, 2]


def test_a_worker_is_kept_has_this_path_and_one_thread_and_ignores_ctrl_c(
    functions: ModuleType, user: UserCode
) -> None:
    before = worker_of(user)
    assert before[1:] == [os.getpid(), functions.path_sum([*sys.path, ""]), 1]
    assert_equal(user.call("user_functions:interrupted", cloud(), 0, "scan"), cloud())
    assert worker_of(user) == before


def test_a_module_may_lie_in_the_working_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "beside.py").write_text("def f(columns, seed):\n    return columns\n")
    monkeypatch.chdir(tmp_path)
    user = UserCode(1, 20.0)
    assert_equal(user.call("beside:f", cloud(), 0, "scan"), cloud())
    user.close()


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("raises", r"raised ValueError: no good at \S+/user_functions\.py:\d+; mend the function"),
        ("raises_deep", r"raised numpy\.linalg\.LinAlgError: .+ at \S+/user_functions\.py:\d+; mend .*"),
        ("leaves", r"raised SystemExit: enough at \S+/user_functions\.py:\d+; mend the function"),
        ("leaves_at_once", "ended with exit code 7; .*"),
        ("killed", "was killed by SIGKILL; .*"),
        ("crashed", "was killed by SIGSEGV; .*"),
        ("stopped", r"is stopped \(SIGSTOP\); .*"),
        ("writes_to_the_pipe", "sent what is no reply; .*"),
        ("closes_all", "closed its pipes; .*"),
    ],
)
def test_what_goes_wrong_is_named(fails: Callable[..., str], name: str, says: str) -> None:
    assert re.fullmatch(says, fails(f"user_functions:{name}"))


def test_the_line_that_raised_is_named(functions: ModuleType, fails: Callable[..., str]) -> None:
    assert functions.__file__
    (line,) = re.findall(r":(\d+); mend", fails("user_functions:raises"))
    named = Path(functions.__file__).read_text().splitlines()[int(line) - 1]
    assert named.strip().startswith("raise ValueError")


def test_results_that_do_not_fit_are_refused_by_name(functions: ModuleType, user: UserCode) -> None:
    where = "user_functions:returns"
    for seed, says in enumerate(functions.RESULTS):
        with pytest.raises(DataError) as caught:
            called(where, cloud(), seed)
        assert str(caught.value) == f"{where}: returned {says}; mend the function"
    with pytest.raises(
        DataError, match=r"sample 'scan': worker \d+ returned NoneType, not a dict of columns"
    ):
        user.call(where, cloud(), 0, "scan")


@pytest.mark.parametrize("name", ["no_such", "number"])
def test_a_missing_function_is_refused(functions: ModuleType, user: UserCode, name: str) -> None:
    with pytest.raises(UsageError) as caught:
        user.call(f"user_functions:{name}", cloud(), 0, "scan")
    assert str(caught.value).endswith(f"finds no function '{name}' in {functions.__file__}; correct the name")


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "ModuleNotFoundError: No module named 'written'; see that it can be imported"),
        ("import numpy\n1 / 0", "ZeroDivisionError: division by zero at {path}:2; see"),
        ("def f(:", 'File "{path}", line 1 def f(: ^ SyntaxError: '),
        ("import sys; sys.exit(4)", "SystemExit: 4 at {path}:1; see"),
    ],
)
def test_a_module_that_cannot_be_imported_is_refused(
    user: UserCode, tmp_path: Path, text: str, says: str
) -> None:
    path = tmp_path / "written.py"
    if text:
        path.write_text(text)
    with pytest.raises(UsageError) as caught:
        user.call("written:f", cloud(), 0, "scan")
    assert f" cannot import 'written': {says.format(path=path)}" in str(caught.value)
    path.write_text("def f(columns, seed):\n    return columns\n")
    assert_equal(user.call("written:f", cloud(), 0, "scan"), cloud())


@pytest.mark.parametrize("name", ["hangs", "hangs_with_a_child"])
def test_s17_a_function_that_hangs_is_given_up_in_time(
    functions: ModuleType, hanging: Callable[[int], list[int]], gone: Callable[[int], bool], name: str
) -> None:
    user, start = UserCode(1, 1.5), time.monotonic()
    with pytest.raises(DataError, match=r"sample 'scan': worker \d+ gave no answer in 1\.5 s; ") as caught:
        user.call(f"user_functions:{name}", cloud(), 0, "scan")
    assert 1.4 < time.monotonic() - start < 10
    assert gone(int(re.findall(r"worker (\d+)", str(caught.value))[0]))
    assert gone(hanging(1)[0])
    user.close()


@pytest.mark.parametrize("sent", [signal.SIGKILL, signal.SIGTERM, signal.SIGSTOP])
def test_s17_a_worker_hit_by_a_signal_in_the_middle_is_named_at_once(
    user: UserCode,
    hanging: Callable[[int], list[int]],
    gone: Callable[[int], bool],
    sent: signal.Signals,
) -> None:
    hits: list[float] = []

    def hit() -> None:
        os.kill(hanging(1)[0], sent)
        hits.append(time.monotonic())

    thread = threading.Thread(target=hit)
    thread.start()
    with pytest.raises(
        DataError, match=rf"worker \d+ (was killed by {sent.name}|is stopped \({sent.name}\))"
    ):
        user.call("user_functions:hangs", cloud(), 0, "scan")
    ended = time.monotonic()
    thread.join()
    assert ended - hits[0] < 3  # within a second, where the machine has the time
    assert gone(hanging(1)[0])


@pytest.mark.parametrize("rows", [10, 500_000])
def test_a_worker_stopped_while_idle_is_noticed_by_the_next_call(
    user: UserCode, gone: Callable[[int], bool], rows: int
) -> None:
    pid = worker_of(user)[0]
    os.kill(pid, signal.SIGSTOP)
    with pytest.raises(DataError, match=rf"worker {pid} is stopped \(SIGSTOP\)"):
        user.call("user_functions:same", cloud(rows), 0, "scan")
    assert gone(pid)
    assert_equal(user.call("user_functions:same", cloud(rows), 0, "scan"), cloud(rows))


def test_a_worker_that_is_stopped_for_a_moment_goes_on(user: UserCode) -> None:
    pid = worker_of(user)[0]
    os.kill(pid, signal.SIGSTOP)
    thread = threading.Timer(0.1, os.kill, (pid, signal.SIGCONT))
    thread.start()
    assert worker_of(user)[0] == pid
    thread.join()


def test_a_worker_killed_while_idle_is_replaced_with_a_warning(
    user: UserCode, gone: Callable[[int], bool], caplog: pytest.LogCaptureFixture
) -> None:
    pid = worker_of(user)[0]
    os.kill(pid, signal.SIGKILL)
    assert gone(pid)
    assert worker_of(user)[0] != pid
    assert f"worker {pid} of user code ended while it was idle (exit code -9)" in caplog.text
