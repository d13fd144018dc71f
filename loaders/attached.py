"""A ring as one of its readers sees it: batches are leased, and free again when nobody holds their arrays."""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Mapping, Sequence
from typing import Any

from ..errors import UsageError
from .lease import Lease
from .slots import Control, Layout, Slots


class Attached:
    """The reader's view of a ring, and the batches it holds. Outlives the feed while any is held.

    ``shared``: see what is in the ring itself, which is then `read_only` where others read it too.
    """

    def __init__(self, message: Mapping[str, Any], files: Sequence[int], *, shared: bool) -> None:
        self.readers: list[str] = message["readers"]
        layout = Layout(message["slots"], len(self.readers), message["room"])
        control, self.published, self._released, *arrays = files
        self.control = Control(control, layout)
        self.ring, self._reader = self.control.ring, message["reader"]
        self.leads = self._reader == 0
        self.read_only = shared and len(self.readers) > 1
        self.slots = Slots(dict(zip(layout.room, arrays, strict=True)), layout, private=not shared)
        for fd in (control, *arrays):
            os.close(fd)
        self._leases: list[tuple[int, weakref.ref[Lease]] | None] = [None] * layout.slots  # the last of each
        self._closed = False
        self._pid = os.getpid()
        self._lock = threading.RLock()  # arrays are dropped on any thread, and in the middle of anything
        weakref.finalize(self, _close_all, [self.published, self._released], self._pid).atexit = False

    def lease(self, slot: int, seq: int) -> Lease:
        """Hold batch ``seq``, which lies in ``slot``, until the lease and all that holds it are gone.

        Raises UsageError where another thread has called `leave`.
        """
        lease = Lease()
        weakref.finalize(lease, self._end, slot, seq).atexit = False
        with self._lock:
            if self._closed:
                raise UsageError("loader", "was closed", "make a new one")
            self._leases[slot] = seq, weakref.ref(lease)
        return lease

    def holds(self, seq: int) -> bool:
        """Whether this process holds batch ``seq``."""
        return any(last and last[0] == seq and last[1]() is not None for last in self._leases)

    @property
    def full(self) -> bool:
        """Whether this process holds a batch in every slot."""
        return len(self._held()) == len(self._leases)

    def skip(self, seq: int) -> None:
        """Release a batch that was not taken; may be called again."""
        if (slot := self.ring.slot(seq)) is not None and not self.holds(seq):
            self._release(slot, seq)

    def settle(self) -> None:
        """Release again what is dropped, and say so: an interrupt may have come in the middle of it."""
        for slot in self.ring.held(self._reader):
            last = self._leases[slot]
            if last and last[1]() is None and self.ring.slot(last[0]) == slot:
                self._release(slot, last[0])
        os.eventfd_write(self._released, 1)

    def leave(self) -> None:
        """Take no more: what is held stays as it is until it is dropped."""
        with self._lock:
            self._closed = True
            self.ring.leave(self._reader, self._held())
        os.eventfd_write(self._released, 1)

    def _held(self) -> list[int]:
        return [slot for slot, last in enumerate(self._leases) if last and last[1]() is not None]

    def _end(self, slot: int, seq: int) -> None:
        if os.getpid() == self._pid:  # a fork's copy of a batch is not the reader's
            self._release(slot, seq)

    def _release(self, slot: int, seq: int) -> None:
        with self._lock:
            if self.ring.released(
                slot, seq, self._reader
            ):  # another thread did, and the slot may be used anew
                return
            if self.slots.private:
                self.slots.forget(slot)
            if self._closed:
                self.ring.leave(self._reader, self._held())
            else:
                self.ring.release(slot, seq, self._reader)
        os.eventfd_write(self._released, 1)


def _close_all(fds: list[int], pid: int) -> None:
    if os.getpid() == pid:
        for fd in fds:
            os.close(fd)
