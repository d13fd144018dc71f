"""Rows shared among tensor-parallel ranks, and the two collectives that move them.

Between the matrices each rank holds its share of the rows of every sequence (sequence parallelism,
Korthikanti et al. 2022), so norms and residual sums are neither computed nor stored twice. Before a matrix
that is split by columns the rows are gathered; after one that is split by rows, where each rank holds one
summand of every row, they are added up and shared out again. Backward, each of the two is the other.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch.distributed as dist
from torch import Tensor
from torch.autograd import Function


@dataclass(frozen=True)
class Rows:
    """How the rows of one replica lie on its tensor-parallel ranks. With one rank nothing moves.

    ``group``: the ranks along the axis ``tp``; ``size``: how many; ``index``: which one this is.
    """

    group: dist.ProcessGroup | None = None
    size: int = 1
    index: int = 0

    def gathered(self, x: Tensor) -> Tensor:
        """All rows (b, k, ...) on every rank, of each rank's share (b, k / size, ...)."""
        return x if self.size == 1 else _Gather.apply(x, self)

    def scattered(self, x: Tensor) -> Tensor:
        """This rank's share (b, k / size, ...) of the sum over ranks of x (b, k, ...)."""
        return x if self.size == 1 else _Scatter.apply(x, self)

    def filled(self, width: int) -> int:
        """``width`` filled up to what the ranks share out evenly."""
        return -(-width // self.size) * self.size

    def part(self, width: int) -> tuple[int, int]:
        """First and last + 1 of this rank's share of ``width`` rows or columns."""
        each = width // self.size
        return self.index * each, (self.index + 1) * each


ALL = Rows()
"""Every row is here."""


class _Gather(Function):
    @staticmethod
    def forward(context: Any, x: Tensor, rows: Rows) -> Tensor:
        context.rows = rows
        return _gather(x, rows)

    @staticmethod
    def backward(context: Any, gradient: Tensor) -> tuple[Tensor, None]:
        return _scatter(gradient, context.rows), None


class _Scatter(Function):
    @staticmethod
    def forward(context: Any, x: Tensor, rows: Rows) -> Tensor:
        context.rows = rows
        return _scatter(x, rows)

    @staticmethod
    def backward(context: Any, gradient: Tensor) -> tuple[Tensor, None]:
        return _gather(gradient, context.rows), None


def _gather(x: Tensor, rows: Rows) -> Tensor:
    # Collectives join along the first dimension, rows are the second one.
    joined = x.new_empty(rows.size * x.shape[0], *x.shape[1:])
    dist.all_gather_into_tensor(joined, x.contiguous(), group=rows.group)
    return joined.view(rows.size, -1, *x.shape[1:]).movedim(0, 1).flatten(1, 2)


def _scatter(x: Tensor, rows: Rows) -> Tensor:
    shares = x.reshape(len(x), rows.size, -1, *x.shape[2:]).movedim(1, 0).flatten(0, 1)
    own = x.new_empty(x.shape[0], x.shape[1] // rows.size, *x.shape[2:])
    dist.reduce_scatter_tensor(own, shares.contiguous(), group=rows.group)
    return own
