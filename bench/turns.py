"""What the loop adds to a step, step by step in turn with a plain one: `python -m tamis.bench.turns`.

Rounds in processes of their own, as `tamis bench trainer` has them for loops that cannot be stopped,
differ by more than what is looked for here. The loop of `tamis train` takes batches from an iterator: before
each one a plain step on the same batch is taken, so both see the same moments of the machine.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterator
from dataclasses import replace

import torch
from torch import nn

from ..loaders.loader import Batch
from .loops import Clock, Net, Size, settings_of, tamis

SIZE = Size(clouds=4, points=96, steps=600, rounds=3)
_SKIPPED = 30


class Turns(Clock):
    """Batches, with a plain step before each; CPU milliseconds of both."""

    def __init__(self, size: Size) -> None:
        super().__init__(size)
        self._net = Net(settings_of(size))
        self._optimiser = self._net.optimiser()
        self.plain_ms: list[float] = []
        self.tamis_ms: list[float] = []

    def __iter__(self) -> Iterator[Batch]:
        for step in range(self.size.steps):
            batch = replace(self.held[step % len(self.held)], step=step)
            start_s = time.process_time()
            self._step(batch)
            plain_s = time.process_time()
            yield batch
            self.plain_ms.append(1e3 * (plain_s - start_s))
            self.tamis_ms.append(1e3 * (time.process_time() - plain_s))

    def _step(self, batch: Batch) -> None:
        torch.autograd.backward(self._net(batch.torch()))
        nn.utils.clip_grad_norm_(self._net.parameters(), self._net.clip)
        self._optimiser.step()
        self._optimiser.zero_grad()


def main() -> None:
    torch.set_num_threads(1)
    for _ in range(SIZE.rounds):
        turns = Turns(SIZE)
        tamis(turns)
        plain, ours = (statistics.median(ms[_SKIPPED:]) for ms in (turns.plain_ms, turns.tamis_ms))
        print(f"plain torch {plain:.2f} ms, tamis {ours:.2f} ms of CPU a step: {ours / plain:.3f}")


if __name__ == "__main__":
    main()
