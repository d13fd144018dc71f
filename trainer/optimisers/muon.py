"""The Muon optimiser for the hidden matrices of a model, and AdamW for all else, as one optimiser."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from ..parallel.shares import gathered, local, share


class Muon(torch.optim.Optimizer):
    """Muon (Jordan et al. 2024), as torch.optim.Muon has it, on ``matrices``; AdamW on the other ``groups``.

    A matrix moves along its momentum made orthogonal, scaled so that the learning rate and weight decay of
    AdamW fit (``match_rms_adamw``, Liu et al. 2025). That takes the matrix whole: ranks that split it keep
    their shares of momentum and parameter, gather the update, and each makes it orthogonal for itself, so
    that all come to the same bits. One tensor of state a matrix.
    """

    def __init__(
        self,
        matrices: Sequence[nn.Parameter],
        groups: Iterable[dict[str, Any]],
        lr: float,
        weight_decay: float,
        momentum: float,
        betas: tuple[float, float],
    ) -> None:
        self._adamw = torch.optim.AdamW(groups, lr=lr, betas=betas, fused=True)
        muon = {"params": list(matrices), "lr": lr, "weight_decay": weight_decay, "momentum": momentum}
        super().__init__([muon, *self._adamw.param_groups], {})

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]  # noqa: ARG002
        """Update every parameter that has a gradient; ranks that split matrices call this together."""
        for group in self.param_groups:
            if "momentum" in group:
                for p in group["params"]:
                    if p.grad is not None:
                        self._turn(p, group)
        # Groups and state are kept here alone, so that a checkpoint sees one optimiser.
        self._adamw.param_groups = [group for group in self.param_groups if "momentum" not in group]
        self._adamw.state = self.state
        self._adamw.step()

    def _turn(self, p: nn.Parameter, group: dict[str, Any]) -> None:
        assert p.grad is not None
        state, rate = self.state[p], group["lr"]
        if not state:
            state["momentum_buffer"] = torch.zeros_like(p)
        momentum, gradient = state["momentum_buffer"], p.grad
        local(momentum).lerp_(local(gradient), 1 - group["momentum"])
        update = orthogonal(gathered(gradient.lerp(momentum, group["momentum"])))  # Nesterov's momentum
        local(p).mul_(1 - rate * group["weight_decay"]).add_(share(update, p), alpha=rate)


def orthogonal(update: Tensor) -> Tensor:
    """What torch.optim.Muon adds to a matrix (a, b) for this update, at rate 1 and without momentum."""
    step = torch.zeros_like(update)
    step.grad = update
    torch.optim.Muon(
        [step], lr=1.0, weight_decay=0.0, momentum=0.0, nesterov=False, adjust_lr_fn="match_rms_adamw"
    ).step()  # type: ignore[no-untyped-call]
    return step
