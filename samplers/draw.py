"""Counter-based randomness: a draw is a hash of what it is for, so it is the same on every machine.

The hash is splitmix64 (Steele, Lea, Flood, "Fast splittable pseudorandom number generators", OOPSLA 2014):
row i of the stream of a key is the finaliser of ``key + (i + 1) * golden``. No library stream is used: those
may change between versions.
"""

from __future__ import annotations

import operator
from functools import lru_cache
from hashlib import blake2b

import numpy as np
from numba import njit
from numpy.typing import NDArray

_GOLDEN = 0x9E3779B97F4A7C15
_A, _B = 0xBF58476D1CE4E5B9, 0x94D049BB133111EB
_MASK = (1 << 64) - 1
_UNSTEP, _UNA, _UNB = (pow(factor, -1, 1 << 64) for factor in (_GOLDEN, _A, _B))

CONSTANTS = (_GOLDEN, _A, _B)
"""The step of a stream and the two factors of the finaliser, for those who hash on another device."""


@njit(cache=True, nogil=True, error_model="numpy")
def mix(word: np.uint64) -> np.uint64:
    """Finaliser of splitmix64, uint64 -> uint64, one to one: for use inside kernels.

    It never changes: numba would not notice in the kernels of other files that it has inlined it in.
    """
    word = np.uint64(word)
    word = (word ^ (word >> np.uint64(30))) * np.uint64(_A)
    word = (word ^ (word >> np.uint64(27))) * np.uint64(_B)
    return word ^ (word >> np.uint64(31))


@njit(cache=True, nogil=True, error_model="numpy")
def unmix(word: np.uint64) -> np.uint64:
    """The word that `mix` makes into ``word``, uint64 -> uint64."""
    word = np.uint64(word)
    word = (word ^ (word >> np.uint64(31)) ^ (word >> np.uint64(62))) * np.uint64(_UNB)
    word = (word ^ (word >> np.uint64(27)) ^ (word >> np.uint64(54))) * np.uint64(_UNA)
    return word ^ (word >> np.uint64(30)) ^ (word >> np.uint64(60))


@njit(cache=True, nogil=True, error_model="numpy")
def _fill(key: np.uint64, start: np.uint64, out: NDArray[np.uint64]) -> None:
    for i in range(out.size):
        out[i] = mix(key + (start + np.uint64(i) + np.uint64(1)) * np.uint64(_GOLDEN))


@njit(cache=True, nogil=True, error_model="numpy")
def _unfill(key: np.uint64, hashes: NDArray[np.uint64]) -> None:
    for i in range(hashes.size):
        hashes[i] = (unmix(hashes[i]) - key) * np.uint64(_UNSTEP) - np.uint64(1)


@njit(cache=True, nogil=True, error_model="numpy")
def _first(keys: NDArray[np.uint64], out: NDArray[np.uint64]) -> None:
    for i in range(out.size):
        out[i] = mix(keys[i] + np.uint64(_GOLDEN))


@njit(cache=True, nogil=True, error_model="numpy")
def _fold(words: NDArray[np.uint64], out: NDArray[np.uint64]) -> None:
    for i in range(out.size):
        state = np.uint64(0)
        for j in range(words.shape[0]):
            state = mix((state + np.uint64(_GOLDEN)) ^ words[j, i])
        out[i] = state


def key(*parts: int | str) -> int:
    """Fold whole numbers (modulo 2^64) and strings into one key in [0, 2^64); their order counts."""
    state = 0
    for part in parts:
        state = _mix(((state + _GOLDEN) & _MASK) ^ _word(part))
    return state


def keys(n: int, *parts: int | str | NDArray[np.uint64]) -> NDArray[np.uint64]:
    """``n`` keys at once, uint64 (n,): as `key`, of row i of those parts that are arrays (n,)."""
    words = np.empty((len(parts), n), np.uint64)
    for row, part in zip(words, parts, strict=True):
        row[:] = part if isinstance(part, np.ndarray) else _word(part)
    out = np.empty(n, np.uint64)
    _fold(words, out)
    return out


def hashes(key: int, n: int, start: int = 0) -> NDArray[np.uint64]:
    """One hash a row: uint64 (n,) for rows ``start`` to ``start + n`` of the key's stream, all different."""
    out = np.empty(n, np.uint64)
    _fill(np.uint64(key & _MASK), np.uint64(start), out)
    return out


def rows(key: int, hashes: NDArray[np.uint64]) -> NDArray[np.int64]:
    """Put in the place of `hashes` of the key's stream the rows they are of: int64 (n,), in their memory."""
    _unfill(np.uint64(key & _MASK), hashes)
    return hashes.view(np.int64)


def uniform(key: int, n: int) -> NDArray[np.float64]:
    """float64 (n,), evenly spread over [0, 1) in steps of 2^-53."""
    return _spread(hashes(key, n))


def first_uniform(keys: NDArray[np.uint64]) -> NDArray[np.float64]:
    """The first value of `uniform` for each key, float64 (n,)."""
    hashes = np.empty(len(keys), np.uint64)
    _first(keys, hashes)
    return _spread(hashes)


def _mix(word: int) -> int:
    word = (word ^ (word >> 30)) * _A & _MASK
    word = (word ^ (word >> 27)) * _B & _MASK
    return word ^ (word >> 31)


def _spread(hashes: NDArray[np.uint64]) -> NDArray[np.float64]:
    return (hashes >> np.uint64(11)).astype(np.float64) * 2.0**-53


def _word(part: int | str) -> int:
    return _digest(part) if isinstance(part, str) else operator.index(part) & _MASK


@lru_cache(256)
def _digest(part: str) -> int:
    return int.from_bytes(blake2b(part.encode(), digest_size=8).digest(), "little")
