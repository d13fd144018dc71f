"""What a build has finished: one part a source, and a record of it, so that a killed build goes on.

Sources that could not be made are recorded as well, so that a build that leaves them out need not try again.
"""

from __future__ import annotations

import hashlib
import logging
import os
from collections.abc import Collection, Iterator
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
from .manifest import Column, Skipped
from .raw import Raw

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


class Bad(Model):
    """A source that could not be made under some settings."""

    settings: str
    source: str
    skipped: Skipped


@dataclass(frozen=True)
class Journal:
    """The finished parts in ``folder``, made under the settings with the digest ``settings``."""

    folder: Path
    settings: str

    def path(self, source: str) -> Path:
        """Arrow file of a source's part: one record batch a sample, as in its record."""
        return self.folder / f"part-{_name(source)}.arrow"

    def finished(self, source: str, raw: Raw) -> Part | None:
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
            raw.digest(source).sha256,
        ):
            log.warning("%s: settings or file changed since the part was made; it is made again", source)
            return None
        return part

    @contextmanager
    def writing(self, source: str, schema: pa.Schema) -> Iterator[Any]:
        """The part of ``source``, to write batches to; nothing stays of one that fails.

        It gets its name when it is whole: a worker that outlives its parent for a moment writes to a file of
        its own.
        """
        final = self.path(source)
        temporary = final.with_name(f".{final.name}.{os.getpid()}.tmp")
        try:
            with shards.writing(temporary, schema) as writer:
                yield writer
            temporary.replace(final)
        except BaseException:
            temporary.unlink(missing_ok=True)
            raise

    def clear(self, pid: int | None = None) -> None:
        """Remove what the process ``pid``, by default any process, began and was killed over."""
        for left in self.folder.glob(f".*.{'*' if pid is None else pid}.tmp"):
            left.unlink(missing_ok=True)

    def keep(self, sources: Collection[str]) -> None:
        """Remove the parts of all but some sources."""
        names = {_name(source) for source in sources}
        for path in self.folder.glob("*-*.*"):
            if path.stem.partition("-")[2] not in names:
                path.unlink()

    def finish(self, part: Part) -> Part:
        """Record a part whose file is on the disk."""
        record = Record(part=part, sha256=_sha256(part))
        write_atomic(self.path(part.source).with_suffix(".json"), record.model_dump_json())
        self._bad(part.source).unlink(missing_ok=True)
        return part

    def bad(self, source: str, raw: Raw) -> Skipped | None:
        """Why ``source`` could not be made, if these very bytes were tried under these settings."""
        try:
            known = Bad.model_validate_json(self._bad(source).read_bytes())
        except (FileNotFoundError, pydantic.ValidationError):
            return None
        same = (known.settings, known.source) == (self.settings, source)
        return known.skipped if same and known.skipped.digest == raw.digest_of_bad(source) else None

    def record_bad(self, source: str, skipped: Skipped) -> None:
        """Record that ``source`` could not be made."""
        record = Bad(settings=self.settings, source=source, skipped=skipped)
        write_atomic(self._bad(source), record.model_dump_json())

    def _bad(self, source: str) -> Path:
        return self.folder / f"bad-{_name(source)}.json"


def _name(source: str) -> str:
    return hashlib.blake2b(source.encode(), digest_size=16).hexdigest()


def _sha256(part: Part) -> str:
    return hashlib.sha256(part.model_dump_json().encode()).hexdigest()
