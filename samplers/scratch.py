"""Scratch memory that is used again: for arrays of megabytes fresh pages cost as much as the work on them."""

from __future__ import annotations

import math
import threading
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

_KEPT = 1 << 28
"""Most bytes that wait on a thread to be used again; beyond them those that waited longest are freed."""

_SMALL = 1 << 16
"""Below it the allocator has warm memory of its own."""

_LINE = 64
"""Arrays begin with a line of the cache, so that rows of 64 bytes are one line each."""


class _Pool(threading.local):
    """A thread's blocks that wait, the latest last, and their bytes."""

    def __init__(self) -> None:
        self.blocks: list[NDArray[np.uint8]] = []
        self.bytes = 0


_pool = _Pool()


def take(shape: int | tuple[int, ...], dtype: DTypeLike) -> NDArray[Any]:
    """An array of undefined content, for as long as it or a view of it is referred to.

    After that its memory is given to another call, on the thread that dropped it.
    """
    lengths = (shape,) if isinstance(shape, int) else shape
    wanted = np.dtype(dtype)
    n = math.prod(lengths) * wanted.itemsize
    if n < _SMALL:
        return np.empty(lengths, wanted)
    return np.asarray(_Lease(n))[:n].view(wanted).reshape(lengths)


class _Lease:
    """A block in use. numpy keeps it alive as the base of the array made of it, and so of every view."""

    def __init__(self, n: int) -> None:
        # Four sizes to each power of two, so that clouds of nearly the same size share blocks.
        step = 1 << (n.bit_length() - 3)
        self._block = _waiting(-(-n // step) * step)
        self.__array_interface__ = self._block.__array_interface__

    def __del__(self) -> None:
        _pool.blocks.append(self._block)
        _pool.bytes += self._block.size
        while _pool.bytes > _KEPT:
            _pool.bytes -= _pool.blocks.pop(0).size


def _waiting(size: int) -> NDArray[np.uint8]:
    """The latest block of a size, or a new one."""
    for i in range(len(_pool.blocks) - 1, -1, -1):
        if _pool.blocks[i].size == size:
            _pool.bytes -= size
            return _pool.blocks.pop(i)
    block = np.empty(size + _LINE, np.uint8)
    return block[-block.ctypes.data % _LINE :][:size]
