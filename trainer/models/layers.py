"""Layers whose parameters may be split among tensor-parallel ranks.

A split parameter is a DTensor, which says how it lies on the ranks, so that gradient norms and checkpoints
need no other record. The arithmetic is done on what is here, on plain tensors: where something must move is
written out in the modules that move it (see `rows.Rows`).
"""

from __future__ import annotations

from torch import Tensor, nn
from torch.distributed.tensor import DTensor, Partial
from torch.nn import functional

from ..parallel.rows import ALL, Rows
from ..precision import fp8


def here(parameter: Tensor) -> Tensor:
    """What this rank holds of a parameter.

    A replicated one is used on this rank's rows alone, so its gradient is one summand of the whole one.
    """
    if not isinstance(parameter, DTensor):
        return parameter
    summand = [Partial() if p.is_replicate() else p for p in parameter.placements]
    return parameter.to_local(grad_placements=summand)


class Linear(nn.Linear):
    """A linear layer, or this rank's columns of one. ``fp8``: by 8-bit products, see `fp8.linear`."""

    fp8 = False

    def forward(self, x: Tensor) -> Tensor:
        """(..., in) to (..., out here)."""
        multiply = fp8.linear if self.fp8 else functional.linear
        return multiply(x, here(self.weight), None if self.bias is None else here(self.bias))


class SummedLinear(nn.Linear):
    """A linear layer whose input is split among the ranks; gives this rank's share of the rows.

    ``fp8``: as in `Linear`.
    """

    fp8 = False

    def __init__(self, width: int, out: int, rows: Rows) -> None:
        super().__init__(width, out)
        self.rows = rows

    def forward(self, x: Tensor) -> Tensor:
        """(b, k, in / tp) to (b, k / tp, out)."""
        multiply = fp8.linear if self.fp8 else functional.linear
        if self.rows.size == 1:
            return multiply(x, self.weight, self.bias)
        # Summands of several ranks are added up in fp32, whatever the product was computed in.
        return self.rows.scattered(multiply(x, here(self.weight), None).float()) + here(self.bias)


class Norm(nn.LayerNorm):
    """Layer normalisation of this rank's rows."""

    def forward(self, x: Tensor) -> Tensor:
        """(b, k / tp, width), the same out."""
        return functional.layer_norm(x, self.normalized_shape, here(self.weight), here(self.bias), self.eps)


class Mlp(nn.Module):
    """A two-layer perceptron on all rows, with this rank's share of the rows as the result."""

    def __init__(self, width: int, hidden: int, out: int, rows: Rows) -> None:
        super().__init__()
        self.up = Linear(width, hidden)
        self.act = nn.GELU()
        self.down = SummedLinear(hidden, out, rows)

    def forward(self, x: Tensor) -> Tensor:
        """(b, k, width) to (b, k / tp, out)."""
        y: Tensor = self.down(self.act(self.up(x)))
        return y


class Embedding(nn.Embedding):
    """A table of vectors, of which this rank holds some; gives this rank's share of the rows.

    A rank looks up what it holds and gives zeros for the rest, so that the sum over ranks is the answer
    (Shoeybi et al. 2019). No index is that of an entry that only fills up the table.
    """

    def __init__(self, entries: int, width: int, rows: Rows = ALL) -> None:
        super().__init__(entries, width)
        padded = rows.filled(entries)
        self.rows, self.num_embeddings = rows, padded
        if padded > entries:
            self.weight = nn.Parameter(functional.pad(self.weight.detach(), (0, 0, 0, padded - entries)))

    def forward(self, index: Tensor) -> Tensor:
        """Indices int64 (b, k) to float32 (b, k / tp, width)."""
        if self.rows.size == 1:
            return functional.embedding(index, self.weight)
        first, stop = self.rows.part(self.num_embeddings)
        mine = (index >= first) & (index < stop)
        found = functional.embedding((index - first) * mine, here(self.weight))
        return self.rows.scattered(found * mine.unsqueeze(-1))
