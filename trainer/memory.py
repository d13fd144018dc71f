"""What the C library does with memory that is freed. Free of torch."""

from __future__ import annotations

import ctypes

_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3  # of mallopt(3)


def keep_freed_memory() -> None:
    """Keep memory that is freed for the next allocation, instead of giving it back to the kernel.

    A training step on a CPU frees tensors of many MB and allocates as many again in the next one. By default
    glibc gives them back to the kernel, depending on where they happen to lie, and the kernel has to clear
    each page anew: thousands of page faults a step, several per cent of its time. The most memory a process
    uses stays the same. Where the C library is another one nothing changes.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(_MMAP_THRESHOLD, 32 << 20)  # the highest that there is
        mallopt(_TRIM_THRESHOLD, 2**31 - 1)
