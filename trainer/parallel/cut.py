"""Where a model is cut into pipeline stages."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from itertools import accumulate

from ...errors import UsageError


def balanced(costs: Sequence[float], stages: int, first: float = 0, last: float = 0) -> list[range]:
    """The blocks of each stage, such that the costliest stage costs least (the linear partition problem).

    Every stage has at least one block. ``costs`` are those of the blocks, 0 or more, in any unit; ``first``
    comes on top in the first stage (an embedding), ``last`` in the last (a head). Of cuts that are equally
    good the one with the shortest first stage is taken, since that stage keeps the most microbatches alive;
    what remains is cut in the same way. Takes time in the square of the number of blocks.
    Raises UsageError where there are fewer blocks than stages.
    """
    blocks = len(costs)
    if not 1 <= stages <= blocks:
        raise UsageError("layout.pp", f"{blocks} blocks make no {stages} stages", "raise model.depth")
    total = list(accumulate(costs, initial=0.0))

    @cache
    def cut(start: int, stages: int) -> tuple[float, int]:
        """The least cost of blocks ``start:`` in so many stages, and where the first of them ends."""
        extra = first if start == 0 else 0
        if stages == 1:
            return total[blocks] - total[start] + extra + last, blocks
        return min(
            (max(total[end] - total[start] + extra, cut(end, stages - 1)[0]), end)
            for end in range(start + 1, blocks - stages + 2)
        )

    ranges, start = [], 0
    for left in range(stages, 0, -1):
        end = cut(start, left)[1]
        ranges.append(range(start, end))
        start = end
    return ranges
