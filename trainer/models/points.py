"""A transformer for point clouds: attention in windows along a space-filling curve.

Points are sorted along a Morton curve, so that a window of consecutive rows is a patch of the cloud, and
attention stays inside windows: the cost is linear in the number of points. Every second block works along
a second curve whose windows have other borders, so that what one block separates the next one joins
(OctFormer, Wang 2023; Point Transformer V3, Wu et al. 2024). Where a point lies enters attention only as a
rotation of queries and keys (RoFormer, Su et al. 2021), here by x, y and z: attention then depends on the
difference of two positions, not on where the cloud stands.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional

from ..settings import ModelSettings


class Curve(NamedTuple):
    """What attention needs to know of the rows, in the order of one curve."""

    turn: Tensor  # complex64 (b, k, 1, head width / 2): by what each pair of channels is rotated
    seen: Tensor | None  # bool (b * k / window, 1, window, window): may row i look at row j? None: always


class PointTransformer(nn.Module):
    """Pre-norm transformer blocks over windows of points, and a linear head for each point.

    ``features``: width of the input rows; ``classes``: width of the output rows.
    """

    def __init__(self, settings: ModelSettings, features: int, classes: int) -> None:
        super().__init__()
        width = settings.width
        self.window = settings.window
        self.embed = nn.Sequential(nn.Linear(features, width), nn.GELU(), nn.Linear(width, width))
        self.rotary = Rotary(width // settings.heads, settings.wavelengths)
        self.blocks = nn.ModuleList(Block(settings) for _ in range(settings.depth))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, classes)

    def forward(
        self, xyz: Tensor, features: Tensor, transposed: Tensor, mask: Tensor | None = None
    ) -> Tensor:
        """Scores, float32 (b, k, classes), of rows sorted along the first curve.

        ``xyz`` float32 (b, k, 3); ``features`` float32 (b, k, f); ``transposed`` int64 (b, k), the rows in
        the order of the second curve; ``mask`` bool (b, k), False for padding rows, which no other row
        looks at; None says that every row is valid. k is a multiple of the window.
        """
        first = self._along(xyz, mask)
        second = self._along(_take(xyz, transposed), None if mask is None else mask.gather(1, transposed))
        back = _inverse(transposed)
        x = self.embed(features)
        for i, block in enumerate(self.blocks):
            if i % 2 == 0:
                x = block(x, first)
            else:
                x = _take(block(_take(x, transposed), second), back)
        scores: Tensor = self.head(self.norm(x))
        return scores

    def _along(self, xyz: Tensor, mask: Tensor | None) -> Curve:
        turn = self.rotary(xyz).unsqueeze(2)  # the same for all heads
        if mask is None:
            return Curve(turn, None)
        keys = mask.reshape(-1, 1, 1, self.window)
        # A row always sees itself, or a window of nothing but padding would divide 0 by 0.
        itself = torch.eye(self.window, dtype=torch.bool, device=mask.device)
        return Curve(turn, keys | itself)


class Rotary(nn.Module):
    """Angles by which a position turns pairs of channels: a third of the pairs for each coordinate.

    Their wavelengths are spaced evenly on a log scale; pairs that three does not divide do not turn.
    """

    def __init__(self, head_width: int, wavelengths: tuple[float, float]) -> None:
        super().__init__()
        each, self.left = divmod(head_width // 2, 3)
        short, long = (math.log(length) for length in wavelengths)
        steps = [i / max(each - 1, 1) for i in range(each)]
        self.frequencies = [2 * math.pi / math.exp(short + (long - short) * step) for step in steps]

    def forward(self, xyz: Tensor) -> Tensor:
        """Rotations, complex64 (b, k, head width / 2) of size 1, of positions float32 (b, k, 3)."""
        angles = (xyz.unsqueeze(-1) * xyz.new_tensor(self.frequencies)).flatten(-2)
        angles = functional.pad(angles, (0, self.left))
        return torch.polar(torch.ones_like(angles), angles)


class Block(nn.Module):
    """Attention in windows, then a two-layer perceptron; each reads a normed copy and adds its result."""

    def __init__(self, settings: ModelSettings) -> None:
        super().__init__()
        width, hidden = settings.width, settings.mlp_ratio * settings.width
        self.attention_norm = nn.LayerNorm(width)
        self.attention = WindowAttention(width, settings.heads, settings.window)
        self.mlp_norm = nn.LayerNorm(width)
        self.mlp = nn.Sequential(nn.Linear(width, hidden), nn.GELU(), nn.Linear(hidden, width))

    def forward(self, x: Tensor, curve: Curve) -> Tensor:
        """Rows in, rows out, float32 (b, k, width), in the order of ``curve``."""
        x = x + self.attention(self.attention_norm(x), curve)
        y: Tensor = x + self.mlp(self.mlp_norm(x))
        return y


class WindowAttention(nn.Module):
    """Multi-head attention among the rows of each window."""

    def __init__(self, width: int, heads: int, window: int) -> None:
        super().__init__()
        self.heads, self.window = heads, window
        self.query = nn.Linear(width, width)
        self.key = nn.Linear(width, width)
        self.value = nn.Linear(width, width)
        self.out = nn.Linear(width, width)

    def forward(self, x: Tensor, curve: Curve) -> Tensor:
        """Rows in, rows out, float32 (b, k, width)."""
        heads = (self.heads, x.shape[-1] // self.heads)
        q, k = (_turned(linear(x).unflatten(-1, heads), curve.turn) for linear in (self.query, self.key))
        v = self.value(x).unflatten(-1, heads)
        q, k, v = (t.view(-1, self.window, *t.shape[2:]).transpose(1, 2) for t in (q, k, v))
        y = functional.scaled_dot_product_attention(q, k, v, attn_mask=curve.seen)
        rows: Tensor = self.out(y.transpose(1, 2).reshape(x.shape))
        return rows


def _turned(x: Tensor, turn: Tensor) -> Tensor:
    """Rotate each pair of neighbouring channels: a product of complex numbers."""
    pairs = torch.view_as_complex(x.reshape(*x.shape[:-1], -1, 2))
    return torch.view_as_real(pairs * turn).flatten(-2)


def _take(rows: Tensor, order: Tensor) -> Tensor:
    return rows.gather(1, order.unsqueeze(-1).expand(-1, -1, rows.shape[-1]))


def _inverse(order: Tensor) -> Tensor:
    places = torch.arange(order.shape[1], device=order.device).expand_as(order)
    return torch.empty_like(order).scatter_(1, order, places)
