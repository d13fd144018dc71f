from __future__ import annotations

import re
import sys
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tamis.errors import UsageError
from tamis.samplers import draw, random
from tamis.samplers.scratch import take

WORDS = st.integers(0, 2**64 - 1)


def reference(n: int, k: int, seed: int, id: int) -> list[int]:
    """Sort the rows by their hashes."""
    hashes = draw.hashes(draw.key("random", seed, id), n).tolist()
    return sorted(range(n), key=hashes.__getitem__)[:k]


@settings(deadline=None)
@given(st.integers(0, 300), st.integers(0, 300), st.integers(-5, 2**64), WORDS)
def test_rows_of_the_smallest_hashes_in_their_order(n: int, k: int, seed: int, id: int) -> None:
    k = min(k, n)
    rows = random(n, k, seed=seed, id=id)
    assert rows.dtype == np.int64
    assert rows.tolist() == reference(n, k, seed, id)


@settings(deadline=None, max_examples=15)
@given(st.data(), st.integers(0, 20_000), WORDS)
def test_rows_of_more_hashes_than_are_kept(data: st.DataObject, n: int, seed: int) -> None:
    k = data.draw(st.integers(0, n) | st.sampled_from([0, min(n, 1), n // 100, n]))
    assert random(n, k, seed=seed).tolist() == reference(n, k, seed, 0)


def test_too_few_hashes_kept_are_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys.modules["tamis.samplers.random"], "_SPARE", 0)  # about every second is too few
    for seed in range(30):
        for k in (1, 100, 999, 1000):
            assert random(1000, k, seed=seed).tolist() == reference(1000, k, seed, 0)


@pytest.mark.parametrize("spare", [0, 4])
def test_hashing_in_chunks_changes_nothing(monkeypatch: pytest.MonkeyPatch, spare: int) -> None:
    module = sys.modules["tamis.samplers.random"]
    monkeypatch.setattr(module, "_SPARE", spare)
    monkeypatch.setattr(module, "_CHUNK", 7)
    for seed in range(30):
        for k in (1, 100, 993):
            assert random(1000, k, seed=seed).tolist() == reference(1000, k, seed, 0)


def test_memory_follows_what_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    module, taken = sys.modules["tamis.samplers.random"], set()

    def counted(n: int, dtype: Any) -> Any:
        taken.add(n)
        return take(n, dtype)

    monkeypatch.setattr(module, "take", counted)
    random(30_000_000, 5)
    assert 5 <= max(taken) < 300_000


@given(WORDS.map(np.uint64))
def test_a_hash_tells_its_word(word: np.uint64) -> None:
    assert draw.unmix(np.uint64(draw.mix(word))) == word
    assert draw.mix(np.uint64(draw.unmix(word))) == word


@given(WORDS, st.integers(0, 2**62))
def test_a_hash_tells_its_row(key: int, start: int) -> None:
    rows = draw.rows(key, draw.hashes(key, 5, start))
    assert rows.dtype == np.int64
    assert rows.tolist() == list(range(start, start + 5))


def test_the_rows_are_no_scratch_memory() -> None:
    first = random(50_000, 50_000)
    kept = first.copy()
    random(50_000, 50_000, seed=1)
    assert first.tolist() == kept.tolist()


def test_fewer_rows_are_a_prefix() -> None:
    assert random(1000, 10).tolist() == random(1000, 1000)[:10].tolist()


def test_seed_and_id_change_the_rows() -> None:
    drawn = {tuple(random(100, 5, seed=s, id=i).tolist()) for s in range(4) for i in range(4)}
    assert len(drawn) == 16


@pytest.mark.parametrize(
    ("n", "k", "said"),
    [
        (3, 4, "cannot take 4 of 3 rows; ask for 0 to 3"),
        (3, -1, "cannot take -1 of 3"),
        (0, 1, "there are no rows"),
        (-5, 1, "n is -5; give the number of rows"),
        (2**40 + 1, 1, "every one is hashed"),
        (2**40, 2**40, "would take 8,796 GB"),
        (3, 2.0, "k: is 2.0"),
        (3, True, "k: is True"),
    ],
)
def test_impossible_counts_are_refused(n: Any, k: Any, said: str) -> None:
    with pytest.raises(UsageError, match=re.escape(said)):
        random(n, k)
