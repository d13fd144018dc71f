"""A reader's connection to the feeder of its node: started, found, listened to, and left.

The first local rank opens the socket before it starts the feeder, which inherits it: whoever connects is
told by the kernel where the feeder fails to start. A loader that is dropped, and a program that ends, leave
as `Loader.close` does; a program that ends by an error leaves like one that was killed, so that it is told
to the other ranks.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import select
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from ..errors import DataError, LostError, TamisError, UsageError, from_plain
from ..processes import Watch
from . import protocol
from .attached import Attached
from .protocol import Hello, Request

_LOOK_S = 0.2
_CONNECT_S = 0.01
_START_S = 60.0  # that a feeder may take until it listens, on a machine that has much to do
_CLOSE_S = 5.0
_open: set[Link] = set()
_feeders: list[subprocess.Popen[bytes]] = []  # of this process, until they are seen to have ended


class Link:
    """See the module. One thread uses it at a time.

    ``address``: of the feeder. ``hello``: what it is told first. ``ranks``: of this node; rank 0 starts the
    feeder, with ``slots`` slots a ring.
    """

    def __init__(self, address: str, hello: Hello, ranks: int, slots: int | None, timeout_s: float) -> None:
        self._address, self._hello, self._timeout_s = address, hello, timeout_s
        self._alone = ranks == 1
        self._process: subprocess.Popen[bytes] | None = None
        self._socket: socket.socket | None = None
        self._feeder, self._feeder_pid = -1, 0
        self._watch: Watch | None = None
        self._given_up = False
        self._pid = os.getpid()
        self.ring: Attached | None = None
        self.closing = False  # set by a thread that waits for its turn to `close`
        if hello.rank == 0:
            with protocol.listen(address) as listener, _no_interrupt():
                request = Request(
                    listener=listener.fileno(),
                    starter=self._pid,
                    readers=ranks,
                    timeout_s=timeout_s,
                    slots=slots,
                    loader=hello.loader,
                )
                self._process = _start(request)
                _open.add(self)
            self._meet(self._process.pid)
        _open.add(self)

    def attach(self, *, for_device: bool) -> Attached:
        """This reader's ring, once every rank of the node has come; goes on where an interrupt cut it.

        ``for_device``: map the ring's own memory, which others may read, too.
        """
        deadline_s = time.monotonic() + self._timeout_s
        while self._socket is None:
            self._socket = protocol.connect(self._address)
            if self._socket is None:
                self._refuse_closing()
                if self._process is not None and self._process.poll() is not None:
                    raise self._death()  # before it listened
                if time.monotonic() > deadline_s:
                    cause = f"no feeder on this node for {self._timeout_s:g} s"
                    fix = "open the loader on local rank 0 too, see its message"
                    raise DataError("loader.feeder", cause, fix)
                time.sleep(_CONNECT_S)
        protocol.send(self._socket, self._hello.model_dump(mode="json"))
        message, files = self.hear("room", self._timeout_s + _START_S)  # it knows best who is missing
        try:
            if not self._process:
                self._meet(message["feeder"])
            self.ring = Attached(message, files, shared=for_device or len(message["readers"]) == 1)
        except BaseException:
            for fd in files:
                os.close(fd)
            raise
        return self.ring

    def say(self, message: dict[str, Any]) -> None:
        """Tell the feeder something."""
        assert self._socket is not None
        protocol.send(self._socket, message)

    def hear(self, wanted: str, timeout_s: float) -> tuple[dict[str, Any], list[int]]:
        """The next message that has the key ``wanted``, and the files with it.

        Raises the error that the feeder tells in its place, and DataError where it has ended, is stopped, or
        says nothing.
        """
        deadline_s = time.monotonic() + timeout_s
        while True:
            ready = self.wait(deadline_s)
            if ready:
                message, files = self._message(ready)
                if wanted in message:
                    return message, files
                _close(files)
            elif time.monotonic() > deadline_s:
                cause = f"{self.feeder} has not answered for {timeout_s:g} s"
                raise DataError("loader.feeder", cause, "take batches on every rank of this node")

    def wait(self, deadline_s: float, events: Sequence[int] = ()) -> set[int]:
        """Which of ``events`` and of the feeder's descriptors are ready; none after a short while."""
        self._refuse_closing()
        left_s = min(max(0.0, deadline_s - time.monotonic()), _LOOK_S)
        ready = self._ready(left_s, events)
        if not ready and self._watch and self._watch.stopped():
            self._given_up = True
            cause = f"{self.feeder} is stopped (SIGSTOP)"
            raise LostError("loader.feeder", cause, "see who stops it, and start again")
        return ready

    def check(self) -> None:
        """Raise what the feeder has told, or that it has ended."""
        self._refuse_closing()
        if ready := self._ready(0.0, ()):
            _close(self._message(ready)[1])

    @property
    def feeder(self) -> str:
        """What errors call it."""
        return f"the feeder (process {self._feeder_pid})" if self._feeder_pid else "the feeder"

    def close(self, *, failed: bool = False) -> None:
        """Leave, and see the feeder end where nobody else needs it. ``failed``: without a word."""
        if os.getpid() != self._pid or self not in _open:
            return
        if self.ring is not None:
            self.ring.leave()
        if self._process and not self._socket and not self._alone:  # the others wait for this one
            self._socket = protocol.connect(self._address)
            if self._socket:
                self.say(self._hello.model_dump(mode="json"))
        if self._socket is not None:
            if not failed:
                with contextlib.suppress(OSError):  # the feeder may have gone
                    self.say({"leave": True})
            self._socket.close()
        feeder, self._feeder = self._feeder, -1
        if feeder >= 0:
            if self._given_up or (self._alone and not self._socket):
                with contextlib.suppress(ProcessLookupError):
                    signal.pidfd_send_signal(feeder, signal.SIGKILL)
            os.close(feeder)
        if self._process is not None:
            _reap(self._process, _CLOSE_S if self._alone or self._given_up else 0.0)
        _open.discard(self)

    def _meet(self, pid: int) -> None:
        self._feeder_pid, self._watch = pid, Watch(pid)
        try:
            self._feeder = os.pidfd_open(pid)
        except ProcessLookupError:
            raise self._death() from None

    def _ready(self, timeout_s: float, events: Sequence[int]) -> set[int]:
        assert self._socket is not None
        poll = select.poll()
        for fd in (*events, self._socket.fileno(), self._feeder):
            if fd >= 0:
                poll.register(fd, select.POLLIN)
        return {fd for fd, _ in poll.poll(timeout_s * 1e3)}

    def _message(self, ready: set[int]) -> tuple[dict[str, Any], list[int]]:
        assert self._socket is not None
        spoken = self._socket.fileno() in ready
        message, files = protocol.receive(self._socket) if spoken else (None, [])
        if message is None:
            raise self._death()
        if "error" in message:
            raise from_plain(message["error"])
        return message, files

    def _death(self) -> TamisError:
        how = ""
        if self._process is not None:
            with contextlib.suppress(subprocess.TimeoutExpired):
                code = self._process.wait(1.0)
                how = f" (killed by signal {-code})" if code < 0 else f" (exit code {code})"
        fix = "see its message above, and that memory suffices; start again"
        if self.ring:
            return LostError("loader.feeder", f"{self.feeder} has ended{how}", fix)
        return DataError("loader.feeder", f"the feeder could not start{how}", fix)

    def _refuse_closing(self) -> None:
        if self.closing:
            raise UsageError("loader", "was closed", "make a new one")


