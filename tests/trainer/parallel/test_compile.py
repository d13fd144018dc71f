"""Blocks by torch.compile: the same gradients, also behind tensor-parallel collectives."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch._dynamo.utils import counters

from tamis.trainer.mesh import Mesh, alone
from tamis.trainer.settings import LayoutSettings

Make = Callable[..., Any]
LAYOUTS = {
    "one": LayoutSettings(),
    "ddp": LayoutSettings(dp=2),
    "fsdp": LayoutSettings(dp=2, shard=2),
    "tp": LayoutSettings(tp=2),
    "pp": LayoutSettings(pp=2, microbatches=2),
}


@pytest.mark.slow
@pytest.mark.usefixtures("graphs_only")
@pytest.mark.filterwarnings("default")
@pytest.mark.parametrize(
    ("name", "kind"),  # tokens where the model itself is split
    [*((name, "points") for name in LAYOUTS), *((name, "tokens") for name in ("one", "tp", "pp"))],
)
def test_compiled_blocks_learn_the_same(name: str, kind: str, run_ranks: Make, lab: Any) -> None:
    layout = LAYOUTS[name]
    one = layout.ranks == 1  # forked as others are: once this process has compiled, no fork of it can
    wanted = lab.taught(kind, LayoutSettings(), alone(), lab.sgd, (32, 16))

    def work(mesh: Mesh) -> Any:
        torch._dynamo.reset()
        counters.clear()
        found = lab.taught(kind, layout, alone() if one else mesh, lab.sgd, (32, 16), compile=True)
        return found, counters["stats"]["unique_graphs"], sum(counters["graph_break"].values())

    answers = run_ranks(layout, work)
    lab.check([found for found, _, _ in answers], wanted)
    for _, graphs, breaks in answers:
        assert graphs > 0
        assert breaks == 0
