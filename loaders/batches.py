"""Makes one replica's batches: the plan's rows are fetched, sent through the graph and packed."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from ..errors import DataError, UsageError
from ..metrics import Meter
from ..pipelines.dataset import Dataset
from ..pipelines.ops import Columns, Operator, OperatorSettings, resolve
from ..pipelines.ops.rows import count
from ..pipelines.run_threads import Threads, run
from ..samplers import draw
from ..samplers.fields import Kind
from . import pack
from .fetch import Fetcher, Verify
from .plan import Cursor, GlobalBatch, Plan, share

Form = Literal["dense", "ragged"]


class Batches:
    """The batches of ``replica``, made anew for any cursor of the plan. One thread calls it at a time."""

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
        self._threads = Threads(threads)
        self._fetcher = Fetcher(dataset, names, verify, self._threads)

    def make(self, cursor: Cursor) -> pack.Batch:
        """This replica's part of the global batch that comes after ``cursor``."""
        whole = self._plan.batch(cursor)
        rows = whole.rows[share(len(whole.rows), self._replica, self._replicas)]
        places = -(-len(whole.rows) // self._replicas)
        ids = self._dataset.ids[rows]
        clouds = self._fetched(rows, ids, whole)
        self._run(clouds, ids, whole)
        return self._packed(clouds, ids, places, whole)

    def stop(self) -> None:
        """Make a batch that is in work end at its next sample, with an error."""
        self._threads.stop()

    def close(self) -> None:
        """End the threads and close the shards, once no batch is in work."""
        self._threads.close()
        self._fetcher.close()

    def _fetched(self, rows: NDArray[np.int64], ids: NDArray[np.uint64], batch: GlobalBatch) -> list[Columns]:
        start, before = time.perf_counter(), self._fetcher.bytes
        first, stop = self._span(rows, ids, batch)
        clouds = self._fetcher.fetch(rows, first, stop)
        self._meter.busy("stream.fetch", time.perf_counter() - start, items=len(rows))
        moved = self._fetcher.bytes - before
        self._meter.add("stream.fetch", bytes=moved, points_in=int((stop - first).sum()))
        return clouds

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
            keys = [draw.key(self._plan.seed, batch.epoch, int(id), "window") for id in ids]
            starts = (n - count + 1).tolist()
            first[:] = [int(draw.uniform(key, 1)[0] * m) for key, m in zip(keys, starts, strict=True)]
        return first, first + count

    def _run(self, clouds: list[Columns], ids: NDArray[np.uint64], batch: GlobalBatch) -> None:
        def key(i: int, operator: Operator) -> int:
            return draw.key(self._plan.seed, batch.epoch, int(ids[i]), operator.place)

        points = _points(clouds)
        with self._meter.time("stream.graph", items=len(clouds)):
            run(self._threads, clouds, self._graph.operators, self._kinds, key, batch.k)
        self._meter.add("stream.graph", points_in=points, points_out=_points(clouds))

    def _packed(
        self, clouds: list[Columns], ids: NDArray[np.uint64], places: int, batch: GlobalBatch
    ) -> pack.Batch:
        mask = offsets = None
        with self._meter.time("stream.pack", items=len(clouds)):
            if self._form == "dense":
                assert batch.k is not None
                columns, mask = pack.dense(
                    clouds, self._fields, places, batch.k, self._graph.serialise, self._threads
                )
            else:
                columns, offsets = pack.ragged(clouds, self._fields, places, self._threads)
        self._meter.add("stream.pack", bytes=sum(c.nbytes for c in columns.values()))
        padded = np.zeros(places, np.uint64)
        padded[: len(ids)] = ids
        weight = (np.arange(places) < len(ids)).astype(np.float32)
        return pack.Batch(batch.step, batch.epoch, padded, columns, mask, offsets, weight, batch.k or 0)


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
