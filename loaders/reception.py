"""How a feeder's readers come to it, and what is to be known of each: who it is, and whether it lives."""

from __future__ import annotations

import logging
import os
import select
import socket
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from ..config import check
from ..errors import DataError, LostError, TamisError, UsageError
from ..processes import Watch
from . import protocol
from .plan import Cursor
from .protocol import Hello, Request

_log = logging.getLogger(__name__)

_LOOK_MS = 200


@dataclass
class Reader:
    """One rank that has come. ``index``: its place among the readers of its ring."""

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
        return LostError("loader.feeder", cause, "see its own message, and that memory suffices")

    def leave(self) -> None:
        """It needs nothing more."""
        self.left = True
        self.socket.close()


def look(
    readers: Sequence[Reader], fds: Sequence[int], listen: Callable[[Reader, dict[str, Any]], None]
) -> set[int]:
    """Which of ``fds`` are ready, none after a short while; ``listen`` is called with what readers say.

    Raises DataError where a reader that has not left has died, or is stopped.
    """
    staying = [reader for reader in readers if not reader.left]
    found = _ready([*fds, *(fd for one in staying for fd in (one.socket.fileno(), one.pidfd))], _LOOK_MS)
    for reader in staying:
        if reader.socket.fileno() in found:
            message, _ = protocol.receive(reader.socket)
            if message is None:
                raise reader.death()
            listen(reader, message)
        elif reader.pidfd in found:
            raise reader.death()
        elif reader.watch.stopped():
            raise _stopped(reader.name)
    return found


class Reception:
    """Where readers come, until all have."""

    def __init__(self, request: Request) -> None:
        self._request = request
        os.set_inheritable(request.listener, False)
        self._server = socket.socket(fileno=request.listener)
        self._arriving: dict[int, socket.socket] = {}  # have not said who they are
        self.readers: list[Reader] = []

    def gather(self) -> None:
        """Wait for every rank of this node: for the first as long as it takes, then as long as allowed.

        Raises DataError where one does not come or does not stay, or the one that started the feeder ends,
        and UsageError where their arguments differ.
        """
        starter, watch = self._starter(), Watch(self._request.starter)
        deadline_s = float("inf")
        while len(self.readers) < self._request.readers:
            if time.monotonic() > deadline_s:
                raise self._missing()
            ready = look(self.readers, [self._server.fileno(), starter, *self._arriving], self._listen)
            for fd in ready & self._arriving.keys():
                self._welcome(self._arriving.pop(fd))
            if self._server.fileno() in ready:
                self._accept()
            if starter in ready:
                raise self._orphaned()
            if watch.stopped():
                raise _stopped("the rank that started it")
            if self.readers:
                deadline_s = min(deadline_s, time.monotonic() + self._request.timeout_s)
        os.close(starter)
        for one in (self._server, *self._arriving.values()):
            one.close()
        self._arriving.clear()

    def tell(self, error: TamisError) -> None:
        """Tell an error to all that are here, those at the door too."""
        while self._server.fileno() >= 0 and _ready([self._server.fileno()], 0):
            self._accept()
        here = [reader.socket for reader in self.readers if not reader.left]
        for connection in (*here, *self._arriving.values()):
            protocol.send(connection, {"error": error.plain()})

    def close(self) -> None:
        """Close all connections."""
        for one in (self._server, *self._arriving.values(), *(reader.socket for reader in self.readers)):
            one.close()

    def _starter(self) -> int:
        try:
            return os.pidfd_open(self._request.starter)
        except ProcessLookupError:
            raise self._orphaned() from None

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
        same = [one for one in self.readers if one.hello.rank == hello.rank]
        self.readers.append(reader)
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

    def _listen(self, reader: Reader, message: dict[str, Any]) -> None:
        if "leave" in message:
            reader.leave()
            cause = f"{reader.name} has closed its loader before all ranks of this node had opened it"
            raise DataError("loader.feeder", cause, "close it on all ranks at the same place")

    def _missing(self) -> DataError:
        there = {reader.hello.rank for reader in self.readers}
        missing = ", ".join(str(rank) for rank in range(self._request.readers) if rank not in there)
        cause = f"no sign of rank {missing} for {self._request.timeout_s:g} s"
        fix = "take batches on every rank of this node, or use feeder 'inline'"
        return DataError("loader.feeder", cause, fix)

    def _orphaned(self) -> DataError:
        return LostError("loader.feeder", "the rank that started it has ended", "see its own message")


def _stopped(who: str) -> DataError:
    cause = f"{who} is stopped (SIGSTOP)"
    return LostError("loader.feeder", cause, "continue it with kill -CONT, and start again")


def _ready(fds: Sequence[int], timeout_ms: float) -> set[int]:
    poll = select.poll()
    for fd in fds:
        poll.register(fd, select.POLLIN)
    return {fd for fd, _ in poll.poll(timeout_ms)}
