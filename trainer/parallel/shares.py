"""A rank's share of a tensor that ranks have split: what is here, all of it, and back."""

from __future__ import annotations

from torch import Tensor
from torch.distributed.tensor import DTensor, Replicate, distribute_tensor


def local(tensor: Tensor) -> Tensor:
    """What this rank holds of a tensor; it shares memory with it."""
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def gathered(tensor: Tensor) -> Tensor:
    """The whole of a tensor; every rank that holds a share of it calls this."""
    if not isinstance(tensor, DTensor):
        return tensor
    # One axis after the other, from the outermost: FSDP split what tensor-parallel ranks had split before.
    for axis in range(tensor.device_mesh.ndim):
        placements = (Replicate(),) * (axis + 1) + tensor.placements[axis + 1 :]
        tensor = tensor.redistribute(placements=placements)
    return tensor.to_local()


def share(whole: Tensor, like: Tensor) -> Tensor:
    """This rank's share of a tensor that every rank has whole, as it has one of ``like``; nothing is sent."""
    if not isinstance(like, DTensor):
        return whole
    return distribute_tensor(whole, like.device_mesh, like.placements, src_data_rank=None).to_local()
