"""Memory for batches that is used again when a batch is dropped: fresh pages cost more than filling them."""

from __future__ import annotations

import weakref
from collections import deque
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .lease import Lease, LeasedArray

_LEAST_BYTES = 1 << 17  # what is smaller comes from the heap, whose pages are there
_SPARE = 1.125  # clouds vary in size: the next batch should fit as well
_MOST_WASTE = 2


class Pool:
    """Gives the arrays of batches, see `pack.Empty`; one thread uses it.

    An array lies where an earlier one of its name did, if nobody holds that, or a view or tensor of it, any
    more: what is kept stays as it is. The pool knows the last ``keep`` arrays of a name.
    """

    def __init__(self, keep: int) -> None:
        self._keep = keep
        self._given: dict[str, deque[tuple[weakref.ref[Lease], NDArray[np.uint8], int]]] = {}

    def empty(self, name: str, shape: tuple[int, ...], dtype: np.dtype[Any]) -> NDArray[Any]:
        """An array with anything in it."""
        size = dtype.itemsize
        for n in shape:
            size *= n
        if size < _LEAST_BYTES:
            return np.empty(shape, dtype)
        memory, address = self._free(name, size)
        lease = Lease(memory)
        self._given[name].append((weakref.ref(lease), memory, address))
        return np.asarray(LeasedArray(lease, address, shape, dtype))

    def _free(self, name: str, size: int) -> tuple[NDArray[np.uint8], int]:
        """Memory for ``size`` bytes that nobody holds, and its address."""
        given = self._given.setdefault(name, deque(maxlen=self._keep))
        for i in reversed(range(len(given))):  # what was used last is in the cache
            lease, memory, address = given[i]
            if lease() is None and size <= memory.size <= _MOST_WASTE * _SPARE * size:
                del given[i]
                return memory, address
        memory = np.empty(int(size * _SPARE), np.uint8)
        return memory, memory.ctypes.data
