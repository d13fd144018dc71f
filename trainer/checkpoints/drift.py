"""Whether ranks that should hold equal copies of parameters still do."""

from __future__ import annotations

from collections.abc import Iterable

from crc32c import crc32c
from torch import nn
from torch.distributed.tensor import DTensor

from ...errors import DataError
from ..learner import Learner
from ..mesh import Mesh
from .increments import raw
from .pieces import MODEL, model_pieces

Place = tuple[str, tuple[int, ...]]
"""The name of a parameter, and where in the whole of it what a rank holds begins."""


def refuse_drifted(learner: Learner, step: int) -> None:
    """Compare all copies of each parameter over the ranks, after ``step``; every rank calls this.

    Each rank takes the CRC32C of what it holds that others hold too. Raises DataError, on all ranks, naming
    the first parameter of which copies differ, and the ranks that have each of them.
    """
    mesh = learner.mesh
    if mesh.world == 1:
        return
    copied = [name for name, parameter in learner.model.named_parameters() if _copied(parameter, mesh)]
    holders: dict[Place, dict[int, list[int]]] = {}
    for rank, told in enumerate(mesh.gather(sums_of(learner.model, copied))):
        for key, crc in told.items():
            holders.setdefault(key, {}).setdefault(crc, []).append(rank)
    for (name, _), by_crc in holders.items():
        if len(by_crc) > 1:
            ranks = " from that of ".join(_ranks(same) for same in sorted(by_crc.values(), key=len))
            raise DataError(
                f"step {step}",
                f"copies of {name} drifted apart: that of {ranks}",
                "go on from the last checkpoint; if it comes again, look at the memory of that machine",
            )


def sums_of(model: nn.Module, names: Iterable[str]) -> dict[Place, int]:
    """The CRC32C of what is here of each named parameter."""
    pieces = model_pieces(model, {})
    return {
        (name, piece.offsets): crc32c(raw(piece.held.cpu().contiguous()))
        for name in names
        for piece in [pieces[f"{MODEL}{name}"]]
    }


def _copied(parameter: nn.Parameter, mesh: Mesh) -> bool:
    if mesh.size("dp_replicate") > 1:
        return True
    if isinstance(parameter, DTensor):  # an axis of a DTensor has several ranks
        return any(placement.is_replicate() for placement in parameter.placements)
    return mesh.size("tp") > 1


def _ranks(ranks: list[int]) -> str:
    return f"rank{'s' * (len(ranks) > 1)} {', '.join(map(str, ranks))}"
