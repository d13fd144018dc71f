"""``tamis predict``: the classes of a scan's points, written back onto its file."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import laspy
import numpy as np
import torch
from numpy.typing import NDArray

from ..errors import DataError, UsageError
from ..files import prepare
from ..pipelines.cut import select
from ..pipelines.las_copy import write_copy
from ..pipelines.pieces import columns_of, cut
from ..pipelines.readers import ReadSettings, Scan, read
from ..pipelines.records import sample_id
from ..pipelines.settings import DataSettings
from ..pipelines.splits import FilesSplit
from .checkpoints import checkpoint
from .learner import whole_model
from .model_settings import PointSettings
from .models.trunk import Trunk
from .settings import Settings, settings_of
from .tasks import Segmentation
from .tasks.points import predict_points

log = logging.getLogger(__name__)

SUFFIXES = (".las", ".laz")


def predict(run: Path, file: Path, out: Path) -> str:
    """Write ``file`` to ``out`` with the label field set to the class of each point; tell what was found.

    The scan is cut into the tiles of evaluation, and every point is predicted once, by the last checkpoint
    of ``run``. A class is written as its first code in ``data.classes``; all other fields and records stay
    as they are. Raises UsageError for names that will not do, and DataError where ``run`` holds no trained
    model, ``file`` is no LAS or LAZ file, lacks a field the model reads, or has no room for a code.
    """
    _check_names(file, out)
    settings, model_settings = _trained(run)
    las, scan = _opened(file, settings.data.read)

    def learned(path: Path) -> tuple[Segmentation, Trunk]:
        task = Segmentation(model_settings, checkpoint.read(path).task, list(scan.fields), str(file))
        model = whole_model(task)
        checkpoint.load_model(path, model)
        return task, model

    task, model = checkpoint.reading(run, None, learned)
    codes = _codes(file, las, settings.data, task.state.classes)

    label = settings.data.label
    found = np.array(las[label])
    log.info("predicting %d points", len(found))
    for rows, columns, id in _samples(file, scan, settings.data):
        scores = predict_points(model, task, columns, settings.trainer, id, torch.device("cpu"))
        found[rows] = codes[scores.argmax(axis=1)]
    las[label] = found
    write_copy(file, las, out, same_points=True)
    counts = (
        f"{name} {(found == code).sum():,}" for name, code in zip(task.state.classes, codes, strict=True)
    )
    return f"{out}: {len(found):,} points, {', '.join(counts)}"


def _check_names(file: Path, out: Path) -> None:
    if out.suffix.lower() not in SUFFIXES:
        raise UsageError(out, f"has no suffix of {' or '.join(SUFFIXES)}", "name the output so")
    prepare(out, file)


def _trained(run: Path) -> tuple[Settings, PointSettings]:
    """The settings of a run that has a checkpoint, and those of its model."""
    settings = settings_of(run)
    if not isinstance(settings.model, PointSettings):
        kind = settings.model.kind
        raise UsageError(run, f"was trained with model.kind = {kind}", "give a run of model.kind = points")
    checkpoint.written(run)
    return settings, settings.model


def _opened(file: Path, settings: ReadSettings) -> tuple[laspy.LasData, Scan]:
    """The file as it is, and its points as the model learned to see them: in the same unit."""
    scan = read(file, settings)  # first, as it refuses whatever is damaged
    with file.open("rb") as stream:
        if stream.read(4) != b"LASF":
            raise DataError(file, "is no LAS or LAZ file, so it has no place for a class", "convert it first")
    return laspy.read(file), scan


def _codes(
    file: Path, las: laspy.LasData, settings: DataSettings, classes: Sequence[str]
) -> NDArray[np.int64]:
    """The code to write for each class."""
    codes = np.array([settings.classes[name][0] for name in classes])
    if settings.label not in las.point_format.dimension_names:
        there = ", ".join(las.point_format.dimension_names)
        raise DataError(
            file, f"has no field '{settings.label}' to write to (it has {there})", "convert it first"
        )
    largest = las.point_format.dimension_by_name(settings.label).max
    if codes.max() > largest:
        cause = f"field '{settings.label}' holds codes up to {largest}, not {codes.max()}"
        raise DataError(file, cause, "convert it to point format 6 or above")
    return codes


def _samples(
    file: Path, scan: Scan, settings: DataSettings
) -> Iterator[tuple[NDArray[np.int64], dict[str, NDArray[Any]], int]]:
    """The tiles of a whole file, cut as evaluated ones: rows in the file, columns, id."""
    everything = settings.model_copy(
        update={"split": FilesSplit(kind="files"), "bounds": None, "classes": {}, "fields": None}
    )
    points = select(file, scan, everything)
    for pieces in cut(file, file.name, points, everything, {file.name: "test"}):
        for i in range(len(pieces)):
            columns = columns_of(file, file.name, points, pieces.part(i, i + 1), "source")
            yield columns["row"], columns, sample_id(file.name, int(pieces.tile[i]))
