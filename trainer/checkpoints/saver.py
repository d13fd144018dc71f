"""Writes checkpoints beside the training: a step waits only for the copy of its tensors."""

from __future__ import annotations

import logging
import shutil
import time
from collections.abc import Callable
from concurrent.futures import Future, wait
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeVar, cast

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.checkpoint.default_planner import DefaultSavePlanner
from torch.distributed.checkpoint.filesystem import FileSystemWriter
from torch.distributed.checkpoint.metadata import Metadata, MetadataIndex, TensorProperties
from torch.distributed.checkpoint.planner import SavePlan, TensorWriteData, WriteItem, WriteItemType

from ...aside import aside
from ...errors import DataError, system_error
from ...files import sync, write_atomic
from ..learner import Learner
from .checkpoint import NAME, VERSION, Checkpoint, complete, folder_of, place, remove, sealed
from .increments import Staged, Written, part_of, write
from .pieces import Piece, Pieces, pieces_of, shapes_of

log = logging.getLogger(__name__)

T = TypeVar("T")

_GRACE_S = 10.0  # for a checkpoint that is being written when the run fails


class Saver:
    """Saves a learner to ``folder``, one checkpoint at a time, of which the last ``kept`` stay.

    Every rank has one, and they save together. A thread of each writes what its rank staged, over a process
    group of its own, so that nothing mixes with what the steps send. A context manager: on leaving it waits
    for what is being written.
    """

    def __init__(self, folder: Path, learner: Learner, kept: int) -> None:
        self._folder, self._learner, self._mesh, self._kept = folder, learner, learner.mesh, kept
        self._group: dist.ProcessGroup | None = None
        if learner.mesh.world > 1:
            patience = timedelta(seconds=learner.layout.timeout_s)
            self._group = cast(dist.ProcessGroup, dist.new_group(backend="gloo", timeout=patience))
        self._stage = Stage(learner)
        self._writing: Future[None] | None = None
        self._last: Written | None = None  # of what this process wrote
        self._number = 0

    def save(self, loader: dict[str, Any], step: int) -> Path:
        """Have ``step-N`` written; it is there when `wait` returns. Every rank calls this.

        Waits for the checkpoint before it. ``loader``: the state of the loader after ``step`` batches.
        Raises DataError, on all ranks, where that one could not be written: a disk is full or fails.
        """
        self.wait()
        learner = self._learner
        about = Checkpoint(
            version=VERSION,
            step=step,
            learner=learner.state,
            seed=learner.settings.seed,
            task=learner.task.state,
            loader=loader,
            parts=(),
        )
        staged = self._stage.take()
        self._writing = aside(lambda: self._write(about, staged, self._stage.metadata), "checkpoint")
        return folder_of(self._folder, step)

    def wait(self) -> None:
        """Wait until all is written; DataError as `save`, once."""
        writing, self._writing = self._writing, None
        if writing is not None:
            writing.result()

    @property
    def failed(self) -> bool:
        """Whether `wait` will raise; ranks may see it a moment apart."""
        return self._writing is not None and self._writing.done() and self._writing.exception() is not None

    def _write(self, about: Checkpoint, staged: list[Staged], metadata: Metadata) -> None:
        """On the thread: a checkpoint, in a hidden folder that gets its name when all is on the disk."""
        started_s = time.monotonic()
        path = folder_of(self._folder, about.step)
        temporary = path.with_name(f".{path.name}.tmp")
        prefix = f"rank{self._mesh.rank}-{self._number:06d}"
        self._number += 1
        try:
            self._first(path, lambda: _empty(temporary))
            own: list[Written] = []
            self._each(path, lambda: own.append(write(temporary, prefix, staged, self._last)))
            written = self._told_to_first(replace(own[0], digests={}))
            whole = self._first(path, lambda: self._finish(about, metadata, written, temporary, path))
        except DataError:
            if self._mesh.rank == 0:
                shutil.rmtree(temporary, ignore_errors=True)  # the disk may be full
            raise
        self._last = replace(own[0], folder=path)
        if whole is not None:
            new, linked = (
                sum(part.bytes for part in whole.parts if part.linked == kind) / 1e6 for kind in (False, True)
            )
            told = "checkpoint of step %d: %.1f MB written, %.1f MB linked, in %.1f s"
            log.info(told, about.step, new, linked, time.monotonic() - started_s)

    def _finish(
        self, about: Checkpoint, metadata: Metadata, written: list[Written], temporary: Path, path: Path
    ) -> Checkpoint:
        """On rank 0: describe what all ranks wrote, name it, and remove what is older."""
        FileSystemWriter(temporary).finish(metadata, [one.results for one in written])
        named = [part for one in written for part in one.parts.values()]
        parts = sorted([part_of(temporary / ".metadata"), *named], key=lambda part: part.name)
        whole = about.model_copy(update={"parts": tuple(parts)})
        write_atomic(temporary / NAME, sealed(whole))
        place(temporary, path)
        sync(path.parent)
        for old in complete(path.parent)[: -self._kept]:
            remove(old)
        return whole

    def _first(self, path: Path, work: Callable[[], T]) -> T | None:
        """What ``work`` gives on rank 0, which alone does it, and None on others; all raise its DataError."""
        return self._each(path, lambda: work() if self._mesh.rank == 0 else None)

    def _each(self, path: Path, work: Callable[[], T]) -> T:
        """What ``work`` gives here; all ranks raise the DataError of the first that the system refuses."""
        try:
            found, refused = [work()], None
        except OSError as error:
            found, refused = [], system_error(error, path)
        told: list[DataError | None] = [refused] * self._mesh.world
        if self._group is not None:
            dist.all_gather_object(told, refused, group=self._group)
        for one in told:
            if one is not None:
                raise one
        return found[0]

    def _told_to_first(self, value: T) -> list[T]:
        """The values of all ranks on rank 0, nothing on others."""
        if self._group is None:
            return [value]
        values = [value] * self._mesh.world if self._mesh.rank == 0 else None
        dist.gather_object(value, values, dst=0, group=self._group)
        return values or []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: TracebackType | BaseException | None) -> None:
        if kind is None:
            self.wait()
        elif self._writing is not None:  # what is being written may come to an end, unless a rank is lost
            wait([self._writing], _GRACE_S if self._group is not None else None)
            error = self._writing.exception() if self._writing.done() else TimeoutError()
            if error is not None:  # told beside what ends the run, if it is not an echo of that
                unfinished = "the checkpoint that was being written is left unfinished"
                log.error("%s", error if isinstance(error, DataError) else unfinished)


