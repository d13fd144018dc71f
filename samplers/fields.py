"""What a field is, told by its name, and how rows of it merge into one."""

from __future__ import annotations

import logging
from typing import Any, Literal, get_args

import numpy as np

from ..errors import UsageError

log = logging.getLogger(__name__)

Kind = Literal["point", "vector", "box", "pose", "colour", "class", "count", "time", "none"]
"""How a field moves with its cloud and merges."""

Reduction = Literal["mean", "majority", "rounded", "unit", "first"]
"""How rows become one: mean; most frequent; mean rounded to the nearest; mean of length 1; first row."""

REDUCTIONS: tuple[Reduction, ...] = get_args(Reduction)

# "colour" is any measured brightness.
_CLASSES = """
label labels label_id classification class class_id class_label category
semantic semantic_id semantic_label sem_label sem_class segment segment_id
instance instance_id instance_label ins_label ins_class object_id
cluster_id clusterid tree_id treeid
box_class box_instance
"""
NAMES: dict[Kind, tuple[str, ...]] = {
    "point": ("xyz",),
    "vector": ("normal", "normals", "box_velocity"),
    "box": ("box", "boxes"),
    "pose": ("pose",),
    "colour": ("rgb", "red", "green", "blue", "intensity", "reflectance", "nir"),
    "class": tuple(_CLASSES.split()),
    "count": ("return_number", "number_of_returns", "count"),
    "time": ("gps_time", "time", "t", "time_lag"),
}
"""The names that are known, in lower case."""

_PREFIX = "scalar_"
"""What CloudCompare puts before a field's name in a PLY file."""

_KINDS: dict[str, Kind] = {name: kind for kind, names in NAMES.items() for name in names}

_noticed: set[str] = set()


def kind_of(name: str, dtype: np.dtype[Any]) -> Kind:
    """Kind of a field by its well-known name; "none" for other names and for dtypes without numbers.

    Upper and lower case are the same, and so is "scalar_" before a name.
    """
    return _KINDS.get(name.lower().removeprefix(_PREFIX), "none") if dtype.kind in "iufbmM" else "none"


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

    The first time that a field of a name comes that is of no known kind, a notice says what becomes of it.
    """
    if override is None:
        kind = kind_of(name, dtype)
        chosen = reduction(kind, dtype)
        if kind == "none" and name not in _noticed:
            _noticed.add(name)
            taken = "the mean of its rows" if chosen == "mean" else "one of its rows"
            log.warning("field %r is of no known kind: a cell has %s%s", name, taken, _advice(name, dtype))
        return chosen
    if override not in REDUCTIONS:
        raise UsageError(f"field {name}", f"reduce is {override!r}", f"choose one of {', '.join(REDUCTIONS)}")
    suits = {"first": True, "majority": dtype.kind in "iufb", "unit": dtype.kind == "f"}
    if not suits.get(override, dtype.kind in "iuf"):
        raise UsageError(
            f"field {name}", f"has dtype {dtype}, which has no {override!r}", "choose another reduction"
        )
    return override


def _advice(name: str, dtype: np.dtype[Any]) -> str:
    """What to do where the field is a label after all."""
    if dtype.kind not in "iufb":
        return ""
    return (
        f"; if it is a label, pass reduce={{{name!r}: 'majority'}} (tamis sample: --reduce {name}=majority)"
    )
