"""Small datasets for the loaders' tests, built from NPY files as any other."""

from __future__ import annotations

import dis
import json
import os
import select
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from itertools import pairwise
from pathlib import Path
from types import CodeType, FrameType, ModuleType
from typing import Any

import numpy as np
import pytest

from tamis.loaders import node, protocol
from tamis.pipelines import shards
from tamis.pipelines.build import build
from tamis.pipelines.dataset import Dataset
from tamis.pipelines.settings import DataSettings

SCAN = np.dtype(
    [
        ("x", "f4"),
        ("y", "f4"),
        ("z", "f4"),
        ("normal", "f4", 3),
        ("intensity", "u2"),
        ("classification", "u1"),
    ]
)


RANK = Path(__file__).with_name("rank.py")


def write_scan(path: Path, rows: int, seed: int) -> None:
    """A scan of points in a box, with normals of length 1."""
    rng = np.random.default_rng(seed)
    scan = np.zeros(rows, SCAN)
    for axis, extent in (("x", 40), ("y", 40), ("z", 10)):
        scan[axis] = rng.uniform(0, extent, rows)
    normal = rng.normal(size=(rows, 3))
    scan["normal"] = normal / np.linalg.norm(normal, axis=1, keepdims=True)
    scan["intensity"] = rng.integers(0, 2**16, rows)
    scan["classification"] = rng.integers(0, 4, rows)
    np.save(path, scan)


@pytest.fixture
def make(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Dataset]:
    """``make(sizes, row_order=, per_shard=, seed=)``: a dataset with a training sample a size."""

    def made(
        sizes: Sequence[int], row_order: str = "source", per_shard: int | None = None, seed: int = 0
    ) -> Dataset:
        name = f"{len(sizes)}-{row_order}-{seed}"
        (tmp_path / name).mkdir()
        for i, rows in enumerate(sizes):
            write_scan(tmp_path / name / f"{i:03d}.npy", rows, 1000 * seed + i)
        settings = DataSettings(
            root=tmp_path / name,
            classes={"low": [0, 1], "high": [2]},
            row_order=row_order,  # type: ignore[arg-type]
        )
        step = per_shard or max(len(sizes), 1)

        def pack(sizes: Sequence[int], _splits: Sequence[str], _limit: int) -> list[range]:
            return [range(i, min(i + step, len(sizes))) for i in range(0, len(sizes), step)]

        monkeypatch.setattr(shards, "pack", pack)
        return build(settings, tmp_path / f"run-{name}")

    return made


def no_threads() -> bool:
    """Whether no thread of a loader lives."""
    return not any(thread.name.startswith("tamis-") for thread in threading.enumerate())


@pytest.fixture
def wait_until() -> Callable[..., None]:
    """``wait_until(true)``: come back when ``true()`` is, fail after 10 s."""

    def wait(true: Callable[[], bool]) -> None:
        end = time.monotonic() + 10
        while not true():
            assert time.monotonic() < end
            time.sleep(0.01)

    return wait


@pytest.fixture(autouse=True)
def _no_thread_is_left(wait_until: Callable[..., None]) -> Iterator[None]:
    yield
    wait_until(no_threads)


@pytest.fixture
def interrupt() -> Callable[..., Callable[..., Any]]:
    """``interrupt(at, *modules, but=)``: a trace function for `sys.settrace`.

    It raises KeyboardInterrupt at the ``at``-th point of the modules' own code, but in functions named
    ``but``, at which CPython lets a signal's handler run: after a call, at a start, in a loop.
    """

    def points(code: CodeType) -> set[int]:
        found = list(dis.get_instructions(code))
        after = ("CALL", "RESUME", "JUMP_BACKWARD")
        return {b.offset for a, b in pairwise(found) if a.opname.startswith(after)}

    def made(at: int, *modules: ModuleType, but: Sequence[str] = ()) -> Callable[..., Any]:
        files, known = {module.__file__ for module in modules}, dict[CodeType, set[int]]()
        left = at

        def trace(frame: FrameType, event: str, argument: Any) -> Any:
            nonlocal left
            code = frame.f_code
            if code.co_filename not in files or code.co_name in but:
                return None
            frame.f_trace_opcodes = True
            if code not in known:
                known[code] = points(code)
            if event == "opcode" and frame.f_lasti in known[code]:
                left -= 1
                if left < 0:
                    raise KeyboardInterrupt
            return trace

        sys._getframe().f_trace_opcodes = True  # Python 3.12 asks no frame later than as tracing begins
        return trace

    return made


class Zygote:
    """Forks ranks from a process that has imported what they need."""

    def __init__(self) -> None:
        self._socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            self._process = subprocess.Popen([sys.executable, str(RANK)], stdin=theirs.fileno())
        self._codes: dict[int, int] = {}

    def start(self, arguments: list[str], environ: dict[str, str], group: int, files: list[int]) -> int:
        """The process of a new rank, with these files as its stdin, stdout and stderr."""
        request = {"arguments": arguments, "environ": environ, "group": group}
        socket.send_fds(self._socket, [json.dumps(request).encode()], files)
        while (heard := self._hear(60))[0] != "started":
            continue
        self._codes.pop(heard[1], None)
        return int(heard[1])

    def code(self, pid: int, timeout_s: float) -> int:
        """The exit code of a rank, once it has ended."""
        while pid not in self._codes:
            self._hear(timeout_s)
        return self._codes[pid]

    def close(self) -> None:
        """End it; its ranks go on."""
        self._socket.close()
        assert self._process.wait(60) == 0

    def _hear(self, timeout_s: float) -> list[Any]:
        self._socket.settimeout(timeout_s)
        heard: list[Any] = json.loads(self._socket.recv(1000))
        if heard[0] == "ended":
            self._codes[heard[1]] = heard[2]
        return heard


