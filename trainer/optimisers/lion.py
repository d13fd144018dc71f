"""The Lion optimiser: steps of one size, in the direction that the signs of a momentum tell."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch

from ..parallel.shares import local


class Lion(torch.optim.Optimizer):
    """Lion (Chen et al. 2023, Symbolic Discovery of Optimization Algorithms), with decoupled weight decay.

    Each element of a parameter moves by the rate, against the sign of a mean of momentum and gradient. One
    tensor of state a parameter, where AdamW has two. ``groups`` of parameters have ``params`` and
    ``weight_decay``; ``betas``: of the mean whose sign counts, and of the momentum.
    """

    def __init__(self, groups: Iterable[dict[str, Any]], lr: float, betas: tuple[float, float]) -> None:
        super().__init__(groups, {"lr": lr, "betas": betas, "weight_decay": 0.0})

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]  # noqa: ARG002
        """Update every parameter that has a gradient, each rank what it holds of it."""
        for group in self.param_groups:
            learning = [p for p in group["params"] if p.grad is not None]
            if not learning:
                continue
            for p in learning:
                if not self.state[p]:
                    self.state[p]["momentum"] = torch.zeros_like(p)
            parameters = [local(p) for p in learning]
            gradients = [local(p.grad) for p in learning]
            momenta = [local(self.state[p]["momentum"]) for p in learning]
            rate, (near, far) = group["lr"], group["betas"]

            directions = torch._foreach_lerp(gradients, momenta, near)
            torch._foreach_sign_(directions)
            torch._foreach_mul_(parameters, 1 - rate * group["weight_decay"])
            torch._foreach_add_(parameters, directions, alpha=-rate)
            torch._foreach_lerp_(momenta, gradients, 1 - far)
