from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tamis.errors import UsageError
from tamis.samplers import draw, random


@settings(deadline=None)
@given(st.integers(0, 300), st.integers(0, 300), st.integers(-5, 2**64), st.integers(0, 2**64 - 1))
def test_rows_of_the_smallest_hashes_in_their_order(n: int, k: int, seed: int, id: int) -> None:
    k = min(k, n)
    rows = random(n, k, seed=seed, id=id)
    hashes = draw.hashes(draw.key("random", seed, id), n).tolist()
    assert rows.dtype == np.int64
    assert rows.tolist() == sorted(range(n), key=hashes.__getitem__)[:k]


def test_fewer_rows_are_a_prefix() -> None:
    assert random(1000, 10).tolist() == random(1000, 1000)[:10].tolist()


def test_seed_and_id_change_the_rows() -> None:
    drawn = {tuple(random(100, 5, seed=s, id=i).tolist()) for s in range(4) for i in range(4)}
    assert len(drawn) == 16


@pytest.mark.parametrize(("n", "k"), [(3, 4), (3, -1), (0, 1), (-1, 0), (3, 2.0), (3, True)])
def test_impossible_counts_are_refused(n: int, k: int) -> None:
    with pytest.raises(UsageError):
        random(n, k)
