"""DALI, imported when it is first needed, and what it says in one line when it fails."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

import numpy as np

from ..errors import UsageError

DTYPES = {np.dtype(code) for code in "?bhilqBHILQefd"}
"""What DALI carries and reads as it is; others, of another byte order too, it would mistake or refuse."""

FIX = "use engine 'threads', or install nvidia-dali-cuda130 and no other nvidia-dali package"


def module(name: str = "") -> Any:
    """``nvidia.dali``, or the module ``name`` in it; UsageError says why where it cannot be used."""
    full = f"nvidia.dali.{name}" if name else "nvidia.dali"
    try:
        return importlib.import_module(full)
    except Exception as error:  # a broken installation raises anything
        cause = f"DALI cannot be used ({type(error).__name__}: {error})"
        raise UsageError("loader.engine", cause, FIX) from error


def built(graph: Callable[[], tuple[Any, ...]], *, device: int | None = None, **options: Any) -> Any:
    """A pipeline that can be checkpointed, ready to run; on the CPU unless there is a ``device``.

    ``graph`` defines it; ``options``: those of ``nvidia.dali.Pipeline``. Raises UsageError where DALI cannot
    build it.
    """
    define = module().pipeline_def
    try:
        pipeline = define(enable_checkpointing=True)(graph)(device_id=device, **options)
        pipeline.build()
    except Exception as error:
        raise UsageError("loader.engine", f"DALI cannot build the graph: {said(error)}", FIX) from error
    return pipeline


def said(error: Exception) -> str:
    """What DALI's error says of its cause, without the frame that it puts round it."""
    text = str(error).rpartition("encountered:")[2]
    for frame in ("Current pipeline object", "C++ context", "\nAt:", "Stacktrace"):
        text = text.partition(frame)[0]
    return " ".join(text.split()) or type(error).__name__
