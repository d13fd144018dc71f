"""Checkpoints beside the training: what they hold, and what is left where the disk or a process fails."""

from __future__ import annotations

import errno
import multiprocessing
import os
import resource
import shutil
import signal
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from threading import Event
from typing import Any

import numpy as np
import pytest
import torch
from torch.distributed.checkpoint.filesystem import FileSystemWriter

from tamis.errors import DataError
from tamis.metrics import TRAIN, Meter
from tamis.pipelines.dataset import Dataset
from tamis.trainer import loop
from tamis.trainer.checkpoints import checkpoint, increments, saver
from tamis.trainer.checkpoints.saver import Saver
from tamis.trainer.learner import Learner
from tamis.trainer.mesh import Mesh, alone
from tamis.trainer.settings import Settings
from tamis.trainer.step import Trainer

Make = Callable[..., Any]
LOADER = {"version": 1, "step": 2}
FULL = OSError(errno.ENOSPC, "No space left on device")


def take(learner: Learner, new_batch: Make, steps: range) -> None:
    trainer = Trainer(learner, 4, Meter(TRAIN))
    for step in steps:
        trainer.step(new_batch(step))


def state_of(learner: Learner) -> list[torch.Tensor]:
    kept = [p.detach().clone() for p in learner.model.parameters()]
    return kept + [v.clone() for values in learner.optimiser.state.values() for v in values.values()]


def add_one(learner: Learner) -> None:
    with torch.no_grad():
        for parameter in learner.model.parameters():
            parameter.add_(1)


def assert_holds(path: Path, state: list[torch.Tensor], new_learner: Make) -> None:
    learner = new_learner()
    checkpoint.load(path, learner)
    for a, b in zip(state_of(learner), state, strict=True):
        assert torch.equal(a, b)


@pytest.fixture
def learner(new_learner: Make, new_batch: Make) -> Learner:
    learner: Learner = new_learner()
    take(learner, new_batch, range(2))
    return learner


def test_training_goes_on_while_it_is_written(
    tmp_path: Path, learner: Learner, new_learner: Make, new_batch: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It holds the tensors as they were when it was saved, and the next one waits for it."""
    held, write = Event(), increments.write

    def slowly(*args: Any) -> Any:
        assert held.wait(60)
        return write(*args)

    monkeypatch.setattr(saver, "write", slowly)
    with Saver(tmp_path, learner, 2) as saving:
        wanted = state_of(learner)
        path = saving.save(LOADER, 2)
        take(learner, new_batch, range(2, 4))
        assert not path.exists()
        held.set()
        after = state_of(learner)
        later = saving.save(LOADER, 4)
        assert path.exists()
        take(learner, new_batch, range(4, 5))
    assert_holds(path, wanted, new_learner)
    assert_holds(later, after, new_learner)


def broken(*_: Any, **__: Any) -> Any:
    raise FULL


STAGES: list[tuple[Any, str]] = [
    (saver, "_empty"),
    (increments, "_write_file"),
    (os, "fsync"),
    (FileSystemWriter, "finish"),
    (saver, "part_of"),
    (saver, "write_atomic"),
    (saver, "place"),
    (saver, "sync"),
    (saver, "remove"),
]


@pytest.mark.parametrize(("where", "what"), STAGES, ids=[what for _, what in STAGES])
def test_a_full_disk_never_costs_a_good_checkpoint(
    where: Any, what: str, tmp_path: Path, learner: Learner, new_learner: Make, new_batch: Make
) -> None:
    """At every stage: one line at the next save, once; what was there stays; and then it goes on."""
    with Saver(tmp_path, learner, 1) as saving:
        first, wanted = saving.save(LOADER, 2), state_of(learner)
        saving.wait()
        take(learner, new_batch, range(2, 3))
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(where, what, broken)
            saving.save(LOADER, 3)
            with pytest.raises(DataError, match="No space left on device; make room"):
                saving.wait()
        saving.wait()
        left = checkpoint.complete(tmp_path)
        assert all(checkpoint.read(path) for path in left)
        assert first in left
        if what not in ("sync", "remove"):  # these fail when it has its name already
            assert list(tmp_path.iterdir()) == [first]
            assert_holds(first, wanted, new_learner)
        take(learner, new_batch, range(3, 4))
        last = saving.save(LOADER, 4)
        saving.wait()
        assert_holds(last, state_of(learner), new_learner)
        assert checkpoint.complete(tmp_path) == [last]


@pytest.mark.parametrize("limit", [0, 1, 50_000])
def test_a_file_that_may_not_grow(limit: int, tmp_path: Path, learner: Learner, new_learner: Make) -> None:
    """A real refusal of the system, in the middle of a write."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    with Saver(tmp_path, learner, 2) as saving:
        first = saving.save(LOADER, 2)
        saving.wait()
        add_one(learner)
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, hard))
        try:
            saving.save(LOADER, 3)
            with pytest.raises(DataError, match="File too large"):
                saving.wait()
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert list(tmp_path.iterdir()) == [first]
    checkpoint.load(first, new_learner())


