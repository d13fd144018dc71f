from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from crc32c import crc32c
from hypothesis import given
from hypothesis import strategies as st

from tamis.pipelines import checks, running


def summed(data: memoryview, rows: int, row_bytes: int) -> np.ndarray:
    """The running sums of one sample, which is all of ``data``."""
    whole = np.frombuffer(data, np.uint8)
    places = np.zeros((1, 1), np.int64)
    sums: np.ndarray
    (sums,) = checks.running_of_columns(whole, places, np.array([rows]), np.array([row_bytes]))
    return sums


@given(st.binary(min_size=1, max_size=300), st.data())
def test_one_flipped_bit_is_found(data: bytes, draw: st.DataObject) -> None:
    bit = draw.draw(st.integers(0, 8 * len(data) - 1))
    changed = bytearray(data)
    changed[bit // 8] ^= 1 << bit % 8
    assert checks.flipped_bit(crc32c(data) ^ crc32c(bytes(changed)), len(data)) == bit


def test_no_bit_explains_no_or_other_damage() -> None:
    assert checks.flipped_bit(0, 100) is None
    data = bytes(500)
    assert checks.flipped_bit(crc32c(data) ^ crc32c(b"\x03" + data[1:]), 500) is None


@pytest.mark.parametrize("rows", [0, 1, 255, 256, 257, 1024, 1500])
@pytest.mark.parametrize("row_bytes", [1, 3, 6, 8])
@pytest.mark.parametrize("instruction", [True, False])
def test_running_sums_are_sums_of_prefixes(
    rows: int, row_bytes: int, instruction: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if instruction and not running.AVAILABLE:
        pytest.skip("this processor has no instruction for CRC32C")
    monkeypatch.setattr(running, "AVAILABLE", instruction)
    data = np.random.default_rng(rows).bytes(rows * row_bytes)
    sums = summed(memoryview(data), rows, row_bytes)
    assert sums.dtype == np.uint32
    assert sums.tolist() == [crc32c(data[: 256 * row_bytes * (i + 1)]) for i in range(checks.blocks(rows))]
    assert len(sums) == (rows + 255) // 256


@pytest.mark.parametrize("seed", range(8))
def test_first_damage(seed: int) -> None:
    rng = np.random.default_rng(seed)
    data = bytearray(rng.bytes(1000 * 12))
    sums = summed(memoryview(bytes(data)), 1000, 12)
    assert checks.first_damage(memoryview(data), sums, 12) is None
    at = int(rng.integers(len(data)))
    data[at] ^= 1 << int(rng.integers(8))
    assert checks.first_damage(memoryview(data), sums, 12) == at
    data[at] ^= 0xFF
    data[min(at + 1, len(data) - 1)] ^= 0x3C
    assert checks.first_damage(memoryview(data), sums, 12) in (at // 3072 * 3072, at)


def test_chunks(tmp_path: Path) -> None:
    data = bytearray(np.random.default_rng(0).bytes(checks.CHUNK + 1000))
    path = tmp_path / "f"
    path.write_bytes(data)
    size, sha256, sums = checks.chunk_sums(path)
    assert (size, len(sha256), len(sums)) == (len(data), 64, 2)
    data[checks.CHUNK + 77] ^= 4
    path.write_bytes(data)
    assert list(checks.damaged_chunks(path, sums)) == [(checks.CHUNK, len(data), 77 * 8 + 2)]
