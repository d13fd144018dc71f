"""What a build has finished: one part a source, and a record of it, so that a killed build goes on."""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pydantic

from ..config import Model
from ..files import write_atomic
from . import shards
from .checks import file_sha256
from .manifest import Column
from .readers import files_of
from .sources import digest

log = logging.getLogger(__name__)


class PartSample(Model):
    """One sample of a part: its origin (3) and bounds (min and max: 6) are global."""

    split: str
    tile: int
    rows: int
    origin: list[float]
    bounds: list[float]
    label: int


class Part(Model):
    """What one finished source was, how it was cut, what came out, and the SHA-256 of the part's file.

    ``objects``: its samples are clouds that stand for themselves, not pieces of common ground.
    """

    settings: str
    source: str
    bytes: int
    sha256: str
    written: str
    dropped: int
    outside: int
    objects: bool
    columns: list[Column]
    samples: list[PartSample]


class Record(Model):
    """A part as it is recorded: with the SHA-256 of its own text."""

    part: Part
    sha256: str


@dataclass(frozen=True)
class Journal:
    """The finished parts in ``folder``, made under the settings with the digest ``settings``."""

    folder: Path
    settings: str

    def path(self, source: str) -> Path:
        """Arrow file of a source's part: one record batch a sample, as in its record."""
        return self.folder / f"part-{hashlib.blake2b(source.encode(), digest_size=16).hexdigest()}.arrow"

    def finished(self, source: str, raw: Path) -> Part | None:
        """The part of ``source`` if it was finished from these very bytes under these settings, and is whole.

        Reads the source and the part once.
        """
        record = self.path(source).with_suffix(".json")
        if not record.exists():
            return None
        try:
            known = Record.model_validate_json(record.read_bytes())
            whole = known.sha256 == _sha256(known.part)
            whole = whole and known.part.written == file_sha256(self.path(source))
        except (FileNotFoundError, pydantic.ValidationError):
            whole = False
        if not whole:
            log.warning("%s: is damaged, or of another version; the part of %s is made again", record, source)
            return None
        part = known.part
        if (part.settings, part.source, part.sha256) != (
            self.settings,
            source,
            digest(*files_of(raw)).sha256,
        ):
            log.warning("%s: settings or file changed since the part was made; it is made again", source)
            return None
        return part

    @contextmanager
    def writing(self, source: str, schema: pa.Schema) -> Iterator[Any]:
        """The part of ``source``, to write batches to; nothing stays of one that fails."""
        try:
            with shards.writing(self.path(source), schema) as writer:
                yield writer
        except BaseException:
            self.path(source).unlink(missing_ok=True)
            raise

    def finish(self, part: Part) -> Part:
        """Record a part whose file is on the disk."""
        record = Record(part=part, sha256=_sha256(part))
        write_atomic(self.path(part.source).with_suffix(".json"), record.model_dump_json())
        return part


def _sha256(part: Part) -> str:
    return hashlib.sha256(part.model_dump_json().encode()).hexdigest()
