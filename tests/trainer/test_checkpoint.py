from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tamis.errors import DataError, UsageError
from tamis.metrics import TRAIN, Meter
from tamis.trainer.checkpoints import checkpoint
from tamis.trainer.checkpoints.saver import Saver
from tamis.trainer.learner import Learner, whole_model
from tamis.trainer.mesh import Mesh
from tamis.trainer.step import Trainer
from tamis.trainer.tasks import Segmentation

Make = Callable[..., Any]
LOADER = {"version": 1, "step": 2, "datasets": [{"consumed": 8}]}


def state_of(learner: Learner) -> list[torch.Tensor]:
    kept = [p.detach().clone() for p in learner.model.parameters()]
    for values in learner.optimiser.state.values():
        kept += [v.clone() for v in values.values()]
    return kept


def save(folder: Path, learner: Learner, loader: dict[str, Any], step: int, kept: int = 2) -> Path:
    with Saver(folder, learner, kept) as saver:
        return saver.save(loader, step)


def take(learner: Learner, new_batch: Make, steps: range) -> None:
    trainer = Trainer(learner, 4, Meter(TRAIN))
    for step in steps:
        trainer.step(new_batch(step))


@pytest.fixture
def saved(tmp_path: Path, new_learner: Make, new_batch: Make) -> Path:
    learner = new_learner()
    take(learner, new_batch, range(2))
    return save(tmp_path, learner, LOADER, 2)


@pytest.mark.parametrize("optimiser", ["adamw", "lion", "muon"])
def test_a_resumed_learner_goes_on_to_the_bit(
    optimiser: str, tmp_path: Path, new_learner: Make, new_batch: Make
) -> None:
    """T08's kind: nothing of the state is lost, so the rest of the run does not depend on the cut."""
    cut = new_learner(optimiser=optimiser)
    take(cut, new_batch, range(2))
    whole = new_learner(optimiser=optimiser)
    take(whole, new_batch, range(5))
    resumed = new_learner(optimiser=optimiser)
    state = checkpoint.load(save(tmp_path, cut, LOADER, 2), resumed)
    assert (state.step, state.learner.updates, state.loader) == (2, 2, LOADER)
    assert state.task == resumed.task.state
    take(resumed, new_batch, range(2, 5))
    assert resumed.updates == whole.updates == 5
    for a, b in zip(state_of(resumed), state_of(whole), strict=True):
        assert torch.equal(a, b)


def test_what_another_number_of_ranks_wrote_is_read(
    tmp_path: Path, run_ranks: Make, new_learner: Make, new_batch: Make
) -> None:
    """T10: by the names of parameters, whatever ranks wrote them."""

    def write(mesh: Mesh) -> Any:
        learner = new_learner(mesh)
        take(learner, new_batch, range(2))
        save(tmp_path / "two", learner, LOADER, 2)
        return [v.numpy() for v in state_of(learner)]

    wanted = run_ranks(2, write)[0]
    learner = new_learner()
    checkpoint.load(tmp_path / "two" / "step-00000002", learner)
    assert all((a.numpy() == b).all() for a, b in zip(state_of(learner), wanted, strict=True))

    def reread(mesh: Mesh) -> Any:
        learner = new_learner(mesh)
        checkpoint.load(tmp_path / "two" / "step-00000002", learner)
        return [v.numpy() for v in state_of(learner)]

    for found in run_ranks(3, reread):
        assert all((a == b).all() for a, b in zip(found, wanted, strict=True))


@pytest.mark.parametrize("kept", [1, 2, 3])
def test_so_many_are_kept(tmp_path: Path, new_learner: Make, new_batch: Make, kept: int) -> None:
    learner = new_learner()
    take(learner, new_batch, range(1))
    names = [1, 2, 99_999_999, 100_000_000]
    with Saver(tmp_path, learner, kept) as saver:
        for step in names:
            saver.save(LOADER, step)
    assert [checkpoint.read(p).step for p in checkpoint.complete(tmp_path)] == names[-kept:]
    assert len(list(tmp_path.iterdir())) == kept


