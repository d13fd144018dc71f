"""A plain PyTorch loop that can be cut anywhere and goes on with the next batch.

    tamis build quickstart
    python examples/plain_torch.py runs/quickstart --steps 40
    python examples/plain_torch.py runs/quickstart --steps 80  # goes on at step 40

The batches are made by a process of their own (``feeder="node"``) and lie in memory that is shared with it.
On a GPU they are copied from there while it computes; on a CPU the tensors are that memory.
"""

from __future__ import annotations

import argparse
from itertools import islice
from pathlib import Path

import torch
from torch import nn
from torch.nn import functional

from tamis import Loader
from tamis.loaders.device import to_device


def main() -> None:
    """Train a tiny model, from its checkpoint on where there is one."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("dataset", type=Path, help="a dataset, or the run folder it is in")
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--checkpoint", type=Path, default=Path("plain.pt"))
    arguments = parser.parse_args()

    device = "cuda" if torch.cuda.is_available() else "cpu"
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 32), nn.ReLU(), nn.Linear(32, 2)).to(device)
    optimiser = torch.optim.AdamW(model.parameters(), lr=1e-2)
    with Loader(
        arguments.dataset,
        global_batch=4,
        k=512,
        columns=["label"],
        graph=[{"kind": "rotate"}, {"kind": "normalise"}],
        feeder="node",
    ) as loader:
        done = 0
        if arguments.checkpoint.exists():
            saved = torch.load(arguments.checkpoint)
            model.load_state_dict(saved["model"])
            optimiser.load_state_dict(saved["optimiser"])
            loader.load_state_dict(saved["loader"])  # of the last batch that was learned from
            done = saved["loader"]["step"]

        for batch in islice(to_device(loader, device), max(arguments.steps - done, 0)):
            xyz, label = batch.tensors["xyz"], batch.tensors["label"].long()
            scores = model(xyz)
            # -1 marks what does not count: unlabelled rows, rows that repeat others, and clouds that are
            # missing where an epoch ends. The loss is the mean over the rows that do count.
            loss = functional.cross_entropy(
                scores.flatten(0, 1), label.flatten(), ignore_index=-1, reduction="sum"
            ) / (label >= 0).sum().clamp(min=1)
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
            print(f"step {batch.step}: loss {loss.item():.4f}")

        torch.save(
            {
                "model": model.state_dict(),
                "optimiser": optimiser.state_dict(),
                "loader": loader.state_dict(),
            },
            arguments.checkpoint,
        )


if __name__ == "__main__":
    main()
