"""Checkpoints: whole or absent, and refused where a part is missing. `saver` writes them.

A checkpoint is a folder ``step-00001200``: torch.distributed.checkpoint's files hold model and optimiser by
parameter name, ``checkpoint.json`` the rest and a list of all parts. There is no generator state in it: all
draws are functions of the seed and the step.
"""

from __future__ import annotations

import json
import logging
import re
import shutil
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import torch
from crc32c import crc32c
from pydantic import ValidationError
from torch import Tensor, nn
from torch.distributed.checkpoint.default_planner import DefaultLoadPlanner
from torch.distributed.checkpoint.filesystem import FileSystemReader
from torch.distributed.checkpoint.metadata import (
    STORAGE_TYPES,
    Metadata,
    MetadataIndex,
    TensorStorageMetadata,
)
from torch.distributed.checkpoint.planner import LoadPlan
from torch.distributed.checkpoint.planner_helpers import create_read_items_for_chunk_list
from torch.distributed.checkpoint.state_dict import get_optimizer_state_dict

from ...config import Model
from ...errors import DataError, UsageError
from ..learner import Learner, LearnerState
from ..mesh import Mesh
from ..tasks import TaskState
from .increments import Part, part_of
from .pieces import MODEL, OPTIMISER, Piece, Pieces, model_pieces, pieces_of, shapes_of

log = logging.getLogger(__name__)

T = TypeVar("T")

VERSION = 4
NAME = "checkpoint.json"
_SEAL = b',"crc32c":'
_FIX = "remove this folder to go on from an older checkpoint"
_TRIES = 5  # of a run that writes checkpoints faster than they are read


class Checkpoint(Model):
    """``checkpoint.json``. ``step``: global batches done."""

    version: int
    step: int
    learner: LearnerState
    seed: int
    task: TaskState
    loader: dict[str, Any]
    parts: tuple[Part, ...]


def folder_of(folder: Path, step: int) -> Path:
    """Where the checkpoint of a step is."""
    return folder / f"step-{step:08d}"


def complete(folder: Path) -> list[Path]:
    """Checkpoints of a run, oldest first. What a killed process left half-written is not among them."""
    whole = (p for p in folder.glob("step-*") if re.fullmatch(r"step-\d{8,}", p.name))
    return sorted(whole, key=lambda p: int(p.name.removeprefix("step-")))


def written(run: Path, step: int | None = None) -> Path:
    """The checkpoint of a run after ``step`` batches, or the last.

    Raises DataError where there is none at all, UsageError where there is none of that step.
    """
    known = {int(path.name.removeprefix("step-")): path for path in complete(run / "checkpoints")}
    if not known:
        raise DataError(run, "holds no checkpoint yet", "train first")
    if step is not None and step not in known:
        steps = ", ".join(map(str, known))
        raise UsageError("--step", f"there is no checkpoint of step {step}", f"there are {steps}")
    return known[max(known) if step is None else step]


def reading(run: Path, step: int | None, read: Callable[[Path], T]) -> T:
    """What ``read`` makes of the checkpoint that `written` names.

    A run that is going on may remove it while it is read: then that of the next one. Raises as both do, and
    DataError where each was removed.
    """
    for _ in range(_TRIES):
        path = written(run, step)
        try:
            return read(path)
        except (DataError, OSError):
            if path.exists():
                raise
            log.info("%s was removed by the run", path)
    fix = "run it again, or raise trainer.checkpoints_kept"
    raise DataError(run, "removes its checkpoints faster than they are read", fix)


def place(temporary: Path, path: Path) -> None:
    """Give a whole checkpoint its name, in place of one that has it already."""
    if path.exists():
        # Under this name it is whole, and comes back if this process is killed before the next line ends.
        old = path.rename(path.with_name(f".{path.name}.old"))
        temporary.rename(path)
        shutil.rmtree(old)
    else:
        temporary.rename(path)


def remove(path: Path) -> None:
    """Remove a checkpoint, such that a half-removed one is never taken for a whole one."""
    shutil.rmtree(path.rename(path.with_name(f".{path.name}.gone.tmp")))


def clean(folder: Path) -> None:
    """Remove what killed processes left half-written or half-removed; bring back what they were replacing."""
    for old in folder.glob(".step-*.old"):
        path = old.with_name(old.name.removeprefix(".").removesuffix(".old"))
        if path.exists():
            shutil.rmtree(old)
        else:
            old.rename(path)
    for path in folder.glob(".step-*.tmp"):
        shutil.rmtree(path)


def sealed(state: Checkpoint) -> bytes:
    """The text of ``checkpoint.json``, whose last member is the CRC32C of what stands before it."""
    body = state.model_dump_json().encode().removesuffix(b"}")
    return body + _SEAL + str(crc32c(body)).encode() + b"}"


def read(path: Path) -> Checkpoint:
    """The description of a checkpoint; DataError where a part of it is missing or damaged."""
    state = described(path)
    check_parts(path, state.parts)
    return state


def described(path: Path) -> Checkpoint:
    """The description of a checkpoint, which is not what was written if DataError is raised."""
    try:
        text = (path / NAME).read_bytes()
    except OSError as error:
        raise DataError(path / NAME, f"cannot be read ({error.strerror})", _FIX) from None
    try:
        values = json.loads(text)
        version = values.get("version", VERSION)
    except (ValueError, AttributeError, RecursionError):  # no JSON, no text, or no object
        raise DataError(path / NAME, "is cut or damaged", _FIX) from None
    if version != VERSION:
        raise DataError(path, f"is of version {version}, not {VERSION}", "use the tamis that wrote it")
    body, seal, _ = text.rpartition(_SEAL)
    if not seal:
        raise DataError(path / NAME, "is not what was written: its checksum is missing", _FIX)
    try:
        state = Checkpoint.model_validate_json(body + b"}")
    except ValidationError as error:
        first = error.errors()[0]
        key = ".".join(str(part) for part in first["loc"])
        raise DataError(path / NAME, f"part '{key}': {first['msg']}", _FIX) from None
    if sealed(state) != text:
        raise DataError(path / NAME, "is not what was written: bytes differ", _FIX)
    return state


