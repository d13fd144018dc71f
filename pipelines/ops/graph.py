"""What a list of operators asks of a sample: which rows to read, what to do to them, how to order them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

from ...errors import UsageError
from ..records import Field
from .annotated import why_not
from .settings import (
    FarthestSettings,
    FlipSettings,
    FunctionSettings,
    JitterSettings,
    NormaliseSettings,
    OperatorSettings,
    RandomSettings,
    RotateSettings,
    ScaleSettings,
    SerialiseSettings,
    VoxelSettings,
)

Read = Literal["whole", "prefix", "window"]

_SHORTCUTS: dict[tuple[str, str], Read] = {("farthest", "farthest"): "prefix", ("random", "random"): "window"}
_SAMPLING = FarthestSettings | RandomSettings
_MOVING = RotateSettings | FlipSettings | ScaleSettings | JitterSettings | NormaliseSettings
_RESIZING = VoxelSettings | FunctionSettings
_BY_ORDER: dict[str, FarthestSettings | RandomSettings] = {
    "farthest": FarthestSettings(),
    "random": RandomSettings(),
    "source": RandomSettings(),
}


class Operator(NamedTuple):
    """An operator and its place in the configured list; the place is part of the key of its draws."""

    place: int
    settings: OperatorSettings


@dataclass(frozen=True)
class Graph:
    """``read``: rows a sample gives; ``operators``: what is left to do; ``serialise``: the closing sort."""

    read: Read
    operators: tuple[Operator, ...]
    serialise: SerialiseSettings | None


def resolve(
    settings: Sequence[OperatorSettings],
    *,
    row_order: str,
    k: int | None,
    dense: bool,
    fields: Mapping[str, Field],
    sequence: bool = False,
    annotations: Mapping[str, Field] | None = None,
) -> Graph:
    """Turn the configured operators into what is read and what is done.

    A sampling operator that stands first becomes a shorter read where the stored order of rows allows it.
    With ``k`` and no sampling operator one is added, after the last voxel or function or else first, that
    suits the order. ``fields``: what is read. The rows of a ``sequence``, such as tokens, are never taken
    apart: its first k are read. ``annotations``: what is to move with the points, beside the fields. Raises
    UsageError for a graph that cannot run.
    """
    _refuse(settings, k=k, dense=dense, fields=fields, sequence=sequence, annotations=annotations or {})
    operators = [Operator(place, one) for place, one in enumerate(settings)]
    if sequence:
        return Graph("whole" if k is None else "prefix", tuple(operators), None)
    serialise = settings[-1] if settings and isinstance(settings[-1], SerialiseSettings) else None
    if serialise:
        operators.pop()
    if k is not None and not any(isinstance(one, _SAMPLING) for one in settings):
        after = max((i + 1 for i, one in enumerate(settings) if isinstance(one, _RESIZING)), default=0)
        sampler = _BY_ORDER[row_order] if "xyz" in fields else RandomSettings()
        operators.insert(after, Operator(len(settings), sampler))
    read: Read = "whole"
    if operators:
        read = _SHORTCUTS.get((operators[0].settings.kind, row_order), "whole")
    return Graph(read, tuple(operators[read != "whole" :]), serialise)


def _refuse(
    settings: Sequence[OperatorSettings],
    *,
    k: int | None,
    dense: bool,
    fields: Mapping[str, Field],
    sequence: bool,
    annotations: Mapping[str, Field],
) -> None:
    for place, one in enumerate(settings):
        cause = fix = ""
        if not isinstance(one, RandomSettings | FunctionSettings) and "xyz" not in fields:
            cause, fix = "needs a column 'xyz'", "leave it out"
        elif isinstance(one, RandomSettings) and sequence:
            cause, fix = "would take a sequence apart", "leave it out: the first k rows are read"
        elif isinstance(one, _SAMPLING) and k is None:
            cause, fix = "needs a number of rows", "give k"
        elif isinstance(one, SerialiseSettings) and place < len(settings) - 1:
            cause, fix = f"stands at place {place}", "make it the last operator"
        elif isinstance(one, SerialiseSettings) and not dense:
            cause, fix = "needs clouds of equal length", "use the dense form or leave it out"
        elif isinstance(one, _MOVING) and (still := [n for n, f in fields.items() if not _can_move(f)]):
            cause, fix = f"cannot move column '{still[0]}'", "leave one of them out"
        elif why := why_not(one, annotations):
            cause, fix = why, "leave one of them out"
        if cause:
            raise UsageError("loader.graph", f"{one.kind} {cause}", fix)


def _can_move(field: Field) -> bool:
    """Whether a turn knows what to do with a column: none of the kinds left over changes with the axes."""
    if field.kind in ("point", "vector"):
        return field.width == 3 and field.dtype.kind == "f"
    return field.kind not in ("box", "pose")
