"""Scratch memory that is used again: for arrays of megabytes fresh pages cost as much as the work on them."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

_KEPT = 1 << 28
"""Most bytes that wait to be used again; what comes back beyond them goes to the system."""

_free: dict[int, list[NDArray[np.uint8]]] = {}
"""Blocks by their size. Lists append and pop as one step, so threads need no lock."""


def take(shape: int | tuple[int, ...], dtype: DTypeLike) -> NDArray[Any]:
    """An array of undefined content, for as long as it or a view of it is referred to.

    After that its memory is given to another call, on whatever thread.
    """
    lengths = (shape,) if isinstance(shape, int) else shape
    wanted = np.dtype(dtype)
    n = math.prod(lengths) * wanted.itemsize
    return np.asarray(_Lease(n))[:n].view(wanted).reshape(lengths)


class _Lease:
    """A block in use. numpy keeps it alive as the base of the array made of it, and so of every view."""

    def __init__(self, n: int) -> None:
        size = _size(n)
        try:
            self.block = _free.setdefault(size, []).pop()
        except IndexError:
            self.block = np.empty(size, np.uint8)
        self.__array_interface__ = self.block.__array_interface__

    def __del__(self) -> None:
        size = self.block.size
        if size <= _KEPT - sum(kept * len(blocks) for kept, blocks in list(_free.items())):
            _free[size].append(self.block)


def _size(n: int) -> int:
    """The next of four sizes to each power of two, so that clouds of nearly the same size share blocks."""
    step = 1 << max(n.bit_length() - 3, 10)
    return max(-(-n // step), 1) * step
