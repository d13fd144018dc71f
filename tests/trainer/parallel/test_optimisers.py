"""Each optimiser in each layout: the bits of one process for equal gradients, and the same learning."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch.distributed.tensor import DTensor, distribute_tensor

from tamis.metrics import STREAM, TRAIN, Meter
from tamis.samplers import draw
from tamis.trainer.checkpoints import checkpoint
from tamis.trainer.checkpoints.saver import Saver
from tamis.trainer.learner import Learner, LearnerState
from tamis.trainer.mesh import Mesh, alone
from tamis.trainer.optimisers.optimiser import Optimiser, is_hidden_matrix, lion, muon
from tamis.trainer.parallel.shares import gathered
from tamis.trainer.settings import LayoutSettings, OptimiserName, TrainerSettings
from tamis.trainer.step import Trainer

Make = Callable[..., Any]

LAYOUTS = [
    pytest.param(LayoutSettings(dp=2), id="dp2"),
    pytest.param(LayoutSettings(dp=2, shard=2), id="shard2"),
    pytest.param(LayoutSettings(tp=2), id="tp2"),
    pytest.param(LayoutSettings(pp=2, microbatches=2), id="pp2"),
    pytest.param(LayoutSettings(dp=2, shard=2, tp=2), id="shard2-tp2", marks=pytest.mark.slow),
    pytest.param(LayoutSettings(dp=3, shard=3), id="shard3", marks=pytest.mark.slow),
]


def updated(
    optimiser: Optimiser, layout: LayoutSettings, mesh: Mesh, lab: Any
) -> dict[str, NDArray[np.float32]]:
    """The model after three updates from gradients that are drawn for each parameter and update."""
    new_task, _ = lab.tasks["points"]
    learner = Learner(new_task(), layout, TrainerSettings(points=32, lr=0.01, seed=2), mesh, optimiser)
    for update in range(3):
        for name, p in learner.model.named_parameters():
            # Row by row, so that a head that is filled up has the same ones, and others where it is.
            rng = np.random.default_rng(draw.key(update, name))
            p.grad = torch.from_numpy(rng.standard_normal(tuple(p.shape), np.float32))
            if isinstance(p, DTensor):
                p.grad = distribute_tensor(p.grad, p.device_mesh, p.placements, src_data_rank=None)
        learner.optimiser.step()
    return {name: p.detach().numpy() for name, p in learner.whole().named_parameters()}


def both(mesh: Mesh, layout: LayoutSettings, lab: Any) -> dict[str, Any]:
    levels = (32,) * 3
    return {
        "lion": updated(lion, layout, mesh, lab),
        "muon": updated(muon, layout, mesh, lab),
        "lion learns": lab.taught("points", layout, mesh, lion, levels, lr=3e-4),
        "muon learns": lab.taught("points", layout, mesh, muon, levels, lr=1e-3),
    }


@pytest.fixture(scope="module")
def wanted(lab: Any) -> dict[str, Any]:
    """What one process does."""
    return both(alone(), LayoutSettings(), lab)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_layout_updates_as_one_process_does(
    layout: LayoutSettings, run_ranks: Make, lab: Any, wanted: dict[str, Any]
) -> None:
    for found in run_ranks(layout, both, layout, lab):
        assert found["lion"].keys() == wanted["lion"].keys()
        for name, values in found["lion"].items():
            assert np.array_equal(values, wanted["lion"][name]), name
        for name, values in found["muon"].items():
            if is_hidden_matrix(name, values.ndim):
                assert np.array_equal(values, wanted["muon"][name]), name
            else:  # torch's fused AdamW rounds the end of a vector otherwise than the rest
                np.testing.assert_allclose(values, wanted["muon"][name], rtol=1e-6, atol=1e-7, err_msg=name)
        # Muon's bfloat16 makes more of the rounding of gradients.
        for name, rtol in (("lion learns", 1e-5), ("muon learns", 5e-3)):
            np.testing.assert_allclose(found[name]["losses"], wanted[name]["losses"], rtol=1e-5)
            np.testing.assert_allclose(found[name]["norms"], wanted[name]["norms"], rtol=rtol)


OPTIMISERS: tuple[OptimiserName, ...] = ("lion", "muon")


class Kept(NamedTuple):
    """Parameters, and what the optimiser keeps of each, whole; and what is kept beside them."""

    tensors: dict[str, NDArray[Any]]
    state: LearnerState


def kept(learner: Learner) -> Kept:
    found: dict[str, NDArray[Any]] = {}
    for name, p in learner.model.named_parameters():
        for key, value in {"": p.detach(), **learner.optimiser.state[p]}.items():
            whole = gathered(value).clone().numpy()
            if name.startswith(("embed.", "head.")) and whole.ndim:
                whole = whole[:7]  # without what fills up the 7 tokens where 2 ranks split them
            found[f"{name} {key}"] = whole
    return Kept(found, learner.state)


def new_learner(mesh: Mesh, layout: LayoutSettings, optimiser: OptimiserName, lab: Any) -> Learner:
    settings = TrainerSettings(points=32, steps=9, lr=1e-3, seed=2, optimiser=optimiser, clip="adaptive")
    return Learner(lab.tasks["tokens"][0](), layout, settings, mesh)


def after(learner: Learner, numbers: range, lab: Any) -> Kept:
    trainer = Trainer(learner, -(-8 // learner.mesh.replicas), Meter(STREAM + TRAIN))
    for i in numbers:
        trainer.step(lab.share(lab.tasks["tokens"][1](i), learner.mesh))
    return kept(learner)


def write(mesh: Mesh, layout: LayoutSettings, folder: Path, lab: Any) -> dict[str, list[Kept]]:
    """What each optimiser has after two steps, when it is saved, and after two more; and so once loaded."""
    found: dict[str, list[Kept]] = {}
    for name in OPTIMISERS:
        learner = new_learner(mesh, layout, name, lab)
        saved = after(learner, range(2), lab)
        with Saver(folder / name, learner, 2) as saver:
            saver.save({"version": 1, "step": 2}, 2)
        found[name] = [saved, after(learner, range(2, 4), lab)]
    again = reread(mesh, layout, folder, lab)
    return {name: found[name] + again[name] for name in OPTIMISERS}


def reread(mesh: Mesh, layout: LayoutSettings, folder: Path, lab: Any) -> dict[str, list[Kept]]:
    found: dict[str, list[Kept]] = {}
    for name in OPTIMISERS:
        learner = new_learner(mesh, layout, name, lab)
        checkpoint.load(folder / name / "step-00000002", learner)
        found[name] = [kept(learner), after(learner, range(2, 4), lab)]
    return found


def assert_equal(found: Kept, wanted: Kept) -> None:
    assert found.state == wanted.state
    assert found.tensors.keys() == wanted.tensors.keys()
    for name, values in found.tensors.items():
        np.testing.assert_array_equal(values, wanted.tensors[name], err_msg=name)


@pytest.mark.slow
def test_each_optimiser_goes_on_to_the_bit(run_ranks: Make, tmp_path: Path, lab: Any) -> None:
    """From where two ranks that share it were cut; and ranks that split it otherwise load its bits."""
    shared, split = LayoutSettings(dp=2, shard=2), LayoutSettings(tp=2)
    written = run_ranks(shared, write, shared, tmp_path, lab)[0]
    other = run_ranks(split, reread, split, tmp_path, lab)[0]
    for name in OPTIMISERS:
        saved, went_on, loaded, resumed = written[name]
        assert saved.state.clipping.usual is not None
        assert_equal(loaded, saved)
        assert_equal(resumed, went_on)
        assert_equal(other[name][0], saved)
