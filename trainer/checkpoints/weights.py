"""The weights to begin a run with, of a safetensors file."""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from crc32c import crc32c
from safetensors import SafetensorError, safe_open
from torch import Size, Tensor

from ...errors import DataError
from ..learner import Learner
from .increments import raw
from .pieces import MODEL, model_pieces, shapes_of

log = logging.getLogger(__name__)

SUMS = "crc32c"
"""The entry of the metadata that holds the CRC32C of each tensor's bytes."""


def begin_with(file: Path, learner: Learner) -> None:
    """Bring the weights of ``file`` in, before the first step; every rank calls this.

    Warns where they are of other classes, which may be the same in another order. Raises DataError, on all
    ranks, naming the tensor that is missing, not known or of another shape, and where the file is damaged.
    """
    shapes = shapes_of(learner.task)
    learner.mesh.first(lambda: _check(file, shapes, learner.task.state.classes))
    with _opened(file) as tensors, torch.no_grad():
        pieces = model_pieces(learner.model, shapes)
        for name, _ in learner.model.named_parameters():
            piece = pieces[f"{MODEL}{name}"]
            piece.held.copy_(tensors.get_slice(name)[piece.slices])


def _opened(file: Path) -> Any:
    if file.exists() and not file.is_file():
        raise DataError(file, "is no file", "check trainer.init")
    try:
        return safe_open(file, framework="pt")
    except OSError as error:
        raise DataError(file, f"cannot be read ({error.strerror or error})", "check trainer.init") from None
    except SafetensorError as error:
        raise DataError(file, f"is no safetensors file, or damaged ({error})", "export it again") from None


def _check(file: Path, shapes: Mapping[str, Size], classes: Sequence[str]) -> None:
    with _opened(file) as tensors:
        names = set(tensors.keys())
        for name in sorted(shapes.keys() ^ names):
            told = "lacks" if name in shapes else "holds, beyond the model,"
            raise DataError(file, f"{told} the tensor {name}", "set [model] as it was where it was trained")
        for name, shape in shapes.items():
            found = tuple(tensors.get_slice(name).get_shape())
            if found != tuple(shape):
                cause = f"its tensor {name} has the shape {found}, the model's {tuple(shape)}"
                raise DataError(file, cause, "set [model] as it was where it was trained")
        metadata = tensors.metadata() or {}
        sums, own = _sums(file, metadata.get(SUMS, "{}")), json.dumps(list(classes))
        if metadata.get("classes", own) != own:  # as many of them: they may have been renamed
            log.warning(
                "%s was trained for the classes %s, this run is for %s", file, metadata["classes"], own
            )
        for name in sorted(names):
            _check_values(file, name, tensors.get_tensor(name), sums.get(name))


def _sums(file: Path, text: str) -> dict[str, Any]:
    """The CRC32C of each tensor, as its metadata tell; none where another program wrote the file."""
    try:
        sums = json.loads(text)
    except (ValueError, RecursionError):
        sums = None
    if not isinstance(sums, dict):
        raise DataError(file, f"the entry {SUMS} of its metadata is damaged", "export it again")
    return sums


def _check_values(file: Path, name: str, values: Tensor, crc: object) -> None:
    if crc is not None and crc32c(raw(values)) != crc:
        raise DataError(file, f"its tensor {name} is not what was written: bytes differ", "export it again")
    if not values.is_floating_point():
        kind = str(values.dtype).removeprefix("torch.")
        raise DataError(file, f"its tensor {name} is of {kind}", "store it as floating-point numbers")
    if not values.float().isfinite().all():  # as the model will have it
        raise DataError(file, f"its tensor {name} holds values that are no finite numbers", "export it again")
