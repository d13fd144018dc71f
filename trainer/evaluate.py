"""What a model's answers are worth: each row of a split is answered once, and counted once."""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import torch
from numpy.typing import NDArray
from torch.nn import functional

from ..errors import DataError
from ..files import atomic
from ..pipelines.dataset import Dataset
from ..pipelines.records import IGNORED
from .mesh import Mesh

log = logging.getLogger(__name__)

TOGETHER = 8  # clouds or sequences in one forward pass: bounds the memory, whatever a sample's size

Int32 = NDArray[np.int32]
SCHEMA = pa.schema(
    [
        pa.field("source", pa.utf8(), nullable=False),
        pa.field("row", pa.int64(), nullable=False),
        pa.field("label", pa.int32(), nullable=False),
        pa.field("predicted", pa.int32(), nullable=False),
    ]
)


def own_rows(dataset: Dataset, split: str, mesh: Mesh) -> list[int] | None:
    """The samples of a split that this rank judges; None where the dataset has no such split.

    Each is seen as a whole by one rank, so what comes out does not depend on their number.
    """
    if split not in dataset.splits:
        return None
    rows = [row for part in dataset.splits[split] for row in range(*part.rows)]
    if mesh.rank == 0:
        log.info("evaluating %d samples", len(rows))
    return rows[mesh.rank :: mesh.world]


def padded(
    samples: Sequence[Mapping[str, NDArray[Any]]], k: int
) -> tuple[dict[str, NDArray[Any]], NDArray[np.bool_]]:
    """The first k rows of each sample, (b, k, ...), and bool (b, k), which are not padding.

    Rows repeat where there are fewer, as in training.
    """
    columns = {
        name: np.stack([np.resize(s[name][:k], (k, *s[name].shape[1:])) for s in samples])
        for name in samples[0]
    }
    rows = [len(next(iter(sample.values()))) for sample in samples]
    return columns, np.arange(k) < np.array(rows)[:, np.newaxis]


class Answers:
    """The answers of a model that tells ``classes`` apart, counted; every rank has some of them."""

    def __init__(self, classes: Sequence[str]) -> None:
        self._classes = tuple(classes)
        self._confusion = np.zeros((len(classes), len(classes)), np.int64)
        self._loss_sum, self._count = 0.0, 0
        self._tables: list[pa.Table] = []

    def add(
        self, source: pa.Array, row: NDArray[np.int64], label: Int32, scores: NDArray[np.float32]
    ) -> None:
        """Count n answers: ``scores`` (n, classes) of row ``row`` of file ``source``, which is ``label``."""
        predicted = scores.argmax(axis=1).astype(np.int32)
        self._confusion += confusion_matrix(label, predicted, len(self._classes))
        self._loss_sum += cross_entropy(scores, label)
        self._count += len(label)
        self._tables.append(pa.table([source, row, label, predicted], schema=SCHEMA))

    def close(self, out: Path, mesh: Mesh) -> tuple[dict[str, Any] | None, int]:
        """Write ``out`` (`SCHEMA`, sorted by source and row); every rank calls this.

        The `figures` of all ranks' answers, and how many these are, the same on all ranks.
        """
        counts = [self._loss_sum, self._count, *self._confusion.ravel()]
        loss_sum, count, *cells = mesh.sum(
            torch.tensor(counts, dtype=torch.float64, device=mesh.device)
        ).tolist()
        confusion = np.array(cells).astype(np.int64).reshape(self._confusion.shape)
        found = figures(confusion, loss_sum, self._classes)
        _write(out, pa.concat_tables(self._tables) if self._tables else SCHEMA.empty_table(), mesh)
        return found, int(count)


def figures(confusion: NDArray[np.int64], loss_sum: float, classes: tuple[str, ...]) -> dict[str, Any] | None:
    """What a confusion matrix, int64 (label, predicted), says; None where it is empty.

    ``accuracy``; ``majority``, the share of the most frequent class, which a constant answer would reach;
    ``mean_iou`` over the classes that occur among the labels; ``iou`` of each of these; ``classes``, the
    labelled rows of each class; ``loss``; ``labelled``, the number of rows that count in all these.
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
        "loss": mean_loss(loss_sum, labelled),
        "labelled": labelled,
    }


def mean_loss(loss_sum: float, labelled: int) -> float:
    """The loss of what is labelled. Raises DataError where it is not finite: then no answer is one."""
    if not math.isfinite(loss_sum):
        fix = "train anew with a lower trainer.lr, or judge an earlier checkpoint with `tamis eval --step`"
        raise DataError("the evaluation", f"the loss is {loss_sum}: the model's weights are too large", fix)
    return loss_sum / labelled


def confusion_matrix(label: Int32, predicted: Int32, classes: int) -> NDArray[np.int64]:
    """Counts int64 (label, predicted) over the labelled rows."""
    known = label != IGNORED
    pairs = label[known].astype(np.int64) * classes + predicted[known]
    return np.bincount(pairs, minlength=classes * classes).reshape(classes, classes)


def cross_entropy(scores: NDArray[np.float32], label: Int32) -> float:
    """Cross entropy summed over the labelled rows, in float64."""
    target = torch.from_numpy(label.astype(np.int64))
    logits = torch.from_numpy(scores).double()
    return float(functional.cross_entropy(logits, target, ignore_index=IGNORED, reduction="sum"))


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
        temporary.open("wb") as file,
        pa.ipc.new_file(file, SCHEMA) as writer,
    ):
        writer.write_table(table)


def _read_table(path: Path) -> pa.Table:
    with pa.ipc.open_file(path) as reader:
        return reader.read_all()
