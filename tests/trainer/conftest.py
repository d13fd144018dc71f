"""What the trainer's tests share: forked ranks, and batches made up from a seed."""

from __future__ import annotations

import os
import traceback
import warnings
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import laspy
import numpy as np
import pytest
import torch
import torch.distributed as dist

from tamis.bench.ranks import forked
from tamis.config import check
from tamis.loaders.loader import Batch
from tamis.metrics import STREAM, TRAIN, Meter
from tamis.pipelines.build import build
from tamis.pipelines.dataset import Dataset
from tamis.samplers.curve import serialise
from tamis.trainer.learner import Learner
from tamis.trainer.mesh import Mesh, alone, mesh_of
from tamis.trainer.model_settings import PointSettings
from tamis.trainer.settings import LayoutSettings, Settings, TrainerSettings
from tamis.trainer.step import Trainer
from tamis.trainer.tasks import Segmentation, TaskState

MODEL = PointSettings(width=24, heads=2, depth=2, window=8, features=("xy", "z", "intensity"))
CLASSES = ("ground", "plants", "roof")


def _child(
    rank: int,
    layout: LayoutSettings,
    store: str,
    work: Callable[..., Any],
    args: tuple[Any, ...],
    answers: Any,
) -> None:
    try:
        torch.set_num_threads(1)  # first of all: the parent's OpenMP threads did not come along
        warnings.simplefilter("ignore")
        dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=layout.ranks)
        mesh = mesh_of(layout, rank, torch.device("cpu"))
        answer = work(mesh, *args)
        dist.barrier()
        dist.destroy_process_group()
        answers.put((rank, answer, None))
    except BaseException:  # noqa: BLE001 - whatever it was, the parent must hear of it
        answers.put((rank, None, traceback.format_exc()))
    answers.close()
    answers.join_thread()
    os._exit(0)


@pytest.fixture
def run_ranks(tmp_path: Path) -> Callable[..., list[Any]]:
    """``run_ranks(layout, work, *args)``: what ``work(mesh, *args)`` gives on each of its forked gloo ranks.

    A number stands for so many replicas.
    """

    def run(layout: LayoutSettings | int, work: Callable[..., Any], *args: Any) -> list[Any]:
        layout = LayoutSettings(dp=layout) if isinstance(layout, int) else layout
        runs = len(list(tmp_path.glob("store-*")))
        store = str(tmp_path / f"store-{runs}")
        return forked(layout.ranks, _child, (layout, store, work, args), 60)

    return run


class _Cut(Exception):
    """The run is killed here."""


@pytest.fixture
def killed_in() -> Callable[[int | None], AbstractContextManager[None]]:
    """``with killed_in(step)``: the run in the block is killed in that step; with None it ends by itself."""

    @contextmanager
    def killing(cut: int | None) -> Iterator[None]:
        take = Trainer.step

        def step(trainer: Trainer, batch: Batch, *args: Any) -> Any:
            if batch.step == cut:
                raise _Cut
            return take(trainer, batch, *args)

        killed = False
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(Trainer, "step", step)
            try:
                yield
            except _Cut:
                killed = True
        assert killed == (cut is not None)

    return killing


@pytest.fixture
def task() -> Segmentation:
    state = TaskState(classes=CLASSES, bright={"intensity": 100.0})
    return Segmentation(MODEL, state, ["xyz", "intensity", "label"], "here")


@pytest.fixture
def new_learner(task: Segmentation) -> Callable[..., Learner]:
    def make(mesh: Mesh | None = None, layout: LayoutSettings | None = None, **settings: Any) -> Learner:
        mesh = mesh or alone()
        layout = layout or LayoutSettings(dp=mesh.replicas)
        return Learner(task, layout, TrainerSettings(points=32, steps=20, seed=3, **settings), mesh)

    return make


@pytest.fixture
def new_trainer(new_learner: Callable[..., Learner]) -> Callable[..., Trainer]:
    """``new_trainer(mesh, layout, **trainer)``: steps on batches of at most 4 clouds a replica."""

    def make(mesh: Mesh | None = None, layout: LayoutSettings | None = None, **settings: Any) -> Trainer:
        return Trainer(new_learner(mesh, layout, **settings), 4, Meter(STREAM + TRAIN))

    return make


