"""What a field is, told by its name, and how rows of it merge into one."""

from __future__ import annotations

import logging
from typing import Any, Literal, get_args

import numpy as np

from ..errors import UsageError

log = logging.getLogger(__name__)

Kind = Literal["point", "vector", "box", "colour", "class", "count", "time", "none"]
"""How a field moves with its cloud and merges."""

Reduction = Literal["mean", "majority", "rounded", "unit", "first"]
"""How rows become one: mean; most frequent; mean rounded to the nearest; mean of length 1; first row."""

REDUCTIONS: tuple[Reduction, ...] = get_args(Reduction)

# "colour" is any measured brightness. Names are compared in lower case.
_NAMES: dict[Kind, str] = {
    "point": "xyz",
    "vector": "normal normals",
    "box": "box boxes",
    "colour": "rgb red green blue intensity reflectance nir",
    "class": "label classification instance class",
    "count": "return_number number_of_returns count",
    "time": "gps_time time t",
}
_KINDS: dict[str, Kind] = {name: kind for kind, names in _NAMES.items() for name in names.split()}

_noticed: set[str] = set()


def kind_of(name: str, dtype: np.dtype[Any]) -> Kind:
    """Kind of a field by its well-known name; "none" for other names and for dtypes without numbers."""
    return _KINDS.get(name.lower(), "none") if dtype.kind in "iufbmM" else "none"


def reduction(kind: Kind, dtype: np.dtype[Any]) -> Reduction:
    """How rows of a field merge by default.

    class: majority; colour: mean, rounded for whole numbers; vector: mean of length 1; point, and floats of
    no known kind: mean; time and all else: first.
    """
    floats = dtype.kind == "f"
    if kind == "class" and dtype.kind in "iufb":
        return "majority"
    if kind == "colour" and dtype.kind in "iu":
        return "rounded"
    if kind == "vector" and floats:
        return "unit"
    if kind in ("point", "colour", "none") and floats:
        return "mean"
    return "first"


def reduction_of(name: str, dtype: np.dtype[Any], override: Reduction | None) -> Reduction:
    """The reduction of a field, or ``override`` where given and possible for its dtype, else UsageError.

    The first time that a field of no known kind is to keep its first row, a notice says so.
    """
    if override is None:
        kind = kind_of(name, dtype)
        chosen = reduction(kind, dtype)
        if kind == "none" and chosen == "first" and name not in _noticed:
            _noticed.add(name)
            log.warning(
                "field %r is of no known kind: a cell keeps its first row's; set reduce to choose", name
            )
        return chosen
    if override not in REDUCTIONS:
        raise UsageError(f"field {name}", f"reduce is {override!r}", f"choose one of {', '.join(REDUCTIONS)}")
    suits = {"first": True, "majority": dtype.kind in "iufb", "unit": dtype.kind == "f"}
    if not suits.get(override, dtype.kind in "iuf"):
        raise UsageError(
            f"field {name}", f"has dtype {dtype}, which has no {override!r}", "choose another reduction"
        )
    return override
