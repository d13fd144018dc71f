"""Runs a graph of operators as a DALI pipeline whose functions work on torch tensors, on a GPU.

Clouds go to the GPU as they are, on DALI's stream, and the operators of back end "device" work there on the
same stream. Without a device the same pipeline runs over tensors of the CPU.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any

import numpy as np

from ..errors import UsageError
from ..samplers.fields import Kind
from . import dali
from .ops import TABLE, Call, Columns, Operator
from .records import Field
from .run_threads import Key

if TYPE_CHECKING:
    import torch

    Tensors = dict[str, torch.Tensor]

_WHERE = "loader.graph"


class DeviceGraph:
    """The graph for clouds with columns ``fields``, on GPU ``device``, or on the CPU where that is None.

    Raises UsageError for an operator that has no form for devices, a column torch has no dtype for, and where
    DALI cannot be used. One batch at a time.
    """

    def __init__(
        self,
        operators: Sequence[Operator],
        kinds: dict[str, Kind],
        fields: Mapping[str, Field],
        device: int | None,
    ) -> None:
        refuse(operators, fields)
        dali.module("fn")
        self._operators, self._kinds, self._names = tuple(operators), kinds, [*fields]
        self._device = device
        self._work: tuple[Key, int | None] | None = None
        self._error: BaseException | None = None
        self._pipeline: Any = None
        self._most = 0

    def run(self, clouds: list[Columns], key: Key, k: int | None) -> list[Tensors]:
        """What the graph makes of clouds in the host's memory, as tensors on the device.

        ``key`` and ``k`` as for `run_threads.Engine`. The tensors are ready for torch's current stream.
        Raises what an operator raised.
        """
        from torch.utils.dlpack import from_dlpack

        if not clouds:
            return []
        if len(clouds) > self._most:
            self._build(len(clouds))
        self._work = key, k
        fed = {name: [np.ascontiguousarray(cloud[name]) for cloud in clouds] for name in self._names}
        try:
            for name, arrays in fed.items():
                self._pipeline.feed_input(name, arrays)
            outputs = self._pipeline.run()
        except Exception as error:
            self.close()  # after an error DALI gives a pipeline up
            raised, self._error = self._error, None
            if raised is not None:
                raise raised from None
            raise UsageError(
                "loader.engine", f"DALI cannot run the graph: {dali.said(error)}", dali.FIX
            ) from error
        finally:
            self._work = None
        return [
            {name: from_dlpack(values[i]) for name, values in zip(self._names, outputs, strict=True)}
            for i in range(len(clouds))
        ]

    def close(self) -> None:
        """Give back what the pipeline holds."""
        self._pipeline, self._most = None, 0

    def _build(self, most: int) -> None:
        self.close()
        fn, place = dali.module("fn"), "cpu" if self._device is None else "gpu"

        def graph() -> tuple[Any, ...]:
            nodes = [fn.external_source(name=name, batch=True, no_copy=True) for name in self._names]
            if self._device is not None:
                nodes = [node.gpu() for node in nodes]
            made = fn.dl_tensor_python_function(
                *nodes,
                function=self._called,
                device=place,
                batch_processing=True,
                num_outputs=len(nodes),
                synchronize_stream=False,  # the function works on DALI's own stream
            )
            return tuple(made) if len(nodes) > 1 else (made,)

        self._pipeline = dali.built(
            graph,
            device=self._device,
            batch_size=most,
            num_threads=1,
            prefetch_queue_depth=1,
            exec_dynamic=True,
        )
        self._most = most

    def _called(self, *columns: list[Any]) -> Any:
        """Called by DALI with a list of DLPack capsules a column."""
        from torch.utils.dlpack import from_dlpack, to_dlpack  # type: ignore[attr-defined]

        try:
            assert self._work is not None
            with self._stream():
                clouds = [
                    {name: from_dlpack(one) for name, one in zip(self._names, cloud, strict=True)}
                    for cloud in zip(*columns, strict=True)
                ]
                made = applied(self._operators, clouds, self._kinds, *self._work)
                out = tuple([to_dlpack(cloud[name].contiguous()) for cloud in made] for name in self._names)
        except BaseException as error:
            self._error = error  # DALI would hand on its text alone
            raise
        return out if len(out) > 1 else out[0]

    def _stream(self) -> AbstractContextManager[Any]:
        if self._device is None:
            return nullcontext()
        from torch.cuda import ExternalStream, stream

        current = dali.module("ops").PythonFunction.current_stream()
        return stream(ExternalStream(current.ptr, device=self._device))  # type: ignore[no-untyped-call]


def applied(
    operators: Sequence[Operator], clouds: list[Tensors], kinds: dict[str, Kind], key: Key, k: int | None
) -> list[Tensors]:
    """The clouds after the operators, on the device that they are on."""
    for operator in operators:
        calls = [Call(operator.settings, kinds, key(i, operator), k) for i in range(len(clouds))]
        clouds = TABLE[operator.settings.kind, "device"](clouds, calls)
    return clouds


def refuse(operators: Sequence[Operator], fields: Mapping[str, Field]) -> None:
    """Raise UsageError for operators and columns that no device takes."""
    from torch import from_numpy

    for operator in operators:
        kind = operator.settings.kind
        if (kind, "device") not in TABLE:
            cause = f"{kind} does not run on a device"
            raise UsageError(_WHERE, cause, "let the loader's graph do it and what stands before it")
    for name, field in fields.items():
        try:
            from_numpy(field.empty(0))
        except (TypeError, ValueError):
            cause = f"column '{name}' has dtype {field.dtype}, which torch does not know"
            raise UsageError("loader.columns", cause, "name the columns you need without it") from None
