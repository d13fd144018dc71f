"""The files of one rank's tensors, of which those that did not change are hard links to the last ones.

What changed since the last checkpoint goes to one file and what did not to another, so that the latter can
be linked from then on: few files, each of them whole, whatever was frozen. A checkpoint thus stands for
itself: another may be removed, and its folder be copied elsewhere.
"""

from __future__ import annotations

import io
import logging
import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from pathlib import Path

import torch
from crc32c import crc32c
from torch import Tensor
from torch.distributed.checkpoint.filesystem import _StorageInfo
from torch.distributed.checkpoint.metadata import MetadataIndex
from torch.distributed.checkpoint.storage import WriteResult

from ...config import Model

log = logging.getLogger(__name__)


class Part(Model):
    """A file of a checkpoint. ``linked``: it is the file of the checkpoint before."""

    name: str
    bytes: int
    crc32c: int
    linked: bool = False


@dataclass(frozen=True)
class Staged:
    """A piece of a tensor that is to be written; ``settled``: it is expected not to change."""

    index: MetadataIndex
    values: Tensor
    settled: bool


@dataclass
class Written:
    """What one checkpoint holds of a rank: its files in ``folder``, where each piece is, and its digest."""

    folder: Path
    parts: dict[str, Part] = field(default_factory=dict)
    places: dict[MetadataIndex, _StorageInfo] = field(default_factory=dict)
    digests: dict[MetadataIndex, bytes] = field(default_factory=dict)

    @property
    def results(self) -> list[WriteResult]:
        """As torch's checkpoints want to be told."""
        return [WriteResult(index, place.length, place) for index, place in self.places.items()]


def write(folder: Path, prefix: str, staged: Sequence[Staged], before: Written | None) -> Written:
    """Write pieces to new files of ``folder`` whose names begin with ``prefix``, or link those of ``before``.

    A file is linked where nothing in it changed and it is still what was written. All is flushed to the disk
    but the folder itself. Raises OSError where the disk is full or fails.
    """
    now = Written(folder, digests={piece.index: _digest(piece.values) for piece in staged})
    same: set[MetadataIndex] = set()
    if before is not None:
        same = {i for i, digest in now.digests.items() if before.digests.get(i) == digest}
        for part in before.parts.values():
            inside = [i for i, place in before.places.items() if place.relative_path == part.name]
            if same.issuperset(inside) and _link(before.folder, folder, part):
                now.parts[part.name] = part.model_copy(update={"linked": True})
                now.places |= {i: before.places[i] for i in inside}

    def stays(piece: Staged) -> bool:
        known = before is not None and piece.index in before.digests
        return piece.index in same if known else piece.settled

    rest = [piece for piece in staged if piece.index not in now.places]
    for kind, wanted in (("settled", True), ("changed", False)):
        pieces = [piece for piece in rest if stays(piece) == wanted]
        if pieces:
            _write_file(now, f"{prefix}-{kind}.distcp", pieces)
    return now


def part_of(path: Path) -> Part:
    """A file as it is on the disk."""
    size = total = 0
    with path.open("rb") as file:
        while chunk := file.read(1 << 20):
            size, total = size + len(chunk), crc32c(chunk, total)
    return Part(name=path.name, bytes=size, crc32c=total)


def _digest(values: Tensor) -> bytes:
    """BLAKE2b of a contiguous tensor's bytes: a checksum of 32 bits would one day miss a change."""
    return blake2b(raw(values), digest_size=16).digest()


def raw(values: Tensor) -> memoryview:
    """The bytes of a contiguous tensor in host memory."""
    data: memoryview = values.reshape(-1).view(torch.uint8).numpy().data
    return data


def _link(source: Path, folder: Path, part: Part) -> bool:
    """Give a file a second name; not where it was damaged meanwhile: the copy in memory is whole still."""
    try:
        same = part_of(source / part.name) == part.model_copy(update={"linked": False})
        if same:
            os.link(source / part.name, folder / part.name)
    except OSError as error:  # no such file any more, or a file system without links: it is written instead
        log.debug("%s cannot be linked (%s)", source / part.name, error)
        return False
    return same


def _write_file(now: Written, name: str, pieces: Iterable[Staged]) -> None:
    size = crc = 0
    with (now.folder / name).open("xb") as file:
        for piece in pieces:
            # By way of memory: an error of the disk inside of torch.save would lose its name.
            buffer = io.BytesIO()
            torch.save(piece.values, buffer)
            data = buffer.getbuffer()
            file.write(data)
            now.places[piece.index] = _StorageInfo(name, size, len(data))
            size, crc = size + len(data), crc32c(data, crc)
        file.flush()
        os.fsync(file.fileno())
    now.parts[name] = Part(name=name, bytes=size, crc32c=crc)
