"""The Hugging Face Trainer over a tamis Loader; its checkpoints say which batch comes next.

    tamis build quickstart
    python examples/hf_trainer.py runs/quickstart --steps 40
    python examples/hf_trainer.py runs/quickstart --steps 80  # goes on at step 40

The Trainer would resume by reading the data from the start and dropping what it has seen; not so with
``ignore_data_skip``. The loader goes on by its state, which a callback keeps in each checkpoint.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from torch import Tensor, nn
from torch.nn import functional
from transformers import Trainer, TrainerCallback, TrainerState, TrainingArguments
from transformers.trainer_utils import get_last_checkpoint

from tamis import Loader

GRAPH = [{"kind": "rotate"}, {"kind": "normalise"}]


class Batches:
    """What the Trainer iterates: the model's argument by its name, and the labels."""

    def __init__(self, loader: Loader) -> None:
        self.loader = loader

    def __iter__(self) -> Iterator[dict[str, Tensor]]:
        for batch in self.loader:
            tensors = batch.torch()
            label = tensors["label"].long()  # -1 for what does not count, padding among it: -100 here
            yield {"input": tensors["xyz"], "labels": label.masked_fill(label < 0, -100)}


class StreamTrainer(Trainer):
    """A Trainer that takes ``batches`` as they come."""

    batches: Batches

    def get_train_dataloader(self) -> Any:
        return self.batches


class KeepState(TrainerCallback):
    """Writes the loader's state into each checkpoint."""

    def __init__(self, loader: Loader) -> None:
        self.loader = loader

    def on_save(self, args: TrainingArguments, state: TrainerState, *_: Any, **__: Any) -> None:
        path = Path(args.output_dir, f"checkpoint-{state.global_step}", "loader.json")
        path.write_text(json.dumps(self.loader.state_dict()))


def mean_loss(scores: Tensor, labels: Tensor, num_items_in_batch: Tensor) -> Tensor:
    """The mean over the rows that count, which the Trainer has added up over all processes."""
    total = functional.cross_entropy(scores.flatten(0, 1), labels.flatten(), reduction="sum")
    return total / num_items_in_batch.clamp(min=1)


def main() -> None:
    """Train, from the last checkpoint on where there is one."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("dataset", type=Path, help="a dataset, or the run folder it is in")
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--out", type=Path, default=Path("hf"))
    given = parser.parse_args()

    choices = {"ignore_data_skip": True, "lr_scheduler_type": "constant", "report_to": "none"}
    args = TrainingArguments(
        str(given.out), max_steps=given.steps, learning_rate=1e-2, logging_steps=1, **choices
    )
    share = {"replica": args.process_index, "replicas": args.world_size}
    with Loader(
        given.dataset, global_batch=4, k=512, columns=["label"], graph=GRAPH, feeder="node", **share
    ) as loader:
        model = nn.Sequential(nn.Linear(3, 32), nn.ReLU(), nn.Linear(32, 2))
        trainer = StreamTrainer(model, args, compute_loss_func=mean_loss, callbacks=[KeepState(loader)])
        trainer.batches = Batches(loader)
        last = get_last_checkpoint(str(given.out)) if given.out.is_dir() else None
        if last:
            loader.load_state_dict(json.loads(Path(last, "loader.json").read_text()))
        trainer.train(resume_from_checkpoint=last)
        print(f"the loader gave {loader.state_dict()['step']} batches")


if __name__ == "__main__":
    main()