def _start(request: Request) -> subprocess.Popen[bytes]:
    """Start a feeder that finds the same modules as this process."""
    paths = os.pathsep.join(str(Path(path).absolute()) for path in sys.path)
    try:
        process = subprocess.Popen(
            [sys.executable, "-P", "-m", "tamis.loaders.feeder"],
            stdin=subprocess.PIPE,
            stdout=2,  # what user code prints is for people
            env={**os.environ, "PYTHONPATH": paths},
            pass_fds=[request.listener],
        )
    except OSError as error:
        cause = f"'{sys.executable}' cannot be started ({error.strerror})"
        raise DataError("loader.feeder", cause, "see to Python, memory and the limits of processes") from None
    assert process.stdin is not None
    with contextlib.suppress(BrokenPipeError), process.stdin:  # that it died is seen when it is asked
        process.stdin.write(request.model_dump_json().encode())
    return process


@contextlib.contextmanager
def _no_interrupt() -> Iterator[None]:
    """Keep Ctrl-C from this thread, and from a process that it starts: until that says what it does then."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _reap(process: subprocess.Popen[bytes], timeout_s: float) -> None:
    """Wait for a feeder to end, and kill it then; one that serves others (0 s) is left to be seen later."""
    _feeders.append(process)
    if timeout_s:
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(timeout_s)
        if process.poll() is None:
            process.kill()
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(1.0)
    _feeders[:] = [one for one in _feeders if one.poll() is None]


def _close(files: Sequence[int]) -> None:
    for fd in files:
        os.close(fd)


@atexit.register
def _leave_all() -> None:
    """The program ends, and did not close these."""
    failed = hasattr(sys, "last_value")  # by an error that nobody caught
    for link in list(_open):
        link.close(failed=failed)
    for process in _feeders:
        process.poll()
        process.returncode = process.returncode or 0  # it serves others, and ends with them: no warning
