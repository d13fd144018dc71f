"""The feeder: one process a node that makes the batches of every replica there and shares them out.

``python -m tamis.loaders.feeder`` reads a `protocol.Request` from its standard input, waits until all readers
have come, reserves a ring for each replica among them, and fills the rings until the readers leave. A reader
that dies, or stops, is told to the others at once.
"""

from __future__ import annotations

import json
import logging
import os
import queue
import signal
import sys
from collections.abc import Callable
from functools import partial
from typing import Any

from ..errors import TamisError, UsageError, system_error
from . import protocol
from .batches import columns_of
from .filler import Filler, Memory
from .plan import Cursor
from .protocol import Request
from .reception import Reader, Reception, look
from .slots import parts_of, rings_of
from .spec import Spec


class Feeder:
    """See the module."""

    def __init__(self, request: Request) -> None:
        self._request, self._spec = request, Spec.model_validate_json(json.dumps(request.loader))
        self._reception = Reception(request)
        self._readers = self._reception.readers
        self._fillers: dict[int, Filler] = {}  # by replica
        self._rings: dict[int, tuple[dict[str, Any], list[int]]] = {}  # what a reader is told of its, by rank
        self._reports: queue.SimpleQueue[tuple[int, TamisError | None]] = queue.SimpleQueue()
        self._reported = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)

    def run(self) -> None:
        """Serve until every reader has left. Raises TamisError, after telling it to all readers."""
        try:
            self._reception.gather()
            self._reserve()
            self._serve()
        except TamisError as error:
            self._reception.tell(error)
            raise
        except OSError as error:
            self._reception.tell(system_error(error, "loader.feeder"))
            raise
        finally:
            for filler in self._fillers.values():
                filler.stop()
            ended = [filler.close() for filler in self._fillers.values()]
            if not all(ended):
                os._exit(1)  # a thread hangs in a read: it must not keep this process alive
            self._reception.close()

    def _reserve(self) -> None:
        """Make a ring for each replica, and give each reader the files of what it reads."""
        data, spec = self._spec.open(), self._spec
        replicas = sorted({reader.hello.replica for reader in self._readers})
        readers = {r: [one for one in self._readers if one.hello.replica == r] for r in replicas}
        columns = {
            r: columns_of(data, [name for one in readers[r] for name in one.hello.columns]) for r in replicas
        }
        parts = {
            r: parts_of(
                {name: data.fields[name] for name in columns[r]},
                dense=spec.form == "dense",
                serialised=spec.serialised,
                own=spec.own(data),
            )
            for r in replicas
        }
        counts = {r: len(readers[r]) for r in replicas}
        largest = spec.largest(data, spec.plan(data), {name for names in columns.values() for name in names})
        rings = rings_of(parts, counts, largest, self._request.slots)
        for r in replicas:
            memory, plan = Memory(rings[r]), spec.plan(data)  # a plan serves one thread
            make = partial(spec.batches, data, plan, r, columns[r], rings=len(replicas))
            self._fillers[r] = Filler(memory, plan, spec.epochs, make, self._reporter(r))
            for index, reader in enumerate(readers[r]):
                reader.index = index
                names = [name for name in parts[r] if name not in columns[r] or name in reader.hello.columns]
                message = {
                    "feeder": os.getpid(),
                    "reader": index,
                    "readers": [one.name for one in readers[r]],
                    "slots": rings[r].slots,
                    "room": {name: rings[r].room[name] for name in names},
                }
                self._rings[reader.hello.rank] = message, memory.files(index, names)
        for reader in self._readers:
            self._give_ring(reader)

    def _give_ring(self, reader: Reader) -> None:
        message, files = self._rings[reader.hello.rank]
        protocol.send(reader.socket, message, files)

    def _reporter(self, replica: int) -> Callable[[TamisError | None], None]:
        def report(error: TamisError | None) -> None:  # called by a filling thread
            self._reports.put((replica, error))
            os.eventfd_write(self._reported, 1)

        return report

    def _serve(self) -> None:
        while not all(reader.left for reader in self._readers):
            gone = {one.pidfd: one for one in self._readers if one.left and one.pidfd >= 0}
            ready = look(self._readers, [self._reported, *gone], self._listen)
            for pidfd in ready & gone.keys():
                self._forget(gone[pidfd])
            if self._reported in ready:
                os.eventfd_read(self._reported)
                while not self._reports.empty():
                    self._pass_on(*self._reports.get())
            for replica, filler in self._fillers.items():
                if filler.idle:
                    self._start(filler, self._staying(replica))

    def _staying(self, replica: int) -> list[Reader]:
        return [one for one in self._readers if one.hello.replica == replica and not one.left]

    def _listen(self, reader: Reader, message: dict[str, Any]) -> None:
        filler = self._fillers[reader.hello.replica]
        if "leave" in message:
            reader.leave()
            if not self._staying(reader.hello.replica):
                filler.halt()
        elif "start" in message:
            reader.asked = Cursor(*message["start"]), message["question"]
            filler.halt()
        else:  # its first message again: an interrupt kept it from hearing the answer
            self._give_ring(reader)

    def _forget(self, reader: Reader) -> None:
        """A reader that left has ended now, and what it still held is free."""
        os.close(reader.pidfd)
        reader.pidfd = -1
        self._fillers[reader.hello.replica].forget(reader.index)

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
        for reader in self._readers:
            if error and reader.hello.replica != replica and not reader.left:
                protocol.send(reader.socket, {"error": error.plain()})


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
