"""Reads a loader's batches, every byte of each, and measures it."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from . import processes
from .clouds import Arrays, Clouds, added, content
from .peers import Epoch

_MEMORY_SAMPLES = 8


@dataclass
class Read:
    """What was read: batches, clouds, and bytes (of coordinates, colours and labels)."""

    batches: int = 0
    clouds: int = 0
    bytes: int = 0

    def add(self, batch: Arrays) -> None:
        """Read every byte of a batch."""
        for values in batch.values():
            touch(values)
        self.batches += 1
        self.clouds += len(batch["label"])
        self.bytes += sum(batch[name].nbytes for name in ("xyz", "rgb", "label"))


def touch(values: NDArray[Any]) -> int:
    """Read every byte of an array: the sum of its 64-bit words, and of the bytes that are left."""
    raw = np.ascontiguousarray(values).reshape(-1).view(np.uint8)
    whole = raw.size // 8 * 8
    return int(np.add.reduce(raw[:whole].view(np.uint64))) + int(raw[whole:].sum())


def measure(
    opening: Callable[[], AbstractContextManager[Epoch]],
    clouds: Clouds,
    mark: str,
    epochs: int,
    least_s: float,
) -> dict[str, Any]:
    """The figures of a loader over at least ``epochs`` epochs and ``least_s`` seconds, after one to warm up.

    ``gb_s`` and ``samples_s`` are medians over epochs; ``first_s`` is from opening it to the first batch;
    ``cpu_ms`` is of a batch, of all processes, the reading of its bytes included; ``others_ms`` is the part
    of it that is not this process's; ``rss_mb`` is the most seen while warming up.
    """
    start = time.perf_counter()
    with opening() as epoch:
        first_s, rss_mb = _warm_up(epoch, clouds, mark, start)
        taken: list[float] = []
        batches = 0
        own, others = processes.cpu_s(mark)
        while len(taken) < epochs or sum(taken) < least_s:
            start, read = time.perf_counter(), Read()
            for batch in epoch():
                read.add(batch)
            taken.append(time.perf_counter() - start)
            if read.clouds != len(clouds):
                raise ValueError(f"delivered {read.clouds} of {len(clouds)} clouds in epoch {len(taken)}")
            batches += read.batches
        own_after, others_after = processes.cpu_s(mark)
    own, others = own_after - own, others_after - others
    wall_s = statistics.median(taken)
    return {
        "batch_bytes": round(read.bytes / read.batches),
        "gb_s": read.bytes / wall_s / 1e9,
        "samples_s": read.clouds / wall_s,
        "first_s": first_s,
        "cpu_ms": (own + others) * 1e3 / batches,
        "others_ms": others * 1e3 / batches,
        "rss_mb": rss_mb,
        "epochs": len(taken),
    }


def _warm_up(epoch: Epoch, clouds: Clouds, mark: str, start: float) -> tuple[float, float]:
    """Seconds from ``start`` to the first batch, and the most memory seen in one epoch.

    Raises ValueError where the epoch was not every byte of every cloud, once.
    """
    first_s = rss_mb = 0.0
    read, total, every = Read(), (0, 0), max(1, len(clouds.batches) // _MEMORY_SAMPLES)
    for batch in epoch():
        first_s = first_s or time.perf_counter() - start
        read.add(batch)
        total = added(total, content(batch))
        if read.batches % every == 0:
            rss_mb = max(rss_mb, processes.pss_mb(mark))
    if (read.clouds, total) != (len(clouds), clouds.total):
        raise ValueError(f"delivered other bytes than those of the {len(clouds)} clouds")
    return first_s, rss_mb
