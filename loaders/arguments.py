"""Arguments of a loader, checked one by one: each function gives the value or raises UsageError."""

from __future__ import annotations

import reprlib
from collections.abc import Mapping, Sequence
from pathlib import Path

from ..config import Model, check
from ..errors import UsageError
from ..metrics import STREAM, Meter
from ..pipelines.dataset import Dataset
from ..pipelines.ops import OperatorSettings
from ..samplers.ratio import RatioSchedule
from .settings import LoaderSettings

_MOST = 2**31 - 1


def whole_number(name: str, value: object, least: int, most: int | None = None) -> None:
    """``value`` is an integer from ``least`` to ``most``."""
    fits = isinstance(value, int) and not isinstance(value, bool) and value >= least
    if not fits or (most is not None and value > most):  # type: ignore[operator]
        limits = f"of at least {least}" + (f" and at most {most}" if most is not None and fits else "")
        raise _refused(name, value, f"give a whole number {limits}")


def row_limit(value: object) -> None:
    """``value`` is a number of rows that arrays can have, or None."""
    if value is not None:
        whole_number("k", value, 1, _MOST)


def seconds(name: str, value: object) -> None:
    """``value`` is a time above 0 that ends."""
    fits = isinstance(value, int | float) and not isinstance(value, bool) and 0 < value < float("inf")
    if not fits:
        raise _refused(name, value, "give a number of seconds above 0")


def one_of(name: str, value: object, known: Sequence[str]) -> None:
    """``value`` is one of ``known``."""
    if value not in known:
        fix = f"use {' or '.join(map(repr, known))}"
        raise UsageError(f"loader.{name}", f"'{value}' is not available", fix)


def dataset(value: object) -> Dataset:
    """A dataset, or the one at a path."""
    if isinstance(value, Dataset):
        return value
    if isinstance(value, str | Path):
        return Dataset(value)
    raise _refused("dataset", value, "give a Dataset or its path")


def split(value: object, data: Dataset) -> None:
    """``value`` names a split of ``data``."""
    if not isinstance(value, str) or value not in data.splits:
        known = ", ".join(data.splits)
        raise UsageError("loader.split", f"no split '{value}' in {data.path}", f"it has {known}")


def ratio(value: object) -> None:
    """``value`` is a schedule or None."""
    if value is not None and not isinstance(value, RatioSchedule):
        raise _refused("ratio", value, "give a RatioSchedule, as RatioSettings(...).schedule() makes it")


def meter(value: object) -> Meter:
    """A meter of the stages of a loader, made where ``value`` is None."""
    if value is None:
        return Meter(STREAM)
    if isinstance(value, Meter) and set(STREAM) <= set(value.stages):
        return value
    raise _refused("meter", value, "give Meter(metrics.STREAM)")


def columns(value: object, name: str = "columns") -> None:
    """``value`` is a sequence of names or None."""
    if value is None:
        return
    listed = isinstance(value, Sequence) and not isinstance(value, str)
    if not listed or not all(isinstance(one, str) for one in value):  # type: ignore[attr-defined]
        raise _refused(name, value, "give a list of names")


def graph(value: object) -> tuple[OperatorSettings, ...]:
    """Operators from their settings or, as in a configuration, plain dicts."""
    if not isinstance(value, Sequence) or isinstance(value, str):
        raise _refused("graph", value, "give a list of operators")
    plain = [one.model_dump(mode="json") if isinstance(one, Model) else one for one in value]
    for place, one in enumerate(plain):
        if not isinstance(one, Mapping) or not all(isinstance(key, str) for key in one):
            raise _refused(f"graph.{place}", one, 'give an operator, such as {"kind": "rotate"}')
    return check({"graph": [dict(one) for one in plain]}, LoaderSettings, where="loader").graph


def _refused(name: str, value: object, fix: str) -> UsageError:
    return UsageError(f"loader.{name}", f"is {reprlib.repr(value)}", fix)
