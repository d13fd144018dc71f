"""What a step of each level sends between ranks, by axis: counted once a level, as counting takes time."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from typing import Any

from .mesh import Mesh
from .parallel.wire import Wire, axes_of

COUNTED = 1
"""Which step of a level is counted: not the first, in which connections and buffers are made."""


class Traffic:
    """Counts for one rank; with one rank there is nothing to count."""

    def __init__(self, mesh: Mesh) -> None:
        self._mesh = mesh
        self._seen: dict[int, int] = {}
        self.levels: dict[int, dict[str, Any]] = {}  # k -> axis -> figures of `wire.Traffic`, of one step

    @contextmanager
    def step(self, k: int) -> Iterator[None]:
        """Run a step with k rows a sample, and count it if it is the one to count."""
        seen = self._seen[k] = self._seen.get(k, -1) + 1
        if self._mesh.world == 1 or seen != COUNTED:
            yield
            return
        with Wire(axes_of(self._mesh)) as wire:
            yield
        self.levels[k] = {axis: asdict(traffic) for axis, traffic in wire.by_axis().items()}
