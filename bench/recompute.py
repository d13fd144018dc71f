"""What recomputation saves and costs: `python -m tamis.bench.recompute`.

The bundled point model, one process, one thread, 8 clouds of 1,024 points: bytes that the forward pass leaves
alive for the backward pass, and the time of both passes, rounds in turn.
"""

from __future__ import annotations

import statistics
import time

import torch
from torch.profiler import ProfilerActivity, profile

from ..trainer.recompute import recomputing
from ..trainer.settings import Recompute
from .loops import Net, Size, batch_of, settings_of

KINDS: tuple[Recompute, ...] = ("none", "selective", "full")
SIZE = Size(clouds=8, points=1024, steps=100, rounds=15)


def main() -> None:
    torch.set_num_threads(1)
    net = Net(settings_of(SIZE))
    tensors = batch_of(SIZE.clouds, SIZE.points, seed=(0, 0)).torch()

    def step(kind: Recompute, keep: dict[Recompute, int] | None = None) -> float:
        net.model.run = recomputing(kind)
        start_s = time.perf_counter()
        if keep is None:
            torch.autograd.backward(net(tensors))
        else:
            with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as memory:
                loss = net(tensors)
            keep[kind] = sum(event.self_cpu_memory_usage for event in memory.key_averages())
            torch.autograd.backward(loss)
        net.zero_grad()
        return time.perf_counter() - start_s

    alive: dict[Recompute, int] = {}
    for kind in KINDS:
        step(kind)
        step(kind, alive)
    taken = [[step(kind) for kind in KINDS] for _ in range(SIZE.rounds)]
    print("| recompute | bytes alive, MB | of none | time of both passes, of none |\n|:--|--:|--:|--:|")
    for i, kind in enumerate(KINDS):
        ratio = statistics.median(row[i] / row[0] for row in taken)
        print(f"| {kind} | {alive[kind] / 1e6:.1f} | {alive[kind] / alive['none']:.2f} | {ratio:.2f} |")


if __name__ == "__main__":
    main()
