"""``tamis export``: a run's weights as a safetensors file, to use elsewhere or to begin another run with."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path

from crc32c import crc32c
from safetensors import SafetensorError
from safetensors.torch import save_file
from torch import Tensor

from ...errors import UsageError
from ...files import atomic, prepare
from ..settings import settings_of
from .checkpoint import read, reading, weights
from .increments import raw
from .weights import SUMS


def export(run: Path, file: Path, step: int | None = None) -> str:
    """Write the weights of a run, whole and in float32, to ``file``; tell what was written.

    They are those of the last checkpoint, or of the one after ``step`` batches. The metadata has the name of
    the configuration, the step, and as JSON classes, model settings and the CRC32C of each tensor. Raises
    UsageError for a name that will not do and a step without a checkpoint, DataError where there is none,
    or it is damaged, and OSError where the disk is full or fails.
    """
    if file.suffix != ".safetensors":
        raise UsageError(file, "has not the suffix .safetensors", "name the output so")
    prepare(file)
    settings = settings_of(run)
    state, tensors = reading(run, step, lambda path: (read(path), weights(path)))
    tensors = {name: t.float() for name, t in tensors.items()}
    metadata = {
        "format": "pt",
        "name": settings.name,
        "step": str(state.step),
        "classes": json.dumps(state.task.classes),
        "model": json.dumps(settings.model.model_dump(mode="json")),
        SUMS: json.dumps({name: crc32c(raw(t)) for name, t in tensors.items()}),
    }
    with atomic(file) as temporary:
        temporary.touch()
        mode = temporary.stat().st_mode
        _save(tensors, temporary, metadata)
        temporary.chmod(mode)  # the library lets nobody else read it
    count = sum(t.numel() for t in tensors.values())
    return f"{file}: {len(tensors)} tensors, {count:,} parameters after {state.step} steps"


def _save(tensors: dict[str, Tensor], file: Path, metadata: dict[str, str]) -> None:
    try:
        save_file(tensors, file, metadata)
    except SafetensorError as error:  # in which what the system refused is told by its number alone
        number = re.search(r"os error (\d+)", str(error))
        if number is None:
            raise
        raise OSError(int(number[1]), os.strerror(int(number[1])), str(file)) from None