class Stage:
    """Host memory for what this rank writes of a learner, and which pieces that are.

    Where several ranks hold a piece, one of them writes it: the ranks agree on that once, and again only
    where the pieces change, as with an optimiser's first update.
    """

    def __init__(self, learner: Learner) -> None:
        self._learner, self._shapes = learner, shapes_of(learner.task)
        self._known: list[tuple[str, tuple[int, ...], torch.Size, torch.dtype]] = []
        self._own: list[MetadataIndex] = []
        self._buffers: list[Tensor] = []
        self.metadata = Metadata({})  # of the whole checkpoint, but for where in files pieces are

    def take(self) -> list[Staged]:
        """Copy the tensors as they are now; they lie in the same memory each time. Every rank calls this."""
        pieces = pieces_of(self._learner, self._shapes)
        known = [(name, p.offsets, p.held.shape, p.held.dtype) for name, p in pieces.items()]
        mesh = self._learner.mesh
        if mesh.sum(torch.tensor(float(known != self._known), device=mesh.device)) > 0:
            self._agree(pieces)
            self._known = known
        own = [pieces[index.fqn] for index in self._own]
        on_gpu = mesh.device.type == "cuda"
        torch._foreach_copy_(self._buffers, [piece.held for piece in own], non_blocking=on_gpu)
        if on_gpu:
            torch.cuda.synchronize(mesh.device)
        return [
            Staged(index, values, piece.settled)
            for index, values, piece in zip(self._own, self._buffers, own, strict=True)
        ]

    def _agree(self, pieces: Pieces) -> None:
        mesh = self._learner.mesh
        plan = SavePlan([_item(name, piece) for name, piece in pieces.items() if piece.held.numel()])
        planner = DefaultSavePlanner(flatten_state_dict=False)
        plans, self.metadata = planner.create_global_plan(mesh.gather(plan))
        self._own = [item.index for item in plans[mesh.rank].items]
        pinned = mesh.device.type == "cuda"
        held = [pieces[index.fqn].held for index in self._own]
        self._buffers = [torch.empty(t.shape, dtype=t.dtype, pin_memory=pinned) for t in held]


def _item(name: str, piece: Piece) -> WriteItem:
    about = TensorWriteData(piece.chunk, TensorProperties.create_from_tensor(piece.held), piece.whole)
    index = MetadataIndex(name, torch.Size(piece.offsets))
    return WriteItem(index=index, type=WriteItemType.SHARD, tensor_data=about)


def _empty(folder: Path) -> None:
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
