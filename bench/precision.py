"""What each precision keeps for the backward pass: `python -m tamis.bench.precision`.

The model and the batch of ``ign``, one process: bytes that autograd saves in a forward pass, each storage
once, parameters apart, casts of them included.
"""

from __future__ import annotations

from typing import get_args

import torch
from torch import Tensor
from torch.autograd.graph import saved_tensors_hooks

from ..config import load
from ..trainer.learner import Learner
from ..trainer.mesh import alone
from ..trainer.model_settings import PointSettings
from ..trainer.settings import LayoutSettings, Precision, Settings
from ..trainer.tasks import Segmentation, TaskState

CLASSES = ("ground", "vegetation", "building")


def saved_bytes(settings: Settings, precision: Precision) -> int:
    """Bytes that are alive between a forward and its backward pass."""
    assert isinstance(settings.model, PointSettings)
    state = TaskState(classes=CLASSES, bright={"intensity": 1.0})
    fields = ["xyz", "intensity", "return_number", "number_of_returns"]
    task = Segmentation(settings.model, state, fields, "here")
    trainer = settings.trainer.model_copy(update={"precision": precision})
    model = Learner(task, LayoutSettings(), trainer, alone()).model
    clouds, k = settings.loader.batch, trainer.points
    order = torch.arange(k).expand(clouds, k)
    kept = {p.untyped_storage().data_ptr(): 0 for p in model.parameters()}
    held: list[Tensor] = []  # alive, so that no other storage takes the same place

    def keep(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        held.append(tensor)
        kept.setdefault(storage.data_ptr(), storage.nbytes())
        return tensor

    with saved_tensors_hooks(keep, lambda tensor: tensor):
        scores = model(torch.rand(clouds, k, task.width), xyz=torch.rand(clouds, k, 3), transposed=order)
        task.loss(scores, torch.zeros(clouds, k, dtype=torch.int64))
    return sum(kept.values())


def main() -> None:
    settings = load("ign", ["data.root=."], Settings)
    found = {precision: saved_bytes(settings, precision) for precision in get_args(Precision)}
    print("| precision | saved for the backward pass, MB | of fp32 |\n|:--|--:|--:|")
    for precision, size in found.items():
        print(f"| {precision} | {size / 1e6:.2f} | {size / found['fp32']:.2f} |")


if __name__ == "__main__":
    main()
