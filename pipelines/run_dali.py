"""Runs a graph of operators as a DALI pipeline on the CPU, with the results of the threads, bit for bit.

What is one multiplication is done by DALI's own arithmetic. All else is done by the functions of the table:
DALI calls Python for one sample at a time, so it is given a function for the whole batch that spreads the
clouds over the threads.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..errors import UsageError
from ..samplers.fields import Kind
from . import dali
from .ops import Call, Columns, Operator
from .ops.geometry import FACTORS
from .records import Field
from .run_threads import Key, Name, Threads, ThreadsEngine
from .user_code import UserCode

Nodes = dict[str, Any]
"""The columns of a batch inside the definition of a pipeline."""


class DaliEngine:
    """An `Engine` (see `run_threads`) whose graph is a DALI pipeline.

    ``fields``: the columns of every cloud, whose names and dtypes the operators keep. Dtypes that DALI does
    not know pass through it as bytes. ``user``: see `ThreadsEngine`. Raises UsageError where DALI cannot be
    used.
    """

    def __init__(
        self,
        threads: Threads,
        operators: Sequence[Operator],
        kinds: dict[str, Kind],
        fields: Mapping[str, Field],
        user: UserCode | None = None,
    ) -> None:
        dali.module("fn")
        self._threads = threads
        self._columns = [_Column(name, field) for name, field in fields.items()]
        self._batch = _Batch()
        self._parts: list[_Factors | _Functions] = []
        for native, part in _parted(operators, kinds, fields):
            if native:
                self._parts += [
                    _Factors(operator, kinds, len(self._parts) + i) for i, operator in enumerate(part)
                ]
            else:
                engine = ThreadsEngine(threads, part, kinds, user)
                self._parts.append(_Functions(engine, self._columns, self._batch))
        self._pipeline: Any = None
        self._most = 0

    def run(
        self,
        clouds: list[Columns],
        key: Key,
        k: int | None,
        name: Name = str,
        annotations: list[Columns] | None = None,
    ) -> None:
        """See `Engine`. Raises UsageError for annotations, which it cannot move."""
        if annotations is not None:
            raise UsageError("loader.engine", "'dali' moves no annotations", "use 'threads'")
        self._threads.go_on()
        if not self._parts or not clouds:
            return
        if len(clouds) > self._most:
            self._build(len(clouds))
        batch = self._batch
        batch.work = key, k, name
        # DALI reads these arrays where they lie, so they are held until it has run.
        fed = {column.input: [column.carried(cloud) for cloud in clouds] for column in self._columns}
        for part in self._parts:
            if isinstance(part, _Factors):
                fed[part.input] = [part.drawn(key, i, k) for i in range(len(clouds))]
        try:
            for source, arrays in fed.items():
                self._pipeline.feed_input(source, arrays)
            outputs = self._pipeline.run()
        except Exception as error:
            self.close()  # after an error DALI gives a pipeline up
            raised, batch.error = batch.error, None
            if raised is not None:
                raise raised from None
            cause = f"DALI cannot run the graph: {dali.said(error)}"
            raise UsageError("loader.engine", cause, dali.FIX) from error
        finally:
            batch.work = None
        lists = [[np.asarray(values[i]) for i in range(len(clouds))] for values in outputs]
        clouds[:] = _clouds(self._columns, lists)

    def stop(self) -> None:
        """See `Engine`."""
        self._threads.stop()
        for part in self._parts:
            if isinstance(part, _Functions):
                part.engine.stop()

    def close(self) -> None:
        """See `Engine`."""
        self._pipeline, self._most = None, 0

    def _build(self, most: int) -> None:
        """Make the pipeline for batches of up to ``most`` clouds."""
        self.close()
        external_source = dali.module("fn").external_source
        columns, parts = self._columns, self._parts

        def graph() -> tuple[Any, ...]:
            def fed(name: str) -> Any:
                return external_source(name=name, batch=True, no_copy=True)

            nodes = {column.name: fed(column.input) for column in columns}
            for part in parts:
                nodes = part.add(nodes, fed)
            return tuple(nodes.values())

        # The dynamic executor's outputs are never written to again while an array holds them.
        self._pipeline = dali.built(
            graph, batch_size=most, num_threads=self._threads.most, prefetch_queue_depth=1, exec_dynamic=True
        )
        self._most = most


@dataclass
class _Batch:
    """What the functions of a pipeline are told of the batch in work, and what one of them raised."""

    work: tuple[Key, int | None, Name] | None = None
    error: BaseException | None = None


class _Column:
    """A column on its way through DALI: as it is, or as the bytes of its rows."""

    def __init__(self, name: str, field: Field) -> None:
        self.name, self.input = name, f"column {name}"
        self._field, self._as_bytes = field, field.dtype not in dali.DTYPES

    def carried(self, cloud: Columns) -> NDArray[Any]:
        """What DALI is given."""
        values = np.ascontiguousarray(cloud[self.name])
        if not self._as_bytes:
            return values
        return values.view(np.uint8).reshape(len(values), self._field.row_bytes)

    def column(self, values: NDArray[Any]) -> NDArray[Any]:
        """What `carried` was given."""
        if not self._as_bytes:
            return values
        return values.view(self._field.dtype).reshape(self._field.shape(len(values)))


class _Factors:
    """An operator that is one multiplication, done by DALI."""

    def __init__(self, operator: Operator, kinds: dict[str, Kind], place: int) -> None:
        self._operator, self._kinds = operator, kinds
        self._by = FACTORS[operator.settings.kind]
        self.input = f"factors {place}"

    def drawn(self, key: Key, i: int, k: int | None) -> NDArray[np.float32]:
        """The factors of cloud ``i``."""
        return self._by.of(Call(self._operator.settings, self._kinds, key(i, self._operator), k))

    def add(self, nodes: Nodes, fed: Any) -> Nodes:
        """The columns after it."""
        factors = fed(self.input)
        moving = self._by.moving
        return {name: node * factors if self._kinds[name] in moving else node for name, node in nodes.items()}


class _Functions:
    """Operators one after another, done by the functions of the table."""

    def __init__(self, engine: ThreadsEngine, columns: Sequence[_Column], batch: _Batch) -> None:
        self.engine, self._columns, self._batch = engine, columns, batch

    def add(self, nodes: Nodes, fed: Any) -> Nodes:  # noqa: ARG002 (nothing of its own is fed)
        """The columns after them."""
        python_function = dali.module("fn").python_function
        made = python_function(
            *nodes.values(), function=self._run, batch_processing=True, num_outputs=len(nodes)
        )
        return dict(zip(nodes, made if len(nodes) > 1 else (made,), strict=True))

    def _run(self, *lists: list[NDArray[Any]]) -> Any:
        batch = self._batch
        try:
            assert batch.work is not None
            clouds = _clouds(self._columns, lists)
            self.engine.run(clouds, *batch.work)
            made = tuple([column.carried(cloud) for cloud in clouds] for column in self._columns)
        except BaseException as error:
            batch.error = error  # DALI would hand on its text alone
            raise
        return made if len(made) > 1 else made[0]


def _clouds(columns: Sequence[_Column], lists: Sequence[Sequence[NDArray[Any]]]) -> list[Columns]:
    return [
        {column.name: column.column(values) for column, values in zip(columns, cloud, strict=True)}
        for cloud in zip(*lists, strict=True)
    ]


def _parted(
    operators: Sequence[Operator], kinds: dict[str, Kind], fields: Mapping[str, Field]
) -> Iterator[tuple[bool, list[Operator]]]:
    """Runs of operators that DALI's arithmetic can do with the same bits (True), and that it cannot."""

    def native(operator: Operator) -> bool:
        by = FACTORS.get(operator.settings.kind)
        if by is None:
            return False
        return all(f.dtype == np.float32 for name, f in fields.items() if kinds[name] in by.moving)

    for is_native, part in itertools.groupby(operators, native):
        yield is_native, list(part)