def check_parts(path: Path, parts: Iterable[Part]) -> None:
    """Raise DataError where a file of a checkpoint is missing or damaged."""
    for part in parts:
        if not (path / part.name).is_file():
            raise DataError(path / part.name, "is missing from the checkpoint", _FIX)
        if part_of(path / part.name) != part.model_copy(update={"linked": False}):
            raise DataError(path / part.name, "is not what was written: bytes differ", _FIX)


def load(path: Path, learner: Learner) -> Checkpoint:
    """Bring the learner to where it was, whatever layout wrote it; every rank calls this.

    Raises DataError as `read` does, on all ranks, and where the checkpoint is of another model or optimiser.
    """
    state = _checked(path, learner.mesh)
    with _refusing(path):
        stored = FileSystemReader(path).read_metadata().state_dict_metadata
        _prepare_optimiser(learner, stored)
        _fill(path, pieces_of(learner, shapes_of(learner.task)))
    learner.restore(state.learner)
    return state


def load_model(path: Path, model: nn.Module) -> None:
    """Bring only a model's parameters in, in one process, whatever layout wrote them.

    Raises DataError where the checkpoint holds others.
    """
    with _refusing(path):
        _fill(path, model_pieces(model, {}))


def weights(path: Path) -> dict[str, Tensor]:
    """The parameters of a checkpoint that `read` found whole, by name, in host memory."""
    with _refusing(path):
        stored = FileSystemReader(path).read_metadata().state_dict_metadata
        tensors = {
            name.removeprefix(MODEL): torch.empty(about.size, dtype=about.properties.dtype)
            for name, about in stored.items()
            if name.startswith(MODEL) and isinstance(about, TensorStorageMetadata)
        }
        _fill(path, {f"{MODEL}{n}": Piece(t, (0,) * t.ndim, t.shape) for n, t in tensors.items()})
    return tensors


def _checked(path: Path, mesh: Mesh) -> Checkpoint:
    """As `read`; the ranks share the work, and all raise what one found."""
    found: Checkpoint | DataError
    try:
        found = described(path)
        check_parts(path, found.parts[mesh.rank :: mesh.world])
    except DataError as error:
        found = error
    for told in mesh.gather(found):
        if isinstance(told, DataError):
            raise told
    assert isinstance(found, Checkpoint)
    return found


def _prepare_optimiser(learner: Learner, stored: dict[str, STORAGE_TYPES]) -> None:
    """Make room for what is stored of each parameter, and none for what had no update yet."""
    wanted: dict[str, set[str]] = {}
    for entry in stored:
        if entry.startswith(OPTIMISER):
            name, _, key = entry.removeprefix(OPTIMISER).rpartition(".")
            wanted.setdefault(name, set()).add(key)
    state = learner.optimiser.state
    if wanted and not state:
        get_optimizer_state_dict(learner.model, learner.optimiser)  # torch's way to have an optimiser make it
    for name, parameter in learner.model.named_parameters():
        if name not in wanted:
            state.pop(parameter, None)
        elif (held := set(state.get(parameter, {}))) != wanted[name]:
            keys = ", ".join(sorted(wanted[name])), ", ".join(sorted(held)) or "nothing"
            raise KeyError(f"of {name} it has {keys[0]}, this optimiser {keys[1]}")


class _Planner(DefaultLoadPlanner):
    """Plans what to read for pieces: where they overlap what was written."""

    def __init__(self, pieces: Pieces, metadata: Metadata) -> None:
        super().__init__()
        self._pieces, self._stored = pieces, metadata.state_dict_metadata

    def create_local_plan(self) -> LoadPlan:
        items = []
        for name, piece in self._pieces.items():
            stored = self._stored.get(name)
            if not isinstance(stored, TensorStorageMetadata):
                raise KeyError(f"{name} is missing")
            if stored.size != piece.whole:
                raise KeyError(f"{name} is {_shape(stored.size)}, not {_shape(piece.whole)}")
            if piece.held.numel():
                items += create_read_items_for_chunk_list(name, stored, [piece.chunk])
        return LoadPlan(items)

    def lookup_tensor(self, index: MetadataIndex) -> Tensor:
        return self._pieces[index.fqn].held


def _fill(path: Path, pieces: Pieces) -> None:
    """Read what is stored into the memory of pieces. Each rank does so on its own."""
    reader = FileSystemReader(path)
    metadata = reader.read_metadata()
    planner = _Planner(pieces, metadata)
    reader.set_up_storage_reader(metadata, is_coordinator=False)
    reader.read_data(planner.create_local_plan(), planner).wait()


@contextmanager
def _refusing(path: Path) -> Iterator[None]:
    try:
        yield
    except (RuntimeError, KeyError) as error:
        told = " ".join(str(error.args[0] if error.args else error).split())
        cause = f"does not hold what the model needs ({told[:200]})"
        raise DataError(path, cause, "train again, or use the configuration it was written with") from None


def _shape(size: torch.Size) -> str:
    return " x ".join(map(str, size)) or "one number"
