"""Makes one replica's batches: the plan's rows are fetched, sent through the graph and packed."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..errors import DataError, UsageError
from ..metrics import Meter
from ..pipelines.dataset import Dataset
from ..pipelines.engines import EngineName, engine_of
from ..pipelines.ops import Columns, FunctionSettings, Operator, OperatorSettings, resolve
from ..pipelines.ops.rows import count
from ..pipelines.records import IGNORED
from ..pipelines.run_threads import Threads
from ..pipelines.user_code import UserCode
from ..samplers import draw
from ..samplers.fields import Kind
from . import pack
from .annotated import Beside
from .checks import Verify
from .fetch import Fetcher
from .pack import Empty, Ragged, fresh
from .plan import Cursor, GlobalBatch, Plan, share
from .settings import Form
from .tuning import Tuner, choices

_log = logging.getLogger(__name__)

Packed = tuple[Columns, NDArray[np.bool_] | None, NDArray[np.int64] | None]
"""The columns of a batch, and their mask or offsets."""


class Part(NamedTuple):
    """A replica's part of a global batch.

    ``rows``: index rows, ``ids``: the samples', rows ``first`` to ``stop`` of each are read. ``places``:
    clouds the batch has room for, the same on every replica. ``damaged``: samples of which nothing is read.
    """

    whole: GlobalBatch
    rows: NDArray[np.int64]
    ids: NDArray[np.uint64]
    first: NDArray[np.int64]
    stop: NDArray[np.int64]
    places: int
    damaged: NDArray[np.bool_]


class Batches:
    """The batches of ``replica``, made anew for any cursor of the plan, one at a time.

    ``threads``: None chooses by what the first batches take, at most ``most_threads``. A call of user code
    may take ``timeout_s``. Up to ``max_damaged``
    samples that cannot be read are left out of their batches, which say so by a weight of 0.
    ``annotations``: what comes beside the columns, moved by the graph as they are.
    """

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
        annotations: Sequence[str] = (),
        engine: EngineName,
        threads: int | None,
        most_threads: int,
        verify: Verify,
        max_damaged: int,
        timeout_s: float,
        meter: Meter,
    ) -> None:
        names = columns_of(dataset, columns)
        beside = {name: dataset.annotations[name] for name in annotations}
        self._dataset, self._plan, self._meter = dataset, plan, meter
        self._replica, self._replicas, self._form = replica, replicas, form
        self._max_damaged, self._damaged = max_damaged, set[int]()
        self.fields = {name: dataset.fields[name] for name in names}
        self._rows = dataset.rows_of(names[0])
        self._kinds: dict[str, Kind] = {n: field.kind for n, field in (self.fields | beside).items()}
        self._graph = resolve(
            graph,
            row_order=dataset.row_order,
            k=k,
            dense=form == "dense",
            fields=self.fields,
            sequence=not any(name in dataset.schema for name in names),
            annotations=beside,
        )
        self._lock = threading.Lock()  # the fetcher's buffer and the threads serve one batch
        self._labelled = bool(dataset.classes) and "label" in names
        self._tuner = Tuner(choices(threads, most_threads))
        self._threads = Threads(threads or most_threads)
        called = any(isinstance(one, FunctionSettings) for one in graph)
        self._user = UserCode(threads or most_threads, timeout_s) if called else None
        self._engine = engine_of(
            engine, self._threads, self._graph.operators, self._kinds, self.fields, self._user
        )
        self._fetcher = Fetcher(dataset, names, verify, self._threads)
        self._beside = Beside(dataset, list(beside), verify, self._threads, self._fetcher.files)

    def make(self, cursor: Cursor, empty: Empty = fresh) -> pack.Batch:
        """This replica's part of the global batch after ``cursor``, in arrays that ``empty`` gives."""
        with self._lock:
            self._threads.go_on()
            self._threads.use(self._tuner.choice)
            start, before = time.perf_counter(), self._read_bytes
            batch = self._made(self._part(self._plan.batch(cursor)), empty)
            self._tuner.took(time.perf_counter() - start, self._read_bytes - before)
            return batch

    def stop(self) -> None:
        """Make a batch that is in work end at its next sample, and any later one at once, with an error."""
        self._engine.stop()
        self._threads.stop()

    def close(self, timeout_s: float) -> bool:
        """End the threads and close the shards; whether the batch in work ended in time."""
        if self._user:
            self._user.close()  # ends a call that hangs
        if not self._lock.acquire(timeout=timeout_s):
            return False
        try:
            self._engine.close()
            self._threads.close()
            self._fetcher.close()
        finally:
            self._lock.release()
        return True

    def _part(self, whole: GlobalBatch) -> Part:
        rows = whole.rows[share(len(whole.rows), self._replica, self._replicas)]
        ids = self._dataset.ids[rows]
        places = -(-len(whole.rows) // self._replicas)
        none = np.zeros(len(rows), np.bool_)
        return Part(whole, rows, ids, *self._span(rows, ids, whole), places, none)

    def _made(self, part: Part, empty: Empty) -> pack.Batch:
        try:
            (columns, mask, offsets), beside = self._filled(part, empty)
        except DataError as error:
            damaged = self._find_damaged(part, error)
            # Of no row, not even of none behind the first: a check would read the whole block of that.
            first, stop = (np.where(damaged, 0, rows) for rows in (part.first, part.stop))
            part = part._replace(first=first, stop=stop, damaged=damaged)
            (columns, mask, offsets), beside = self._filled(part, empty)
        if mask is not None and self._labelled:
            columns["label"][~mask] = IGNORED  # so that a loss which knows no mask learns from no padding
        self._meter.add("stream.pack", bytes=sum(c.nbytes for c in columns.values()))
        n, whole = len(part.ids), part.whole
        ids = empty("ids", (part.places,), np.dtype(np.uint64))
        ids[:n], ids[n:] = part.ids, 0
        weight = empty("weight", (part.places,), np.dtype(np.float32))
        weight[:n], weight[n:] = ~part.damaged, 0
        k = whole.k or 0
        return pack.Batch(whole.step, whole.epoch, ids, columns, mask, offsets, weight, k, beside)

    def _filled(self, part: Part, empty: Empty) -> tuple[Packed, dict[str, Ragged]]:
        """What is in a batch, and the annotations beside it."""
        held = self._annotations(part)
        if not self._graph.operators and not self._graph.serialise:
            return self._read_packed(part, empty), self._beside.packed(held, part.places, empty)
        with self._fetching(part):
            clouds = self._fetcher.fetch(part.rows, part.first, part.stop)
        self._run(clouds, held, part)
        packed = self._packed(clouds, part, empty)
        return packed, self._beside.packed(held, part.places, empty)

    def _annotations(self, part: Part) -> list[Columns]:
        if not self._beside.fields:
            return []
        start, before = time.perf_counter(), self._read_bytes
        held = self._beside.fetch(part.rows, part.damaged)
        read = self._read_bytes - before
        self._meter.busy("stream.fetch", time.perf_counter() - start, items=0, bytes=read)
        return held

    def _find_damaged(self, part: Part, error: DataError) -> NDArray[np.bool_]:
        """Which samples cannot be read, each tried alone; raises where none, or more than allowed, is."""
        damaged = np.zeros(len(part.rows), np.bool_)
        for i in range(len(part.rows)) if self._max_damaged else ():
            one = slice(i, i + 1)
            try:
                self._fetcher.fetch(part.rows[one], part.first[one], part.stop[one])
                self._beside.fetch(part.rows[one], part.damaged[one])
            except DataError as cause:
                damaged[i] = True
                if int(part.ids[i]) not in self._damaged:
                    _log.warning("sample %016x is left out: %s", part.ids[i], cause)
                    self._damaged.add(int(part.ids[i]))
        if not damaged.any():
            raise error
        if len(self._damaged) > self._max_damaged:
            found = f"{error.cause}; {len(self._damaged)} samples are damaged, {self._max_damaged} may be"
            raise DataError(error.where, found, f"{error.fix}, or raise loader.max_damaged") from None
        return damaged

    @contextmanager
    def _fetching(self, part: Part) -> Iterator[None]:
        start, before = time.perf_counter(), self._read_bytes
        yield
        self._meter.busy(
            "stream.fetch",
            time.perf_counter() - start,
            items=len(part.rows),
            bytes=self._read_bytes - before,
            points_in=int((part.stop - part.first).sum()),
        )

    @property
    def _read_bytes(self) -> int:
        return self._fetcher.bytes + self._beside.bytes

    def _span(
        self, rows: NDArray[np.int64], ids: NDArray[np.uint64], batch: GlobalBatch
    ) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """The rows of each sample to read: all, the first k, or k from a drawn row on."""
        n = self._rows[rows].astype(np.int64, copy=False)
        first = np.zeros(len(n), np.int64)
        if self._graph.read == "whole" or batch.k is None:
            return first, n
        count = np.minimum(n, batch.k)
        if self._graph.read == "window":
            starts = n - count + 1
            keys = draw.keys(len(ids), self._plan.seed, batch.epoch, ids, "window")
            first[:] = draw.first_uniform(keys) * starts
        return first, first + count

    def _run(self, clouds: list[Columns], annotations: list[Columns], part: Part) -> None:
        about = len(clouds), self._plan.seed, part.whole.epoch, part.ids
        keys: dict[int, list[int]] = {
            one.place: draw.keys(*about, one.place).tolist() for one in self._graph.operators
        }

        def key(i: int, operator: Operator) -> int:
            return keys[operator.place][i]

        def name(i: int) -> str:
            return str(self._dataset.samples.column("name")[int(part.rows[i])])

        points = _points(clouds)
        with self._meter.time("stream.graph", items=len(clouds)):
            self._engine.run(clouds, key, part.whole.k, name, annotations if self._beside.fields else None)
        k, sizes = part.whole.k, [count(cloud) for cloud in clouds]
        if k is not None and max(sizes, default=0) > k:
            i = int(np.argmax(sizes))
            raise DataError(name(i), f"has {sizes[i]} rows after the graph, k is {k}", "end it with 'random'")
        self._meter.add("stream.graph", points_in=points, points_out=_points(clouds))

    def _packed(self, clouds: list[Columns], part: Part, empty: Empty) -> Packed:
        with self._meter.time("stream.pack", items=len(clouds)):
            if self._form == "ragged":
                columns, offsets = pack.ragged(clouds, self.fields, part.places, self._threads, empty)
                return columns, None, offsets
            k, order = part.whole.k, self._graph.serialise
            assert k is not None
            columns, mask = pack.dense(clouds, self.fields, part.places, k, order, self._threads, empty)
            return columns, mask, None

    def _read_packed(self, part: Part, empty: Empty) -> Packed:
        """What `_packed` makes of clouds that no operator touches, read into the batch's own arrays."""
        sizes = part.stop - part.first
        shape: tuple[int, ...]
        if self._form == "dense":
            assert part.whole.k is not None
            shape, offsets = (part.places, part.whole.k), None
            at = np.arange(len(sizes)) * part.whole.k
        else:
            offsets = pack.edges(sizes, part.places, empty)
            shape, at = (int(offsets[-1]),), offsets[: len(sizes)]
        with self._fetching(part):
            columns = {
                name: empty(name, field.shape(*shape), field.dtype) for name, field in self.fields.items()
            }
            self._fetcher.fetch_into(columns, at, part.rows, part.first, part.stop)
        with self._meter.time("stream.pack", items=len(sizes)):
            if offsets is not None:
                return columns, None, offsets
            padded = np.zeros(part.places, np.int64)
            padded[: len(sizes)] = sizes
            return columns, pack.completed(columns, padded, empty), None


def columns_of(dataset: Dataset, columns: Sequence[str] | None) -> list[str]:
    """The columns to read: those asked for, and the coordinates where there are any.

    An annotation is read as a column is: alone, or with what has as many rows in each sample.
    """
    known = list(dataset.fields)
    for name in columns or ():
        if name not in known:
            raise UsageError(
                "loader.columns", f"no column '{name}' in {dataset.path}", f"it has {', '.join(known)}"
            )
    if columns is None:
        names = list(dataset.schema or dataset.annotations)
    else:
        alone = bool(columns) and all(name in dataset.annotations for name in columns)
        names = [name for name in known if name in columns or (name == "xyz" and not alone)]
    for name in names:
        if name in pack.RESERVED:
            cause = f"a column is named '{name}', as a part of a batch is"
            raise UsageError("loader.columns", cause, "name the columns you need without it")
        if not np.array_equal(dataset.rows_of(name), dataset.rows_of(names[0])):
            cause = f"'{names[0]}' and '{name}' have different numbers of rows"
            equal = [one for one in names if np.array_equal(dataset.rows_of(one), dataset.rows_of(names[0]))]
            beside = [one for one in names if one not in equal]
            raise UsageError("loader.columns", cause, f"use columns={equal}, annotations={beside}")
    if not names and dataset.annotations:
        cause = f"names none, and {dataset.path} has no points"
        raise UsageError("loader.columns", cause, f"name some of {', '.join(dataset.annotations)}")
    if not names:
        raise DataError(dataset.path, "has no columns", "build it again")
    return names


def _points(clouds: list[Columns]) -> int:
    return sum(map(count, clouds))
