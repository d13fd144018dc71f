"""``tamis train`` with 16-bit products where a CPU has no units for them.

    python -m tamis.bench.rounded CONFIG OUT KEY=VALUE ...

Factors and results are rounded to 16 bits and the product between them is computed in fp32, as tensor cores
do. torch's own kernels for such CPUs round at the same places and take six times as long.
"""

from __future__ import annotations

import logging
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function
from torch.nn import functional

from ..config import load
from ..trainer.launch import train
from ..trainer.models import layers
from ..trainer.settings import Settings


class _Linear(Function):
    @staticmethod
    def forward(context: Any, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        context.save_for_backward(x, weight)
        product = x.float() @ weight.float().t()
        return (product if bias is None else product + bias.float()).to(x.dtype)

    @staticmethod
    def backward(context: Any, gradient: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        x, weight = context.saved_tensors
        g = gradient.float().flatten(0, -2)
        by_x = (g @ weight.float()).view(x.shape)
        by_weight = g.t() @ x.float().flatten(0, -2)
        return by_x.to(x.dtype), by_weight.to(x.dtype), g.sum(0).to(x.dtype)


def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """As torch's under autocast, else torch's."""
    if not torch.is_autocast_enabled("cpu"):
        return functional.linear(x, weight, bias)
    dtype = torch.get_autocast_dtype("cpu")
    product: Tensor = _Linear.apply(x.to(dtype), weight.to(dtype), None if bias is None else bias.to(dtype))
    return product


def main(config: str, out: str, *overrides: str) -> None:
    """Train as the command does, on one rank: in others the products would be torch's."""
    known = {name: getattr(functional, name) for name in ("layer_norm", "embedding", "pad")}
    layers.functional = SimpleNamespace(linear=linear, **known)  # type: ignore[assignment, attr-defined]
    logging.basicConfig(format="tamis: %(message)s", level=logging.INFO)
    train(load(config, [*overrides, "layout.dp=1"], Settings), Path(out))


if __name__ == "__main__":
    main(*sys.argv[1:])
