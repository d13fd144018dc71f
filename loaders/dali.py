"""Batches of samples that DALI reads from tars, NPY files or TFRecord files: no dataset is built first."""

from __future__ import annotations

import base64
import json
import os
import tempfile
import threading
from collections.abc import Mapping, Sequence
from hashlib import blake2b
from pathlib import Path
from types import TracebackType
from typing import Any, NoReturn, Self, get_args

import numpy as np
from pydantic import Field

from ..config import Model, check
from ..errors import DataError, UsageError
from ..pipelines import dali
from ..pipelines.dali_sources import Source, opened
from ..pipelines.engines import EngineName, engine_of
from ..pipelines.ops import Columns, FunctionSettings, Operator, OperatorSettings, resolve
from ..pipelines.records import IGNORED
from ..pipelines.run_threads import Threads
from ..samplers import draw
from ..samplers.fields import Kind
from . import arguments, pack
from .pack import Batch
from .settings import Form

VERSION = 1

_STATE = "loader state"
_SEEDS = 2**31


class _Given(Model):
    source: Source


class State(Model):
    """The place of the last batch: ``step`` batches were given; ``reader``: DALI's checkpoint, in base64."""

    version: int
    source: str
    plan: str
    step: int = Field(ge=0)
    reader: str


class DaliLoader:
    """Iterates the batches of a source: every sample once an epoch, whose last batch may be short.

    ``source``: settings of `pipelines.dali_sources`, or a dict like them: ``{"kind": "webdataset", "paths":
    [...], "columns": {"xyz": "xyz.npy"}}``. ``batch``: samples of a batch. ``shuffle``: how many samples DALI
    holds to draw the next one from; 0 keeps the stored order. ``graph``, ``k``, ``form``, ``epochs``,
    ``engine`` and ``threads``: as for `Loader`; operators draw by ``seed``, epoch and the sample's name.

    Batches have a sample in every place, so ``weight`` is 1. Threads may share a loader, processes may not.
    Raises UsageError for arguments that do not fit, and DataError where a file is missing or damaged, or a
    sample lacks a column.
    """

    def __init__(
        self,
        source: Model | Mapping[str, Any],
        *,
        batch: int,
        graph: Sequence[OperatorSettings | Mapping[str, Any]] = (),
        k: int | None = None,
        form: Form = "dense",
        seed: int = 0,
        epochs: int | None = None,
        shuffle: int = 0,
        engine: EngineName = "auto",
        threads: int | None = None,
    ) -> None:
        operators = arguments.graph(graph)
        arguments.one_of("form", form, get_args(Form))
        arguments.one_of("engine", engine, get_args(EngineName))
        arguments.whole_number("batch", batch, 1)
        arguments.whole_number("seed", seed, 0)
        arguments.whole_number("shuffle", shuffle, 0)
        for name, value in (("epochs", epochs), ("threads", threads)):
            if value is not None:
                arguments.whole_number(name, value, 1)
        arguments.row_limit(k)
        if k is None and form == "dense":
            raise UsageError("loader.k", "is missing", "a dense batch needs the number of rows")
        if any(isinstance(one, FunctionSettings) for one in operators):
            raise UsageError("loader.graph", "has a function of your own", "build a dataset and use Loader")
        given = source.model_dump(mode="json") if isinstance(source, Model) else source
        dali.module("fn")
        self._source = opened(check({"source": given}, _Given, where="loader").source)
        self._batch, self._k, self._form, self._seed, self._epochs = batch, k, form, seed, epochs
        self._shuffle = shuffle
        fields = self._source.fields
        for name in fields:
            if name in pack.RESERVED:
                cause = f"a column is named '{name}', as a part of a batch is"
                raise UsageError("loader.source", cause, "give it another name")
        kinds: dict[str, Kind] = {name: field.kind for name, field in fields.items()}
        self._graph = resolve(operators, row_order="source", k=k, dense=form == "dense", fields=fields)
        plan = [batch, k, seed, shuffle, [operator.model_dump(mode="json") for operator in operators]]
        self._plan = blake2b(json.dumps(plan).encode(), digest_size=16).hexdigest()
        self._threads = Threads(threads or min(4, os.cpu_count() or 1))
        self._engine = engine_of(engine, self._threads, self._graph.operators, kinds, fields)
        self._lock, self._pid, self._closed = threading.Lock(), os.getpid(), False
        self._step = 0
        self._reader = self._built(None)
        self._checkpoint: bytes = self._reader.checkpoint()

    @property
    def batches_per_epoch(self) -> int:
        """Batches of an epoch, a short last one among them."""
        return -(-self.samples // self._batch)

    @property
    def samples(self) -> int:
        """Samples of the source."""
        return len(self._source.names)

    def __iter__(self) -> Self:
        """The loader itself: iteration goes on where it was. UsageError where it has ended before."""
        if self._epochs is not None and self._step >= self._epochs * self.batches_per_epoch:
            raise UsageError("loader", "has given all its epochs", "make a new one, or leave `epochs` out")
        return self

    def __next__(self) -> Batch:
        """The next batch. An error or an interrupt leaves the loader before the batch concerned."""
        with self._lock:
            self._refuse_unusable()
            if self._epochs is not None and self._step >= self._epochs * self.batches_per_epoch:
                raise StopIteration
            if self._reader is None:
                self._reader = self._built(self._checkpoint)
            try:
                batch = self._made()
                checkpoint = self._reader.checkpoint()
            except BaseException:
                self._reader = None  # it has gone on, or been given up
                raise
            self._checkpoint, self._step = checkpoint, self._step + 1
            return batch

    def _made(self) -> Batch:
        epoch, place = divmod(self._step, self.batches_per_epoch)
        here = min(self._batch, self.samples - place * self._batch)  # DALI fills the last one up with copies
        try:
            outputs = self._reader.run()
        except Exception as error:
            cause = f"DALI cannot read it: {dali.said(error)}"
            raise DataError(self._source.where, cause, "see to the files and the disk") from error
        clouds: list[Columns] = []
        numbers = np.empty(here, np.int64)
        for i in range(here):
            numbers[i], cloud = self._source.cloud([np.asarray(values[i]) for values in outputs])
            clouds.append(cloud)
        ids = self._source.ids[numbers]

        def key(i: int, operator: Operator) -> int:
            return draw.key(self._seed, epoch, int(ids[i]), operator.place)

        self._engine.run(clouds, key, self._k, lambda i: self._source.names[numbers[i]])
        mask = offsets = None
        if self._form == "ragged":
            packed, offsets = pack.ragged(clouds, self._source.fields, here, self._threads)
        else:
            assert self._k is not None
            order = self._graph.serialise
            packed, mask = pack.dense(clouds, self._source.fields, here, self._k, order, self._threads)
            if self._source.fields.get("label") and packed["label"].dtype.kind == "i":
                packed["label"][~mask] = IGNORED
        weight = np.ones(here, np.float32)
        return Batch(self._step, epoch, ids, packed, mask, offsets, weight, self._k or 0)

    def _built(self, checkpoint: bytes | None) -> Any:
        """The pipeline that reads, from its beginning or from a checkpoint on."""
        options: dict[str, Any] = {"pad_last_batch": True, "seed": draw.key(self._seed, "shuffle") % _SEEDS}
        if self._shuffle:
            options |= {"random_shuffle": True, "initial_fill": self._shuffle}
        with tempfile.TemporaryDirectory(prefix="tamis-") as folder:
            return dali.built(
                lambda: self._source.nodes(Path(folder), **options),
                batch_size=self._batch,
                num_threads=self._threads.most,
                exec_dynamic=True,
                checkpoint=checkpoint,
            )

    def state_dict(self) -> dict[str, Any]:
        """Where the last batch stands, as plain values."""
        with self._lock:
            reader = base64.b64encode(self._checkpoint).decode()
            state = State(
                version=VERSION,
                source=self._source.fingerprint,
                plan=self._plan,
                step=self._step,
                reader=reader,
            )
        return state.model_dump(mode="json")

    def load_state_dict(self, values: dict[str, Any]) -> None:
        """Go on after the batch that ``values`` describe; UsageError names what differs."""
        state = check(dict(values), State, where=_STATE)
        for name, found, wanted, fix in (
            ("version", state.version, VERSION, "resume with the release that wrote it"),
            ("source", state.source, self._source.fingerprint, "resume on the files it was saved on"),
            ("plan", state.plan, self._plan, "keep batch, k, seed, shuffle and graph, or start anew"),
        ):
            if found != wanted:
                raise UsageError(_STATE, f"its {name} is {found}, this loader's is {wanted}", fix)
        with self._lock:
            self._refuse_unusable()
            try:
                checkpoint = base64.b64decode(state.reader, validate=True)
                reader = self._built(checkpoint)
            except ValueError as error:  # UsageError is one
                cause = f"its reader is none of DALI's checkpoints ({error})"
                raise UsageError(_STATE, cause, "resume with the DALI that wrote it") from None
            self._reader, self._checkpoint, self._step = reader, checkpoint, state.step

    def close(self) -> None:
        """End the threads and DALI's; may be called again."""
        with self._lock:
            if not self._closed and os.getpid() == self._pid:
                self._engine.close()
                self._threads.close()
            self._closed, self._reader = True, None

    def _refuse_unusable(self) -> None:
        if self._closed:
            raise UsageError("loader", "was closed", "make a new one")
        if os.getpid() != self._pid:  # threads do not cross a fork: a batch would never come
            raise UsageError("loader", "was opened in another process", "open one in each process")

    def __reduce__(self) -> NoReturn:
        raise UsageError("loader", "cannot be copied or sent", "open one in each process")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
