"""The transformer that every task shares, and the parts that pipeline ranks hold of it.

Pre-norm blocks of attention and a perceptron; each reads a normed copy and adds its result. What a row may
look at, and how its position turns queries and keys, comes from the task's `Sight`; all else is the same for
points and tokens.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional

from ..model_settings import TrunkSettings
from ..parallel.rows import Rows
from .layers import Linear, Mlp, Norm, SummedLinear


class View(NamedTuple):
    """What attention sees of the rows, in one order.

    ``turn``: float32 (b, k, 1, head width / 2, 2), cosine and sine of each pair's turn (RoFormer,
    Su et al. 2021). ``window``: attention stays in windows of so many rows; ``seen``: bool (b * k / window,
    1, window or 1, window), may row i look at row j? None: always, or with ``causal`` where j <= i.
    ``order`` and ``back``: int64 (b, k), the rows in this order, and how to undo it; None: as they come.
    """

    turn: Tensor
    window: int
    seen: Tensor | None = None
    causal: bool = False
    order: Tensor | None = None
    back: Tensor | None = None


class Part(NamedTuple):
    """What a pipeline stage holds of the trunk: some blocks, and perhaps the embedding or the head."""

    blocks: range
    first: bool = True
    last: bool = True


class Makers(NamedTuple):
    """The modules that differ between tasks.

    ``embedding``: input to rows float32 (b, k / tp, width); ``sight``: keyword inputs to views, the first
    for block 0, the second for block 1, and round again; ``pool``: rows (b, k, width) and keyword inputs to
    what the head reads, None: each row; ``outputs``: width of the head.
    """

    embedding: Callable[[Rows], nn.Module]
    sight: Callable[[], nn.Module]
    pool: Callable[[], nn.Module] | None
    outputs: int


class Trunk(nn.Module):
    """A part of the transformer: all of it, or a pipeline stage.

    ``run``: how a block is run; ``within``: in what a layer is, "embed", "blocks.N" or "head" (the last norm
    and the pool with it). What goes from layer to layer is float32 whatever they compute in.
    """

    def __init__(
        self,
        sight: nn.Module,
        blocks: Mapping[int, nn.Module],
        rows: Rows,
        embed: nn.Module | None = None,
        norm: nn.Module | None = None,
        pool: nn.Module | None = None,
        head: nn.Module | None = None,
    ) -> None:
        super().__init__()
        self.sight, self.rows = sight, rows
        self.embed = embed
        self.blocks = nn.ModuleDict({str(i): block for i, block in blocks.items()})
        self.norm, self.pool, self.head = norm, pool, head
        self.run: Callable[[nn.Module, Tensor, View], Tensor] = _plainly
        self.within: Callable[[str], AbstractContextManager[object]] = nullcontext

    def forward(self, x: Tensor, **inputs: Tensor) -> Tensor:
        """Input of the first stage, or rows (b, k / tp, width), to rows or, at the end, to the head's scores.

        Scores are float32 (b, k, outputs / tp), or (b, outputs / tp) where rows are pooled.
        """
        views: Sequence[View] = self.sight(**inputs)
        if self.embed is not None:
            with self.within("embed"):
                x = self.embed(x).float()
        for name, block in self.blocks.items():
            with self.within(f"blocks.{name}"):
                x = self.run(block, x, views[int(name) % len(views)])
        if self.head is not None and self.norm is not None:
            with self.within("head"):
                x = self.rows.gathered(self.norm(x))
                if self.pool is not None:
                    x = self.pool(x, **inputs)
                x = self.head(x).float()
        return x

    def part(self, part: Part) -> Trunk:
        """A stage that shares its modules with this trunk."""
        stage = Trunk(
            self.sight,
            {i: self.blocks[str(i)] for i in part.blocks},
            self.rows,
            self.embed if part.first else None,
            self.norm if part.last else None,
            self.pool if part.last else None,
            self.head if part.last else None,
        )
        stage.run, stage.within = self.run, self.within
        return stage


def _plainly(block: nn.Module, x: Tensor, view: View) -> Tensor:
    y: Tensor = block(x, view)
    return y


def new_trunk(
    settings: TrunkSettings,
    makers: Makers,
    rows: Rows,
    parts: Iterable[Part],
    reseed: Callable[[str], None],
    finish: Callable[[nn.Module, str], None] | None = None,
) -> Trunk:
    """A trunk with the named parts only.

    ``reseed`` is called with a module's name before it is made, so that its parameters do not depend on what
    else is made here; ``finish`` when it is made, before the next one, so that a rank that keeps a share of
    each holds one of them whole at a time.
    """

    def made(name: str, make: Callable[[], nn.Module]) -> nn.Module:
        reseed(name)
        module = make()
        if finish:
            finish(module, name)
        return module

    parts = tuple(parts)
    first, last = any(part.first for part in parts), any(part.last for part in parts)
    blocks = sorted(i for part in parts for i in part.blocks)
    return Trunk(
        makers.sight(),
        {i: made(f"blocks.{i}", lambda: Block(settings, rows)) for i in blocks},
        rows,
        made("embed", lambda: makers.embedding(rows)) if first else None,
        made("norm", lambda: Norm(settings.width)) if last else None,
        makers.pool() if last and makers.pool else None,
        made("head", lambda: Head(settings.width, makers.outputs, rows)) if last else None,
    )


class Block(nn.Module):
    """Attention, then a two-layer perceptron; each reads a normed copy and adds its result."""

    def __init__(self, settings: TrunkSettings, rows: Rows) -> None:
        super().__init__()
        width = settings.width
        self.rows = rows
        self.attention_norm = Norm(width)
        self.attention = Attention(width, settings.heads, rows)
        self.mlp_norm = Norm(width)
        self.mlp = Mlp(width, settings.mlp_ratio * width, width, rows)

    def forward(self, x: Tensor, view: View) -> Tensor:
        """Rows in, rows out, float32 (b, k / tp, width)."""
        x = x + self.attention(self.rows.gathered(self.attention_norm(x)), view)
        y: Tensor = x + self.mlp(self.rows.gathered(self.mlp_norm(x)))
        return y


class Attention(nn.Module):
    """Multi-head attention among the rows of each window, with this rank's share of the heads."""

    def __init__(self, width: int, heads: int, rows: Rows) -> None:
        super().__init__()
        self.head_width = width // heads
        self.query = Linear(width, width)
        self.key = Linear(width, width)
        self.value = Linear(width, width)
        self.out = SummedLinear(width, width, rows)

    def forward(self, x: Tensor, view: View) -> Tensor:
        """All rows float32 (b, k, width) to this rank's share of the result, (b, k / tp, width)."""
        if view.order is not None:
            x = take(x, view.order)
        each = (-1, self.head_width)
        q, k = (_turned(linear(x).unflatten(-1, each), view.turn) for linear in (self.query, self.key))
        v = self.value(x).unflatten(-1, each)
        q, k, v = (t.reshape(-1, view.window, *t.shape[2:]).transpose(1, 2) for t in (q, k, v))
        y = functional.scaled_dot_product_attention(
            q, k, v, attn_mask=view.seen, is_causal=view.causal and view.seen is None
        )
        y = y.transpose(1, 2).reshape(*x.shape[:2], -1)
        if view.back is not None:
            y = take(y, view.back)
        rows: Tensor = self.out(y)
        return rows


