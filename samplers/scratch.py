"""Scratch memory that is used again: for arrays of megabytes fresh pages cost as much as the work on them."""

from __future__ import annotations

import math
import threading
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import DTypeLike, NDArray

_KEPT = 1 << 28
"""Most bytes that wait on a thread to be used again; beyond them those that waited longest are freed."""

_SMALL = 1 << 16
"""Below it the allocator has warm memory of its own."""

_SMALL_PIECE = 1 << 20
"""The same for pieces that are carved: they are many, and up to here the allocator is quicker. But it gives
memory back sooner, above all on threads of their own, which arrays held through a search would feel."""

_LINE = 64
"""Arrays that wait for use begin with a line of the cache, so that rows of 64 bytes are one line each."""


class _Block(NamedTuple):
    """Memory, its size in bytes, and what tells numpy where it lies, which takes long to find out."""

    memory: NDArray[np.uint8]
    size: int
    interface: dict[str, Any]


class _Pool(threading.local):
    """A thread's blocks that wait, the latest last, and their bytes."""

    def __init__(self) -> None:
        self.blocks: list[_Block] = []
        self.bytes, self.most = 0, _KEPT

    def find(self, size: int) -> _Block:
        """The latest block of a size, or a new one."""
        for i in range(len(self.blocks) - 1, -1, -1):
            if self.blocks[i].size == size:
                self.bytes -= size
                return self.blocks.pop(i)
        memory = np.empty(size + _LINE, np.uint8)
        memory = memory[-memory.ctypes.data % _LINE :][:size]
        return _Block(memory, size, memory.__array_interface__)

    def keep(self, block: _Block) -> None:
        """Let a block wait. No global is used: where a process ends they may be gone before this."""
        self.blocks.append(block)
        self.bytes += block.size
        while self.bytes > self.most:
            self.bytes -= self.blocks.pop(0).size


_pool = _Pool()


def take(shape: int | tuple[int, ...], dtype: DTypeLike) -> NDArray[Any]:
    """An array of undefined content, for as long as it or a view of it is referred to.

    After that its memory is given to another call, on the thread that dropped it.
    """
    lengths = (shape,) if isinstance(shape, int) else shape
    return _carved([(lengths, np.dtype(dtype))], _SMALL)[0]


def carve(*wanted: tuple[tuple[int, ...], np.dtype[Any]]) -> list[NDArray[Any]]:
    """Several such arrays, by shape and dtype, in one piece of memory: that is quicker to take."""
    return _carved(wanted, _SMALL_PIECE)


def _carved(wanted: Sequence[tuple[tuple[int, ...], np.dtype[Any]]], small: int) -> list[NDArray[Any]]:
    ends, end = [], 0
    for shape, dtype in wanted:
        ends.append(end)
        end += -(-math.prod(shape) * dtype.itemsize // _LINE) * _LINE
    piece = np.asarray(_Lease(end)) if end >= small else np.empty(end, np.uint8)
    return [np.ndarray(shape, dtype, piece, at) for (shape, dtype), at in zip(wanted, ends, strict=True)]


class _Lease:
    """A block in use. numpy keeps it alive as the base of the arrays made of it, and so of every view."""

    def __init__(self, n: int) -> None:
        # Four sizes to each power of two, so that clouds of nearly the same size share blocks.
        step = 1 << (n.bit_length() - 3)
        self._pool = _pool
        self._block = _pool.find(-(-n // step) * step)
        self.__array_interface__ = self._block.interface

    def __del__(self) -> None:
        self._pool.keep(self._block)
