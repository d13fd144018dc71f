"""Cutting blocks into stages, against every possible cut."""

from __future__ import annotations

from itertools import combinations, pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tamis.errors import UsageError
from tamis.trainer.parallel.cut import balanced


def worst(ranges: list[range], costs: list[int], first: int, last: int) -> int:
    """What the costliest stage costs."""
    sums = [sum(costs[i] for i in blocks) for blocks in ranges]
    sums[0] += first
    sums[-1] += last
    return max(sums)


def every_cut(blocks: int, stages: int) -> list[list[range]]:
    cuts = combinations(range(1, blocks), stages - 1)
    return [[range(a, b) for a, b in pairwise((0, *cut, blocks))] for cut in cuts]


@settings(deadline=None)
@given(st.data(), st.lists(st.integers(0, 9), min_size=1, max_size=9), st.integers(0, 20), st.integers(0, 20))
def test_no_cut_is_better(data: st.DataObject, costs: list[int], first: int, last: int) -> None:
    stages = data.draw(st.integers(1, len(costs)))
    ranges = balanced(costs, stages, first, last)
    assert [i for blocks in ranges for i in blocks] == list(range(len(costs)))
    assert len(ranges) == stages
    assert all(ranges)
    cuts = every_cut(len(costs), stages)
    least = min(worst(cut, costs, first, last) for cut in cuts)
    assert worst(ranges, costs, first, last) == least
    shortest = min(len(cut[0]) for cut in cuts if worst(cut, costs, first, last) == least)
    assert len(ranges[0]) == shortest


@pytest.mark.parametrize(
    ("costs", "stages", "first", "last", "sizes"),
    [
        ([1] * 8, 4, 0, 0, [2, 2, 2, 2]),
        ([1] * 5, 3, 0, 0, [1, 2, 2]),
        ([1] * 8, 4, 0, 1, [1, 2, 3, 2]),  # the head counts as a block
        ([1] * 8, 2, 2, 0, [3, 5]),
        ([5, 1, 1, 1, 1, 1], 2, 0, 0, [1, 5]),
        ([1] * 3, 1, 9, 9, [3]),
    ],
)
def test_known_cuts(costs: list[int], stages: int, first: int, last: int, sizes: list[int]) -> None:
    assert [len(blocks) for blocks in balanced(costs, stages, first, last)] == sizes


@pytest.mark.parametrize(("blocks", "stages"), [(3, 4), (0, 1), (3, 0)])
def test_a_stage_without_blocks_is_refused(blocks: int, stages: int) -> None:
    with pytest.raises(UsageError, match=r"layout\.pp: .* blocks make no .* stages"):
        balanced([1.0] * blocks, stages)