def test_s10_a_missing_file_is_refused(saved: Path, new_learner: Make) -> None:
    """S10: the checkpoint lists its parts, and resume refuses a missing one."""
    for file in sorted(saved.iterdir()):
        copy = shutil.copytree(saved, saved.parent / "copy")
        (copy / file.name).unlink()
        with pytest.raises(DataError, match=rf"{file.name}: .*(missing|cannot be read)"):
            checkpoint.load(copy, new_learner())
        shutil.rmtree(copy)


@pytest.mark.parametrize("key", ["loader", "step", "learner", "seed", "task", "parts", "version"])
def test_s10_a_missing_part_is_refused(saved: Path, new_learner: Make, key: str) -> None:
    """S10: a state that was not saved is an error, not a start at 0."""
    path = saved / "checkpoint.json"
    values = json.loads(path.read_text())
    del values[key]
    path.write_text(json.dumps(values, separators=(",", ":")))
    with pytest.raises(DataError, match=rf"checkpoint.json: part '{key}'"):
        checkpoint.load(saved, new_learner())


def test_a_damaged_file_is_refused(saved: Path, new_learner: Make) -> None:
    file = max(saved.iterdir(), key=lambda p: p.stat().st_size)
    data = bytearray(file.read_bytes())
    data[len(data) // 2] ^= 1
    file.write_bytes(data)
    with pytest.raises(DataError, match=file.name):
        checkpoint.load(saved, new_learner())


def test_another_model_is_refused(saved: Path, task: Segmentation) -> None:
    model = task.model.model_copy(update={"width": 36})
    wider = whole_model(Segmentation(model, task.state, ["xyz", "intensity"], "here"))
    with pytest.raises(DataError, match="does not hold what the model needs"):
        checkpoint.load_model(saved, wider)


@pytest.mark.parametrize("seed", range(8))
def test_a_changed_description_is_refused(saved: Path, new_learner: Make, seed: int) -> None:
    """A number that still reads as one is noticed too."""
    path, rng = saved / "checkpoint.json", np.random.default_rng(seed)
    data = bytearray(path.read_bytes())
    data[rng.integers(len(data))] ^= 1 << rng.integers(8)
    path.write_bytes(data)
    with pytest.raises(DataError, match="step-") as caught:
        checkpoint.load(saved, new_learner())
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("text", "told"),
    [("[" * 100_000, "is cut or damaged"), ("{}", "its checksum is missing")],
    ids=["deep", "empty"],
)
def test_another_text_in_its_place_is_refused(saved: Path, text: str, told: str) -> None:
    (saved / checkpoint.NAME).write_text(text)
    with pytest.raises(DataError, match=told):
        checkpoint.read(saved)


def test_a_number_that_was_changed_is_noticed(saved: Path, new_learner: Make) -> None:
    path = saved / "checkpoint.json"
    updates = checkpoint.read(saved).learner.updates
    path.write_text(path.read_text().replace(f'"updates":{updates}', f'"updates":{updates + 1}'))
    with pytest.raises(DataError, match="bytes differ"):
        checkpoint.load(saved, new_learner())


def test_a_step_saved_twice_is_linked_to_itself(tmp_path: Path, new_learner: Make) -> None:
    learner = new_learner()
    with Saver(tmp_path, learner, 2) as saver:
        for _ in range(3):
            path = saver.save(LOADER, 2)
    assert any(part.linked for part in checkpoint.read(path).parts)
    assert list(tmp_path.iterdir()) == [path]


def test_saving_a_step_again_replaces_it(saved: Path, new_learner: Make) -> None:
    learner = new_learner()
    state = checkpoint.load(saved, learner)
    again = save(saved.parent, learner, state.loader, state.step)
    assert again == saved
    assert checkpoint.read(saved).learner.updates == state.learner.updates
    assert not list(saved.parent.glob(".*"))


