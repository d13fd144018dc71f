"""Checksums: CRC32C to find damage and place it, SHA-256 to prove its absence.

CRC32C is linear: the difference between the sum a block has and the one it should have depends only on which
bits changed, not on the data. For one flipped bit it is that bit's own remainder, so the bit can be found by
running the register backwards (Castagnoli et al. 1993 for the polynomial, here in its reflected form).
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from io import FileIO
from pathlib import Path

import numpy as np
from crc32c import crc32c
from numpy.typing import NDArray

from .records import CHECK_ROWS

CHUNK = 1 << 20
_POLYNOMIAL = 0x82F63B78


def running_of_columns(
    data: NDArray[np.uint8],
    positions: NDArray[np.int64],
    rows: NDArray[np.int64],
    row_bytes: NDArray[np.int64],
) -> NDArray[np.uint32]:
    """The running sums of samples of ``rows``, (n,), one behind the other, for each of their columns.

    ``positions`` (columns, n): the bytes of ``data`` where they begin; ``row_bytes`` (columns,).
    Returns (columns, sums).
    """
    from . import running as compiled  # for those who write: it takes a compiler

    sizes, steps = np.outer(row_bytes, rows).ravel(), np.repeat(CHECK_ROWS * row_bytes, len(rows))
    if compiled.AVAILABLE:
        return compiled.sums(data, positions.ravel(), sizes, steps).reshape(len(row_bytes), -1)
    found, view = list[int](), data.data
    for at, size, step in zip(positions.ravel().tolist(), sizes.tolist(), steps.tolist(), strict=True):
        value = 0
        for start in range(at, at + size, step):
            value = crc32c(view[start : min(start + step, at + size)], value)
            found.append(value)
    return np.array(found, np.uint32).reshape(len(row_bytes), -1)


def blocks(rows: int) -> int:
    """Number of checksums a column of ``rows`` rows has."""
    return -(-rows // CHECK_ROWS)


def first_damage(data: memoryview, sums: NDArray[np.uint32], row_bytes: int) -> int | None:
    """Byte where ``data`` leaves its running checksums, or None; exact if one bit is flipped."""
    step = CHECK_ROWS * row_bytes
    value = 0
    for block, right in enumerate(sums.tolist()):
        part = data[block * step : (block + 1) * step]
        after = crc32c(part, value)
        if after != right:
            bit = flipped_bit(after ^ right, len(part))
            return block * step + (bit // 8 if bit is not None else 0)
        value = right
    return None


def file_sha256(*paths: Path) -> str:
    """SHA-256, in hex, of a file, or of some one after another."""
    sha256 = hashlib.sha256()
    for path in paths:
        for chunk in _chunks(path):
            sha256.update(chunk)
    return sha256.hexdigest()


class ChunkSums:
    """Size in bytes, and the CRC32C of every MiB, of bytes that come in pieces."""

    def __init__(self) -> None:
        self.bytes = 0
        self.crc32c: list[int] = []

    def add(self, data: memoryview) -> None:
        """Count the bytes that follow."""
        while data:
            begun = self.bytes % CHUNK
            piece = data[: CHUNK - begun]
            self.crc32c.append(crc32c(piece, self.crc32c.pop() if begun else 0))
            self.bytes += len(piece)
            data = data[len(piece) :]


def chunk_sums(path: Path) -> tuple[int, str, list[int]]:
    """Size in bytes, SHA-256 in hex, and the CRC32C of every MiB of a file."""
    sha256, sums = hashlib.sha256(), ChunkSums()
    for chunk in _chunks(path):
        sha256.update(chunk)
        sums.add(chunk)
    return sums.bytes, sha256.hexdigest(), sums.crc32c


def crc_sums(path: Path) -> tuple[int, list[int]]:
    """Size in bytes, and the CRC32C of every MiB of a file."""
    sums = ChunkSums()
    for chunk in _chunks(path):
        sums.add(chunk)
    return sums.bytes, sums.crc32c


def _chunks(path: Path) -> Iterator[memoryview]:
    """The MiB of a file; each is valid until the next."""
    room = memoryview(bytearray(CHUNK))
    with path.open("rb", buffering=0) as file:
        while chunk := _filled(file, room):
            yield chunk


def _filled(file: FileIO, room: memoryview) -> memoryview:
    """What comes next of a file: all of ``room``, less at its end."""
    size = 0
    while size < len(room) and (read := file.readinto(room[size:])):
        size += read
    return room[:size]


def damaged_chunks(path: Path, sums: Sequence[int]) -> Iterator[tuple[int, int, int | None]]:
    """Start and end of each MiB of a file that has not the CRC32C it should have.

    And which bit of it is flipped, if one alone explains the difference.
    """
    with path.open("rb") as file:
        for number, right in enumerate(sums):
            chunk = file.read(CHUNK)
            difference = crc32c(chunk) ^ right
            if difference:
                start = number * CHUNK
                yield start, start + len(chunk), flipped_bit(difference, len(chunk))


def flipped_bit(difference: int, size: int) -> int | None:
    """Which bit of ``size`` bytes, counted from the first byte's lowest, gives this CRC difference alone.

    None where no single bit does. ``difference`` is the exclusive or of the two sums.
    """
    if not difference:
        return None
    register = difference
    for bit in range(8 * size - 1, -1, -1):
        register = ((register ^ _POLYNOMIAL) << 1 | 1) if register >> 31 else register << 1
        if register == 1:
            return bit
    return None