class Head(Linear):
    """Scores of each class, and of what fills these up so that tensor-parallel ranks have as many each.

    The loss never looks at the latter, so their gradient is zero.
    """

    def __init__(self, width: int, classes: int, rows: Rows) -> None:
        super().__init__(width, classes)
        padded = rows.filled(classes)
        if padded > classes:
            fill = (0, padded - classes)
            self.weight = nn.Parameter(functional.pad(self.weight.detach(), (0, 0, *fill)))
            self.bias = nn.Parameter(functional.pad(self.bias.detach(), fill))
            self.out_features = padded


def _turned(x: Tensor, turn: Tensor) -> Tensor:
    """Rotate each pair of neighbouring channels, in float32: a product of complex numbers."""
    pairs = x.float().reshape(*x.shape[:-1], -1, 2)
    if torch.compiler.is_compiling():  # the compiler has no complex numbers; without it they are faster
        (a, b), (cos, sin) = pairs.unbind(-1), turn.unbind(-1)
        return torch.stack([a * cos - b * sin, a * sin + b * cos], -1).flatten(-2)
    return torch.view_as_real(torch.view_as_complex(pairs) * torch.view_as_complex(turn)).flatten(-2)


def take(rows: Tensor, order: Tensor) -> Tensor:
    """Rows (b, k, w) in another order, int64 (b, k)."""
    return rows.gather(1, order.unsqueeze(-1).expand(-1, -1, rows.shape[-1]))
