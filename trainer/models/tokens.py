"""What attention sees of a sequence of tokens: what came before it in the same document."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from ..model_settings import TokenSettings
from .trunk import View


class CausalSight(nn.Module):
    """Each token sees itself and those before it, back to the start of its document."""

    def __init__(self, settings: TokenSettings) -> None:
        super().__init__()
        pairs = settings.width // settings.heads // 2
        self.frequencies = [settings.rope_base ** (-i / pairs) for i in range(pairs)]

    def forward(self, document: Tensor) -> tuple[View]:
        """The only view. ``document``: int64 (b, k), the number of each token's document in its row.

        A token's place turns queries and keys (RoFormer, Su et al. 2021), so attention depends on how far two
        tokens are apart, and a document need not start at 0.
        """
        k = document.shape[1]
        place = torch.arange(k, device=document.device, dtype=torch.float32)
        angles = place.unsqueeze(1) * place.new_tensor(self.frequencies)
        turn = torch.stack([angles.cos(), angles.sin()], -1)[None, :, None]
        if (document == document[:, :1]).all():
            return (View(turn, k, causal=True),)
        same = document.unsqueeze(1) == document.unsqueeze(2)
        before = torch.ones(k, k, dtype=torch.bool, device=document.device).tril()
        return (View(turn, k, (same & before).unsqueeze(1)),)
