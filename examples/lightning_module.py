"""A LightningModule that learns from a tamis Loader, and whose checkpoints say which batch comes next.

    tamis build quickstart
    python examples/lightning_module.py runs/quickstart --steps 40
    python examples/lightning_module.py runs/quickstart --steps 80  # goes on at step 40

Lightning takes anything that can be iterated for a data loader. It takes a batch ahead of the step it is at,
so the loader's state travels with each batch: what a checkpoint keeps is that of the last batch learned from.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import lightning
import torch
from torch import Tensor, nn
from torch.nn import functional

from tamis import Loader

State = dict[str, Any]


class Batches:
    """What Lightning iterates: the tensors of each batch, and the loader's state after it."""

    def __init__(self, loader: Loader) -> None:
        self._loader = loader

    def __iter__(self) -> Iterator[tuple[dict[str, Tensor], State]]:
        for batch in self._loader:
            yield batch.torch(), self._loader.state_dict()


class Segmenter(lightning.LightningModule):
    """A class for every point, by a tiny model."""

    def __init__(self, loader: Loader) -> None:
        super().__init__()
        self.loader, self.seen = loader, loader.state_dict()
        self.model = nn.Sequential(nn.Linear(3, 32), nn.ReLU(), nn.Linear(32, 2))

    def train_dataloader(self) -> Batches:
        return Batches(self.loader)

    def training_step(self, batch: tuple[dict[str, Tensor], State], _: int) -> Tensor:
        tensors, self.seen = batch
        scores, label = self.model(tensors["xyz"]), tensors["label"].long()
        # The mean over the rows that count: -1 marks the others, padding among them.
        loss = functional.cross_entropy(
            scores.flatten(0, 1), label.flatten(), ignore_index=-1, reduction="sum"
        ) / (label >= 0).sum().clamp(min=1)
        print(f"step {self.seen['step'] - 1}: loss {loss.item():.4f}")
        return loss

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.AdamW(self.parameters(), lr=1e-2)

    def on_save_checkpoint(self, checkpoint: State) -> None:
        checkpoint["loader"] = self.seen

    def on_load_checkpoint(self, checkpoint: State) -> None:
        self.loader.load_state_dict(checkpoint["loader"])


def main() -> None:
    """Train, from the checkpoint on where there is one."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("dataset", type=Path, help="a dataset, or the run folder it is in")
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--checkpoint", type=Path, default=Path("lightning.ckpt"))
    arguments = parser.parse_args()

    lightning.seed_everything(0)
    graph = [{"kind": "rotate"}, {"kind": "normalise"}]
    with Loader(
        arguments.dataset, global_batch=4, k=512, columns=["label"], graph=graph, feeder="node"
    ) as loader:
        trainer = lightning.Trainer(
            max_steps=arguments.steps, devices=1, logger=False, enable_checkpointing=False
        )
        last = arguments.checkpoint if arguments.checkpoint.exists() else None
        trainer.fit(Segmenter(loader), ckpt_path=last)
        trainer.save_checkpoint(arguments.checkpoint)


if __name__ == "__main__":
    main()
