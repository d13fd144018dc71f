"""Whole runs on several layouts: the batches of one process, its losses, and no trace of having been cut."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tamis.config import check
from tamis.pipelines.dataset import Dataset
from tamis.trainer import loop
from tamis.trainer.checkpoints import checkpoint
from tamis.trainer.learner import whole_model
from tamis.trainer.mesh import Mesh, alone
from tamis.trainer.settings import Settings
from tamis.trainer.tasks import task_of

Make = Callable[..., Any]
RATIO = {"kind": "steps", "start": 0.25, "end": 1.0, "steps": 8, "milestones": [3, 6]}
SIZES: dict[str, dict[str, Any]] = {
    "tp": {"tp": 2},
    "pp": {"pp": 2, "microbatches": 3},
    "gpipe": {"pp": 2, "schedule": "gpipe", "microbatches": 1},
    "fsdp": {"dp": 2, "shard": 2},
    "3d": {"dp": 2, "tp": 2, "pp": 2},
}


def with_layout(settings: Settings, sizes: dict[str, Any], feeder: str = "inline") -> Settings:
    values = settings.model_dump(mode="json", exclude_none=True)
    values["layout"] |= sizes
    values["loader"]["feeder"] = feeder
    values["loader"]["ratio"] = RATIO
    return check(values, Settings, where="here")


def lines(out: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (out / "steps.jsonl").read_text().splitlines()]


@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=pytest.mark.slow if name in ("gpipe", "fsdp", "3d") else []) for name in SIZES],
)
def test_a_run_on_a_layout_is_that_of_one_process(
    name: str, run_settings: Make, dataset: Dataset, tmp_path: Path, run_ranks: Make, killed_in: Make
) -> None:
    """S11, T02: a ratio that rises through three levels; then the same cut in the middle, to the bit."""
    one = with_layout(run_settings(checkpoint_steps=2), {})
    # In 3d batches come from a node's feeder, of which each rank maps the columns it needs.
    feeder = "node" if name == "3d" else "inline"
    settings = with_layout(run_settings(checkpoint_steps=2), SIZES[name], feeder)
    port = str(20000 + os.getpid() % 20000)  # names the feeder of these ranks
    task = task_of(settings.model, dataset)

    def go(mesh: Mesh, settings: Settings, out: Path, cut: int | None = None) -> None:
        out.mkdir(exist_ok=True)
        if mesh.world > 1:
            os.environ.update(LOCAL_RANK=str(mesh.rank), LOCAL_WORLD_SIZE=str(mesh.world), MASTER_PORT=port)
        with killed_in(cut):
            loop.run(settings, dataset, out, mesh, 0.0)
        if cut is not None:
            go(mesh, settings, out)

    def weights(out: Path) -> dict[str, np.ndarray]:
        model = whole_model(task)
        checkpoint.load_model(checkpoint.complete(out / "checkpoints")[-1], model)
        return {n: p.detach().numpy() for n, p in model.named_parameters()}

    go(alone(), one, tmp_path / "one")
    run_ranks(settings.layout, go, settings, tmp_path / "many")
    run_ranks(settings.layout, go, settings, tmp_path / "cut", 5)

    for mine, theirs in zip(lines(tmp_path / "many"), lines(tmp_path / "one"), strict=True):
        for key in ("step", "epoch", "k", "samples", "points", "crc", "lr"):
            assert mine[key] == theirs[key], key
        assert mine["loss"] == pytest.approx(theirs["loss"], rel=1e-4)
        assert mine["grad_norm"] == pytest.approx(theirs["grad_norm"], rel=1e-3)
    assert [line["k"] for line in lines(tmp_path / "one")] == [8, 8, 8, 16, 16, 16, 32, 32]
    assert (tmp_path / "many" / "steps.jsonl").read_bytes() == (tmp_path / "cut" / "steps.jsonl").read_bytes()
    whole, cut = weights(tmp_path / "many"), weights(tmp_path / "cut")
    for key, values in whole.items():
        np.testing.assert_array_equal(values, cut[key], err_msg=key)

    report = json.loads((tmp_path / "many" / "report.json").read_text())
    assert report["world_size"] == settings.layout.ranks
    assert len(report["parameters_per_rank"]) == len(report["ranks"]) == settings.layout.ranks
    assert [level["k"] for level in report["levels"]] == [8, 16, 32]
    assert [level["steps"] for level in report["levels"]] == [3, 3, 2]
    assert report["wire_bytes"] > 0
    assert (report["bubble_fraction"] > 0) == (settings.layout.pp > 1)
    small, *_, large = (figures["bytes"] / figures["steps"] for figures in report["levels"])
    assert small < large / 2
