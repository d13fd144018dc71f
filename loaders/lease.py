"""Arrays over memory that is used again once nobody holds them, or a view or tensor of them."""

from __future__ import annotations

from typing import Any

import numpy as np


class Lease:
    """Stands for ``memory`` in use: the arrays there keep both alive, a weak reference tells the end."""

    __slots__ = ("__weakref__", "memory")

    def __init__(self, memory: object = None) -> None:
        self.memory = memory


class LeasedArray:
    """One array in leased memory, for numpy, which keeps what it was given an array by."""

    __slots__ = ("__array_interface__", "lease")

    def __init__(
        self,
        lease: Lease,
        address: int,
        shape: tuple[int, ...],
        dtype: np.dtype[Any],
        *,
        read_only: bool = False,
    ) -> None:
        self.lease = lease
        self.__array_interface__ = {
            "version": 3,
            "data": (address, read_only),
            "shape": shape,
            "typestr": dtype.str,
        }
