"""The Loader: a run's batches for one replica, read ahead by a thread, and the state to go on from."""

from __future__ import annotations

import os
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, NoReturn, Self

from ..errors import DataError, UsageError
from ..metrics import Meter
from ..pipelines.dataset import Dataset
from ..pipelines.ops import OperatorSettings
from ..samplers.ratio import RatioSchedule
from . import arguments, state
from .ahead import ReadAhead
from .batches import Batches, Form
from .fetch import Verify
from .order import shards_of
from .pack import Batch
from .plan import Cursor, Plan
from .settings import LoaderSettings

__all__ = ["Batch", "Loader", "LoaderSettings"]


class Loader:
    """Iterates the batches of one replica over one split of a dataset.

    Every sample of the split appears exactly once an epoch; an epoch's last global batch may be short. The
    global batches depend on ``global_batch``, ``seed``, ``ratio``, ``k``, ``graph`` and the dataset alone.

    ``dataset``: opened, or its path. ``graph``: operators as settings, or as dicts like those of a
    configuration. ``k``: rows a cloud has ("dense" needs it) or may have ("ragged"); ``ratio`` shrinks it by
    the step, to a multiple of ``multiple_of``. ``epochs``: None is endless. ``columns``: what to read beside
    ``xyz``; None is all. ``threads``: for the work on samples, by default one a CPU, at most 4. ``meter``
    counts the stages ``metrics.STREAM``.

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
        feeder: str = "inline",
        engine: str = "auto",
        threads: int | None = None,
        verify: Verify = "first",
        meter: Meter | None = None,
    ) -> None:
        dataset = arguments.dataset(dataset)
        operators = arguments.graph(graph)
        arguments.split(split, dataset)
        arguments.one_of("feeder", feeder, ("inline",))
        arguments.one_of("engine", engine, ("auto", "threads"))
        arguments.one_of("form", form, ("dense", "ragged"))
        arguments.one_of("verify", verify, ("first", "always", "never"))
        arguments.whole_number("global_batch", global_batch, 1)
        arguments.whole_number("replicas", replicas, 1)
        arguments.whole_number("multiple_of", multiple_of, 1)
        arguments.whole_number("seed", seed, 0)
        arguments.whole_number("replica", replica, 0)
        for name, value in (("epochs", epochs), ("threads", threads)):
            if value is not None:
                arguments.whole_number(name, value, 1)
        arguments.row_limit(k)
        arguments.ratio(ratio)
        arguments.columns(columns)
        if replica >= replicas:
            raise UsageError("loader.replica", f"{replica} of {replicas} replicas", "count from 0")
        if k is None and (form == "dense" or ratio is not None):
            raise UsageError("loader.k", "is missing", "a dense batch and a ratio need the number of rows")
        starts, sizes = shards_of(dataset.splits[split], dataset.shard)
        if not sizes.sum():
            raise DataError(
                dataset.path, f"split '{split}' has no samples", "change the splits and build again"
            )
        self._plan = Plan(
            starts,
            sizes,
            dataset.fingerprint,
            global_batch=global_batch,
            split=split,
            seed=seed,
            ratio=ratio,
            k=k,
            multiple_of=multiple_of,
            graph=[operator.model_dump(mode="json") for operator in operators],
        )
        self._meter = arguments.meter(meter)
        self._batches = Batches(
            dataset,
            self._plan,
            k=k,
            graph=operators,
            replica=replica,
            replicas=replicas,
            form=form,
            columns=columns,
            threads=threads or min(4, os.cpu_count() or 1),
            verify=verify,
            meter=self._meter,
        )
        self._cursor = Cursor()  # of the last batch yielded
        self._ahead = ReadAhead(self._batches, self._plan, epochs, self._meter)
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
                self._cursor = after
            return batch
        except BaseException:
            if self._cursor is after:  # counted, but not given to the caller
                self._cursor = before
            raise

    def _taken(self, cursor: Cursor) -> Batch:
        self._refuse_closed()
        try:
            batch = self._ahead.take(cursor)
        except Exception:
            self._refuse_closed()  # what stopped threads raise says nothing
            raise
        if batch is None:
            self._ended = True
            raise StopIteration
        return batch

    def state_dict(self) -> dict[str, Any]:
        """Where the last yielded batch stands, as plain values: the same on every replica."""
        return state.save(self._plan, self._cursor)

    def load_state_dict(self, values: dict[str, Any]) -> None:
        """Go on after the batch that ``values`` describe.

        Raises UsageError naming what differs where they are of another dataset, plan or version.
        """
        self._refuse_other_process()
        with self._lock:
            self._refuse_closed()
            self._cursor = state.load(self._plan, values)
            self._ended = False

    def close(self) -> None:
        """End the threads and close the shards; may be called again, and from any thread."""
        if not self._closed:
            self._closed = True
            if os.getpid() == self._pid:
                self._ahead.close()

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
