"""Functions as users write them, good and bad; workers import them."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
import zlib
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np

Columns = dict[str, Any]

number = 5


def same(columns: Columns, seed: int) -> Columns:
    return columns


def augment(columns: Columns, seed: int) -> Columns:
    rng = np.random.default_rng(seed)
    keep = rng.random(len(columns["xyz"])) < 0.7
    columns["xyz"] += rng.normal(size=3).astype(np.float32)  # its arrays are its own
    return {name: values[keep] for name, values in columns.items()}


def doubled(columns: Columns, seed: int) -> Columns:
    return {name: np.repeat(values, 2, axis=0) for name, values in columns.items()}


def turned_round(columns: Columns, seed: int) -> Columns:
    return {name: np.asfortranarray(values)[::-1] for name, values in reversed(columns.items())}


def noisy(columns: Columns, seed: int) -> Columns:
    print("printed")  # noqa: T201
    os.system("echo from a child")
    os.write(1, b"to the descriptor\n")
    assert sys.stdin.read() == ""
    return columns


def path_sum(path: list[str]) -> int:
    return zlib.crc32("\n".join(path).encode())


def about(columns: Columns, seed: int) -> Columns:
    facts = (os.getpid(), os.getppid(), path_sum(sys.path), int(os.environ["OMP_NUM_THREADS"]))
    return {"facts": np.array([facts], np.int64)}


def interrupted(columns: Columns, seed: int) -> Columns:
    os.kill(os.getpid(), signal.SIGINT)
    time.sleep(0.05)
    return columns


def raises(columns: Columns, seed: int) -> Columns:
    raise ValueError("no\n good")


def raises_deep(columns: Columns, seed: int) -> Columns:
    return np.linalg.inv(np.zeros((2, 3)))  # type: ignore[return-value]


def killed(columns: Columns, seed: int) -> Columns:
    os.kill(os.getpid(), signal.SIGKILL)
    return columns


def crashed(columns: Columns, seed: int) -> Columns:
    os.kill(os.getpid(), signal.SIGSEGV)
    return columns


def stopped(columns: Columns, seed: int) -> Columns:
    os.kill(os.getpid(), signal.SIGSTOP)
    return columns


def hangs(columns: Columns, seed: int) -> None:
    _say_hanging(os.getpid())
    time.sleep(1000)


def hangs_with_a_child(columns: Columns, seed: int) -> None:
    _say_hanging(subprocess.Popen(["sleep", "1000"]).pid)
    time.sleep(1000)


def _say_hanging(pid: int) -> None:
    with Path(os.environ["HANGING"]).open("a") as file:
        file.write(f"{pid}\n")


def leaves(columns: Columns, seed: int) -> Columns:
    sys.exit("enough")


def leaves_at_once(columns: Columns, seed: int) -> Columns:
    os._exit(7)


def writes_to_the_pipe(columns: Columns, seed: int) -> Columns:
    for descriptor in range(3, 20):
        with suppress(OSError):
            os.write(descriptor, b"garbage that is no message at all")
    return columns


def closes_all(columns: Columns, seed: int) -> None:
    os.closerange(0, 100)
    time.sleep(1000)


def lingers(columns: Columns, seed: int) -> Columns:
    threading.Thread(target=time.sleep, args=(1000,)).start()
    return columns


RESULTS: dict[str, Any] = {
    "NoneType, not a dict of columns": lambda _: None,
    "list, not a dict of columns": lambda c: list(c.values()),
    "no column 'label'": lambda c: {"xyz": c["xyz"]},
    "a column 'more' that it was not given": lambda c: {**c, "more": c["xyz"]},
    "a column 5 that it was not given": lambda c: {**c, 5: c["xyz"]},
    "column 'xyz' as list, not as numpy.ndarray": lambda c: {**c, "xyz": c["xyz"].tolist()},
    "column 'xyz' as MaskedArray, not as numpy.ndarray": lambda c: {**c, "xyz": np.ma.array(c["xyz"])},
    "column 'xyz' of float64, not float32": lambda c: {**c, "xyz": c["xyz"].astype("f8")},
    "column 'xyz' of object, not float32": lambda c: {**c, "xyz": c["xyz"].astype(object)},
    "column 'xyz' of shape (10, 2), not (n, 3)": lambda c: {**c, "xyz": c["xyz"][:, :2]},
    "column 'xyz' of shape (30,), not (n, 3)": lambda c: {**c, "xyz": c["xyz"].ravel()},
    "column 'label' of shape (1, 1), not (n)": lambda c: {**c, "label": c["label"][:1, None]},
    "column 'label' of shape (), not (n)": lambda c: {**c, "label": np.array(0, "i4")},
    "column 'label' of 9 rows and column 'xyz' of 10": lambda c: {**c, "label": c["label"][1:]},
}
"""What an error says of a result -> the result, of a cloud of 10 rows."""


def returns(columns: Columns, seed: int) -> Any:
    return list(RESULTS.values())[seed](columns)
