"""The feeder: one process a node that makes the batches of every replica there and shares them out.

``python -m tamis.loaders.feeder`` reads a `protocol.Request` from its standard input, waits until all readers
have attached, reserves a ring for each replica among them, and fills the rings until the readers leave. A
reader that dies, or stops, is told to the others at once.
"""

from __future__ import annotations

import json
import logging
import os
import queue
import select
import signal
import socket
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from ..config import check
from ..errors import DataError, TamisError, UsageError, system_error
from ..metrics import Meter
from ..pipelines.dataset import Dataset
from ..processes import Watch
from . import protocol
from .batches import Batches, columns_of
from .filler import Filler, Memory
from .plan import Cursor, Plan
from .protocol import Hello, Request
from .slots import parts_of, rings_of
from .spec import Spec

_log = logging.getLogger(__name__)

_LOOK_MS = 200


@dataclass
class Reader:
    """One rank that has attached. ``index``: its place among the readers of its ring."""

    socket: socket.socket
    pid: int
    hello: Hello
    pidfd: int = -1
    index: int = 0
    asked: tuple[Cursor, int] | None = None  # where to begin, and the number of the question
    left: bool = False
    watch: Watch = field(init=False)

    def __post_init__(self) -> None:
        self.watch = Watch(self.pid)
        try:
            self.pidfd = os.pidfd_open(self.pid)
        except ProcessLookupError:
            raise self.death() from None

    @property
    def name(self) -> str:
        """What errors call it."""
        return f"rank {self.hello.rank} (process {self.pid})"

    def death(self) -> DataError:
        """That it has ended."""
        cause = f"{self.name} has ended without closing its loader"
        return DataError("loader.feeder", cause, "see its own message, and that memory suffices")


