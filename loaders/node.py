"""A reader of a node's feeder: batches are arrays over shared memory, freed when nobody holds them."""

from __future__ import annotations

import gc
import json
import os
import threading
import time
import uuid
import weakref
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..errors import DataError, TamisError, UsageError, from_plain
from ..metrics import STREAM, Meter
from ..pipelines.dataset import Dataset
from . import protocol
from .attached import Attached
from .lease import LeasedArray
from .link import Link
from .pack import Batch, Ragged, offsets_of
from .plan import Cursor, Plan
from .protocol import Hello
from .slots import Head, HostMemory, Part, parts_of, rings_of
from .spec import Spec

_PATIENCE_S = 1.0
_opened: Counter[tuple[str, int]] = Counter()


class Place(NamedTuple):
    """This process among those of its node: ``rank`` counts from 0 in ``ranks``; ``run`` names the run."""

    rank: int
    ranks: int
    run: str


def place(environ: Mapping[str, str]) -> Place:
    """The place that torchrun, or a launcher that sets the same variables, gives a process."""
    ranks = _number(environ, "LOCAL_WORLD_SIZE", 1)
    if ranks <= 1:
        return Place(0, 1, uuid.uuid4().hex)
    names = ("TORCHELASTIC_RUN_ID", "TORCHELASTIC_RESTART_COUNT", "MASTER_ADDR", "MASTER_PORT")
    if "LOCAL_RANK" not in environ or not any(name in environ for name in names):
        cause = f"LOCAL_WORLD_SIZE is {ranks}, LOCAL_RANK or MASTER_PORT is not set"
        raise UsageError("loader.feeder", cause, "start the ranks with torchrun, or set both")
    rank = _number(environ, "LOCAL_RANK", 0)
    if not 0 <= rank < ranks:
        raise UsageError("loader.feeder", f"LOCAL_RANK is {rank} of {ranks}", "count from 0")
    return Place(rank, ranks, "/".join(environ.get(name, "") for name in (*names, "GROUP_RANK")))


