"""A worker for user code: a process that calls functions on samples until it is told to end.

It imports numpy and what the functions import, so that it starts in a fraction of a second.
"""

from __future__ import annotations

import ctypes
import importlib
import os
import signal
import sys
import traceback
from collections.abc import Callable
from functools import partial
from types import ModuleType
from typing import TYPE_CHECKING, Any

import numpy as np

from ..errors import DataError, TamisError, UsageError
from .user_messages import filled, message, received, sent

if TYPE_CHECKING:
    from .ops.call import Columns

_PR_SET_PDEATHSIG = 1
_MOST_CHARACTERS = 500  # of what an exception says
_FIX = "mend the function"


def main(parent: int) -> None:
    """Serve the process ``parent`` over stdin and stdout.

    A request is ``[function, seed]`` with columns, or None: end. A reply is None with columns, or an error
    made plain.
    """
    die_with(parent)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the parent, which ends its workers
    requests, replies = take_pipes()

    while True:
        try:
            request, columns = received(partial(filled, requests))
        except EOFError:  # the parent has gone
            return
        if request is None:
            return
        error = None
        try:
            function, seed = request
            columns = called(function, columns, seed)
        except TamisError as failure:
            error, columns = failure.plain(), {}
        sent(replies, message(error, columns))


def die_with(parent: int) -> None:
    """Have the kernel kill this process when its parent dies, even where user code never comes back.

    The signal comes when the parent's *thread* that started this process ends: `UserCode` keeps one for it.
    """
    if ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL):
        raise OSError(ctypes.get_errno(), "prctl")
    if os.getppid() != parent:  # it died before
        sys.exit(1)


def take_pipes() -> tuple[int, int]:
    """Descriptors of requests and replies, out of reach of user code, which prints to stderr from here on."""
    requests, replies = os.dup(0), os.dup(1)
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)
    os.dup2(2, 1)
    sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]
    return requests, replies


def called(where: str, columns: Columns, seed: int) -> Columns:
    """What the function makes of ``columns``, checked. Its errors are predicates of the worker."""
    module_name, _, name = where.partition(":")
    module = imported(where, module_name)
    function = found(where, module, name)
    given = {name: (values.dtype, values.shape[1:]) for name, values in columns.items()}
    try:
        result = function(columns, seed)
    except BaseException as error:
        raise DataError(where, f"raised {said(error, module)}", _FIX) from error
    fault = _fault(result, given)
    if fault:
        raise DataError(where, f"returned {fault}", _FIX)
    return {name: result[name] for name in given}


def imported(where: str, name: str) -> ModuleType:
    """The module of a function ``where``. Raises UsageError where it cannot be imported."""
    try:
        return importlib.import_module(name)
    except BaseException as error:
        cause = f"cannot import '{name}': {said(error, None)}"
        raise UsageError(where, cause, "see that it can be imported where the run starts") from error


def found(where: str, module: ModuleType, name: str) -> Callable[..., Any]:
    """The function of that name. Raises UsageError where there is none."""
    function: Callable[..., Any] | None = getattr(module, name, None)
    if not callable(function):
        home = getattr(module, "__file__", None) or module.__name__
        raise UsageError(where, f"finds no function '{name}' in {home}", "correct the name")
    return function


def said(error: BaseException, module: ModuleType | None) -> str:
    """Kind, message and place of an exception: the innermost line in ``module``, else the innermost."""
    text = " ".join("".join(traceback.format_exception_only(error)).split())[:_MOST_CHARACTERS]
    lines = [line for line in traceback.extract_tb(error.__traceback__) if not _is_ours(line.filename)]
    own = [line for line in lines if line.filename == getattr(module, "__file__", None)]
    at = (own or lines)[-1:]
    return f"{text} at {at[0].filename}:{at[0].lineno}" if at else text


def _is_ours(file: str) -> bool:
    return file in (__file__, importlib.__file__) or file.startswith("<frozen importlib")


def _fault(result: Any, given: dict[str, tuple[np.dtype[Any], tuple[int, ...]]]) -> str:
    """What is wrong with a result; nothing where it has the names, dtypes and widths that were given."""
    if not isinstance(result, dict):
        return f"{type(result).__name__}, not a dict of columns"
    strange = [name for name in result if name not in given]
    if strange:
        return f"a column {strange[0]!r} that it was not given"
    rows: tuple[str, int] | None = None
    for name, (dtype, width) in given.items():
        if name not in result:
            return f"no column '{name}'"
        values = result[name]
        if type(values) is not np.ndarray:  # a masked array would lose its mask
            return f"column '{name}' as {type(values).__name__}, not as numpy.ndarray"
        if values.dtype != dtype:
            return f"column '{name}' of {values.dtype}, not {dtype}"
        if values.ndim == 0 or values.shape[1:] != width:
            wanted = ", ".join(map(str, ("n", *width)))
            return f"column '{name}' of shape {values.shape}, not ({wanted})"
        rows = rows or (name, len(values))
        if len(values) != rows[1]:
            return f"column '{name}' of {len(values)} rows and column '{rows[0]}' of {rows[1]}"
    return ""