def test_an_error_ends_the_run_at_a_later_step(
    run_settings: Make, dataset: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The one before stays, and the same command goes on from it."""
    settings, finish = run_settings(steps=12, checkpoint_steps=3), Saver._finish

    def full(self: Saver, about: Any, *args: Any) -> Any:
        if about.step == 6:
            raise FULL
        return finish(self, about, *args)

    out = tmp_path / "run"
    out.mkdir()
    with monkeypatch.context() as patch:
        patch.setattr(Saver, "_finish", full)
        with pytest.raises(DataError, match="No space left on device"):
            loop.run(settings, dataset, out, alone(), 0.0)
    assert [p.name for p in (out / "checkpoints").iterdir()] == ["step-00000003"]
    loop.run(settings, dataset, out, alone(), 0.0)
    whole = tmp_path / "whole"
    whole.mkdir()
    loop.run(settings, dataset, whole, alone(), 0.0)
    assert (out / "steps.jsonl").read_bytes() == (whole / "steps.jsonl").read_bytes()


def test_a_full_disk_of_one_rank_is_the_error_of_all(
    tmp_path: Path, run_ranks: Make, new_learner: Make
) -> None:
    def work(mesh: Mesh) -> str:
        with Saver(tmp_path / "two", new_learner(mesh), 2) as saving:
            saving.save(LOADER, 1)
            saving.wait()
            with pytest.MonkeyPatch.context() as patch:
                if mesh.rank == 1:
                    patch.setattr(saver, "write", broken)
                saving.save(LOADER, 2)
                with pytest.raises(DataError) as caught:
                    saving.save(LOADER, 3)  # it waits for the one before first
            saving.save(LOADER, 4)
        return str(caught.value)

    told = run_ranks(2, work)
    assert told[0] == told[1]
    assert "step-00000002: No space left on device" in told[0]
    left = checkpoint.complete(tmp_path / "two")
    assert [checkpoint.read(path).step for path in left] == [1, 4]
    assert len(list((tmp_path / "two").iterdir())) == 2


def test_a_rank_that_is_killed_while_it_writes_leaves_nothing_whole(
    tmp_path: Path, run_ranks: Make, new_learner: Make
) -> None:
    def work(mesh: Mesh) -> None:
        learner = new_learner(mesh)
        with Saver(tmp_path / "two", learner, 2) as saving:
            saving.save(LOADER, 1)
            saving.wait()
            with pytest.MonkeyPatch.context() as patch:
                if mesh.rank == 1:
                    patch.setattr(os, "fsync", lambda _: os.kill(os.getpid(), signal.SIGKILL))
                add_one(learner)
                saving.save(LOADER, 2)
                saving.wait()

    with pytest.raises(RuntimeError, match="rank 0 of 2"):
        run_ranks(2, work)
    (left,) = checkpoint.complete(tmp_path / "two")
    assert checkpoint.read(left).step == 1
    checkpoint.clean(tmp_path / "two")
    assert list((tmp_path / "two").iterdir()) == [left]


MOMENTS = ("", "*-changed.distcp", ".metadata*", ".checkpoint.json*", "checkpoint.json")
"""What is in the hidden folder, as far as a checkpoint is written."""


def targets(folder: Path, rng: np.random.Generator) -> Iterator[Callable[[], bool]]:
    """Whether a moment has come that is a few checkpoints ahead, at any stage of writing."""
    while True:
        last = checkpoint.complete(folder)[-1:]
        step = (int(last[0].name.removeprefix("step-")) if last else 0) + int(rng.integers(1, 4))
        path, moment = checkpoint.folder_of(folder, step), str(rng.choice(MOMENTS))
        hidden = path.with_name(f".{path.name}.tmp")

        def come(path: Path = path, hidden: Path = hidden, moment: str = moment) -> bool:
            try:
                there = not moment or any(file.match(moment) for file in hidden.iterdir())
            except FileNotFoundError:  # not yet, or no longer
                there = False
            return (there and hidden.exists()) or path.exists()

        yield come


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_kill_9_at_random_moments_of_saving(run_settings: Make, dataset: Dataset, tmp_path: Path) -> None:
    """Twelve times: what has a name is whole, and in the end the run is that of an uncut one."""
    settings: Settings = run_settings(steps=40, checkpoint_steps=1)
    out, whole = tmp_path / "cut", tmp_path / "whole"
    out.mkdir()
    whole.mkdir()

    def work(folder: Path) -> None:
        torch.set_num_threads(1)
        loop.run(settings, dataset, folder, alone(), 0.0)

    context = multiprocessing.get_context("fork")
    come = targets(out / "checkpoints", np.random.default_rng(7))
    killed = 0
    for _ in range(12):
        child, is_time = context.Process(target=work, args=(out,)), next(come)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # fork beside threads: a child sets one
            child.start()
        until = time.monotonic() + 60
        while child.is_alive() and not is_time():
            assert time.monotonic() < until
            time.sleep(0.0005)
        child.kill()
        child.join()
        killed += child.exitcode == -signal.SIGKILL
        for path in checkpoint.complete(out / "checkpoints"):
            assert checkpoint.read(path).step == int(path.name.removeprefix("step-"))
    assert killed >= 8
    work(out)
    work(whole)
    assert (out / "steps.jsonl").read_bytes() == (whole / "steps.jsonl").read_bytes()
    last = [checkpoint.complete(folder / "checkpoints")[-1] for folder in (out, whole)]
    a, b = (checkpoint.weights(path) for path in last)
    assert a.keys() == b.keys()
    assert all(torch.equal(a[name], b[name]) for name in a)


def test_what_did_not_change_is_linked(tmp_path: Path, new_learner: Make, new_batch: Make) -> None:
    """Half of the blocks are frozen: from the second checkpoint on their file is that of the first."""
    learner: Learner = new_learner()
    learner.model.blocks["0"].requires_grad_(False)
    frozen = sum(p.nbytes for p in learner.model.blocks["0"].parameters())
    states = []
    with Saver(tmp_path, learner, 2) as saving:
        for step in range(1, 4):
            take(learner, new_batch, range(step - 1, step))
            saving.save(LOADER, step)
            states.append(state_of(learner))
    for path, state in zip(checkpoint.complete(tmp_path), states[1:], strict=True):
        linked = [part for part in checkpoint.read(path).parts if part.linked]
        assert sum(part.bytes for part in linked) >= frozen
        assert all((path / part.name).stat().st_nlink == 2 for part in linked)
        moved = shutil.copytree(path, tmp_path / "elsewhere" / path.name)  # whole in itself

        def half() -> Learner:
            learner: Learner = new_learner()
            learner.model.blocks["0"].requires_grad_(False)
            return learner

        assert_holds(moved, state, half)
