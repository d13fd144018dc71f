"""The Loader: a run's batches for one replica, read ahead by a thread, and the state to go on from."""

from __future__ import annotations

import os
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, NoReturn, Protocol, Self, get_args

from ..errors import UsageError
from ..metrics import Meter
from ..pipelines.dataset import Dataset
from ..pipelines.engines import EngineName
from ..pipelines.ops import OperatorSettings
from ..samplers.ratio import RatioSchedule
from . import arguments, state
from .ahead import ReadAhead
from .annotated import annotations_of
from .batches import columns_of
from .checks import Verify
from .node import NodeFeed
from .pack import Batch
from .plan import Cursor
from .settings import Feeder, Form, LoaderSettings
from .slots import HostMemory
from .spec import Spec, ratio_values

__all__ = ["Batch", "Loader", "LoaderSettings"]


class Feed(Protocol):
    """Where the batches of a loader come from."""

    def take(self, cursor: Cursor) -> Batch | None:
        """The batch after ``cursor``, None after the last; raises what its making raised."""

    def host_memory(self) -> HostMemory:
        """See `Loader.host_memory`."""

    def close(self) -> None:
        """Give back what it holds; from any thread."""


class Loader:
    """Iterates the batches of one replica over one split of a dataset.

    Every sample of the split appears exactly once an epoch; an epoch's last global batch may be short. The
    global batches depend on ``global_batch``, ``seed``, ``ratio``, ``k``, ``graph`` and the dataset alone.

    ``dataset``: opened, or its path. ``graph``: operators as settings, or as dicts like those of a
    configuration. ``k``: rows a cloud has ("dense" needs it) or may have ("ragged"); ``ratio`` shrinks it by
    the step, to a multiple of ``multiple_of``. ``epochs``: None is endless. ``columns``: what to read beside
    ``xyz``, None is all; or annotations alone, whose rows are then the samples' rows and keep their order.
    ``annotations``: those that come beside the columns, whole, each with offsets of its own; what the graph
    does to a cloud is done to its boxes, velocities and pose.
    ``threads``: for the work on samples; None measures on the first batches how many help, at most 4.
    ``engine``: what runs the graph; "auto" is "threads" on a CPU. ``max_damaged``: so many samples that
    cannot be read are left out (weight 0, id and place stay) before it is an error. ``meter`` counts the
    stages ``metrics.STREAM``.

    ``feeder``: "inline" makes batches on a thread of this process. With "node" one process a node, which
    local rank 0 starts, makes those of all replicas there and hands them out through shared memory: ranks
    with the same ``replica`` get one copy. Every local rank opens the loader (torchrun says how many there
    are). Then a batch occupies one of ``slots`` slots until its arrays and tensors are dropped, and an error
    names who failed where the feeder or a reader dies, is stopped, or sends nothing for ``timeout_s``.

    Threads may share a loader, processes may not. Raises UsageError for arguments that do not fit, and
    DataError, at the batch concerned, where a shard is damaged.
    """

    def __init__(
        self,
        dataset: Dataset | str | Path,
        *,
        split: str = "train",
        global_batch: int,
        seed: int = 0,
        epochs: int | None = None,
        ratio: RatioSchedule | None = None,
        k: int | None = None,
        multiple_of: int = 1,
        graph: Sequence[OperatorSettings | Mapping[str, Any]] = (),
        replica: int = 0,
        replicas: int = 1,
        form: Form = "dense",
        columns: Sequence[str] | None = None,
        annotations: Sequence[str] = (),
        feeder: Feeder = "inline",
        engine: EngineName = "auto",
        threads: int | None = None,
        slots: int | None = None,
        timeout_s: float = 300.0,
        verify: Verify = "first",
        max_damaged: int = 0,
        meter: Meter | None = None,
    ) -> None:
        dataset = arguments.dataset(dataset)
        operators = arguments.graph(graph)
        arguments.split(split, dataset)
        arguments.one_of("feeder", feeder, get_args(Feeder))
        arguments.one_of("engine", engine, get_args(EngineName))
        arguments.one_of("form", form, get_args(Form))
        arguments.one_of("verify", verify, get_args(Verify))
        arguments.whole_number("global_batch", global_batch, 1)
        arguments.whole_number("replicas", replicas, 1)
        arguments.whole_number("multiple_of", multiple_of, 1)
        arguments.whole_number("seed", seed, 0)
        arguments.whole_number("replica", replica, 0)
        arguments.whole_number("max_damaged", max_damaged, 0)
        for name, value, least in (("epochs", epochs, 1), ("threads", threads, 1), ("slots", slots, 2)):
            if value is not None:
                arguments.whole_number(name, value, least)
        arguments.seconds("timeout_s", timeout_s)
        arguments.row_limit(k)
        arguments.ratio(ratio)
        arguments.columns(columns)
        arguments.columns(annotations, "annotations")
        if annotations and engine == "dali":
            raise UsageError("loader.engine", "'dali' moves no annotations", "use 'threads'")
        if replica >= replicas:
            raise UsageError("loader.replica", f"{replica} of {replicas} replicas", "count from 0")
        if k is None and (form == "dense" or ratio is not None):
            raise UsageError("loader.k", "is missing", "a dense batch and a ratio need the number of rows")
        names = columns_of(dataset, columns)
        self._spec = Spec(
            dataset=dataset.path.absolute(),
            fingerprint=dataset.fingerprint,
            split=split,
            global_batch=global_batch,
            seed=seed,
            epochs=epochs,
            ratio=ratio_values(ratio),
            k=k,
            multiple_of=multiple_of,
            graph=operators,
            replicas=replicas,
            form=form,
            annotations=tuple(annotations_of(dataset, annotations, names)),
            engine=engine,
            threads=threads,
            verify=verify,
            max_damaged=max_damaged,
            timeout_s=timeout_s,
        )
        self._plan = self._spec.plan(dataset)
        self._meter = arguments.meter(meter)
        self._feed: Feed
        if feeder == "node":
            self._feed = NodeFeed(self._spec, dataset, self._plan, replica, names, slots, self._meter)
        else:
            batches = self._spec.batches(dataset, self._plan, replica, names, self._meter)
            self._feed = ReadAhead(batches, self._plan, epochs, self._meter)
        self._cursor = Cursor()  # of the last batch yielded
        self._skipped: dict[int, None] = {}  # in the order met
        self._lock = threading.Lock()
        self._pid = os.getpid()
        self._closed = self._ended = False

    @property
    def batches_per_epoch(self) -> int:
        """Global batches in an epoch: the same on every replica, known before the first."""
        return self._plan.batches_per_epoch

    @property
    def samples(self) -> int:
        """Samples of the split."""
        return self._plan.samples

    def __iter__(self) -> Self:
        """The loader itself: iteration goes on where it was. UsageError where it has ended before."""
        if self._ended:
            raise UsageError("loader", "has given all its epochs", "make a new one, or leave `epochs` out")
        return self

    def __next__(self) -> Batch:
        """The next batch. An error or an interrupt leaves the loader before the batch concerned.

        Threads that share a loader share its batches: each is given to one of them.
        """
        self._refuse_other_process()
        before, after = self._cursor, None
        try:
            with self._lock:
                before = self._cursor
                batch = self._taken(before)
                with self._meter.time("stream.deliver"):
                    after = self._plan.after(before)
                    skipped = batch.ids[(batch.weight == 0) & (batch.ids != 0)]
                self._cursor = after
                self._skipped.update(dict.fromkeys(skipped.tolist()))
            return batch
        except BaseException:
            if self._cursor is after:  # counted, but not given to the caller
                self._cursor = before
            raise

    def _taken(self, cursor: Cursor) -> Batch:
        self._refuse_closed()
        try:
            batch = self._feed.take(cursor)
        except Exception:
            self._refuse_closed()  # what stopped threads raise says nothing
            raise
        if batch is None:
            self._ended = True
            raise StopIteration
        return batch

    def state_dict(self) -> dict[str, Any]:
        """Where the last yielded batch stands, as plain values: on all replicas the same, but ``skipped``."""
        return state.save(self._plan, self._cursor, self._skipped)

    def load_state_dict(self, values: dict[str, Any]) -> None:
        """Go on after the batch that ``values`` describe.

        Raises UsageError naming what differs where they are of another dataset, plan or version.
        """
        self._refuse_other_process()
        with self._lock:
            self._refuse_closed()
            self._cursor, skipped = state.load(self._plan, values)
            self._skipped = dict.fromkeys(skipped)
            self._ended = False

    def host_memory(self) -> HostMemory:
        """The memory that batches lie in, for a device to read it; empty where each batch has its own.

        From then on the arrays of batches that other ranks of this node get too are read-only: a device
        reads what all see, not this process's own view of it. Waits for a node's feeder, and raises
        UsageError where a batch has been taken from it before, as that view is then made.
        """
        self._refuse_other_process()
        with self._lock:
            self._refuse_closed()
            return self._feed.host_memory()

    def close(self) -> None:
        """End the threads and close the shards; may be called again, and from any thread."""
        if not self._closed:
            self._closed = True
            if os.getpid() == self._pid:
                self._feed.close()

    def _refuse_closed(self) -> None:
        if self._closed:
            raise UsageError("loader", "was closed", "make a new one")

    def _refuse_other_process(self) -> None:
        if os.getpid() != self._pid:  # threads do not cross a fork: a batch would never come
            raise UsageError("loader", "was opened in another process", "open a Loader in each process")

    def __reduce__(self) -> NoReturn:
        raise UsageError("loader", "cannot be copied or sent", "open a Loader in each process")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