class Feeder:
    """See the module. It stops listening once all have attached."""

    def __init__(self, request: Request) -> None:
        self._request, self._spec = request, Spec.model_validate_json(json.dumps(request.loader))
        os.set_inheritable(request.listener, False)
        self._server = socket.socket(fileno=request.listener)
        self._arriving: dict[int, socket.socket] = {}  # have not said who they are
        self._readers: list[Reader] = []
        self._fillers: dict[int, Filler] = {}
        self._attachments: dict[int, tuple[dict[str, Any], list[int]]] = {}  # by rank
        self._reports: queue.SimpleQueue[tuple[int, TamisError | None]] = queue.SimpleQueue()
        self._reported = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)

    def run(self) -> None:
        """Serve until every reader has left. Raises TamisError, after telling it to all readers."""
        try:
            self._attach()
            self._reserve()
            self._serve()
        except TamisError as error:
            self._tell_all(error)
            raise
        except OSError as error:
            self._tell_all(system_error(error, "loader.feeder"))
            raise
        finally:
            for filler in self._fillers.values():
                filler.stop()
            ended = [filler.close() for filler in self._fillers.values()]
            if not all(ended):
                os._exit(1)  # a thread hangs in a read: it must not keep this process alive
            for one in (self._server, *self._arriving.values(), *(reader.socket for reader in self._readers)):
                one.close()

    def _attach(self) -> None:
        """Wait for every rank of this node: for the first as long as it takes, then as long as allowed."""
        starter = self._starter()
        deadline_s = float("inf")
        while len(self._readers) < self._request.readers:
            if time.monotonic() > deadline_s:
                raise self._missing()
            ready = self._look([self._server.fileno(), starter, *self._arriving])
            for fd in ready & self._arriving.keys():
                self._welcome(self._arriving.pop(fd))
            if self._server.fileno() in ready:
                self._accept()
            if any(reader.left for reader in self._readers):
                cause = "a rank has closed its loader before all ranks of this node had opened it"
                raise DataError("loader.feeder", cause, "close it on all ranks at the same place")
            if starter in ready:
                raise DataError("loader.feeder", "the rank that started it has ended", "see its own message")
            if self._readers:
                deadline_s = min(deadline_s, time.monotonic() + self._request.timeout_s)
        os.close(starter)
        self._server.close()

    def _starter(self) -> int:
        try:
            return os.pidfd_open(self._request.starter)
        except ProcessLookupError:
            cause = "the rank that started it has ended"
            raise DataError("loader.feeder", cause, "see its own message") from None

    def _accept(self) -> None:
        connection = self._server.accept()[0]
        try:
            protocol.peer(connection)
            self._arriving[connection.fileno()] = connection
        except UsageError as error:  # anyone may connect: that must not end the run
            _log.warning("a connection is refused: %s", error)
            connection.close()

    def _welcome(self, connection: socket.socket) -> None:
        message, _ = protocol.receive(connection)
        if message is None:
            connection.close()
            return  # it has ended, and another may come
        hello = check(message, Hello, where="loader.feeder")
        reader = Reader(connection, protocol.peer(connection), hello)
        same = [one for one in self._readers if one.hello.rank == hello.rank]
        self._readers.append(reader)
        if same:
            cause = f"{reader.name} has the same number as {same[0].name}"
            raise UsageError("loader.feeder", cause, "give each process of a node its own LOCAL_RANK")
        for name, value in self._request.loader.items():
            other = hello.loader.get(name)
            if other != value:
                raise UsageError(
                    "loader.feeder",
                    f"{reader.name} has another {name} than the rank that started the feeder: "
                    f"{other!r}, not {value!r}",
                    "give all ranks the same",
                )

    def _missing(self) -> DataError:
        there = {reader.hello.rank for reader in self._readers}
        missing = ", ".join(str(rank) for rank in range(self._request.readers) if rank not in there)
        cause = f"no sign of rank {missing} for {self._request.timeout_s:g} s"
        return DataError(
            "loader.feeder", cause, "take batches on every rank of this node, or use feeder 'inline'"
        )

    def _reserve(self) -> None:
        """Make a ring for each replica, and give each reader the files of what it reads."""
        data, spec = self._spec.open(), self._spec
        replicas = sorted({reader.hello.replica for reader in self._readers})
        rings = {r: [one for one in self._readers if one.hello.replica == r] for r in replicas}
        columns = {r: self._columns(data, readers) for r, readers in rings.items()}
        parts = {
            r: parts_of(
                {name: data.schema[name] for name in names},
                dense=spec.form == "dense",
                serialised=spec.serialised,
            )
            for r, names in columns.items()
        }
        layouts = rings_of(
            parts,
            {r: len(rings[r]) for r in replicas},
            spec.largest(data, spec.plan(data)),
            self._request.slots,
        )
        for r, readers in rings.items():
            memory = Memory(layouts[r])
            own = spec.plan(data)  # a plan serves one thread
            make = self._maker(data, own, r, columns[r], len(rings))
            self._fillers[r] = Filler(memory, own, spec.epochs, make, self._reporter(r))
            for index, reader in enumerate(readers):
                reader.index = index
                names = [name for name in parts[r] if name not in columns[r] or name in reader.hello.columns]
                message = {
                    "feeder": os.getpid(),
                    "reader": index,
                    "readers": [one.name for one in readers],
                    "slots": layouts[r].slots,
                    "room": {name: layouts[r].room[name] for name in names},
                }
                self._attachments[reader.hello.rank] = message, memory.files(index, names)
        for reader in self._readers:
            self._give_ring(reader)

    def _give_ring(self, reader: Reader) -> None:
        message, files = self._attachments[reader.hello.rank]
        protocol.send(reader.socket, message, files)

    def _columns(self, data: Dataset, readers: list[Reader]) -> list[str]:
        return columns_of(data, [name for reader in readers for name in reader.hello.columns])

    def _maker(
        self, data: Dataset, plan: Plan, replica: int, columns: list[str], rings: int
    ) -> Callable[[Meter], Batches]:
        def make(meter: Meter) -> Batches:
            return self._spec.batches(data, plan, replica, columns, meter, rings)

        return make

    def _reporter(self, replica: int) -> Callable[[TamisError | None], None]:
        def report(error: TamisError | None) -> None:  # called by a filling thread
            self._reports.put((replica, error))
            os.eventfd_write(self._reported, 1)

        return report

    def _serve(self) -> None:
        while not all(reader.left for reader in self._readers):
            ready = self._look([self._reported])
            if self._reported in ready:
                os.eventfd_read(self._reported)
                while not self._reports.empty():
                    self._pass_on(*self._reports.get())
            for replica, filler in self._fillers.items():
                if filler.idle:
                    self._start(
                        filler, [r for r in self._readers if not r.left and r.hello.replica == replica]
                    )

    def _look(self, fds: list[int]) -> set[int]:
        """Which of ``fds`` are ready, after what readers say; raises where one has died or is stopped."""
        staying = [reader for reader in self._readers if not reader.left]
        for reader in staying:
            fds = [*fds, reader.socket.fileno(), reader.pidfd]
        gone = [reader for reader in self._readers if reader.left and reader.pidfd >= 0]
        ready = _ready([*fds, *(reader.pidfd for reader in gone)], _LOOK_MS)
        for reader in staying:
            if reader.socket.fileno() in ready:
                self._listen(reader)
            elif reader.pidfd in ready:
                raise reader.death()
            elif reader.watch.stopped():
                cause = f"{reader.name} is stopped (SIGSTOP)"
                raise DataError("loader.feeder", cause, "continue it with kill -CONT, and start again")
        for reader in gone:
            if reader.pidfd in ready:
                self._forget(reader)
        return ready

    def _listen(self, reader: Reader) -> None:
        message, _ = protocol.receive(reader.socket)
        if message is None:
            raise reader.death()
        filler = self._fillers.get(reader.hello.replica)
        if "leave" in message:
            reader.left = True
            reader.socket.close()
            others = [r for r in self._readers if not r.left and r.hello.replica == reader.hello.replica]
            if filler and not others:
                filler.halt()
        elif "start" in message and filler:
            reader.asked = Cursor(*message["start"]), message["question"]
            filler.halt()
        elif filler:  # an interrupt kept it from hearing the answer to its first message
            self._give_ring(reader)

    def _forget(self, reader: Reader) -> None:
        """A reader that left has ended now, and what it still held is free."""
        os.close(reader.pidfd)
        reader.pidfd = -1
        if filler := self._fillers.get(reader.hello.replica):
            filler.forget(reader.index)

    def _start(self, filler: Filler, readers: list[Reader]) -> None:
        """Begin where the readers of a ring ask for, once all have asked."""
        asked = [reader.asked for reader in readers if reader.asked]
        if not asked or len(asked) < len(readers):
            return
        cursor = asked[0][0]
        for reader, (other, _) in zip(readers, asked, strict=True):
            if other != cursor:
                raise UsageError(
                    "loader.feeder",
                    f"{reader.name} asks for step {other.step}, {readers[0].name} of its replica for step "
                    f"{cursor.step}",
                    "load the same state on all ranks of a replica",
                )
        seq = filler.start(cursor)
        for reader, (_, question) in zip(readers, asked, strict=True):
            protocol.send(reader.socket, {"from": seq, "question": question})
            reader.asked = None

    def _pass_on(self, replica: int, error: TamisError | None) -> None:
        """The readers of a replica find its error in their ring; the others are told here."""
        if error:
            self._tell(error, [reader for reader in self._readers if reader.hello.replica != replica])

    def _tell(self, error: TamisError, readers: list[Reader]) -> None:
        for reader in readers:
            if not reader.left:
                protocol.send(reader.socket, {"error": error.plain()})

    def _tell_all(self, error: TamisError) -> None:
        """Tell those who have not been welcomed yet, too."""
        self._tell(error, self._readers)
        while self._server.fileno() >= 0 and self._server.fileno() in _ready([self._server.fileno()], 0):
            self._accept()
        for connection in self._arriving.values():
            protocol.send(connection, {"error": error.plain()})


def _ready(fds: list[int], timeout_ms: float) -> set[int]:
    poll = select.poll()
    for fd in fds:
        poll.register(fd, select.POLLIN)
    return {fd for fd, _ in poll.poll(timeout_ms)}


def main() -> None:
    """Run the feeder that standard input describes; exits with 1 where something failed."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the readers: this ends when they leave
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})  # it was blocked until here
    logging.basicConfig(format="tamis: %(message)s", level=logging.WARNING)
    text = sys.stdin.buffer.read()
    if not text:  # whoever started this has ended
        sys.exit(1)
    try:
        Feeder(Request.model_validate_json(text)).run()
    except (TamisError, OSError):  # told to the readers, who tell the user
        sys.exit(1)


if __name__ == "__main__":
    main()
