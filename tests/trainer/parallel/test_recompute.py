"""What the backward pass computes anew: the same gradients from less memory."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from functools import cache
from typing import Any

import pytest
import torch
from torch.profiler import ProfilerActivity, profile
from torch.utils._python_dispatch import TorchDispatchMode

from tamis.trainer.mesh import alone
from tamis.trainer.model_settings import PointSettings
from tamis.trainer.models.trunk import Block, View
from tamis.trainer.parallel.rows import ALL
from tamis.trainer.recompute import recomputing
from tamis.trainer.settings import LayoutSettings

Make = Callable[..., Any]
KINDS = ("none", "selective", "full")


class Operations(TorchDispatchMode):
    """Counts operators while active."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.counts: Counter[str] = Counter()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.counts[func._schema.name] += 1
        return func(*args, **(kwargs or {}))


@pytest.fixture(scope="module")
def of_one(lab: Any) -> Make:
    """``of_one(kind, recompute)``: what one process learns."""
    return cache(
        lambda kind, recompute: lab.taught(
            kind, LayoutSettings(), alone(), lab.sgd, (32, 16), recompute=recompute
        )
    )


LAYOUTS = {
    "fsdp": LayoutSettings(dp=2, shard=2, microbatches=2),
    "tp": LayoutSettings(tp=2, microbatches=2),
    "pp": LayoutSettings(pp=2, schedule="interleaved", microbatches=4),
}


@pytest.mark.parametrize(
    ("recompute", "name", "kind"),  # each with each of the others
    [
        ("selective", "fsdp", "points"),
        ("selective", "tp", "tokens"),
        ("selective", "pp", "points"),
        ("full", "fsdp", "tokens"),
        ("full", "tp", "points"),
        ("full", "pp", "tokens"),
    ],
)
def test_recomputed_gradients_are_the_same(
    recompute: str, name: str, kind: str, run_ranks: Make, lab: Any, of_one: Make
) -> None:
    layout, wanted = LAYOUTS[name], of_one(kind, "none")
    assert of_one(kind, recompute)["losses"] == wanted["losses"]
    lab.check(
        run_ranks(layout, lambda m: lab.taught(kind, layout, m, lab.sgd, (32, 16), recompute=recompute)),
        wanted,
    )


def measured(what: Any, blocks: int) -> tuple[int, Counter[str]]:
    """Bytes that are alive after the forward pass of some blocks, and operators of the backward pass."""
    torch.manual_seed(0)
    settings = PointSettings(width=24, heads=2, window=8)
    made = [Block(settings, ALL) for _ in range(blocks)]
    x = torch.randn(2, 32, 24, requires_grad=True)
    view = View(torch.nn.functional.normalize(torch.randn(2, 32, 1, 6, 2), dim=-1), 8)
    run, y = recomputing(what), x
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as memory:
        for block in made:
            y = run(block, y, view)
    alive = sum(event.self_cpu_memory_usage for event in memory.key_averages())
    with Operations() as operations:
        torch.autograd.backward(y.sum())
    return alive, operations.counts


def test_each_kind_keeps_less_and_computes_more() -> None:
    """Selective recomputation never repeats a matrix product or attention; full repeats all."""
    product, attention = "aten::addmm", "aten::_scaled_dot_product_flash_attention_for_cpu"
    bytes_of, counts = {}, {}
    for kind in KINDS:
        bytes_of[kind], counts[kind] = measured(kind, 4)
    assert counts["none"][product] == counts["none"][attention] == 0
    assert counts["selective"][product] == counts["selective"][attention] == 0
    assert counts["full"][product] == 4 * 5  # all but the last one, whose result nothing needs
    assert counts["full"][attention] == 4
    assert sum(counts["full"].values()) > sum(counts["selective"].values()) > sum(counts["none"].values())
    assert bytes_of["full"] < bytes_of["selective"] < bytes_of["none"]
    assert (
        bytes_of["full"] == 5 * 2 * 32 * 24 * 4 - 2 * 32 * 24 * 4
    )  # the rows between blocks, and the result
