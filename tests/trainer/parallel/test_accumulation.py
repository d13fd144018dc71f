"""Microbatches of a replica: gradients are exchanged once for all of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tamis.trainer.mesh import Mesh
from tamis.trainer.settings import LayoutSettings

Make = Callable[..., Any]


def exchanges(answer: dict[str, Any]) -> int:
    """How often a step's gradients were reduced over replicas."""
    axes = ("dp_replicate", "dp_shard")
    reduces = ("all_reduce", "reduce_scatter")
    return sum(
        t["calls"] for (axis, what), t in answer["traffic"].items() if axis in axes and what in reduces
    )


@pytest.mark.parametrize(
    "sizes",
    [{"dp": 2}, {"dp": 2, "shard": 2}, {"dp": 4, "shard": 2}, {"dp": 2, "tp": 2}, {"dp": 2, "pp": 2}],
    ids=["ddp", "fsdp", "hsdp", "tp", "pp"],
)
def test_four_microbatches_take_a_quarter_of_the_collectives(
    sizes: dict[str, Any], run_ranks: Make, lab: Any
) -> None:
    """A step of four exchanges as often as one of the fewest; four steps would four times."""
    layout = LayoutSettings(**sizes, microbatches=4)
    least = LayoutSettings(**sizes, microbatches=sizes.get("pp", 1))

    def work(mesh: Mesh) -> tuple[int, int]:
        many = lab.taught("tokens", layout, mesh, lab.sgd, (32, 32))
        one = lab.taught("tokens", least, mesh, lab.sgd, (32, 32))
        return exchanges(many), exchanges(one)

    for many, one in run_ranks(layout, work):
        assert 0 < many == one
