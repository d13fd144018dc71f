"""Tensor parallelism: every matrix is split among the ranks along ``tp``.

As in Megatron-LM (Shoeybi et al. 2019): the first matrix of a pair by its outputs, the second by its inputs,
so that between them nothing is exchanged; attention by heads; vocabularies by entries. What is small stays
whole on every rank and works on that rank's rows, see `rows`.
"""

from __future__ import annotations

from fnmatch import fnmatch

from torch import nn
from torch.distributed.tensor import DTensor, Placement, Replicate, Shard, distribute_tensor

from ..mesh import Mesh
from .flat import all_reduced
from .rows import ALL, Rows

PLACEMENTS: tuple[tuple[str, Placement], ...] = (
    ("*attention.query.*", Shard(0)),
    ("*attention.key.*", Shard(0)),
    ("*attention.value.*", Shard(0)),
    ("*attention.out.weight", Shard(1)),
    ("*up.*", Shard(0)),
    ("*down.weight", Shard(1)),
    ("embed.weight", Shard(0)),
    ("head.*", Shard(0)),
    ("*", Replicate()),
)
"""How parameters lie on the ranks, by name: the first pattern that fits."""


def placement_of(name: str) -> Placement:
    """How the parameter with this name in the model lies on the ranks."""
    return next(placement for pattern, placement in PLACEMENTS if fnmatch(name, pattern))


def rows_of(mesh: Mesh) -> Rows:
    """How rows lie on the ranks of a mesh along ``tp``."""
    size = mesh.size("tp")
    return Rows(mesh.group("tp"), size, mesh.index("tp")) if size > 1 else ALL


def split(module: nn.Module, name: str, mesh: Mesh) -> None:
    """Keep this rank's share of a module's parameters; ``name``: the module's in the model.

    Every rank holds the module whole and alike before.
    """
    if mesh.size("tp") == 1:
        return
    assert mesh.devices is not None
    devices = mesh.devices["tp"]
    for owner_name, owner in module.named_modules():
        for leaf, parameter in list(owner.named_parameters(recurse=False)):
            whole = ".".join(part for part in (name, owner_name, leaf) if part)
            shared = distribute_tensor(parameter.detach(), devices, [placement_of(whole)], src_data_rank=None)
            setattr(owner, leaf, nn.Parameter(shared))


def sum_parts(model: nn.Module, mesh: Mesh) -> None:
    """Add up the gradients of parameters that every rank has whole: each saw its own rows alone.

    Without it the ranks' copies of norms and biases would drift apart. They are then equal to the bit.
    """
    group = mesh.group("tp")
    if group is None:
        return
    parts = [p for p in model.parameters() if _partial(p)]
    all_reduced([p.grad.to_local() for p in parts], group)  # type: ignore[union-attr]
    for p in parts:
        gradient = p.grad
        assert isinstance(gradient, DTensor)
        p.grad = DTensor.from_local(gradient.to_local(), gradient.device_mesh, [Replicate()], run_check=False)


def _partial(parameter: nn.Parameter) -> bool:
    gradient = parameter.grad
    return isinstance(gradient, DTensor) and any(p.is_partial() for p in gradient.placements)
