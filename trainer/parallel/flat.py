"""Sums of many tensors over ranks, in few collectives."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
import torch.distributed as dist
from torch import Tensor

BUCKET = 25 << 20
"""Bytes that are sent at once: enough to fill a link, little enough to be copied beside the gradients."""


def all_reduced(tensors: Sequence[Tensor], group: dist.ProcessGroup) -> None:
    """Add up tensors over the ranks of a group, in place."""
    for bucket in _buckets(tensors):
        flat = torch.cat([t.reshape(-1) for t in bucket])
        dist.all_reduce(flat, group=group)
        sums = torch.split(flat, [t.numel() for t in bucket])
        torch._foreach_copy_(bucket, [s.view_as(t) for s, t in zip(sums, bucket, strict=True)])


def _buckets(tensors: Sequence[Tensor]) -> Iterator[list[Tensor]]:
    """Tensors in order, so many at once; those of one bucket have one type."""
    bucket: list[Tensor] = []
    for tensor in tensors:
        if bucket and (
            sum(t.nbytes for t in bucket) + tensor.nbytes > BUCKET or tensor.dtype != bucket[0].dtype
        ):
            yield bucket
            bucket = []
        bucket.append(tensor)
    if bucket:
        yield bucket
