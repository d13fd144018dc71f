"""Every layout and schedule against one process: loss, each gradient, the norm, and five updates."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from math import prod
from typing import Any

import pytest
from torch.distributed.tensor import Replicate

from tamis.trainer.mesh import AXES, alone
from tamis.trainer.parallel.tensor import placement_of
from tamis.trainer.settings import LayoutSettings

Make = Callable[..., Any]


SHOWN = LayoutSettings(dp=2, tp=2, pp=2, schedule="1f1b", microbatches=4)


def L(**sizes: Any) -> LayoutSettings:
    return LayoutSettings(**sizes)


LAYOUTS = [
    L(dp=2),
    L(dp=4, microbatches=2),
    L(dp=2, shard=2),
    L(dp=4, shard=2, microbatches=2),
    L(microbatches=4),
    L(tp=2),
    L(dp=2, tp=2),
    L(dp=2, shard=2, tp=2),
    L(dp=4, shard=2, tp=2),
    L(tp=2, microbatches=3),
    L(pp=2, schedule="gpipe", microbatches=4),
    L(pp=2, schedule="gpipe", microbatches=1),
    L(pp=4, schedule="gpipe", microbatches=3),
    L(pp=2, schedule="1f1b", microbatches=4),
    L(pp=4, schedule="1f1b", microbatches=8),
    L(pp=2, schedule="interleaved", microbatches=4),
    L(pp=2, schedule="zero_bubble", microbatches=4),
    L(pp=2, schedule="zbv", microbatches=4),
    L(dp=2, pp=2, schedule="1f1b", microbatches=2),
    L(dp=2, shard=2, pp=2, schedule="1f1b", microbatches=3),
    L(dp=2, shard=2, pp=2, schedule="interleaved", microbatches=4),
    L(dp=2, shard=2, pp=2, schedule="zero_bubble", microbatches=4),
    L(dp=2, shard=2, pp=2, schedule="zbv", microbatches=4),
    L(tp=2, pp=2, schedule="1f1b", microbatches=4),
    L(tp=2, pp=2, schedule="zbv", microbatches=4),
    L(dp=2, tp=2, pp=2, schedule="gpipe", microbatches=4),
    SHOWN,
    L(dp=2, tp=2, pp=2, schedule="interleaved", microbatches=4),
    L(dp=2, tp=2, pp=2, schedule="zero_bubble", microbatches=4),
    L(dp=2, tp=2, pp=2, schedule="zbv", microbatches=4),
    L(dp=2, shard=2, tp=2, pp=2, schedule="1f1b", microbatches=4),
    L(dp=2, shard=2, tp=2, pp=2, schedule="zbv", microbatches=4),
]


def name_of(layout: LayoutSettings) -> str:
    sizes = {n: v for n, v in layout.model_dump(exclude={"timeout_s"}).items() if v not in (None, 1)}
    if layout.pp == 1:
        sizes.pop("schedule", None)
    return "-".join(v if n == "schedule" else f"{n}{v}" for n, v in sizes.items())


KINDS = ("points", "tokens")
# Points learn on every layout, tokens on one of each kind, and on the others as a soak.
TOKENS = [
    L(dp=2, shard=2),
    L(microbatches=4),
    L(tp=2),
    L(pp=2, schedule="gpipe", microbatches=4),
    L(pp=2, schedule="1f1b", microbatches=4),
    L(pp=2, schedule="interleaved", microbatches=4),
    L(pp=2, schedule="zero_bubble", microbatches=4),
    L(pp=2, schedule="zbv", microbatches=4),
    L(tp=2, pp=2, schedule="1f1b", microbatches=4),
    L(pp=4, schedule="1f1b", microbatches=8),
    L(dp=2, shard=2, tp=2),
    SHOWN,
    L(dp=2, shard=2, tp=2, pp=2, schedule="zbv", microbatches=4),
]


def marks(layout: LayoutSettings, kind: str) -> list[pytest.MarkDecorator]:
    """Many processes on two cores: apart, but for one layout of all axes."""
    if kind == "tokens" and layout not in TOKENS:
        return [pytest.mark.soak]
    return [pytest.mark.slow] if layout.ranks > 2 and (layout, kind) != (SHOWN, "points") else []


CASES = [
    pytest.param(
        kind,
        layout,
        id=f"{name_of(layout)}-{kind}",
        marks=marks(layout, kind),
    )
    for layout in LAYOUTS
    for kind in KINDS
]


@pytest.fixture(scope="module")
def of_one(lab: Any) -> Make:
    """``of_one(kind, levels)``: what one process learns."""
    return cache(lambda kind, levels: lab.both(kind, LayoutSettings(), alone(), levels))


@pytest.mark.parametrize(("kind", "layout"), CASES)
def test_a_layout_learns_what_one_process_learns(
    kind: str, layout: LayoutSettings, run_ranks: Make, lab: Any, of_one: Make
) -> None:
    """T02, T04, T11, T14 among them. Where there are eight ranks, the ratio crosses three levels."""
    levels = lab.levels if layout.ranks == 8 else (32,) * 5
    wanted = of_one(kind, levels)
    answers = run_ranks(layout, lambda mesh: lab.both(kind, layout, mesh, levels))
    lab.check([a["sgd"] for a in answers], wanted["sgd"])
    lab.check([a["adamw"] for a in answers], wanted["adamw"], parameters=False)
    assert_spread([a["sgd"] for a in answers], wanted["sgd"], layout)


def assert_spread(answers: list[dict[str, Any]], wanted: dict[str, Any], layout: LayoutSettings) -> None:
    """The ranks are as many as asked for, each holds its share, and they did talk along every axis."""
    assert [a["world"] for a in answers] == [layout.ranks] * layout.ranks
    sizes = dict(zip(AXES, layout.sizes, strict=True))
    talked = {axis for a in answers for axis, _ in a["traffic"]}
    assert talked >= {axis for axis, size in sizes.items() if size > 1}
    for name, values in wanted["model"].items():
        split = placement_of(name) != Replicate()
        whole = prod(values.shape)
        if name in ("embed.weight", "head.weight", "head.bias"):  # filled up to what tp divides
            whole = -(-len(values) // layout.tp) * layout.tp * prod(values.shape[1:])
        copies = sizes["dp_replicate"] * (1 if split else layout.tp)
        assert sum(a["held"].get(name, 0) for a in answers) == copies * whole, name
