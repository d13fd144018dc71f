"""Checkpoints: whole or absent, and refused where a part is missing.

A checkpoint is a folder ``step-00001200``: torch.distributed.checkpoint's files hold model and optimiser by
parameter name, ``checkpoint.json`` the rest and a list of all parts. There is no generator state in it: all
draws are functions of the seed and the step.
"""

from __future__ import annotations

import json
import re
import shutil
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from crc32c import crc32c
from pydantic import ValidationError
from torch import nn
from torch.distributed.checkpoint import state_dict_loader, state_dict_saver
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.filesystem import FileSystemReader
from torch.distributed.checkpoint.metadata import TensorStorageMetadata
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_model_state_dict,
    get_optimizer_state_dict,
    set_model_state_dict,
    set_optimizer_state_dict,
)

from ..config import Model
from ..errors import DataError, system_error
from ..files import sync, write_atomic
from .learner import Learner, LearnerState
from .tasks import TaskState

VERSION = 3
KEPT = 2
NAME = "checkpoint.json"
# Each entry under its parameter's name: pipeline ranks would else write their groups over one another's.
_BY_NAME = StateDictOptions(flatten_optimizer_state_dict=True)
_SEAL = b',"crc32c":'


class Part(Model):
    """A file of a checkpoint."""

    name: str
    bytes: int
    crc32c: int


class Checkpoint(Model):
    """``checkpoint.json``. ``step``: global batches done."""

    version: int
    step: int
    learner: LearnerState
    seed: int
    task: TaskState
    loader: dict[str, Any]
    parts: tuple[Part, ...]


def save(folder: Path, learner: Learner, loader: dict[str, Any], step: int) -> Path:
    """Write ``folder/step-N`` and keep the last two; every rank calls this, rank 0 writes the rest.

    The parts are written to a hidden folder that gets its name when all of it is on the disk. Raises
    DataError where the disk is full or fails.
    """
    path = folder / f"step-{step:08d}"
    try:
        _save(path, learner, loader, step)
    except OSError as error:
        raise system_error(error, path) from None
    except CheckpointException as error:
        causes = {str(cause) for cause, _ in error.failures.values()}
        raise DataError(path, f"cannot be written ({'; '.join(sorted(causes))})", "see to the disk") from None
    return path


def _save(path: Path, learner: Learner, loader: dict[str, Any], step: int) -> None:
    mesh, temporary = learner.mesh, path.with_name(f".{path.name}.tmp")
    if mesh.rank == 0:
        shutil.rmtree(temporary, ignore_errors=True)
        temporary.mkdir(parents=True)
    mesh.barrier()
    with _one_process_is_enough():
        state_dict_saver.save(_tensors(learner), checkpoint_id=temporary)
    if mesh.rank == 0:
        parts = tuple(_part(p) for p in sorted(temporary.iterdir()))
        state = Checkpoint(
            version=VERSION,
            step=step,
            learner=learner.state,
            seed=learner.settings.seed,
            task=learner.task.state,
            loader=loader,
            parts=parts,
        )
        write_atomic(temporary / NAME, _sealed(state))
        if path.exists():
            _remove(path)
        temporary.rename(path)
        sync(path.parent)
        for old in complete(path.parent)[:-KEPT]:
            _remove(old)
    mesh.barrier()


def complete(folder: Path) -> list[Path]:
    """Checkpoints of a run, oldest first. What a killed process left half-written is not among them."""
    whole = (p for p in folder.glob("step-*") if re.fullmatch(r"step-\d{8,}", p.name))
    return sorted(whole, key=lambda p: int(p.name.removeprefix("step-")))


def clean(folder: Path) -> None:
    """Remove what killed processes left half-written, or half-removed."""
    for path in folder.glob(".step-*.tmp"):
        shutil.rmtree(path)