@pytest.mark.parametrize("removed", [False, True])
def test_a_checkpoint_that_was_being_replaced_comes_back(saved: Path, removed: bool) -> None:
    """Killed between the two renames there is none of that name; after both, there are two of them."""
    old = saved.with_name(f".{saved.name}.old")
    if removed:
        saved.rename(old)
    else:
        shutil.copytree(saved, old)
        (old / "checkpoint.json").unlink()  # half-removed
    checkpoint.clean(saved.parent)
    assert list(saved.parent.iterdir()) == [saved]
    assert checkpoint.read(saved).step == 2


def test_a_step_is_named_or_the_last_is_taken(saved: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    with pytest.raises(DataError, match="holds no checkpoint yet"):
        checkpoint.written(run)
    shutil.copytree(saved, run / "checkpoints" / "step-00000002")
    last = shutil.copytree(saved, run / "checkpoints" / "step-00000010")
    assert checkpoint.written(run) == last
    assert checkpoint.written(run, 2).name == "step-00000002"
    with pytest.raises(UsageError, match="no checkpoint of step 3; there are 2, 10"):
        checkpoint.written(run, 3)


def test_a_checkpoint_that_a_run_removes_gives_way_to_the_next(saved: Path, tmp_path: Path) -> None:
    """Whatever of it is gone first: the error is of a file, or says what is missing."""
    run = tmp_path / "run"
    first = shutil.copytree(saved, run / "checkpoints" / "step-00000002")

    def replaced(path: Path) -> str:
        if path == first:
            path.rename(path.with_name("step-00000003"))
            (path / checkpoint.NAME).read_bytes()  # raises FileNotFoundError
        return path.name

    assert checkpoint.reading(run, None, replaced) == "step-00000003"
    with pytest.raises(UsageError, match="no checkpoint of step 2; there are 3"):
        checkpoint.reading(run, 2, replaced)

    def always(path: Path) -> None:
        path.rename(path.with_name(f"step-{int(path.name[-8:]) + 1:08d}"))
        checkpoint.read(path)

    with pytest.raises(DataError, match="removes its checkpoints faster than they are read; run it again"):
        checkpoint.reading(run, None, always)
    (checkpoint.written(run) / ".metadata").unlink()
    with pytest.raises(DataError, match=r"\.metadata: is missing from the checkpoint"):
        checkpoint.reading(run, None, checkpoint.read)


def test_another_optimiser_is_refused(saved: Path, new_learner: Make) -> None:
    learner = new_learner(optimiser="lion")
    with pytest.raises(DataError, match=r"exp_avg, exp_avg_sq, step, this optimiser momentum"):
        checkpoint.load(saved, learner)


def test_what_had_no_update_yet_has_no_state(tmp_path: Path, new_learner: Make, new_batch: Make) -> None:
    """A step in which nothing counted, and parameters that are not learned: not a state of zeros."""
    fresh = save(tmp_path, new_learner(), LOADER, 1)
    learner = new_learner()
    checkpoint.load(fresh, learner)
    assert not learner.optimiser.state

    def half() -> Learner:
        learner = new_learner()
        learner.model.embed.requires_grad_(False)
        return learner  # type: ignore[no-any-return]

    learner, resumed = half(), half()
    take(learner, new_batch, range(2))
    checkpoint.load(save(tmp_path, learner, LOADER, 2), resumed)
    assert (
        len(resumed.optimiser.state) == len(learner.optimiser.state) < len(list(learner.model.parameters()))
    )
    for one in (learner, resumed):
        take(one, new_batch, range(2, 4))
    for a, b in zip(state_of(resumed), state_of(learner), strict=True):
        assert torch.equal(a, b)


def test_a_model_alone_is_read(saved: Path, new_learner: Make) -> None:
    learner, other = new_learner(), new_learner()
    checkpoint.load(saved, learner)
    checkpoint.load_model(saved, other.model)
    for a, b in zip(learner.model.parameters(), other.model.parameters(), strict=True):
        assert torch.equal(a, b)


def test_another_version_is_refused(saved: Path) -> None:
    path = saved / "checkpoint.json"
    written = f'"version":{checkpoint.VERSION}'
    assert written in path.read_text()
    path.write_text(path.read_text().replace(written, '"version":99', 1))
    with pytest.raises(DataError, match="version 99"):
        checkpoint.read(saved)
