"""Running CRC32C of many short blocks, by the processor's own instruction where it has one.

A library is called once a block, and a block of a narrow column is a few hundred bytes: the calls would cost
more than the sums.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from llvmlite import binding, ir
from numba import njit, types
from numba.extending import intrinsic
from numpy.typing import NDArray

_POLYNOMIAL = 0x82F63B78

AVAILABLE = bool(binding.get_host_cpu_features().get("sse4.2"))
"""Whether this processor has the instruction."""


@intrinsic
def _crc_of_word(_: Any, register: Any, word: Any) -> Any:  # noqa: ARG001 (numba gives their types)
    """The register after eight more bytes (SSE 4.2, CRC32)."""

    def generate(_context: Any, builder: Any, _signature: Any, values: Any) -> Any:
        wide = ir.IntType(64)
        kind = ir.FunctionType(wide, [wide, wide])
        return builder.call(builder.module.declare_intrinsic("llvm.x86.sse42.crc32.64.64", [], kind), values)

    return types.uint64(types.uint64, types.uint64), generate


def _of_byte() -> NDArray[np.uint64]:
    table = np.arange(256, dtype=np.uint64)
    for _ in range(8):
        table = (table >> np.uint64(1)) ^ np.where(table & np.uint64(1), np.uint64(_POLYNOMIAL), np.uint64(0))
    return table


_TABLE = _of_byte()


def sums(
    data: NDArray[np.uint8],
    positions: NDArray[np.int64],
    sizes: NDArray[np.int64],
    steps: NDArray[np.int64],
) -> NDArray[np.uint32]:
    """CRC32C of the first step, 2 steps, ... bytes, and of all, of each of many pieces of ``data``.

    ``positions``, ``sizes`` and ``steps`` (n,): the bytes where they begin, that they have, and of a step.
    The sums of one piece stand behind those of the one before: uint32.
    """
    found = np.empty(int((-(-sizes // steps)).sum()), np.uint32)
    _sums(data, positions, sizes, steps, _TABLE, found)
    return found


@njit(cache=True, nogil=True)
def _sums(
    data: NDArray[np.uint8],
    positions: NDArray[np.int64],
    sizes: NDArray[np.int64],
    steps: NDArray[np.int64],
    table: NDArray[np.uint64],
    found: NDArray[np.uint32],
) -> None:
    block = 0
    for piece in range(len(positions)):
        register, at = np.uint64(0xFFFFFFFF), positions[piece]
        stop, step = at + sizes[piece], steps[piece]
        while at < stop:
            end = min(at + step, stop)
            words = data[at : at + (end - at) // 8 * 8].view(np.uint64)
            for word in words:
                register = _crc_of_word(register, word)  # type: ignore[call-arg]
            for i in range(at + 8 * len(words), end):
                low = (register ^ np.uint64(data[i])) & np.uint64(255)
                register = table[low] ^ (register >> np.uint64(8))
            found[block] = np.uint32(register) ^ np.uint32(0xFFFFFFFF)
            at, block = end, block + 1
