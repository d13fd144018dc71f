"""Saved in one layout, loaded in another: the same bits, and the same steps from there on."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from torch.distributed.tensor import DTensor

from tamis.metrics import STREAM, TRAIN, Meter
from tamis.pipelines.dataset import Dataset
from tamis.trainer import loop
from tamis.trainer.checkpoints import checkpoint
from tamis.trainer.checkpoints.saver import Saver
from tamis.trainer.learner import Learner
from tamis.trainer.mesh import Mesh, alone
from tamis.trainer.model_settings import TokenSettings
from tamis.trainer.settings import LayoutSettings, Settings, TrainerSettings
from tamis.trainer.step import Trainer
from tamis.trainer.tasks import NextToken

Make = Callable[..., Any]
State = Mapping[str, NDArray[Any]]
LOADER = {"version": 1, "step": 2}
LAYOUTS = {
    "one": LayoutSettings(),
    "shard3": LayoutSettings(dp=3, shard=3),
    "tp4": LayoutSettings(tp=4),
    "dp2-shard2-tp2": LayoutSettings(dp=2, shard=2, tp=2),
    "tp2-pp2": LayoutSettings(tp=2, pp=2, microbatches=2),
}


def learner_of(mesh: Mesh, layout: LayoutSettings, width: int) -> Learner:
    """Of seven tokens, which neither 2 nor 3 nor 4 ranks divide; embedding and head are filled up."""
    model = TokenSettings(width=width, heads=width // 4 or 1, depth=2, vocabulary=7, end=6)
    settings = TrainerSettings(points=32, steps=20, lr=1e-3, seed=2)
    return Learner(NextToken(model, True, "here"), layout, settings, mesh)


def whole(learner: Learner) -> State:
    """All parameters and optimiser states whose home this rank is, as torch itself gathers them."""
    found = dict(learner.model.state_dict())
    for name, parameter in learner.model.named_parameters():
        found |= {f"{name} {key}": value for key, value in learner.optimiser.state[parameter].items()}
    return {
        name: (t.full_tensor() if isinstance(t, DTensor) else t).detach().clone().numpy()
        for name, t in found.items()
    }


def merged(answers: list[Any], of: str) -> State:
    state: dict[str, NDArray[Any]] = {}
    for answer in answers:
        state |= answer[of]
    return state


def steps(learner: Learner, lab: Any, numbers: range) -> list[float]:
    trainer = Trainer(learner, -(-8 // learner.mesh.replicas), Meter(STREAM + TRAIN))
    batch = lab.tasks["tokens"][1]
    return [trainer.step(lab.share(batch(i), learner.mesh)).loss for i in numbers]  # type: ignore[misc]


def write(mesh: Mesh, layout: LayoutSettings, folder: Path, lab: Any, width: int = 16) -> dict[str, Any]:
    learner = learner_of(mesh, layout, width)
    steps(learner, lab, range(2))
    with Saver(folder, learner, 2) as saver:
        saver.save(LOADER, 2)
        saved = whole(learner)
        losses = steps(learner, lab, range(2, 4))  # while it is written
    return {"saved": saved, "losses": losses, "after": whole(learner)}


def reread(
    mesh: Mesh, layout: LayoutSettings, folders: Mapping[str, Path], lab: Any, width: int = 16
) -> dict[str, Any]:
    found = {}
    for name, folder in folders.items():
        learner = learner_of(mesh, layout, width)
        state = checkpoint.load(folder / "step-00000002", learner)
        assert (state.step, state.loader, learner.updates) == (2, LOADER, 2)
        loaded = whole(learner)
        losses = steps(learner, lab, range(2, 4))
        found[name] = {"loaded": loaded, "losses": losses, "after": whole(learner)}
    return found


def assert_same(found: State, wanted: State) -> None:
    """Equal to the bit, but for zeros that fill up either."""
    assert found.keys() == wanted.keys()
    for name, a in found.items():
        b = wanted[name]
        rows = min(len(a), len(b)) if a.ndim else None
        if rows is None:
            assert a == b, name
            continue
        np.testing.assert_array_equal(a[:rows], b[:rows], err_msg=name)
        assert not a[rows:].any(), name
        assert not b[rows:].any(), name


def assert_goes_on(answers: list[Any], source: str, written: list[Any], same_layout: bool) -> None:
    """Loaded to the bit, by every rank; then losses and weights of a run that was not cut."""
    found = [answer[source] for answer in answers]
    assert_same(merged(found, "loaded"), merged(written, "saved"))
    for one in found:
        np.testing.assert_allclose(one["losses"], written[0]["losses"], rtol=0, atol=1e-6)
        if same_layout:
            assert one["losses"] == written[0]["losses"]
    after, wanted = merged(found, "after"), merged(written, "after")
    if same_layout:
        assert_same(after, wanted)
    for name, values in wanted.items():
        other = after[name]
        if values.ndim:  # without what fills up either
            other, values = other[: len(values)], values[: len(other)]
        np.testing.assert_allclose(other, values, rtol=0, atol=1e-6, err_msg=name)


def on(run_ranks: Make, layout: LayoutSettings, work: Make, *args: Any) -> list[Any]:
    return [work(alone(), *args)] if layout.ranks == 1 else run_ranks(layout, work, *args)


@pytest.mark.parametrize(
    "names",
    [
        pytest.param(("one", "dp2", "tp2"), id="few"),
        pytest.param(tuple(LAYOUTS), id="5x5", marks=[pytest.mark.soak, pytest.mark.timeout(300)]),
    ],
)
def test_any_layout_loads_any_other(
    names: tuple[str, ...], run_ranks: Make, lab: Any, tmp_path: Path
) -> None:
    """T10: by name, without what fills up: parameters and optimiser to the bit, and so on from there."""
    layouts = LAYOUTS | {"dp2": LayoutSettings(dp=2), "tp2": LayoutSettings(tp=2)}
    folders = {name: tmp_path / name for name in names}
    written = {name: on(run_ranks, layouts[name], write, layouts[name], folders[name], lab) for name in names}
    first = merged(written[names[0]], "saved")
    assert {len(v) for n, v in first.items() if n.startswith(("embed", "head")) and v.ndim} == {7}
    for name in names:
        answers = on(run_ranks, layouts[name], reread, layouts[name], folders, lab)
        for source in names:
            assert_goes_on(answers, source, written[source], same_layout=source == name)


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_t10_six_rows_over_four_ranks_load_over_any_number(run_ranks: Make, lab: Any, tmp_path: Path) -> None:
    """T10: of a tensor of 6 rows the last of 4 ranks holds nothing."""
    four = LayoutSettings(dp=4, shard=4)
    written = run_ranks(four, write, four, tmp_path / "four", lab, 6)
    assert len(merged(written, "saved")["norm.weight"]) == 6
    for size in (3, 1, 2, 5):
        layout = LayoutSettings(dp=size, shard=size)
        answers = on(run_ranks, layout, reread, layout, {"four": tmp_path / "four"}, lab, 6)
        assert_goes_on(answers, "four", written, same_layout=False)
    pipelined = LayoutSettings(pp=2)
    answers = run_ranks(pipelined, reread, pipelined, {"four": tmp_path / "four"}, lab, 6)
    assert_goes_on(answers, "four", written, same_layout=False)


@pytest.mark.parametrize(
    "ways",
    [
        pytest.param(("one", "dp2"), id="one-dp2"),
        pytest.param(
            ("dp2-shard2-tp2", "one", "tp2-pp2", "shard3"),
            id="four",
            marks=[pytest.mark.slow, pytest.mark.timeout(300)],
        ),
    ],
)
def test_a_run_goes_on_in_another_layout(
    ways: tuple[str, ...],
    run_settings: Make,
    dataset: Dataset,
    run_ranks: Make,
    tmp_path: Path,
    killed_in: Make,
) -> None:
    """T10: cut every second step, each time another layout: ids and bytes of an uncut run, losses to 1e-5."""
    settings: Settings = run_settings()
    layouts = LAYOUTS | {"dp2": LayoutSettings(dp=2), "tp2-pp2": LayoutSettings(tp=2, pp=2)}

    def go(mesh: Mesh, settings: Settings, out: Path, cut: int | None) -> None:
        out.mkdir(exist_ok=True)
        with killed_in(cut):
            loop.run(settings, dataset, out, mesh, 0.0)

    go(alone(), settings, tmp_path / "whole", None)
    last = len(ways) - 1
    for i, name in enumerate(ways):
        changed = settings.model_copy(update={"layout": layouts[name]})
        on(run_ranks, layouts[name], go, changed, tmp_path / "cut", None if i == last else 2 * i + 2)
    whole, cut = (
        [json.loads(line) for line in (tmp_path / name / "steps.jsonl").read_text().splitlines()]
        for name in ("whole", "cut")
    )
    for mine, theirs in zip(cut, whole, strict=True):
        for key in ("step", "epoch", "k", "samples", "points", "crc", "lr"):
            assert mine[key] == theirs[key], key
        assert mine["loss"] == pytest.approx(theirs["loss"], rel=1e-5)