class NodeFeed:
    """Batches from the feeder of this node, which the first local rank starts."""

    def __init__(
        self,
        spec: Spec,
        dataset: Dataset,
        plan: Plan,
        replica: int,
        columns: Sequence[str],
        slots: int | None,
        meter: Meter,
        here: Place | None = None,
    ) -> None:
        self._spec, self._plan, self._meter = spec, plan, meter
        self._parts: dict[str, Part] = parts_of(
            {name: dataset.fields[name] for name in columns},
            dense=spec.form == "dense",
            serialised=spec.serialised,
            own=spec.own(dataset),
        )
        rings_of(
            {replica: self._parts}, {replica: 1}, spec.largest(dataset, plan, columns), slots
        )  # the least it needs
        here = here or place(os.environ)
        key = f"{here.run} {spec.fingerprint} {spec.split}"
        address = protocol.address(key, _opened[key, here.rank])
        _opened[key, here.rank] += 1  # every rank opens the same loaders in the same order
        loader = json.loads(spec.model_dump_json())
        self._hello = Hello(rank=here.rank, replica=replica, columns=list(columns), loader=loader)
        self._stages = [meter.stages.index(stage) for stage in STREAM]
        self._lock = threading.RLock()  # held while a batch is taken; by a signal's handler too
        self._for_device = False
        self._next: Cursor | None = None  # the cursor that batch `_seq` goes on from, where that is known
        self._seq = self._question = 0
        self._link = Link(address, self._hello, here.ranks, slots, spec.timeout_s)
        weakref.finalize(self, self._link.close).atexit = False

    def take(self, cursor: Cursor) -> Batch | None:
        """The batch after ``cursor``, None after the last.

        Raises the error that struck its making, and DataError where the feeder or another reader has ended,
        is stopped, or nothing came in the time allowed. An interrupt may come anywhere in here: the next
        call begins anew.
        """
        if self._plan.ends(cursor, self._spec.epochs):
            return None
        with self._lock:
            ring = self._attached()
            if cursor != self._next:
                self._seek(ring, cursor)
            slot = self._wait(ring, self._seq)
            self._next = None
            head, text = ring.control.read(slot)
            if text:
                ring.skip(self._seq)
                self._seq += 1
                raise from_plain(json.loads(text))
            assert head.step == cursor.step, "the ring has gone astray"
            batch = self._batch(ring, slot, head)
            self._seq += 1
            if ring.leads:
                self._meter.table[self._stages] = ring.control.table
            self._next = self._plan.after(cursor)
            return batch

    def host_memory(self) -> HostMemory:
        """See `Loader.host_memory`."""
        with self._lock:
            self._for_device = True
            ring = self._attached()
        if ring.slots.private:
            fix = "give it to the device before its first batch is taken"
            raise UsageError("loader", "has given out a batch that this process may write to", fix)
        return HostMemory(ring.slots.spans(), ring.ring.slots)

    def close(self) -> None:
        """Leave the ring, and see the feeder end where this was its last reader; from any thread."""
        self._link.closing = True
        with self._lock:
            self._link.close()

    def _attached(self) -> Attached:
        return self._link.ring or self._link.attach(for_device=self._for_device)

    def _batch(self, ring: Attached, slot: int, head: Head) -> Batch:
        lease = ring.lease(slot, self._seq)

        def array(name: str, part: Part, rows: int | None = None) -> NDArray[Any]:
            address, shape = ring.slots.address(slot, name), part.shape(head, rows)
            return np.asarray(LeasedArray(lease, address, shape, part.dtype, read_only=ring.read_only))

        arrays = {name: array(name, part) for name, part in self._parts.items() if part.per != "own"}
        beside = {}
        for name in self._spec.annotations:
            offsets = arrays.pop(offsets_of(name))
            beside[name] = Ragged(array(name, self._parts[name], int(offsets[-1])), offsets)
        own: dict[str, NDArray[Any]] = {
            name: arrays.pop(name) for name in ("ids", "weight", "mask", "offsets") if name in arrays
        }
        return Batch(
            head.step,
            head.epoch,
            own["ids"],
            arrays,
            own.get("mask"),
            own.get("offsets"),
            own["weight"],
            head.k,
            beside,
        )

    def _seek(self, ring: Attached, cursor: Cursor) -> None:
        """Have the feeder begin at ``cursor``; what it made before and was not taken is dropped."""
        self._question += 1
        start = [cursor.step, cursor.epoch, cursor.consumed]
        self._link.say({"start": start, "question": self._question})
        while (answer := self._link.hear("question", self._spec.patience_s)[0])["question"] != self._question:
            continue  # of a question that an interrupt cut short
        while self._seq < answer["from"]:
            ring.skip(self._seq)
            self._seq += 1
        self._next = cursor

    def _wait(self, ring: Attached, seq: int) -> int:
        """Wait until batch ``seq`` is there; its slot."""
        self._link.check()  # also where there are batches: who takes slowly hears of a failure as soon
        deadline_s = time.monotonic() + self._spec.patience_s
        full_s: float | None = None
        while (slot := ring.ring.slot(seq)) is None:
            ring.settle()
            if not ring.full:
                full_s = None
            elif full_s is None:
                gc.collect()  # what only a cycle holds is not kept
                full_s = time.monotonic()
            elif time.monotonic() - full_s > _PATIENCE_S:  # another thread might have dropped it
                raise UsageError(
                    "loader.slots",
                    f"all {ring.ring.slots} slots hold batches that rank {self._hello.rank} keeps",
                    "drop a batch before taking the next, copy what you keep, or raise loader.slots",
                )
            ready = self._link.wait(deadline_s, [ring.published])
            if ring.published in ready:
                with suppress(BlockingIOError):
                    os.eventfd_read(ring.published)
            elif ready:
                self._link.check()
            elif time.monotonic() > deadline_s:
                raise self._late(ring)
        return slot

    def _late(self, ring: Attached) -> TamisError:
        why = f"{self._link.feeder} works on it"
        if ring.ring.free() is None:
            counts = [len(ring.ring.held(reader)) for reader in range(len(ring.readers))]
            whose = [f"{n} are held by {name}" for n, name in zip(counts, ring.readers, strict=True) if n]
            why = f"of {ring.ring.slots} slots {', '.join(whose)}"
        cause = f"no batch for {self._spec.patience_s:g} s: {why}"
        return DataError("loader.feeder", cause, "see what it does, or raise loader.timeout_s")


def _number(environ: Mapping[str, str], name: str, default: int) -> int:
    text = environ.get(name, str(default))
    try:
        return int(text)
    except ValueError:
        raise UsageError("loader.feeder", f"{name} is '{text}'", "set it to a whole number") from None
