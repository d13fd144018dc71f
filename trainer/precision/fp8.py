"""Linear layers by 8-bit floating-point products: e4m3 forward, e5m2 for gradients."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function
from torch.nn import functional

from ...errors import UsageError

FORWARD, BACKWARD = torch.float8_e4m3fn, torch.float8_e5m2
"""Three bits of mantissa for what is multiplied, two, and a wider range, for gradients."""

_MULTIPLE = 16  # of each size of a product, on tensor cores
_CAPABILITY = (8, 9)


def check(device: torch.device) -> None:
    """Raise UsageError where a GPU has no 8-bit products. A CPU computes them, slowly."""
    if device.type == "cuda" and (found := torch.cuda.get_device_capability(device)) < _CAPABILITY:
        cause = f"fp8 needs a GPU of compute capability 8.9 or more, this one has {found[0]}.{found[1]}"
        raise UsageError("trainer.precision", cause, "take bf16")


def linear(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """``x`` (..., in) times the transpose of ``weight`` (out, in), plus ``bias``: bfloat16 (..., out).

    Factors are scaled so that their largest element is the format's largest number, one scale a tensor,
    as it is at the time (Micikevicius et al. 2022). Products whose sizes are not multiples of 16 are of
    bfloat16 factors.
    """
    rows = x.reshape(-1, x.shape[-1])
    if any(size % _MULTIPLE for size in (*rows.shape, *weight.shape)):
        with torch.autocast(x.device.type, torch.bfloat16):
            return functional.linear(x, weight, bias)
    product: Tensor = _Product.apply(rows, weight)
    y = product.view(*x.shape[:-1], -1)
    return y if bias is None else y + bias.to(y.dtype)


def quantised(x: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """``x`` / scale in an 8-bit type, and the scale, float32 (). What is not finite makes all of it NaN."""
    scale = x.abs().amax().float() / torch.finfo(dtype).max
    scale = scale.clamp(min=torch.finfo(torch.float32).tiny)
    return (x.float() / scale).to(dtype), scale


class _Product(Function):
    @staticmethod
    def forward(context: Any, x: Tensor, weight: Tensor) -> Tensor:
        x8, x_scale = quantised(x, FORWARD)
        w8, w_scale = quantised(weight, FORWARD)
        context.save_for_backward(x8, x_scale, w8, w_scale)
        context.dtypes = x.dtype, weight.dtype
        return _times(x8, w8.t(), x_scale, w_scale, torch.bfloat16)

    @staticmethod
    def backward(context: Any, gradient: Tensor) -> tuple[Tensor, Tensor]:
        x8, x_scale, w8, w_scale = context.saved_tensors
        g8, g_scale = quantised(gradient, BACKWARD)
        x_type, w_type = context.dtypes
        # The second factor of a product lies by columns.
        by_x = _times(g8, _by_columns(w8), g_scale, w_scale, torch.bfloat16)
        by_w = _times(g8.t().contiguous(), _by_columns(x8), g_scale, x_scale, torch.bfloat16)
        return by_x.to(x_type), by_w.to(w_type)


def _times(a: Tensor, b: Tensor, a_scale: Tensor, b_scale: Tensor, out: torch.dtype) -> Tensor:
    product: Tensor = torch._scaled_mm(a, b, scale_a=a_scale, scale_b=b_scale, out_dtype=out)
    return product


def _by_columns(x: Tensor) -> Tensor:
    return x.t().contiguous().t()
