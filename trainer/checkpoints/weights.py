"""The weights to begin a run with, of a safetensors file."""

from __future__ import annotations

import json
from collections.abc import Mapping
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

SUMS = "crc32c"
"""The entry of the metadata that holds the CRC32C of each tensor's bytes."""


def begin_with(file: Path, learner: Learner) -> None:
    """Bring the weights of ``file`` in, before the first step; every rank calls this.

    Raises DataError, on all ranks, naming the tensor that is missing, not known or of another shape, and
    where the file is damaged.
    """
    shapes = shapes_of(learner.task)
    learner.mesh.first(lambda: _check(file, shapes))
    with _opened(file) as tensors, torch.no_grad():
        pieces = model_pieces(learner.model, shapes)
        for name, _ in learner.model.named_parameters():
            piece = pieces[f"{MODEL}{name}"]
            piece.held.copy_(tensors.get_slice(name)[piece.slices])


def _opened(file: Path) -> Any:
    try:
        return safe_open(file, framework="pt")
    except OSError as error:
        raise DataError(file, f"cannot be read ({error.strerror or error})", "check trainer.init") from None
    except SafetensorError as error:
        raise DataError(file, f"is no safetensors file, or damaged ({error})", "export it again") from None


def _check(file: Path, shapes: Mapping[str, Size]) -> None:
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
        sums = json.loads((tensors.metadata() or {}).get(SUMS, "{}"))
        for name in sorted(names):
            _check_values(file, name, tensors.get_tensor(name), sums.get(name))


def _check_values(file: Path, name: str, values: Tensor, crc: int | None) -> None:
    if crc is not None and crc32c(raw(values)) != crc:
        raise DataError(file, f"its tensor {name} is not what was written: bytes differ", "export it again")
    if not values.is_floating_point() or not values.isfinite().all():
        raise DataError(file, f"its tensor {name} holds values that are no finite numbers", "export it again")
