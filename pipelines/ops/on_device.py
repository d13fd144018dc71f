"""The operators over torch tensors on any device, for a whole batch: ``function(clouds, calls) -> clouds``.

They draw by the same hashes as those of `geometry` and `rows`, and do the same arithmetic in the same order,
a torch call an operation, so that nothing is fused: for float32 and float64 the bits are the same, but for
`normalise`, whose sum may be taken in another order: its results differ by at most 2^-22. There is no voxel.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from ...errors import UsageError
from ...samplers import draw
from ...samplers.fields import Kind
from .call import Call
from .geometry import FACTORS, turn
from .normal import from_tail
from .settings import FarthestSettings, JitterSettings, NormaliseSettings, RandomSettings, RotateSettings

if TYPE_CHECKING:
    import torch

    Tensor = torch.Tensor

Cloud = dict[str, Any]
"""Columns of a cloud as tensors, with one row a point."""

_OVERFLOW = 3e38


def rotate(clouds: list[Cloud], calls: Sequence[Call[RotateSettings]]) -> list[Cloud]:
    """See `geometry.rotate`."""

    def turned(values: Tensor, call: Call[RotateSettings]) -> Tensor:
        cosine, sine, a, b = turn(call)
        out = values.clone()
        out[:, a] = values[:, a] * float(cosine) - values[:, b] * float(sine)
        out[:, b] = values[:, a] * float(sine) + values[:, b] * float(cosine)
        return out

    return _moved(clouds, calls, ("point", "vector"), turned)


def multiply(clouds: list[Cloud], calls: Sequence[Call[Any]]) -> list[Cloud]:
    """See `geometry.flip` and `geometry.scale`."""
    if not calls:
        return clouds
    by = FACTORS[calls[0].settings.kind]

    def multiplied(values: Tensor, call: Call[Any]) -> Tensor:
        out = values.clone()
        for axis, factor in enumerate(by.of(call).tolist()):
            out[:, axis] *= factor
        return out

    return _moved(clouds, calls, by.moving, multiplied)


def jitter(clouds: list[Cloud], calls: Sequence[Call[JitterSettings]]) -> list[Cloud]:
    """See `geometry.jitter`."""
    import torch

    def noisy(values: Tensor, call: Call[JitterSettings]) -> Tensor:
        words = hashes(call.key, values.numel(), values.device)
        tail = (_shifted(words, 12) + 1).double()
        noise = from_tail(tail, (words & 1) == 1, torch).reshape(values.shape) * call.settings.sigma
        if call.settings.clip is not None:
            noise = noise.clamp(-call.settings.clip, call.settings.clip)
        moved: Tensor = values + noise.to(values.dtype)
        return moved

    return _moved(clouds, calls, ("point",), noisy)


def normalise(clouds: list[Cloud], calls: Sequence[Call[NormaliseSettings]]) -> list[Cloud]:
    """See `geometry.normalise`. It does not wait for the device."""
    import torch

    def normal_form(values: Tensor, _call: Call[NormaliseSettings]) -> Tensor:
        if not len(values):
            return values
        wide = values.double()
        finite = torch.isfinite(wide).all(dim=1, keepdim=True)
        count = finite.sum()
        centre = torch.where(finite, wide, 0.0).sum(dim=0) / count
        moved = wide - centre
        squares = torch.where(finite, moved * moved, 0.0)
        reach = torch.sqrt((squares[:, 0] + squares[:, 1] + squares[:, 2]).max())
        moved = moved / torch.where(reach > 0, reach, 1.0)
        return torch.where(count > 0, moved, wide).to(values.dtype)

    return _moved(clouds, calls, ("point",), normal_form)


def choose_random(clouds: list[Cloud], calls: Sequence[Call[RandomSettings]]) -> list[Cloud]:
    """See `rows.choose_random`."""
    return [_chosen(c, _random_rows(c, call)) for c, call in zip(clouds, calls, strict=True)]


def _random_rows(cloud: Cloud, call: Call[RandomSettings]) -> Tensor:
    import torch

    values = next(iter(cloud.values()))
    words = hashes(draw.key("random", call.key, 0), len(values), values.device)
    # As if unsigned: with the sign bit turned the order is the same. No two are equal.
    return torch.argsort(words ^ _signed(1 << 63))[: call.k]


def choose_farthest(clouds: list[Cloud], calls: Sequence[Call[FarthestSettings]]) -> list[Cloud]:
    """See `rows.choose_farthest`: by brute force in float32, a pick of all clouds at a time.

    Raises UsageError where a coordinate is not finite, or squared distances overflow float32.
    """
    rows = farthest_rows([cloud["xyz"] for cloud in clouds], [call.k for call in calls])
    return [_chosen(cloud, own) for cloud, own in zip(clouds, rows, strict=True)]


def farthest_rows(xyz: Sequence[Tensor], k: Sequence[int | None]) -> list[Tensor]:
    """int64 (min(k, n),) for each cloud (n, 3), from row 0 on; the lowest row wins a tie."""
    import torch

    sizes = [len(points) for points in xyz]
    counts = [n if limit is None else min(limit, n) for n, limit in zip(sizes, k, strict=True)]
    if not any(counts):
        return [torch.empty(0, dtype=torch.int64, device=points.device) for points in xyz]
    shape, device = (len(xyz), max(sizes)), xyz[0].device
    points = torch.zeros((*shape, 3), dtype=torch.float32, device=device)
    left = torch.full(shape, -1.0, dtype=torch.float32, device=device)  # less than any distance: picked
    for i, own in enumerate(xyz):
        points[i, : sizes[i]] = own - own[:1] if own.dtype == torch.float64 else own
        left[i, : sizes[i]] = torch.inf
    extent = (points.amax(dim=1) - points.amin(dim=1)).double()
    if not bool(((extent * extent).sum(dim=1) < _OVERFLOW).all()):
        cause = "coordinates are not finite, or so far apart that squared distances overflow float32"
        raise UsageError("farthest", cause, "drop those rows before they come to the device")
    clouds = torch.arange(len(xyz), device=device)
    picked = torch.zeros((len(xyz), max(counts)), dtype=torch.int64, device=device)
    x, y, z = points.unbind(dim=2)
    for step in range(max(counts)):
        row = picked[:, step]
        left[clouds, row] = -1.0
        last = points[clouds, row, :, None]
        dx, dy, dz = x - last[:, 0], y - last[:, 1], z - last[:, 2]
        left = torch.minimum(left, dx * dx + dy * dy + dz * dz)
        if step + 1 < max(counts):
            picked[:, step + 1] = left.argmax(dim=1)  # the first of several
    return [own[:count] for own, count in zip(picked, counts, strict=True)]


def hashes(key: int, n: int, device: torch.device) -> Tensor:
    """`draw.hashes` as int64 (n,), the same 64 bits."""
    import torch

    golden, first, second = map(_signed, draw.CONSTANTS)
    word = torch.arange(1, n + 1, device=device) * golden + _signed(key)
    word = (word ^ _shifted(word, 30)) * first
    word = (word ^ _shifted(word, 27)) * second
    return word ^ _shifted(word, 31)


def _shifted(word: Tensor, bits: int) -> Tensor:
    """A shift to the right that brings zeros in."""
    return (word >> bits) & ((1 << (64 - bits)) - 1)


def _signed(word: int) -> int:
    word &= (1 << 64) - 1
    return word - (1 << 64) if word >> 63 else word


def _chosen(cloud: Cloud, rows: Tensor) -> Cloud:
    return {name: values[rows] for name, values in cloud.items()}


def _moved(
    clouds: list[Cloud],
    calls: Sequence[Call[Any]],
    moving: tuple[Kind, ...],
    move: Callable[[Tensor, Call[Any]], Tensor],
) -> list[Cloud]:
    return [
        {name: move(values, call) if call.kinds[name] in moving else values for name, values in cloud.items()}
        for cloud, call in zip(clouds, calls, strict=True)
    ]
