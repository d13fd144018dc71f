"""Blocks by torch.compile: the same gradients, also behind tensor-parallel collectives."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
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


@pytest.fixture
def graphs_only(monkeypatch: pytest.MonkeyPatch) -> None:
    """Compile to graphs, and run these by torch's operators: a C++ compiler would take a minute a test."""
    plain = nn.Module.compile
    monkeypatch.setattr(nn.Module, "compile", lambda module: plain(module, backend="aot_eager"))


@pytest.mark.slow
@pytest.mark.usefixtures("graphs_only")
@pytest.mark.filterwarnings("default")
@pytest.mark.parametrize("kind", ["points", "tokens"])
@pytest.mark.parametrize("name", list(LAYOUTS))
def test_compiled_blocks_learn_the_same(name: str, kind: str, run_ranks: Make, lab: Any) -> None:
    layout = LAYOUTS[name]
    wanted = lab.taught(kind, LayoutSettings(), alone(), lab.sgd, (32, 16))

    def work(mesh: Mesh) -> Any:
        torch._dynamo.reset()
        counters.clear()
        found = lab.taught(kind, layout, mesh, lab.sgd, (32, 16), compile=True)
        return found, counters["stats"]["unique_graphs"], sum(counters["graph_break"].values())

    answers = [work(alone())] if layout.ranks == 1 else run_ranks(layout, work)
    lab.check([found for found, _, _ in answers], wanted)
    for _, graphs, breaks in answers:
        assert graphs > 0
        assert breaks == 0
