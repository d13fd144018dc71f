"""Makes one replica's batches: the plan's rows are fetched, sent through the graph and packed."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from ..errors import DataError, UsageError
from ..metrics import Meter
from ..pipelines.dataset import Dataset
from ..pipelines.ops import Columns, Operator, OperatorSettings, resolve
from ..pipelines.ops.rows import count
from ..pipelines.records import IGNORED
from ..pipelines.run_threads import Threads, run
from ..samplers import draw
from ..samplers.fields import Kind
from . import pack
from .fetch import Fetcher, Verify
from .plan import Cursor, GlobalBatch, Plan, share

Packed = tuple[Columns, NDArray[np.bool_] | None, NDArray[np.int64] | None]
Form = Literal["dense", "ragged"]


class Batches:
    """The batches of ``replica``, made anew for any cursor of the plan, one at a time."""

    def __init__(
        self,
        dataset: Dataset,
        plan: Plan,
        *,
        k: int | None,
        graph: Sequence[OperatorSettings],
        replica: int,
        replicas: int,
        form: Form,
        columns: Sequence[str] | None,
        threads: int,
        verify: Verify,
        meter: Meter,
    ) -> None:
        names = _columns(dataset, columns)
        self._dataset, self._plan, self._meter = dataset, plan, meter
        self._replica, self._replicas, self._form = replica, replicas, form
        self._fields = {name: dataset.schema[name] for name in names}
        self._kinds: dict[str, Kind] = {name: field.kind for name, field in self._fields.items()}
        self._graph = resolve(
            graph, row_order=dataset.row_order, k=k, dense=form == "dense", fields=self._fields
        )
        self._lock = threading.Lock()  # the fetcher's buffer and the threads serve one batch
        self._labelled = bool(dataset.classes) and "label" in names
        self._threads = Threads(threads)
        self._fetcher = Fetcher(dataset, names, verify, self._threads)

    def make(self, cursor: Cursor) -> pack.Batch:
        """This replica's part of the global batch that comes after ``cursor``."""
        with self._lock:
            self._threads.go_on()
            return self._made(cursor)

    def stop(self) -> None:
        """Make a batch that is in work end at its next sample, and any later one at once, with an error."""
        self._threads.stop()

    def close(self, timeout_s: float) -> bool:
        """End the threads and close the shards; whether the batch in work ended in time."""
        if not self._lock.acquire(timeout=timeout_s):
            return False
        try:
            self._threads.close()
            self._fetcher.close()
        finally:
            self._lock.release()
        return True

    def _made(self, cursor: Cursor) -> pack.Batch:
        whole = self._plan.batch(cursor)
        rows = whole.rows[share(len(whole.rows), self._replica, self._replicas)]
        places = -(-len(whole.rows) // self._replicas)
        ids = self._dataset.ids[rows]
        first, stop = self._span(rows, ids, whole)
        if self._graph.operators or self._graph.serialise:
            with self._fetching(first, stop):
                clouds = self._fetcher.fetch(rows, first, stop)
            self._run(clouds, ids, whole)
            columns, mask, offsets = self._packed(clouds, places, whole)
        else:
            columns, mask, offsets = self._read_packed(rows, first, stop, places, whole)
        if mask is not None and self._labelled:
            columns["label"][~mask] = IGNORED  # so that a loss which knows no mask learns from no padding
        self._meter.add("stream.pack", bytes=sum(c.nbytes for c in columns.values()))
        padded = np.zeros(places, np.uint64)
        padded[: len(ids)] = ids
        weight = (np.arange(places) < len(ids)).astype(np.float32)
        return pack.Batch(whole.step, whole.epoch, padded, columns, mask, offsets, weight, whole.k or 0)

    @contextmanager
    def _fetching(self, first: NDArray[np.int64], stop: NDArray[np.int64]) -> Iterator[None]:
        before = self._fetcher.bytes
        with self._meter.time("stream.fetch", items=len(first)):
            yield
        moved = self._fetcher.bytes - before
        self._meter.add("stream.fetch", bytes=moved, points_in=int((stop - first).sum()))

    def _span(
        self, rows: NDArray[np.int64], ids: NDArray[np.uint64], batch: GlobalBatch
    ) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """The rows of each sample to read: all, the first k, or k from a drawn row on."""
        n = self._dataset.rows[rows].astype(np.int64)
        first = np.zeros_like(n)
        if self._graph.read == "whole" or batch.k is None:
            return first, n
        count = np.minimum(n, batch.k)
        if self._graph.read == "window":
            starts = n - count + 1
            for i in np.flatnonzero(starts > 1):
                key = draw.key(self._plan.seed, batch.epoch, int(ids[i]), "window")
                first[i] = int(draw.uniform(key, 1)[0] * starts[i])
        return first, first + count

    def _run(self, clouds: list[Columns], ids: NDArray[np.uint64], batch: GlobalBatch) -> None:
        def key(i: int, operator: Operator) -> int:
            return draw.key(self._plan.seed, batch.epoch, int(ids[i]), operator.place)

        points = _points(clouds)
        with self._meter.time("stream.graph", items=len(clouds)):
            run(self._threads, clouds, self._graph.operators, self._kinds, key, batch.k)
        self._meter.add("stream.graph", points_in=points, points_out=_points(clouds))

    def _packed(self, clouds: list[Columns], places: int, batch: GlobalBatch) -> Packed:
        with self._meter.time("stream.pack", items=len(clouds)):
            if self._form == "ragged":
                columns, offsets = pack.ragged(clouds, self._fields, places, self._threads)
                return columns, None, offsets
            assert batch.k is not None
            columns, mask = pack.dense(
                clouds, self._fields, places, batch.k, self._graph.serialise, self._threads
            )
            return columns, mask, None

    def _read_packed(
        self,
        rows: NDArray[np.int64],
        first: NDArray[np.int64],
        stop: NDArray[np.int64],
        places: int,
        batch: GlobalBatch,
    ) -> Packed:
        """What `_packed` makes of clouds that no operator touches, read into the batch's own arrays."""
        sizes = np.zeros(places, np.int64)
        sizes[: len(rows)] = stop - first
        offsets = np.concatenate([np.zeros(1, np.int64), np.cumsum(sizes)])
        dense = self._form == "dense"
        at = np.arange(places + 1) * (batch.k or 0) if dense else offsets
        with self._fetching(first, stop):
            columns = {name: field.empty(int(at[-1])) for name, field in self._fields.items()}
            self._fetcher.fetch_into(columns, at[: len(rows)], rows, first, stop)
        with self._meter.time("stream.pack", items=len(rows)):
            if not dense:
                return columns, None, offsets
            assert batch.k is not None
            return *pack.completed(columns, sizes, batch.k), None


def _columns(dataset: Dataset, columns: Sequence[str] | None) -> list[str]:
    """The columns to read: those asked for, and the coordinates where there are any."""
    known = list(dataset.schema)
    names = known if columns is None else [c for c in known if c in columns or c == "xyz"]
    for name in columns or ():
        if name not in known:
            raise UsageError(
                "loader.columns", f"no column '{name}' in {dataset.path}", f"it has {', '.join(known)}"
            )
    for name in names:
        if name in pack.RESERVED:
            cause = f"a column is named '{name}', as a part of a batch is"
            raise UsageError("loader.columns", cause, "name the columns you need without it")
    if not names:
        raise DataError(dataset.path, "has no columns", "build it again")
    return names


def _points(clouds: list[Columns]) -> int:
    return sum(map(count, clouds))
