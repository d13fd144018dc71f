"""LZF, the compression of PCD files, as liblzf (Lehmann 2000-2010) defines it."""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit
from numpy.typing import NDArray

EXPANSION = 88
"""No stream holds more than so many bytes for each of its own: 3 of them stand for at most 264."""


def decoded(data: NDArray[np.uint8], size: int) -> NDArray[np.uint8] | str:
    """The ``size`` bytes that ``data`` stands for, or why it does not."""
    if size > EXPANSION * len(data):
        return f"{len(data)} bytes cannot hold {size}"
    out = np.empty(size, np.uint8)
    read, written = _decode(data, out)
    if read == len(data) and written == size:
        return out
    return f"its LZF stream is damaged at byte {read} of {len(data)}, after {written} of {size} bytes"


@njit(cache=True, nogil=True, error_model="numpy")
def _decode(data: Any, out: Any) -> Any:
    """(bytes read, bytes written): fewer than there are where a step would leave either array.

    A control byte below 32 is followed by so many bytes and one more, as they are. Of any other, the upper
    three bits are a length (7: the next byte is added) and the lower five, with the next byte, how far back
    a copy of that length and two more begins. It may reach into itself.
    """
    at, to = 0, 0
    while at < len(data):
        control: Any = np.int64(data[at])
        if control < 32:
            length = control + 1
            if at + 1 + length > len(data) or to + length > len(out):
                return at, to
            for i in range(length):
                out[to + i] = data[at + 1 + i]
            at += 1 + length
        else:
            length, head = (control >> 5) + 2, 2
            if length == 9:
                head = 3
                if at + 1 < len(data):
                    length += np.int64(data[at + 1])
            if at + head > len(data):
                return at, to
            back = ((control & 31) << 8) + np.int64(data[at + head - 1]) + 1
            if back > to or to + length > len(out):
                return at, to
            for i in range(length):
                out[to + i] = out[to + i - back]
            at += head
        to += length
    return at, to
