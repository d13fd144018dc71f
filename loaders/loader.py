"""The Loader: a run's batches for one replica, read ahead by a thread, and the state to go on from."""

from __future__ import annotations

import os
from collections.abc import Sequence
from types import TracebackType
from typing import Any, Literal, Self

from pydantic import Field

from ..config import Model
from ..errors import DataError, UsageError
from ..metrics import STREAM, Meter
from ..pipelines.dataset import Dataset
from ..pipelines.ops import OperatorSettings
from ..samplers.ratio import RatioSchedule, RatioSettings
from . import state
from .ahead import ReadAhead
from .batches import Batches, Form
from .fetch import Verify
from .order import shards_of
from .pack import Batch
from .plan import Cursor, Plan

__all__ = ["Batch", "Loader", "LoaderSettings"]


class LoaderSettings(Model):
    """How batches are made. ``batch`` is the global batch, of all replicas together."""

    batch: int = Field(default=8, ge=1)
    graph: tuple[OperatorSettings, ...] = ()
    ratio: RatioSettings | None = None
    engine: Literal["auto", "threads"] = "auto"
    feeder: Literal["inline"] = "inline"
    threads: int | None = Field(default=None, ge=1)


class Loader:
    """Iterates the batches of one replica over one split of a dataset.

    Every sample of the split appears exactly once an epoch; an epoch's last global batch may be short. The
    global batches depend on ``global_batch``, ``seed``, ``ratio``, ``k``, ``graph`` and the dataset alone.

    ``k``: rows a cloud has ("dense" needs it) or may have ("ragged"); ``ratio`` shrinks it by the step, to a
    multiple of ``multiple_of``. ``epochs``: None is endless. ``columns``: what to read beside ``xyz``; None
    is all. ``threads``: for the work on samples, by default one a CPU, at most 4. ``meter`` counts the stages
    ``metrics.STREAM``. Raises UsageError for arguments that do not fit, and DataError, at the batch
    concerned, where a shard is damaged.
    """

    def __init__(
        self,
        dataset: Dataset,
        *,
        split: str = "train",
        global_batch: int,
        seed: int = 0,
        epochs: int | None = None,
        ratio: RatioSchedule | None = None,
        k: int | None = None,
        multiple_of: int = 1,
        graph: Sequence[OperatorSettings] = (),
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
        _one_of("feeder", feeder, ("inline",))
        _one_of("engine", engine, ("auto", "threads"))
        _one_of("form", form, ("dense", "ragged"))
        _one_of("verify", verify, ("first", "always", "never"))
        _at_least("global_batch", global_batch, 1)
        _at_least("replicas", replicas, 1)
        _at_least("multiple_of", multiple_of, 1)
        _at_least("seed", seed, 0)
        _at_least("replica", replica, 0)
        for name, value in (("k", k), ("epochs", epochs), ("threads", threads)):
            if value is not None:
                _at_least(name, value, 1)
        if replica >= replicas:
            raise UsageError("loader.replica", f"{replica} of {replicas} replicas", "count from 0")
        if k is None and (form == "dense" or ratio is not None):
            raise UsageError("loader.k", "is missing", "a dense batch and a ratio need the number of rows")
        if split not in dataset.splits:
            known = ", ".join(dataset.splits)
            raise UsageError("loader.split", f"no split '{split}' in {dataset.path}", f"it has {known}")
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
            graph=[operator.model_dump(mode="json") for operator in graph],
        )
        self._meter = meter or Meter(STREAM)
        self._batches = Batches(
            dataset,
            self._plan,
            k=k,
            graph=graph,
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
        self._closed = False

    @property
    def batches_per_epoch(self) -> int:
        """Global batches in an epoch: the same on every replica, known before the first."""
        return self._plan.batches_per_epoch

    @property
    def samples(self) -> int:
        """Samples of the split."""
        return self._plan.samples

    def __iter__(self) -> Self:
        """The loader itself: iteration goes on where it was."""
        return self

    def __next__(self) -> Batch:
        """The next batch. An error leaves the loader before the batch concerned."""
        if self._closed:
            raise UsageError("loader", "is closed", "make a new one")
        try:
            batch = self._ahead.take()
        except BaseException:  # an interrupt too: the batch it cost is made again
            self._ahead.restart(self._cursor)
            raise
        if batch is None:
            raise StopIteration
        with self._meter.time("stream.deliver"):
            self._cursor = self._plan.after(self._cursor)
        return batch

    def state_dict(self) -> dict[str, Any]:
        """Where the last yielded batch stands, as plain values: the same on every replica."""
        return state.save(self._plan, self._cursor)

    def load_state_dict(self, values: dict[str, Any]) -> None:
        """Go on after the batch that ``values`` describe.

        Raises UsageError naming what differs where they are of another dataset, plan or version.
        """
        if self._closed:
            raise UsageError("loader", "is closed", "make a new one")
        self._cursor = state.load(self._plan, values)
        self._ahead.restart(self._cursor)

    def close(self) -> None:
        """End the threads and close the shards; may be called again."""
        if not self._closed:
            self._closed = True
            self._ahead.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _one_of(name: str, value: str, known: tuple[str, ...]) -> None:
    if value not in known:
        raise UsageError(
            f"loader.{name}", f"'{value}' is not available", f"use {' or '.join(map(repr, known))}"
        )


def _at_least(name: str, value: int, least: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise UsageError(f"loader.{name}", f"is {value!r}", f"give a whole number of at least {least}")
