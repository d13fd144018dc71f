"""What the loaders around torch's DataLoader share: batches packed the way its own collate stacks them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from ..clouds import Arrays, Clouds

if TYPE_CHECKING:
    import torch

WORKERS = {"multiprocessing_context": "fork", "persistent_workers": True}
"""How workers are started: as cheaply as they can be, once for all epochs."""

Tensors = dict[str, "torch.Tensor"]
Samples = Sequence[dict[str, Any]]


class Indexed:
    """A map-style dataset over the clouds in one file: a cloud is a preadv."""

    def __init__(self, clouds: Clouds) -> None:
        self.clouds = clouds

    def __len__(self) -> int:
        return len(self.clouds)

    def __getitem__(self, i: int) -> dict[str, Any]:
        xyz, rgb = self.clouds.read(i)
        return {"xyz": xyz, "rgb": rgb, "label": int(self.clouds.label[i])}


def read_packed(clouds: Clouds, indices: Sequence[int]) -> Tensors:
    """The batch of these clouds, each read straight to its place."""
    import torch

    about = clouds.about(indices)
    first = about["offsets"].tolist()
    xyz, rgb = empty((first[-1], 3), torch.float32), empty((first[-1], 3), torch.uint8)
    clouds.read_packed(indices, first, xyz.numpy(), rgb.numpy())
    return {"xyz": xyz, "rgb": rgb, **{name: torch.from_numpy(values) for name, values in about.items()}}


def collate(samples: Samples) -> Tensors:
    """The packed batch of samples that hold arrays or tensors."""
    import torch

    sizes = [len(sample["xyz"]) for sample in samples]
    packed = {}
    for name, dtype in (("xyz", torch.float32), ("rgb", torch.uint8)):
        packed[name] = empty((sum(sizes), 3), dtype)
        # Not torch.cat: outside workers its threads wait for each other by spinning.
        np.concatenate([np.asarray(sample[name]) for sample in samples], out=packed[name].numpy())
    packed["label"] = torch.tensor([int(sample["label"]) for sample in samples])
    packed["offsets"] = torch.from_numpy(np.cumsum([0, *sizes]))
    return packed


def empty(shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    """A tensor without values; in a worker in shared memory, as default_collate has it: that saves a copy."""
    import torch

    if torch.utils.data.get_worker_info() is None:
        return torch.empty(shape, dtype=dtype)
    storage: Any = torch.UntypedStorage._new_shared(int(np.prod(shape)) * dtype.itemsize)
    tensor: Any = torch.empty(0, dtype=dtype)
    shared: torch.Tensor = tensor.set_(storage, 0, shape)
    return shared


def arrays(batch: Tensors) -> Arrays:
    """Arrays that share the tensors' memory."""
    return {name: values.numpy() for name, values in batch.items()}