@pytest.fixture(scope="session")
def zygote() -> Iterator[Zygote]:
    """One for all tests of this process."""
    one = Zygote()
    yield one
    one.close()


class Rank:
    """A process that runs ``rank.py``. ``environ``: beside the zygote's. ``group``: of processes, to join."""

    def __init__(
        self, zygote: Zygote, data: Dataset, arguments: dict[str, Any], environ: dict[str, str], group: int
    ) -> None:
        self._zygote = zygote
        self._noise = tempfile.TemporaryFile()  # noqa: SIM115 - a pipe would not end before the feeder does
        stdin, self._stdin = os.pipe()
        self._stdout, stdout = os.pipe()
        files = [stdin, stdout, self._noise.fileno()]
        self.pid = zygote.start([str(data.path), json.dumps(arguments)], environ, group, files)
        self._pidfd = os.pidfd_open(self.pid)  # a number may be given anew, this not
        os.close(stdin)
        os.close(stdout)
        self._read = b""

    def tell(self, *command: Any) -> None:
        """Send a command."""
        os.write(self._stdin, json.dumps(command).encode() + b"\n")

    def answer(self, timeout_s: float = 60) -> Any:
        """The answer to the oldest command that has none yet, None where the process ended."""
        end = time.monotonic() + timeout_s
        while b"\n" not in self._read:
            left_s = end - time.monotonic()
            assert left_s > 0, f"no answer in {timeout_s} s"
            if select.select([self._stdout], [], [], left_s)[0]:
                if not (read := os.read(self._stdout, 1 << 16)):
                    return None
                self._read += read
        line, _, self._read = self._read.partition(b"\n")
        return json.loads(line)

    def ask(self, *command: Any, timeout_s: float = 60) -> Any:
        """The answer to a command."""
        self.tell(*command)
        return self.answer(timeout_s)

    def end(self, code: int = 0) -> str:
        """Let it end, with that exit code; what it wrote to its stderr."""
        if self._stdin >= 0:
            os.close(self._stdin)
            self._stdin = -1
        assert self._zygote.code(self.pid, 60) == code
        self._noise.seek(0)
        return self._noise.read().decode()

    @property
    def lives(self) -> bool:
        """Whether it has not ended."""
        return self._pidfd >= 0 and not select.select([self._pidfd], [], [], 0)[0]

    def kill(self) -> None:
        """End it, whatever it does; may be called again."""
        if self._pidfd < 0:
            return
        with suppress(ProcessLookupError):
            signal.pidfd_send_signal(self._pidfd, signal.SIGKILL)
        self._zygote.code(self.pid, 60)
        for fd in (self._stdin, self._stdout, self._pidfd):
            if fd >= 0:
                os.close(fd)
        self._stdin = self._pidfd = -1
        self._noise.close()


class Ranks:
    """Starts ranks, and knows what is left of them. ``folder``: for temporary files."""

    def __init__(self, zygote: Zygote, folder: Path) -> None:
        self._zygote, self.mark, self.folder = zygote, uuid.uuid4().hex, folder
        self.started: list[Rank] = []
        self.addresses: set[str] = set()

    def __call__(
        self, data: Dataset, *changes: dict[str, Any], port: str = "", **arguments: Any
    ) -> list[Rank]:
        """A rank with a node's feeder for each of ``changes``, which may have an ``environ``; all open."""
        port = port or uuid.uuid4().hex
        arguments = {"global_batch": 4, "k": 64, "feeder": "node", "timeout_s": 100.0, **arguments}
        made: list[Rank] = []
        for rank, change in enumerate(changes):
            place = {"LOCAL_RANK": str(rank), "LOCAL_WORLD_SIZE": str(len(changes)), "MASTER_PORT": port}
            environ = (
                place | {"TAMIS_TEST": self.mark, "TMPDIR": str(self.folder)} | change.get("environ", {})
            )
            own = {name: value for name, value in change.items() if name != "environ"}
            group = made[0].pid if made else 0
            made.append(Rank(self._zygote, data, arguments | own, environ, group))
            key = f"{node.place(environ).run} {data.fingerprint} train"
            self.addresses.add(protocol.address(key, 0))
        self.started += made
        for one in made:
            assert (answer := one.answer()) == "open", answer
        return made

    def left(self) -> list[str]:
        """Their processes, those of the feeders, and the names of sockets."""
        found = [str(one.pid) for one in self.started if one.lives]
        for path in Path("/proc").glob("[0-9]*/environ"):
            with suppress(OSError):  # it has ended, or is of another user
                if f"TAMIS_TEST={self.mark}".encode() in path.read_bytes().split(b"\0"):
                    found.append((path.parent / "cmdline").read_text().replace("\0", " "))
        sockets = Path("/proc/net/unix").read_text()
        return found + [address for address in self.addresses if address in sockets]


@pytest.fixture
def ranks(
    zygote: Zygote, wait_until: Callable[..., None], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Ranks]:
    """See `Ranks`. At the end all are killed, and nothing that they started may be left."""
    started = Ranks(zygote, tmp_path_factory.mktemp("ranks"))
    yield started
    for one in started.started:
        one.kill()
    wait_until(lambda: not started.left())
    assert not [*started.folder.iterdir(), *Path("/dev/shm").glob("*tamis*")]
