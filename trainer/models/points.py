"""What attention sees of a point cloud: windows along a space-filling curve.

Points are sorted along a Morton curve, so that a window of consecutive rows is a patch of the cloud, and
attention stays inside windows: the cost is linear in the number of points. Every second block works along
a second curve whose windows have other borders, so that what one block separates the next one joins
(OctFormer, Wang 2023; Point Transformer V3, Wu et al. 2024). Where a point lies enters attention only as a
rotation of queries and keys (RoFormer, Su et al. 2021), here by x, y and z: attention then depends on the
difference of two positions, not on where the cloud stands.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn import functional

from ..model_settings import CurveSettings
from .trunk import View, take


class CurveSight(nn.Module):
    """Windows along two curves."""

    def __init__(self, settings: CurveSettings) -> None:
        super().__init__()
        self.window = settings.window
        self.rotary = Rotary(settings.width // settings.heads, settings.wavelengths)

    def forward(self, xyz: Tensor, transposed: Tensor, mask: Tensor | None = None) -> tuple[View, View]:
        """The views along both curves, of rows sorted along the first.

        ``xyz`` float32 (b, k, 3); ``transposed`` int64 (b, k), the rows in the order of the second curve;
        ``mask`` bool (b, k), False for padding rows, which no other row looks at; None says that every row
        is valid. k is a multiple of the window.
        """
        second = None if mask is None else mask.gather(1, transposed)
        return (
            self._along(xyz, mask),
            self._along(take(xyz, transposed), second)._replace(order=transposed, back=_inverse(transposed)),
        )

    def _along(self, xyz: Tensor, mask: Tensor | None) -> View:
        turn = self.rotary(xyz).unsqueeze(2)  # the same for all heads
        if mask is None:
            return View(turn, self.window)
        keys = mask.reshape(-1, 1, 1, self.window)
        # A row always sees itself, or a window of nothing but padding would divide 0 by 0.
        itself = torch.eye(self.window, dtype=torch.bool, device=mask.device)
        return View(turn, self.window, keys | itself)


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
        """Cosine and sine, float32 (b, k, head width / 2, 2), of the turn at positions float32 (b, k, 3)."""
        angles = (xyz.unsqueeze(-1) * xyz.new_tensor(self.frequencies)).flatten(-2)
        angles = functional.pad(angles, (0, self.left))
        return torch.stack([angles.cos(), angles.sin()], -1)


class MeanPool(nn.Module):
    """The mean of a cloud's valid rows."""

    def forward(self, x: Tensor, mask: Tensor | None = None, **_: Tensor) -> Tensor:
        """Rows float32 (b, k, width) to (b, width); 0 for a cloud without a valid row."""
        if mask is None:
            return x.mean(1)
        valid = mask.unsqueeze(-1)
        # Not x * mask: a padding row may hold anything, infinities too.
        return torch.where(valid, x, 0.0).sum(1) / valid.sum(1).clamp(min=1)


def _inverse(order: Tensor) -> Tensor:
    places = torch.arange(order.shape[1], device=order.device).expand_as(order)
    # Not empty: a place without a cloud has an order of zeros, and then most places are not written.
    return torch.zeros_like(order).scatter_(1, order, places)
