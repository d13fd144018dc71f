"""What this rank holds of a learner's tensors, and where in the whole it lies, whatever the layout.

A checkpoint knows whole tensors by name alone, without what fills up a vocabulary that tensor-parallel ranks
do not divide, so any layout finds its pieces in what any other wrote.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Size, Tensor, nn
from torch.distributed.checkpoint.metadata import ChunkStorageMetadata
from torch.distributed.tensor import DTensor
from torch.distributed.tensor._utils import compute_local_shape_and_global_offset

from ..learner import Learner, whole_model
from ..tasks import Task

MODEL, OPTIMISER = "model.", "optimiser."
"""What the names of parameters, and of an optimiser's tensors (parameter, then key), begin with."""


@dataclass(frozen=True)
class Piece:
    """A box of a tensor: ``held``, the live memory of it, from ``offsets`` on, of shape ``whole``.

    ``settled``: nothing is learned there.
    """

    held: Tensor
    offsets: tuple[int, ...]
    whole: Size
    settled: bool = False

    @property
    def chunk(self) -> ChunkStorageMetadata:
        """The box as torch's checkpoints describe it."""
        return ChunkStorageMetadata(offsets=Size(self.offsets), sizes=self.held.shape)

    @property
    def slices(self) -> tuple[slice, ...]:
        """The box as an index of the whole."""
        ends = zip(self.offsets, self.held.shape, strict=True)
        return tuple(slice(first, first + size) for first, size in ends)


Pieces = dict[str, Piece]


def shapes_of(task: Task) -> dict[str, Size]:
    """The true shapes of a model's parameters, by name; nothing is allocated."""
    with torch.device("meta"):
        return {name: p.shape for name, p in whole_model(task).named_parameters()}


def pieces_of(learner: Learner, shapes: Mapping[str, Size]) -> Pieces:
    """All that a checkpoint keeps of what this rank holds; ``shapes`` as `shapes_of` gives them."""
    pieces = model_pieces(learner.model, shapes)
    for name, parameter in learner.model.named_parameters():
        for key, value in learner.optimiser.state.get(parameter, {}).items():
            # Most are shaped as the parameter; a count of updates is not.
            whole = shapes.get(name, value.shape) if value.shape == parameter.shape else value.shape
            pieces[f"{OPTIMISER}{name}.{key}"] = _piece(value, whole, not parameter.requires_grad)
    return pieces


def model_pieces(model: nn.Module, shapes: Mapping[str, Size]) -> Pieces:
    """The parameters and buffers of a model, or of what this rank holds of it."""
    held = model.state_dict()  # first: FSDP then puts shares in the place of gathered parameters
    frozen = {name for name, parameter in model.named_parameters() if not parameter.requires_grad}
    return {
        f"{MODEL}{name}": _piece(value, shapes.get(name, value.shape), name in frozen)
        for name, value in held.items()
    }


def _piece(tensor: Tensor, whole: Size, settled: bool) -> Piece:
    tensor = tensor.detach()
    offsets: tuple[int, ...] = (0,) * tensor.ndim
    held = tensor
    if isinstance(tensor, DTensor):
        placed = compute_local_shape_and_global_offset(tensor.shape, tensor.device_mesh, tensor.placements)
        offsets, held = tuple(placed[1]), tensor.to_local()
    for dim, (first, size) in enumerate(zip(offsets, whole, strict=True)):
        held = held.narrow(dim, 0, min(max(size - first, 0), held.shape[dim]))
    return Piece(held, offsets, whole, settled)
