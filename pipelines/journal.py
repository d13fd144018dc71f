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
from .manifest import Column

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
    """The record of one finished source: what it was, how it was cut, what came out."""

    settings: str
    source: str
    bytes: int
    mtime_ns: int
    sha256: str
    dropped: int
    outside: int
    columns: list[Column]
    samples: list[PartSample]


@dataclass(frozen=True)
class Journal:
    """The finished parts in ``folder``, made under the settings with the digest ``settings``."""

    folder: Path
    settings: str

    def path(self, source: str) -> Path:
        """Arrow file of a source's part: one record batch a sample, as in its record."""
        return self.folder / f"part-{hashlib.blake2b(source.encode(), digest_size=16).hexdigest()}.arrow"

    def finished(self, source: str, raw: Path) -> Part | None:
        """The part of ``source`` if it was finished from this very file under these settings."""
        record = self.path(source).with_suffix(".json")
        try:
            part = Part.model_validate_json(record.read_bytes())
        except FileNotFoundError:
            return None
        except pydantic.ValidationError:
            log.warning("%s: is not a record of this version; the part is made again", record)
            return None
        stat = raw.stat()
        wanted = (self.settings, source, stat.st_size, stat.st_mtime_ns)
        if (part.settings, part.source, part.bytes, part.mtime_ns) != wanted or not self.path(
            source
        ).exists():
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
        write_atomic(self.path(part.source).with_suffix(".json"), part.model_dump_json())
        return part
