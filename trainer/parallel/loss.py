"""Cross entropy of scores whose classes are split among tensor-parallel ranks."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.autograd import Function
from torch.nn import functional

from ...errors import UsageError
from .rows import ALL, Rows


def cross_entropy(scores: Tensor, labels: Tensor, classes: int, ignored: int, rows: Rows = ALL) -> Tensor:
    """Cross entropy summed over the rows whose label is not ``ignored``: float32 (), the same on every rank.

    ``scores``: float32 (n, this rank's share of the classes), the shares in the order of the ranks, perhaps
    filled up beyond ``classes``; ``labels``: int64 (n,), of all classes. The whole scores are never in one
    place: ranks exchange a maximum, a sum and the score of the label for each row (Shoeybi et al. 2019).
    Raises UsageError where ``scores`` are not this rank's share, as with scores that were gathered before.
    """
    each = rows.filled(classes) // rows.size
    if scores.shape[-1] != each:
        cause = f"{scores.shape[-1]} scores a row, where a rank's share of {classes} classes is {each}"
        raise UsageError("the loss", cause, "give each tensor-parallel rank the scores of its own classes")
    if rows.size == 1:
        alone: Tensor = functional.cross_entropy(scores, labels, ignore_index=ignored, reduction="sum")
        return alone
    found: Tensor = _SplitCrossEntropy.apply(scores, labels, classes, ignored, rows)
    return found


class _SplitCrossEntropy(Function):
    @staticmethod
    def forward(
        context: Any, scores: Tensor, labels: Tensor, classes: int, ignored: int, rows: Rows
    ) -> Tensor:
        each = scores.shape[-1]
        first = rows.index * each
        filled = min(each, max(0, first + each - classes))  # so many at this rank's end are no classes
        if filled:
            scores = scores.clone()
            scores[:, each - filled :] = -torch.inf

        highest = scores.amax(-1) if each > filled else torch.full_like(scores[:, 0], -torch.inf)
        dist.all_reduce(highest, dist.ReduceOp.MAX, group=rows.group)
        powers = (scores - highest.unsqueeze(-1)).exp()

        counts = labels != ignored
        mine = counts & (labels >= first) & (labels < first + each)
        place = torch.where(mine, labels - first, 0).unsqueeze(-1)
        wanted = torch.where(mine, scores.gather(-1, place).squeeze(-1) - highest, 0.0)
        sums = torch.stack([powers.sum(-1), wanted])
        dist.all_reduce(sums, group=rows.group)
        total, wanted = sums

        context.save_for_backward(powers.div_(total.unsqueeze(-1)), place, mine, counts)
        return torch.where(counts, total.log() - wanted, 0.0).sum()

    @staticmethod
    def backward(context: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        shares, place, mine, counts = context.saved_tensors
        slopes = shares.clone()
        slopes.scatter_add_(-1, place, -mine.to(slopes.dtype).unsqueeze(-1))
        slopes *= (counts.to(slopes.dtype) * gradient).unsqueeze(-1)
        return slopes, None, None, None, None
