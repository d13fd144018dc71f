"""Evaluation at full resolution: every point of a split is predicted once, and counted once."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import torch
from numpy.typing import NDArray
from torch import nn
from torch.nn import functional

from ..files import atomic
from ..pipelines.dataset import Dataset
from ..pipelines.records import IGNORED
from ..samplers.curve import serialise
from ..samplers.random import random
from .mesh import Mesh
from .settings import TrainerSettings
from .tasks import Segmentation

log = logging.getLogger(__name__)

CLOUDS = 8  # clouds of k points in one forward pass: bounds the memory, whatever the sample's size

Columns = Mapping[str, NDArray[Any]]
Int32 = NDArray[np.int32]
SCHEMA = pa.schema(
    [
        pa.field("source", pa.utf8(), nullable=False),
        pa.field("row", pa.int64(), nullable=False),
        pa.field("label", pa.int32(), nullable=False),
        pa.field("predicted", pa.int32(), nullable=False),
    ]
)


def evaluate(
    dataset: Dataset,
    model: nn.Module,
    task: Segmentation,
    mesh: Mesh,
    settings: TrainerSettings,
    out: Path,
    split: str = "test",
) -> dict[str, Any] | None:
    """Predict every point of ``split`` once; write ``out`` (`SCHEMA`, sorted by source and row).

    The ranks share the samples, each of which is seen as a whole by one rank, so the result does not
    depend on their number; every rank calls this. Returns, the same on all ranks, `figures` with
    ``points``, how many were predicted, and ``dropped``, how many more its files hold; None where the
    dataset has no such split or nothing in it is labelled.
    """
    if split not in dataset.splits:
        return None
    rows = [row for part in dataset.splits[split] for row in range(*part.rows)]
    if mesh.rank == 0:
        log.info("evaluating %d samples", len(rows))
    confusion = np.zeros((task.classes, task.classes), np.int64)
    loss_sum, points = 0.0, 0
    tables = []
    for row in rows[mesh.rank :: mesh.world]:
        sample = dataset.sample(row, [*task.columns, "label", "row"])
        label = sample.columns["label"]
        scores = predict_points(model, task, sample.columns, settings, sample.id, mesh.device)
        predicted = scores.argmax(axis=1).astype(np.int32)
        confusion += confusion_matrix(label, predicted, task.classes)
        loss_sum += cross_entropy(scores, label)
        points += len(label)
        tables.append(_table(sample.source, sample.columns["row"], label, predicted))
    _write(out, pa.concat_tables(tables) if tables else SCHEMA.empty_table(), mesh)

    sums = torch.tensor([loss_sum, points, *confusion.ravel()], dtype=torch.float64, device=mesh.device)
    loss_sum, predicted_points, *counts = mesh.sum(sums).tolist()
    confusion = np.array(counts).astype(np.int64).reshape(confusion.shape)
    result = figures(confusion, loss_sum, task.state.classes)
    if result is not None:
        held = dataset.manifest.counts.splits[split]
        dropped = held.dropped + held.points - int(predicted_points)
        result |= {"points": int(predicted_points), "dropped": dropped}
    return result


def figures(confusion: NDArray[np.int64], loss_sum: float, classes: tuple[str, ...]) -> dict[str, Any] | None:
    """What a confusion matrix, int64 (label, predicted), says; None where it is empty.

    ``accuracy``; ``majority``, the share of the most frequent class, which a constant answer would reach;
    ``mean_iou`` over the classes that occur among the labels; ``iou`` of each of these; ``classes``, the
    labelled points of each class; ``loss``; ``labelled``, the number of points that count in all these.
    """
    labelled = int(confusion.sum())
    if labelled == 0:
        return None
    right, truth = np.diag(confusion), confusion.sum(axis=1)
    union = truth + confusion.sum(axis=0) - right
    present = truth > 0
    iou = right / np.maximum(union, 1)
    return {
        "accuracy": float(right.sum() / labelled),
        "majority": float(truth.max() / labelled),
        "mean_iou": float(iou[present].mean()),
        "iou": {c: float(iou[i]) for i, c in enumerate(classes) if present[i]},
        "classes": {c: int(truth[i]) for i, c in enumerate(classes)},
        "loss": loss_sum / labelled,
        "labelled": labelled,
    }


def predict_points(
    model: nn.Module,
    task: Segmentation,
    columns: Columns,
    settings: TrainerSettings,
    id: int,
    device: torch.device,
) -> NDArray[np.float32]:
    """Scores, float32 (n, classes), of all n points of a sample, each predicted once.

    The points are drawn into sets of ``settings.points``, so that clouds are as dense as those the model
    learned from; see `partition`.
    """
    n = len(columns["xyz"])
    scores = np.zeros((n, task.classes), np.float32)
    k = settings.points
    sets, fresh = partition(n, k, settings.seed, id)
    model.eval()
    for start in range(0, len(sets), CLOUDS):
        some = sets[start : start + CLOUDS]
        dense, order = serialised({c: columns[c][some] for c in task.columns}, task.model.cell)
        counted = np.take_along_axis(fresh[start : start + CLOUDS], order, axis=1)
        mask = counted | (n >= k)  # a small cloud repeats rows, and repeats are padding as in training
        with torch.inference_mode():
            tensors = {name: torch.from_numpy(values).to(device) for name, values in dense.items()}
            inputs = task.inputs(tensors, torch.from_numpy(mask).to(device))
            answer = model(task.entry(tensors), **inputs).cpu().numpy()
        scores[np.take_along_axis(some, order, axis=1)[counted]] = answer[counted]
    model.train()
    return scores


def partition(n: int, k: int, seed: int, id: int) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
    """Draw n rows into ceil(n / k) sets of exactly k: rows int64 (sets, k), and which of them are fresh.

    Every row is fresh in one place. The last set is filled up with rows of the first; where there are
    fewer than k rows, rows repeat.
    """
    order = random(n, n, seed=seed, id=id)
    sets = -(-n // k)
    rows = np.resize(order, (sets, k))
    return rows, (np.arange(sets * k) < n).reshape(sets, k)


def serialised(columns: Columns, cell: float) -> tuple[dict[str, NDArray[Any]], NDArray[np.int64]]:
    """Sort dense columns (b, k, ...) along the first curve and add ``transposed``; the order used too."""
    pairs = [serialise(xyz, cell) for xyz in columns["xyz"]]
    order = np.stack([p[0] for p in pairs])
    cloud = np.arange(len(order))[:, np.newaxis]
    dense: dict[str, NDArray[Any]] = {name: c[cloud, order] for name, c in columns.items()}
    dense["transposed"] = np.stack([p[1] for p in pairs])
    return dense, order


def confusion_matrix(label: Int32, predicted: Int32, classes: int) -> NDArray[np.int64]:
    """Counts int64 (label, predicted) over the labelled points."""
    known = label != IGNORED
    pairs = label[known].astype(np.int64) * classes + predicted[known]
    return np.bincount(pairs, minlength=classes * classes).reshape(classes, classes)


def cross_entropy(scores: NDArray[np.float32], label: Int32) -> float:
    """Cross entropy summed over the labelled points, in float64."""
    target = torch.from_numpy(label.astype(np.int64))
    logits = torch.from_numpy(scores).double()
    return float(functional.cross_entropy(logits, target, ignore_index=IGNORED, reduction="sum"))


def _table(source: str, row: NDArray[np.int64], label: Int32, predicted: Int32) -> pa.Table:
    sources = pa.DictionaryArray.from_arrays(pa.array(np.zeros(len(row), np.int32)), pa.array([source]))
    return pa.table([sources.cast(pa.utf8()), row, label, predicted], schema=SCHEMA)


def _write(out: Path, table: pa.Table, mesh: Mesh) -> None:
    """One sorted file from the tables of all ranks, through a file a rank: they may be large."""
    parts = [out.with_name(f".{out.name}.{rank}") for rank in range(mesh.world)]
    _write_table(parts[mesh.rank], table)
    mesh.barrier()
    if mesh.rank == 0:
        whole = pa.concat_tables([_read_table(p) for p in parts])
        _write_table(out, whole.sort_by([("source", "ascending"), ("row", "ascending")]))
        for part in parts:
            part.unlink()


def _write_table(path: Path, table: pa.Table) -> None:
    with (
        atomic(path) as temporary,
        pa.OSFile(str(temporary), "wb") as file,
        pa.ipc.new_file(file, SCHEMA) as writer,
    ):
        writer.write_table(table)


def _read_table(path: Path) -> pa.Table:
    with pa.ipc.open_file(path) as reader:
        return reader.read_all()
