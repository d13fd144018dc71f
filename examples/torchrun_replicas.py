"""Four ranks, two replicas: the ranks of a pair work on the same batch, which is read and made once.

    tamis build quickstart
    torchrun --nproc-per-node 4 examples/torchrun_replicas.py runs/quickstart

Each pair splits a tiny model's hidden units between its ranks (tensor parallel), and the pairs share the
global batches (data parallel). One feeder serves the node: it reads a sample once for both ranks of a pair.
After half an epoch the loader is closed and another goes on from its state, as after a restart. Then the
ranks compare what they saw.
"""

from __future__ import annotations

import sys
from hashlib import blake2b
from itertools import islice
from typing import Any

import torch
import torch.distributed as dist
from torch.nn import functional

from tamis import Loader

PAIR, HIDDEN, CLASSES = 2, 16, 2


def open_loader() -> Loader:
    """The loader of this rank: those of a pair have the same ``replica``."""
    return Loader(
        sys.argv[1],
        global_batch=8,
        k=256,
        epochs=1,
        columns=["label"],
        graph=[{"kind": "rotate"}, {"kind": "normalise"}],
        replica=dist.get_rank() // PAIR,
        replicas=dist.get_world_size() // PAIR,
        feeder="node",
    )


def main() -> None:
    """Train over one epoch, cut in its middle; raises where a sample was missed, or given twice."""
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    pairs: list[Any] = [dist.new_group(list(range(first, first + PAIR))) for first in range(0, world, PAIR)]
    peers: list[Any] = [dist.new_group(list(range(place, world, PAIR))) for place in range(PAIR)]
    pair, peer = pairs[rank // PAIR], peers[rank % PAIR]  # my model's other half; my half's other copies
    torch.manual_seed(rank % PAIR)
    enter = (torch.randn(3, HIDDEN // PAIR) / 3).requires_grad_()
    leave = (torch.randn(HIDDEN // PAIR, CLASSES) / HIDDEN).requires_grad_()
    seen: list[int] = []
    digest = blake2b()

    def learn(loader: Loader, steps: int | None) -> dict[str, Any]:
        for batch in islice(loader, steps):
            tensors = batch.torch()
            label = tensors["label"].long().flatten()  # -1 marks what does not count
            mine = torch.relu(tensors["xyz"].flatten(0, 1) @ enter) @ leave
            whole = mine.detach().clone()
            dist.all_reduce(whole, group=pair)
            scores = mine + (whole - mine.detach())  # of the whole model; the gradient is that of my half
            rows = (label >= 0).sum()
            dist.all_reduce(rows, group=peer)  # those of the global batch: shares differ
            loss = functional.cross_entropy(scores, label, ignore_index=-1, reduction="sum") / rows.clamp(1)
            for weight, gradient in zip(
                (enter, leave), torch.autograd.grad(loss, (enter, leave)), strict=True
            ):
                dist.all_reduce(gradient, group=peer)
                weight.data -= 0.1 * gradient
            seen.extend(batch.ids[batch.weight > 0].tolist())
            for name in sorted(batch.columns):
                digest.update(batch.columns[name].tobytes())
        return loader.state_dict()

    with open_loader() as loader:
        state = learn(loader, loader.batches_per_epoch // 2)  # a checkpoint would keep this
    with open_loader() as loader:
        loader.load_state_dict(state)
        learn(loader, None)
        samples = loader.samples

    ranks: list[Any] = [None] * world
    dist.all_gather_object(ranks, (seen, digest.hexdigest()))
    assert all(one == ranks[r - r % PAIR] for r, one in enumerate(ranks)), "a pair saw two batches"
    given = [id for ids, _ in ranks[::PAIR] for id in ids]
    assert len(given) == len(set(given)) == samples, "a sample was missed, or given twice"
    if rank == 0:
        print(f"{world} ranks, {world // PAIR} replicas: each of {samples} samples once")
    dist.barrier()  # a rank that leaves early would break the connections of the others
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
