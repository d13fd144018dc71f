"""Activation checkpointing: what a backward pass computes anew instead of keeping it (Chen et al. 2016)."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import (
    CheckpointPolicy,
    checkpoint,
    create_selective_checkpoint_contexts,
)

from .models.trunk import View
from .settings import Recompute

_KEPT = {
    torch.ops.aten.mm.default,
    torch.ops.aten.addmm.default,
    torch.ops.aten.bmm.default,
    torch.ops.aten._scaled_mm.default,
    torch.ops.aten._scaled_dot_product_flash_attention_for_cpu.default,
    torch.ops.aten._scaled_dot_product_flash_attention.default,
    torch.ops.aten._scaled_dot_product_efficient_attention.default,
    torch.ops.aten._scaled_dot_product_cudnn_attention.default,
}
"""Operations whose results are kept by selective checkpointing: those that cost much for what they hold."""


def recomputing(what: Recompute) -> Callable[[nn.Module, Tensor, View], Tensor]:
    """How a trunk runs a block: "none" keeps all, "selective" what is costly, "full" only its input."""

    def run(block: nn.Module, x: Tensor, view: View) -> Tensor:
        if what == "none" or not torch.is_grad_enabled():
            found: Tensor = block(x, view)
            return found
        options: dict[str, Any] = {"use_reentrant": False, "preserve_rng_state": False}  # nothing is drawn
        if what == "selective":
            options["context_fn"] = partial(create_selective_checkpoint_contexts, _policy)
        again: Tensor = checkpoint(block, x, view, **options)
        return again

    return run


def _policy(_context: Any, operation: Any, *_args: Any, **_options: Any) -> CheckpointPolicy:
    kept = operation in _KEPT
    return CheckpointPolicy.MUST_SAVE if kept else CheckpointPolicy.PREFER_RECOMPUTE
