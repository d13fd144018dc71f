from __future__ import annotations

import os
import subprocess
import sys
import threading
from typing import Any

import pytest

from tamis.errors import UsageError
from tamis.samplers.threads import each, threads_for


def test_results_come_in_the_order_of_calls_and_the_first_runs_here() -> None:
    here = threading.get_ident()
    found = each(lambda n: (n, threading.get_ident() == here), [(n,) for n in range(20)])
    assert [n for n, _ in found] == list(range(20))
    assert found[0][1]
    assert not any(own for _, own in found[1:])


def test_an_error_comes_out_when_all_are_done() -> None:
    done: list[int] = []
    release = threading.Event()

    def work(n: int) -> None:
        if n == 0:
            release.set()
            raise ValueError("first")
        release.wait()
        done.append(n)

    with pytest.raises(ValueError, match="first"):
        each(work, [(0,), (1,), (2,)])
    assert sorted(done) == [1, 2]
    with pytest.raises(ZeroDivisionError):
        each(lambda n: 1 // n, [(1,), (0,)])


@pytest.mark.parametrize(("threads", "most", "wanted"), [(3, 8, 3), (3, 2, 2), (3, 0, 1), (1, 5, 1)])
def test_no_more_threads_than_pay(threads: int, most: int, wanted: int) -> None:
    assert threads_for(threads, most) == wanted
    assert threads_for(None, 1000) == len(os.sched_getaffinity(0))


@pytest.mark.parametrize("threads", [0, -2, 1.0, True, "all"])
def test_impossible_numbers_are_refused(threads: Any) -> None:
    with pytest.raises(UsageError, match="threads"):
        threads_for(threads, 4)


def test_a_forked_process_has_threads_of_its_own() -> None:
    program = (
        "import os, sys; import numpy as np; from tamis.samplers import voxel\n"
        "xyz = np.random.default_rng(0).random((250_000, 3), np.float32)\n"
        "here = voxel(xyz, 0.1, threads=2).xyz.tobytes()\n"
        "child = os.fork()\n"
        "if child == 0:\n"
        "    os._exit(0 if voxel(xyz, 0.1, threads=2).xyz.tobytes() == here else 3)\n"
        "sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))\n"
    )
    done = subprocess.run([sys.executable, "-W", "ignore", "-c", program], check=False, timeout=100)
    assert done.returncode == 0
