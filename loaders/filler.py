"""Fills the ring of one replica: a thread makes its batches in turn, each straight into a free slot."""

from __future__ import annotations

import json
import logging
import os
import select
import threading
from collections.abc import Callable, Iterable
from functools import partial

from ..errors import DataError, TamisError
from ..metrics import STREAM, Meter
from .batches import Batches
from .pack import Batch
from .plan import Cursor, Plan
from .slots import TEXT_BYTES, Control, Head, Layout, Slots, reserve

_log = logging.getLogger(__name__)

_CLOSE_S = 5.0
_TEXT = TEXT_BYTES // 20  # characters: three long parts, at most six bytes a character


class Memory:
    """The files of a ring: the control words, one file an array, and the events that wake someone up."""

    def __init__(self, layout: Layout) -> None:
        self.layout = layout
        self._control_file = reserve("control", layout.control_bytes)
        self._files = {name: reserve(name, layout.slots * room) for name, room in layout.room.items()}
        self.released = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self.published = [os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC) for _ in range(layout.readers)]
        self.control = Control(self._control_file, layout)
        self.slots = Slots(self._files, layout)

    def files(self, reader: int, names: Iterable[str]) -> list[int]:
        """What ``reader`` gets: control, its event, the feeder's event, then the arrays ``names``."""
        arrays = [self._files[name] for name in names]
        return [self._control_file, self.published[reader], self.released, *arrays]


class Filler:
    """Makes the batches of one replica from a cursor on, as long as there are free slots.

    An error takes the place of the batch it struck, and ends the filling. ``report`` is called on the
    filling thread: with an error as soon as it strikes, with None when the filling has ended.
    """

    def __init__(
        self,
        memory: Memory,
        plan: Plan,
        epochs: int | None,
        make_batches: Callable[[Meter], Batches],
        report: Callable[[TamisError | None], None],
    ) -> None:
        self._memory, self._plan, self._epochs = memory, plan, epochs
        self._meter = Meter(STREAM, memory.control.table)
        self._batches = make_batches(self._meter)
        self._report = report
        self._seq = 0
        self._halt = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._thread: threading.Thread | None = None
        self._halting = False
        self.idle = True

    def start(self, cursor: Cursor) -> int:
        """Fill from ``cursor`` on; the number of the first batch. To be called while `idle`."""
        if self._thread is not None:
            self._thread.join()
        self._halting, self.idle = False, False
        first = self._seq  # before the thread counts on
        self._thread = threading.Thread(target=self._run, args=(cursor,), name="tamis-fill", daemon=True)
        self._thread.start()
        return first

    def halt(self) -> None:
        """End the filling after the batch in work; it is `idle` then."""
        self._halting = True
        os.eventfd_write(self._halt, 1)

    def stop(self) -> None:
        """End the filling in the middle of a batch, for good."""
        self._batches.stop()
        self.halt()

    def close(self) -> bool:
        """After `stop`: give back threads and files; whether all ended."""
        if self._thread is not None:
            self._thread.join(_CLOSE_S)
        return self.idle and self._batches.close(_CLOSE_S)

    def forget(self, reader: int) -> None:
        """``reader`` has ended: what it held is free."""
        self._memory.control.ring.leave(reader)
        os.eventfd_write(self._memory.released, 1)

    def _run(self, cursor: Cursor) -> None:
        try:
            self._fill(cursor)
        except TamisError as error:
            self._fail(cursor, error)
        except Exception as error:  # noqa: BLE001 - whatever a thread meets has to reach the readers
            if not self._halting:  # stopped threads raise
                _log.exception("a batch could not be made")
                cause = f"cannot make a batch ({type(error).__name__}: {error})"
                self._fail(cursor, DataError("loader.feeder", cause, "see the trace above"))
        finally:
            self.idle = True
            self._report(None)

    def _fill(self, cursor: Cursor) -> None:
        while not self._plan.ends(cursor, self._epochs) and (slot := self._free_slot()) is not None:
            batch = self._batches.make(cursor, partial(self._memory.slots.array, slot))
            with self._meter.time("stream.deliver"):
                self._publish(slot, _head(batch))
            cursor = self._plan.after(cursor)

    def _free_slot(self) -> int | None:
        """Wait for a slot that is free; None where the filling is to end."""
        ring, released = self._memory.control.ring, self._memory.released
        with self._meter.wait("stream.deliver", out=True):
            poll = select.poll()
            poll.register(released, select.POLLIN)
            poll.register(self._halt, select.POLLIN)
            while not self._halting and (slot := ring.free()) is None:
                for fd, _ in poll.poll():
                    _drain(fd)
        return None if self._halting else slot

    def _publish(self, slot: int, head: Head, text: bytes = b"") -> None:
        self._memory.control.write(slot, head, text)
        self._memory.control.ring.publish(slot, self._seq)
        self._seq += 1
        for event in self._memory.published:
            os.eventfd_write(event, 1)

    def _fail(self, cursor: Cursor, error: TamisError) -> None:
        self._report(error)
        plain = {name: value[:_TEXT] for name, value in error.plain().items()}
        text = json.dumps(plain, ensure_ascii=False).encode("utf-8", "surrogatepass")
        if (slot := self._free_slot()) is not None:
            self._publish(slot, Head(cursor.step, cursor.epoch, 0, 0, 0, 0, len(text)), text)


def _head(batch: Batch) -> Head:
    rows = int(batch.offsets[-1]) if batch.offsets is not None else 0
    return Head(batch.step, batch.epoch, batch.k, len(batch.ids), rows, batch.mask is not None)


def _drain(event: int) -> None:
    try:
        os.eventfd_read(event)
    except BlockingIOError:  # another woke up first
        return
