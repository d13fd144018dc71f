"""What a loader was asked for, as plain values: the same for every rank, and what a feeder is told."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..config import Model
from ..errors import DataError
from ..metrics import Meter
from ..pipelines.dataset import Dataset
from ..pipelines.engines import EngineName
from ..pipelines.ops import FunctionSettings, OperatorSettings, SerialiseSettings
from ..samplers.ratio import RatioSchedule
from .batches import Batches
from .checks import Verify
from .order import shards_of
from .plan import Plan
from .settings import Form
from .slots import Head, Part

_MOST_THREADS = 4
_LAST_STEP = 2**62
_SLACK_S = 10.0  # for what is done before the call that hangs


class Spec(Model):
    """The arguments of a `Loader` that all replicas share; see there.

    ``fingerprint``: of the dataset at ``dataset``. ``ratio``: the arguments of a RatioSchedule.
    """

    dataset: Path
    fingerprint: str
    split: str
    global_batch: int
    seed: int
    epochs: int | None
    ratio: dict[str, Any] | None
    k: int | None
    multiple_of: int
    graph: tuple[OperatorSettings, ...]
    replicas: int
    form: Form
    annotations: tuple[str, ...]
    engine: EngineName
    threads: int | None
    verify: Verify
    max_damaged: int
    timeout_s: float

    def open(self) -> Dataset:
        """The dataset. Raises DataError where another one lies at its path."""
        data = Dataset(self.dataset)
        if data.fingerprint != self.fingerprint:
            raise DataError(self.dataset, "has been built anew", "start the run again")
        return data

    def plan(self, data: Dataset) -> Plan:
        """The global batches. Raises DataError where the split has no samples."""
        starts, sizes = shards_of(data.splits[self.split], data.shard)
        if not sizes.sum():
            raise DataError(
                data.path, f"split '{self.split}' has no samples", "change the splits and build again"
            )
        return Plan(
            starts,
            sizes,
            data.fingerprint,
            global_batch=self.global_batch,
            split=self.split,
            seed=self.seed,
            ratio=RatioSchedule(**self.ratio) if self.ratio else None,
            k=self.k,
            multiple_of=self.multiple_of,
            graph=[operator.model_dump(mode="json") for operator in self.graph],
        )

    @property
    def serialised(self) -> bool:
        """Whether batches carry the order along the curve's transpose."""
        return bool(self.graph) and isinstance(self.graph[-1], SerialiseSettings)

    @property
    def patience_s(self) -> float:
        """How long a reader waits for a batch: so that what hangs in user code is named by who called it."""
        called = any(isinstance(one, FunctionSettings) for one in self.graph)
        return 2 * self.timeout_s + _SLACK_S if called else self.timeout_s

    def largest(self, data: Dataset, plan: Plan, columns: Iterable[str]) -> Head:
        """A head as large as that of any batch of a replica that has some of ``columns``."""
        k = max(plan.k(0) or 0, plan.k(_LAST_STEP) or 0)  # a schedule rises or falls all the way
        every = np.maximum.reduce([data.rows_of(name) for name in columns])
        most = self._most(data, np.minimum(every, k) if k else every)
        return Head(0, 0, k, self._places, most, self.form == "dense")

    def own(self, data: Dataset) -> dict[str, Part]:
        """The arrays of the annotations, with the most rows that a batch has of each."""
        fields = {name: data.annotations[name] for name in self.annotations}
        return {
            name: Part(field.dtype, "own", field.width, self._most(data, data.rows_of(name)))
            for name, field in fields.items()
        }

    @property
    def _places(self) -> int:
        return -(-self.global_batch // self.replicas)

    def _most(self, data: Dataset, rows: NDArray[np.int64]) -> int:
        """The most rows that a replica's samples of a batch have together; ``rows``: of every sample."""
        of_split = np.concatenate([rows[slice(*r.rows)] for r in data.splits[self.split]])
        return int(np.sort(of_split)[-self._places :].sum())

    def batches(
        self,
        data: Dataset,
        plan: Plan,
        replica: int,
        columns: Sequence[str] | None,
        meter: Meter,
        rings: int = 1,
    ) -> Batches:
        """One replica's batches. ``rings``: how many such share this process and its CPUs."""
        return Batches(
            data,
            plan,
            k=self.k,
            graph=self.graph,
            replica=replica,
            replicas=self.replicas,
            form=self.form,
            columns=columns,
            annotations=self.annotations,
            engine=self.engine,
            threads=self.threads,
            most_threads=max(1, min(_MOST_THREADS, len(os.sched_getaffinity(0)) // rings)),
            verify=self.verify,
            max_damaged=self.max_damaged,
            timeout_s=self.timeout_s,
            meter=meter,
        )


def ratio_values(ratio: RatioSchedule | None) -> dict[str, Any] | None:
    """A schedule as plain values."""
    return None if ratio is None else asdict(ratio)
