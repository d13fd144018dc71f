from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from tamis.samplers import draw

WORDS = st.integers(0, 2**64 - 1)


def splitmix64(seed: int, n: int) -> list[int]:
    """The published generator, in plain integers."""
    out = []
    for _ in range(n):
        seed = (seed + 0x9E3779B97F4A7C15) % 2**64
        z = (seed ^ (seed >> 30)) * 0xBF58476D1CE4E5B9 % 2**64
        z = (z ^ (z >> 27)) * 0x94D049BB133111EB % 2**64
        out.append(z ^ (z >> 31))
    return out


def test_published_first_outputs() -> None:
    assert draw.hashes(1234567, 2).tolist() == [6457827717110365317, 3203168211198807973]


@settings(deadline=None)
@given(WORDS, st.integers(0, 20), st.integers(0, 20))
def test_hashes_are_splitmix64_from_any_row(key: int, n: int, start: int) -> None:
    assert draw.hashes(key, n, start).tolist() == splitmix64(key, start + n)[start:]


@settings(deadline=None)
@given(WORDS)
def test_kernel_and_key_mix_alike(word: int) -> None:
    assert int(draw.mix(np.uint64(word))) == draw._mix(word)


def test_keys_tell_parts_apart_and_stay_as_they_are() -> None:
    whole: list[tuple[int | str, ...]] = [(), (0,), (0, 0), (1, 0), (0, 1), (-1,)]
    mixed: list[tuple[int | str, ...]] = [("0",), ("a", 1), (1, "a"), ("a", "b"), ("ab",)]
    keys = [draw.key(*parts) for parts in whole + mixed]
    assert len(set(keys)) == len(keys)
    assert draw.key(-1) == draw.key(2**64 - 1) != draw.key(1)
    assert draw.key("farthest", 7) == 9401431204761486675  # datasets are built on it


def test_uniform_is_uniform() -> None:
    values = draw.uniform(draw.key("test"), 200_000)
    assert values.dtype == np.float64
    assert values.min() >= 0
    assert values.max() < 1
    counts = np.histogram(values, 100, (0, 1))[0]
    assert ((counts - 2000) ** 2 / 2000).sum() < 170  # chi-square, 99 degrees: 1 in 100,000


@settings(deadline=None)
@given(
    st.lists(WORDS, max_size=5),
    st.lists(st.integers(-5, 2**64 - 1) | st.text(max_size=3), max_size=3),
    st.data(),
)
def test_many_keys_at_once_are_the_same_keys(
    each: list[int], parts: list[int | str], data: st.DataObject
) -> None:
    at = data.draw(st.integers(0, len(parts)))
    found = draw.keys(len(each), *parts[:at], np.array(each, np.uint64), *parts[at:])
    assert found.dtype == np.uint64
    assert found.tolist() == [draw.key(*parts[:at], word, *parts[at:]) for word in each]
    assert draw.keys(2, *parts).tolist() == [draw.key(*parts)] * 2
    assert draw.first_uniform(found).tolist() == [draw.uniform(int(key), 1)[0] for key in found]