def read(path: Path) -> Checkpoint:
    """The description of a checkpoint; DataError where a part of it is missing or damaged."""
    fix = "remove this folder to go on from an older checkpoint"
    try:
        text = (path / NAME).read_bytes()
    except OSError as error:
        raise DataError(path / NAME, f"cannot be read ({error.strerror})", fix) from None
    try:
        values = json.loads(text)
        version = values.get("version", VERSION)
    except (ValueError, AttributeError):  # no JSON, no text, or no object
        raise DataError(path / NAME, "is cut or damaged", fix) from None
    if version != VERSION:
        raise DataError(path, f"is of version {version}, not {VERSION}", "use the tamis that wrote it")
    try:
        state = Checkpoint.model_validate_json(text.rpartition(_SEAL)[0] + b"}")
    except ValidationError as error:
        first = error.errors()[0]
        key = ".".join(str(part) for part in first["loc"])
        raise DataError(path / NAME, f"part '{key}': {first['msg']}", fix) from None
    if _sealed(state) != text:
        raise DataError(path / NAME, "is not what was written: bytes differ", fix)
    for part in state.parts:
        if not (path / part.name).is_file():
            raise DataError(path / part.name, "is missing from the checkpoint", fix)
        if _part(path / part.name) != part:
            raise DataError(path / part.name, "is not what was written: bytes differ", fix)
    return state


def load(path: Path, learner: Learner) -> Checkpoint:
    """Bring the learner to where it was; every rank calls this. Raises DataError as `read` does."""
    state = read(path)
    tensors = _tensors(learner)
    _load(tensors, path)
    set_model_state_dict(learner.model, tensors["model"])
    set_optimizer_state_dict(
        learner.model, learner.optimiser, optim_state_dict=tensors["optimiser"], options=_BY_NAME
    )
    learner.restore(state.learner)
    return state


def load_model(path: Path, model: nn.Module) -> None:
    """Bring only a model's parameters in, in one process, whatever layout wrote them.

    Raises DataError where the checkpoint holds others.
    """
    held = dict(model.named_parameters())
    with _refusing(path):
        stored = FileSystemReader(path).read_metadata().state_dict_metadata
        # Tensor-parallel ranks fill up a vocabulary that they do not divide: room for that, too.
        shapes = {name: _shape(stored[f"model.{name}"]) for name in held}
        tensors = {name: p.new_empty(shapes[name]) for name, p in held.items()}
        _load({"model": tensors}, path)
        with torch.no_grad():
            for name, parameter in held.items():
                parameter.copy_(tensors[name][: len(parameter)])


def _shape(stored: Any) -> torch.Size:
    if not isinstance(stored, TensorStorageMetadata):
        raise KeyError("a parameter is no tensor")
    return stored.size


def _tensors(learner: Learner) -> dict[str, Any]:
    return {
        "model": get_model_state_dict(learner.model),
        "optimiser": get_optimizer_state_dict(learner.model, learner.optimiser, options=_BY_NAME),
    }


def _load(tensors: dict[str, Any], path: Path) -> None:
    with _refusing(path), _one_process_is_enough():
        state_dict_loader.load(tensors, checkpoint_id=path)


@contextmanager
def _refusing(path: Path) -> Iterator[None]:
    try:
        yield
    except (CheckpointException, RuntimeError, KeyError) as error:
        cause = f"does not hold what the model needs ({' '.join(str(error).split())[:200]})"
        raise DataError(path, cause, "train again, or use the configuration it was written with") from None


@contextmanager
def _one_process_is_enough() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "torch.distributed is disabled", UserWarning)
        yield


def _part(path: Path) -> Part:
    size = total = 0
    with path.open("rb") as file:
        while chunk := file.read(1 << 20):
            size, total = size + len(chunk), crc32c(chunk, total)
    return Part(name=path.name, bytes=size, crc32c=total)


def _sealed(state: Checkpoint) -> bytes:
    """The text of ``checkpoint.json``, whose last member is the CRC32C of what stands before it."""
    body = state.model_dump_json().encode().removesuffix(b"}")
    return body + _SEAL + str(crc32c(body)).encode() + b"}"


def _remove(path: Path) -> None:
    gone = path.with_name(
        f".{path.name}.old.tmp"
    )  # so that a half-removed folder is never taken for a whole one
    shutil.rmtree(gone, ignore_errors=True)
    path.rename(gone)
    shutil.rmtree(gone)
