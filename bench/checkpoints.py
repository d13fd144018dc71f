"""What checkpoints cost: `python -m tamis.bench.checkpoints [FOLDER]` prints the tables.

A point model of 2 million parameters under AdamW, one process, one thread, 2 clouds of 256 points. FOLDER: on
the disk to measure, by default the folder of temporary files.
"""

from __future__ import annotations

import statistics
import sys
import tempfile
import time
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch

from ..config import check
from ..metrics import STREAM, TRAIN, Meter
from ..trainer.checkpoints import checkpoint
from ..trainer.checkpoints.drift import sums_of
from ..trainer.checkpoints.increments import write
from ..trainer.checkpoints.pieces import shapes_of
from ..trainer.checkpoints.saver import Saver, Stage
from ..trainer.learner import Learner
from ..trainer.mesh import alone
from ..trainer.settings import Settings
from ..trainer.step import Trainer
from .loops import batch_of, task_of

CLOUDS, POINTS, EVERY, ROUNDS = 2, 256, 10, 5
LOADER: dict[str, Any] = {}


def learner_of() -> Learner:
    sections = {
        "model": {"kind": "points", "width": 128, "heads": 4, "depth": 10, "mlp_ratio": 4},
        "loader": {"batch": CLOUDS},
        "trainer": {"points": POINTS, "steps": 100_000},
    }
    settings = check({"name": "bench", "data": {}, **sections}, Settings, where="bench")
    return Learner(task_of(settings), settings.layout, settings.trainer, alone())


def beside_training(folder: Path, learner: Learner) -> None:
    """Rounds of steps in turn: without a checkpoint, after one that is waited for, and beside one."""
    trainer = Trainer(learner, CLOUDS, Meter(STREAM + TRAIN))
    batches = [batch_of(CLOUDS, POINTS, seed=(0, i)) for i in range(EVERY)]
    kinds = ("none", "waited for", "beside the steps")
    taken, held = ({kind: list[float]() for kind in kinds} for _ in range(2))
    number = 0
    with Saver(folder, learner, 2) as saver:
        for i in range(ROUNDS + 1):
            for kind in kinds:
                started_s = time.perf_counter()
                if kind != "none":
                    saver.save(LOADER, number)
                if kind == "waited for":
                    saver.wait()
                held_s = time.perf_counter() - started_s
                for batch in batches:
                    trainer.step(replace(batch, step=number))
                    number += 1
                saver.wait()
                if i:  # in the first round memory is touched for the first time
                    held[kind].append(held_s)
                    taken[kind].append((time.perf_counter() - started_s) / EVERY)
    print(f"\n| a checkpoint every {EVERY} steps | a step, ms | of none | a save holds up, ms |")
    print("|:--|--:|--:|--:|")
    for kind in kinds:
        step_ms, held_ms = (statistics.median(values[kind]) * 1e3 for values in (taken, held))
        ratio = statistics.median(a / b for a, b in zip(taken[kind], taken["none"], strict=True))
        print(f"| {kind} | {step_ms:.1f} | {ratio:.3f} | {held_ms:.1f} |")


def bytes_written(folder: Path) -> None:
    """Checkpoints of a model of which half of the blocks are frozen, beside those of a whole one."""
    print("\n| checkpoint | learned | written, MB | linked, MB | seconds |\n|:--|:--|--:|--:|--:|")
    for kind in ("all", "half of the blocks"):
        learner = learner_of()
        if kind != "all":
            for name in list(learner.model.blocks)[::2]:
                learner.model.blocks[name].requires_grad_(False)
        trainer = Trainer(learner, CLOUDS, Meter(STREAM + TRAIN))
        with Saver(folder / kind.split()[0], learner, 2) as saver:
            for step in range(1, 4):
                trainer.step(batch_of(CLOUDS, POINTS, seed=(1, step)))
                started_s = time.perf_counter()
                path = saver.save(LOADER, step)
                saver.wait()
                took_s = time.perf_counter() - started_s
                parts = checkpoint.read(path).parts
                new, linked = (sum(p.bytes for p in parts if p.linked == old) / 1e6 for old in (False, True))
                print(f"| {step} | {kind} | {new:.1f} | {linked:.1f} | {took_s:.2f} |")


def in_files(folder: Path, learner: Learner) -> None:
    """The same pieces in the two files of a rank, and in one each, flushed to the disk or not."""
    staged = Stage(learner).take()
    print("\n| files | flushed | written in s |\n|:--|:--|--:|")
    for name, groups in (("two a rank", [staged]), (f"one a tensor, {len(staged)}", [[s] for s in staged])):
        for flushed in (True, False):
            seconds = []
            for i in range(ROUNDS):
                target = folder / f"{len(groups)}-{flushed}-{i}"
                target.mkdir()
                with nullcontext() if flushed else patch("os.fsync"):
                    started_s = time.perf_counter()
                    for k, group in enumerate(groups):
                        write(target, f"{k}", group, None)
                    seconds.append(time.perf_counter() - started_s)
            print(f"| {name} | {'yes' if flushed else 'no'} | {statistics.median(seconds):.2f} |")


def comparing(learner: Learner) -> None:
    """The checksums of all parameters, as ranks compare them."""
    seconds = []
    for _ in range(ROUNDS):
        started_s = time.perf_counter()
        sums_of(learner.model, list(shapes_of(learner.task)))
        seconds.append(time.perf_counter() - started_s)
    size = sum(p.nbytes for p in learner.model.parameters()) / 1e6
    print(f"\nchecksums of {size:.1f} MB of parameters: {statistics.median(seconds) * 1e3:.1f} ms")


def main() -> None:
    torch.set_num_threads(1)
    where = sys.argv[1] if len(sys.argv) > 1 else None
    with tempfile.TemporaryDirectory(prefix="tamis-bench-", dir=where) as name:
        folder, learner = Path(name), learner_of()
        beside_training(folder / "run", learner)
        bytes_written(folder)
        in_files(folder, learner)
        comparing(learner)


if __name__ == "__main__":
    main()
