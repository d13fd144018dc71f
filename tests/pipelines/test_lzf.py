from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tamis.pipelines.readers.lzf import decoded


@pytest.mark.parametrize("seed", range(3))
def test_lzf_against_the_library(seed: int) -> None:
    library = pytest.importorskip("lzf")
    rng = np.random.default_rng(seed)
    for size in (50, 300, 9000, 100_000):
        values = rng.integers(0, 4 + 60 * seed, size, dtype=np.uint8)
        data = np.repeat(values, rng.integers(1, 400, size))[:size]
        packed = library.compress(data.tobytes())
        found = decoded(np.frombuffer(packed, np.uint8), size)
        assert isinstance(found, np.ndarray)
        assert np.array_equal(found, data)


@pytest.mark.parametrize(
    ("stream", "found"),
    [
        (b"\x00A\x20\x00", b"AAAA"),
        (b"\x01AB\xe0\x03\x01", b"AB" * 7),
        (b"\x01AB\x20\x01\x00C", b"ABABAC"),
        (b"\x20\x00", "at byte 0 of 2, after 0 of 3"),
        (b"\x00A\x20\x01", "at byte 2 of 4, after 1 of 4"),
        (b"\x00A\x20", "at byte 2 of 3, after 1 of 4"),
        (b"\x00A\xe0", "at byte 2 of 3, after 1 of 9"),
        (b"\x00A\xe0\x00", "at byte 2 of 4, after 1 of 10"),
        (b"\x03AB", "at byte 0 of 3, after 0 of 2"),
        (b"\x00A\x00", "at byte 2 of 3, after 1 of 2"),
    ],
)
def test_lzf_by_hand(stream: bytes, found: bytes | str) -> None:
    size = len(found) if isinstance(found, bytes) else int(found.split()[-1])
    got = decoded(np.frombuffer(stream, np.uint8), size)
    if isinstance(found, str):
        assert got == f"its LZF stream is damaged {found} bytes"
    else:
        assert not isinstance(got, str)
        assert got.tobytes() == found
        assert isinstance(decoded(np.frombuffer(stream, np.uint8), size - 1), str)
        assert isinstance(decoded(np.frombuffer(stream, np.uint8), size + 1), str)


@settings(deadline=None)
@given(data=st.binary(max_size=60), size=st.integers(0, 3000))
def test_lzf_of_anything_ends_within_its_bounds(data: bytes, size: int) -> None:
    found = decoded(np.frombuffer(data, np.uint8), size)
    assert isinstance(found, str) or len(found) == size
