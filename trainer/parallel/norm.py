"""The norm of the whole gradient, each element once, wherever copies and shares of it lie."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from ..mesh import Mesh
from .shares import local

_TINY = 1e-6  # as in torch.nn.utils.clip_grad_norm_


def gradients(model: nn.Module) -> list[tuple[nn.Parameter, Tensor]]:
    """Parameters and what this rank holds of their gradients."""
    return [(p, local(p.grad)) for p in model.parameters() if p.grad is not None]


def squared_norm(held: Iterable[tuple[nn.Parameter, Tensor]], mesh: Mesh) -> Tensor:
    """This rank's part of the squared norm, float64 (): the sum over all ranks is that of the whole gradient.

    Where several ranks hold the same elements, the first of them counts these.
    """
    alone = mesh.world == 1
    counted = [gradient for parameter, gradient in held if alone or speaks_for(parameter, mesh)]
    if not counted:
        return torch.zeros((), dtype=torch.float64, device=mesh.device)
    return torch.stack(torch._foreach_norm(counted)).double().square().sum()


def clip(
    held: Iterable[tuple[nn.Parameter, Tensor]], norm: float, highest: float, scale: float = 1.0
) -> None:
    """Divide gradients, in place, by ``scale``, and further so that their norm is at most ``highest``.

    ``norm``: what it is once they are divided by ``scale``.
    """
    factor = (highest / (norm + _TINY) if norm > highest else 1.0) / scale
    if factor != 1.0:
        torch._foreach_mul_([gradient for _, gradient in held], factor)


def speaks_for(parameter: nn.Parameter, mesh: Mesh) -> bool:
    """Whether this rank is the first of those that hold the same elements of ``parameter``."""
    if mesh.index("dp_replicate") > 0:
        return False
    if not isinstance(parameter, DTensor):
        return mesh.index("dp_shard") == 0 and mesh.index("tp") == 0
    coordinates = parameter.device_mesh.get_coordinate()
    assert coordinates is not None
    whole = (c for c, p in zip(coordinates, parameter.placements, strict=True) if p.is_replicate())
    return all(c == 0 for c in whole)
