"""What the gradients of each layer are like: their norm, how many are zero, how many no finite number."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn

from ..mesh import Mesh
from ..models.trunk import Head
from ..parallel.norm import speaks_for
from ..parallel.shares import local

_TABLES = (nn.Embedding, Head)


class LayerGradient(NamedTuple):
    """Of one layer, over all ranks. ``norm``: None where not finite; ``zeros``: share of its elements.

    ``broken``: number of elements that are not finite. Of tables and of the head only rows that are not all
    zero have a share: a batch does not use the others, or they fill up what tensor-parallel ranks share.
    """

    norm: float | None
    zeros: float
    broken: int


class Monitor:
    """Looks at the gradients that lie on this rank; elements that several ranks hold are counted once."""

    def __init__(self, model: nn.Module, layers: Sequence[str], mesh: Mesh) -> None:
        self._layers, self._mesh = tuple(layers), mesh
        self._own = [
            (parameter, self._layers.index(layer_of(f"{name}.{leaf}")), isinstance(module, _TABLES))
            for name, module in model.named_modules()
            for leaf, parameter in module.named_parameters(recurse=False)
            if speaks_for(parameter, mesh)
        ]

    def read(self, scale: float = 1.0) -> dict[str, LayerGradient]:
        """What each layer's gradients, which carry ``scale``, are like; every rank calls this.

        One reduction of four numbers a layer.
        """
        table = torch.zeros(len(self._layers), 4, dtype=torch.float64, device=self._mesh.device)
        for parameter, layer, by_rows in self._own:
            if parameter.grad is not None:
                table[layer] += _counts(local(parameter.grad), by_rows)
        rows = self._mesh.sum(table).tolist()
        return {
            layer: LayerGradient(
                squares**0.5 / scale if math.isfinite(squares) else None,
                zeros / elements if elements else 0.0,
                int(broken),
            )
            for layer, (squares, zeros, elements, broken) in zip(self._layers, rows, strict=True)
        }


def layer_of(name: str) -> str:
    """The layer, see `settings.layers_of`, of the parameter with this name in the model."""
    first, second, *_ = name.split(".")
    return f"blocks.{second}" if first == "blocks" else "embed" if first == "embed" else "head"


def _counts(gradient: Tensor, by_rows: bool) -> Tensor:
    """Sum of squares, zeros, elements, elements that are not finite: float64 (4,).

    ``by_rows``: rows that are all zero are neither among the zeros nor among the elements.
    """
    squares = gradient.norm().double().square()
    broken = (~gradient.isfinite()).sum()
    zero = (gradient == 0).reshape(gradient.shape[0], -1 if gradient.numel() else 1)
    counted = ~zero.all(1) if by_rows else torch.ones_like(zero[:, 0])
    elements = counted.sum() * zero.shape[1]
    return torch.stack([squares, zero[counted].sum(), elements, broken])
