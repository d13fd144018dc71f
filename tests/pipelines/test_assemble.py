"""What is told of the sources when their parts become a dataset."""

from __future__ import annotations

import itertools
import logging

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tamis.pipelines.assemble import _warn_of_shared_ground
from tamis.pipelines.journal import PartSample
from tamis.pipelines.members import Member

Sample = tuple[int, int, int, int]


@given(
    st.lists(
        st.tuples(
            st.sampled_from(["train", "val", "test"]),
            st.lists(st.tuples(*[st.integers(0, 12)] * 2, *[st.integers(0, 4)] * 2), min_size=1, max_size=3),
        ),
        max_size=7,
    )
)
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_sources_on_common_ground_are_counted(
    caplog: pytest.LogCaptureFixture, sources: list[tuple[str, list[Sample]]]
) -> None:
    """By the boxes about all samples of a source; those that touch share nothing."""
    caplog.clear()
    members = [
        Member(
            f"{split}-{number}",
            tile,
            PartSample(
                split=split, tile=tile, rows=1, origin=[0] * 3, bounds=[x, y, 0, x + w, y + d, 1], label=-1
            ),
        )
        for number, (split, samples) in enumerate(sources)
        for tile, (x, y, w, d) in enumerate(samples)
    ]
    pairs = []
    for (i, (split, ours)), (j, (other, theirs)) in itertools.product(enumerate(sources), repeat=2):
        if split == "train" or other != "train":
            continue
        (a, b), (c, d) = (
            (
                [min(one[axis] for one in samples) for axis in (0, 1)],
                [max(one[axis] + one[axis + 2] for one in samples) for axis in (0, 1)],
            )
            for samples in (ours, theirs)
        )
        if all(a[axis] < d[axis] and c[axis] < b[axis] for axis in (0, 1)):
            pairs.append((f"{split}-{i}", f"train-{j}"))
    with caplog.at_level(logging.WARNING):
        _warn_of_shared_ground(members)
    told = [record.getMessage() for record in caplog.records]
    if not pairs:
        assert told == []
        return
    more = f" (and {len(pairs) - 1} more pairs)" if len(pairs) > 1 else ""
    first = pairs[0]
    assert told == [f"{first[0]} (evaluated) and {first[1]} (trained on) cover common ground{more}"]
