"""Which engine runs a graph: one table of operators, two ways to go through it, equal results."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal

from ..samplers.fields import Kind
from .ops import Operator
from .records import Field
from .run_threads import Engine, Threads, ThreadsEngine
from .user_code import UserCode

EngineName = Literal["auto", "threads", "dali"]


def engine_of(
    name: EngineName,
    threads: Threads,
    operators: Sequence[Operator],
    kinds: dict[str, Kind],
    fields: Mapping[str, Field],
    user: UserCode | None = None,
) -> Engine:
    """The engine of that name; "auto" is the plain threads, the faster ones on a CPU.

    ``user``: calls functions of the user's own; whoever made it closes it.
    """
    if name == "dali" and operators:
        from .run_dali import DaliEngine  # half a second and 50 MB, for those who ask for it

        return DaliEngine(threads, operators, kinds, fields, user)
    return ThreadsEngine(threads, operators, kinds, user)
