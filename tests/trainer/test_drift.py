"""Copies of parameters that ranks hold alike are compared now and then."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from tamis.errors import DataError
from tamis.pipelines.dataset import Dataset
from tamis.trainer import loop
from tamis.trainer.checkpoints.drift import refuse_drifted
from tamis.trainer.mesh import Mesh, alone
from tamis.trainer.models.layers import here
from tamis.trainer.settings import LayoutSettings
from tamis.trainer.step import Trainer

Make = Callable[..., Any]
CASES = [
    (LayoutSettings(dp=3), "embed.up.weight", 1, "that of rank 1 from that of ranks 0, 2"),
    (LayoutSettings(tp=2), "blocks.0.mlp_norm.weight", 1, "that of rank 0 from that of rank 1"),
    (LayoutSettings(dp=4, shard=2), "head.bias", 3, "that of rank 1 from that of rank 3"),
    (LayoutSettings(dp=2, shard=2, tp=2), "norm.bias", 2, "that of rank 2 from that of rank 3"),
]


@pytest.mark.parametrize(
    ("layout", "name", "rank", "told"),
    [
        pytest.param(*case, id=f"ranks{case[0].ranks}-{case[1]}", marks=[pytest.mark.slow] * (i > 1))
        for i, case in enumerate(CASES)
    ],
)
def test_t05_a_copy_that_differs_is_named(
    layout: LayoutSettings,
    name: str,
    rank: int,
    told: str,
    run_ranks: Make,
    new_trainer: Make,
    new_batch: Make,
) -> None:
    """T05: after ten steps they are equal; then a bit of one changes, and all ranks say which."""

    def work(mesh: Mesh) -> str:
        trainer = new_trainer(mesh, layout)
        for step in range(10):
            trainer.step(new_batch(step, clouds=2, seed=mesh.replica))
        refuse_drifted(trainer.learner, 9)
        if mesh.rank == rank:
            with torch.no_grad():
                held = here(trainer.learner.model.get_parameter(name)).flatten()
                held[:1].view(torch.int32).bitwise_xor_(1)
        with pytest.raises(DataError) as caught:
            refuse_drifted(trainer.learner, 10)
        return str(caught.value)

    for found in run_ranks(layout, work):
        assert found.startswith(f"step 10: copies of {name} drifted apart: {told}; ")


def test_one_process_has_no_copies(new_learner: Make) -> None:
    refuse_drifted(new_learner(), 0)


def test_it_is_done_every_so_many_steps(
    run_settings: Make, dataset: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    done: list[int] = []
    monkeypatch.setattr(loop, "refuse_drifted", lambda _, step: done.append(step))
    for every, wanted in ((3, [2, 5, 7]), (0, [])):  # and before the checkpoint at the end
        out = tmp_path / str(every)
        out.mkdir()
        done.clear()
        loop.run(run_settings(check_steps=every, checkpoint_steps=0), dataset, out, alone(), 0.0)
        assert done == wanted


def test_a_run_ends_before_it_saves_what_drifted(
    run_settings: Make, dataset: Dataset, tmp_path: Path, run_ranks: Make
) -> None:
    settings = run_settings(check_steps=2, checkpoint_steps=2)

    def work(mesh: Mesh) -> str:
        step = Trainer.step

        def drifting(trainer: Trainer, batch: Any, *args: Any) -> Any:
            outcome = step(trainer, batch, *args)
            if (batch.step, mesh.rank) == (3, 1):
                with torch.no_grad():
                    next(trainer.learner.model.parameters()).add_(1e-3)
            return replace(outcome)

        with pytest.MonkeyPatch.context() as patch, pytest.raises(DataError) as caught:
            patch.setattr(Trainer, "step", drifting)
            (tmp_path / "run").mkdir(exist_ok=True)
            loop.run(settings, dataset, tmp_path / "run", mesh, 0.0)
        return str(caught.value)

    told = run_ranks(2, work)
    assert told[0] == told[1]
    assert told[0].startswith("step 3: copies of embed.up.weight drifted apart: that of rank ")
    assert [p.name for p in (tmp_path / "run" / "checkpoints").iterdir()] == ["step-00000002"]
