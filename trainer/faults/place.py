"""Which of a run's ranks this process is, as the environment tells. Free of torch."""

from __future__ import annotations

import os
from typing import NamedTuple

from ...errors import UsageError
from ..settings import LayoutSettings


class Place(NamedTuple):
    """``rank`` of ``world``, and of those on its machine ``local``, all from 0."""

    rank: int
    world: int
    local: int


def place() -> Place:
    """What torchrun, or a launcher that sets the same variables, tells; without RANK it is alone.

    Raises UsageError where a variable is wrong or missing: it may be left over from something else.
    """
    if "RANK" not in os.environ:
        return Place(0, 1, 0)
    found = Place(_number("RANK", 0), _number("WORLD_SIZE", 1), _number("LOCAL_RANK", 0))
    if not 0 <= found.rank < found.world:
        raise _wrong(f"RANK is {found.rank} of WORLD_SIZE {found.world}")
    if found.world > 1:
        if not os.environ.get("MASTER_ADDR"):
            raise _wrong("MASTER_ADDR is not set")
        _number("MASTER_PORT", None)
    return found


def place_in(layout: LayoutSettings) -> Place:
    """The same, where all ranks of ``layout`` were started, no more and no less; else UsageError."""
    found = place()
    if found.world != layout.ranks:
        sizes = f"layout.dp x layout.tp x layout.pp = {layout.dp} x {layout.tp} x {layout.pp}"
        cause = f"but the environment tells of {found.world} ranks (WORLD_SIZE)"
        raise UsageError(sizes, cause, f"make them equal, see layout.min_dp, or {_UNSET}")
    return found


_UNSET = "unset RANK and WORLD_SIZE, if they are left over"


def _number(name: str, default: int | None) -> int:
    text = os.environ.get(name, default)
    if text is None:
        raise _wrong(f"{name} is not set")
    try:
        return int(text)
    except ValueError:
        raise _wrong(f"{name} is '{text}', not a whole number") from None


def _wrong(cause: str) -> UsageError:
    return UsageError("the environment", cause, f"start the ranks with torchrun, or {_UNSET}")