@pytest.fixture
def new_batch() -> Callable[..., Batch]:
    """A dense batch of ``clouds`` clouds of 32 rows, random in the seed and the step."""

    def make(step: int, clouds: int = 4, seed: int = 0) -> Batch:
        rng = np.random.default_rng([seed, step])
        xyz = rng.uniform(-5, 5, (clouds, 32, 3)).astype(np.float32)
        transposed = np.empty((clouds, 32), np.int64)
        for cloud in range(clouds):
            order, transposed[cloud] = serialise(xyz[cloud], MODEL.cell)
            xyz[cloud] = xyz[cloud][order]
        columns: dict[str, Any] = {
            "xyz": xyz,
            "intensity": rng.integers(0, 120, (clouds, 32)).astype(np.uint16),
            "label": rng.integers(-1, 3, (clouds, 32)).astype(np.int32),
            "transposed": transposed,
        }
        ids, weight = np.arange(clouds, dtype=np.uint64) + 10, np.ones(clouds, np.float32)
        return Batch(step, 0, ids, columns, np.ones((clouds, 32), bool), None, weight, 32)

    return make


@pytest.fixture
def part_of() -> Callable[..., Batch]:
    """``part_of(batch, clouds)``: the batch of the named clouds only."""

    def part(batch: Batch, clouds: Any) -> Batch:
        assert batch.mask is not None
        columns = {name: values[clouds] for name, values in batch.columns.items()}
        return replace(
            batch,
            ids=batch.ids[clouds],
            columns=columns,
            mask=batch.mask[clouds],
            weight=batch.weight[clouds],
        )

    return part


@pytest.fixture
def settings_of(tmp_path: Path) -> Callable[..., Settings]:
    """``settings_of(**sections)``: a whole configuration, checked as from a file, with parts replaced."""

    def make(**sections: Any) -> Settings:
        values: dict[str, Any] = {
            "name": "small",
            "data": {},
            "loader": {"batch": 4},
            "model": MODEL.model_dump(),
            "trainer": {"points": 32, "steps": 4},
        }
        return check(values | sections, Settings, where="small.toml", folder=tmp_path)

    return make


@pytest.fixture
def scan(tmp_path: Path) -> Path:
    """A LAS file of 40 x 40 units: level ground (2), bushes on it (3), and some points of no class (7)."""
    rng = np.random.default_rng(0)
    n = 4000
    las = laspy.LasData(laspy.LasHeader(point_format=6, version="1.4"))
    x, y = rng.uniform(0, 40, (2, n))
    bush = rng.random(n) < 0.4
    las.header.scales, las.header.offsets = [0.001] * 3, [1000, 2000, 0]
    las.x, las.y, las.z = x + 1000, y + 2000, np.where(bush, rng.uniform(1, 4, n), 0.0)
    las.intensity = rng.integers(0, 1000, n)
    las.classification = np.where(rng.random(n) < 0.05, 7, np.where(bush, 3, 2))
    las.return_number = las.number_of_returns = np.ones(n, np.uint8)
    path = tmp_path / "scans" / "field.las"
    path.parent.mkdir()
    las.write(path)
    return path


@pytest.fixture
def run_settings(settings_of: Callable[..., Settings], scan: Path) -> Callable[..., Settings]:
    """``run_settings(**trainer)``: a run over `scan`, with strips of 10 units to be judged on."""

    def make(**trainer: Any) -> Settings:
        return settings_of(
            data={
                "root": str(scan.parent),
                "classes": {"ground": [2], "bush": [3]},
                "tiles": {"size": 10.0},
                "split": {"kind": "blocks", "size": [10.0, 0.0], "of": 4, "test": [3]},
                "row_order": "random",
            },
            loader={"batch": 5, "graph": [{"kind": "rotate"}, {"kind": "flip", "axes": ["x"]}]},
            trainer={"points": 32, "steps": 8, "lr": 0.01, "checkpoint_steps": 1} | trainer,
        )

    return make


@pytest.fixture
def dataset(run_settings: Callable[..., Settings], tmp_path: Path) -> Dataset:
    """The dataset of `run_settings`."""
    return build(run_settings().data, tmp_path)
