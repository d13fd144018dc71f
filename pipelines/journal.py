"""What a build has finished: one part a source, and a record of it, so that a killed build goes on.

A part is shards of one source, each of one split. Nothing is flushed to the disk here: what a power cut left
damaged is found by its checksums, and made again.
Sources that could not be made are recorded as well, so that a build that leaves them out need not try again.
"""

from __future__ import annotations

import hashlib
import itertools
import logging
import os
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pydantic
from numpy.typing import NDArray

from ..config import Model
from .checks import chunk_sums, crc_sums
from .manifest import Column, Skipped
from .raw import Raw
from .records import Field
from .statistics import Spread
from .stored import Digest, Own, Stored, owns, stored

log = logging.getLogger(__name__)


class PartSample(Model):
    """One sample of a part: its origin (3) and bounds (min and max: 6) are global."""

    split: str
    tile: int
    rows: int
    origin: list[float]
    bounds: list[float]
    label: int


class PartFile(Model):
    """One shard of a part: its samples, and the digests of its files by annotation, that of columns first.

    They have a SHA-256 where the files are to be a shard of the dataset as they are.
    """

    split: str
    samples: list[PartSample]
    digests: list[Digest]


class SplitFigures(Model):
    """Rows of each class, and the spread of each column, of a part's samples of one split."""

    classes: list[int]
    spreads: dict[str, Spread]


class Part(Model):
    """What one finished source was, how it was cut, and what came out.

    ``objects``: its samples are clouds that stand for themselves, not pieces of common ground.
    """

    settings: str
    source: str
    bytes: int
    sha256: str
    dropped: int
    outside: int
    objects: bool
    columns: list[Column]
    annotations: list[Column]
    files: list[PartFile]
    figures: dict[str, SplitFigures]

    @property
    def samples(self) -> list[PartSample]:
        """All samples, in the order of the files."""
        return [sample for file in self.files for sample in file.samples]

    @property
    def owns(self) -> list[tuple[Own, dict[str, Field]]]:
        """What each shard has a file of, and the fields in it."""
        return owns(self.columns, self.annotations)


class Finished:
    """A finished part and what lies where: ``stored[i]`` in ``part.files[i]``, as ``part.owns`` says."""

    def __init__(self, part: Part, stored: list[list[Stored]]) -> None:
        self.part, self.stored = part, stored

    def plain(self) -> tuple[str, dict[str, NDArray[Any]]]:
        """The part as text, and arrays; `of_plain` takes them back."""
        arrays: dict[str, NDArray[Any]] = {}
        for number, files in enumerate(self.stored):
            for place, one in enumerate(files):
                arrays[f"{number} {place} rows"] = one.rows
                for name in one.positions:
                    arrays[f"{number} {place} at {name}"] = one.positions[name]
                    arrays[f"{number} {place} sums {name}"] = one.sums[name]
        return self.part.model_dump_json(), arrays

    @staticmethod
    def of_plain(text: str, arrays: Mapping[str, NDArray[Any]]) -> Finished:
        """What `plain` took apart."""
        part = Part.model_validate_json(text)
        found = []
        for number, file in enumerate(part.files):
            found.append(
                [
                    Stored(
                        digest,
                        arrays[f"{number} {place} rows"],
                        {name: arrays[f"{number} {place} at {name}"] for name in fields},
                        {name: arrays[f"{number} {place} sums {name}"] for name in fields},
                    )
                    for place, (digest, (_, fields)) in enumerate(zip(file.digests, part.owns, strict=True))
                ]
            )
        return Finished(part, found)


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

    def path(self, source: str, number: int, own: Own = None) -> Path:
        """A file of shard ``number`` of a source's part: of the columns, or of an annotation."""
        name = f"part-{_name(source)}-{number:04d}"
        return self.folder / (f"{name}.arrow" if own is None else f"{name}.{own}.arrow")

    def record(self, source: str) -> Path:
        """What is recorded of a source's part."""
        return self.folder / f"part-{_name(source)}.json"

    def paths(self, part: Part) -> Iterator[tuple[PartFile, list[Path]]]:
        """The files of each shard of a part, as `Part.owns` says."""
        for number, file in enumerate(part.files):
            yield file, [self.path(part.source, number, own) for own, _ in part.owns]

    def finished(self, source: str, raw: Raw) -> Finished | None:
        """The part of ``source`` if it was finished from these very bytes under these settings, and is whole.

        Reads the source and the part once.
        """
        record = self.record(source)
        if not record.exists():
            return None
        part = self._whole(record)
        if part is None:
            log.warning("%s: is damaged, or of another version; the part of %s is made again", record, source)
            return None
        if (part.settings, part.source, part.sha256) != (
            self.settings,
            source,
            raw.digest(source).sha256,
        ):
            log.warning("%s: settings or file changed since the part was made; it is made again", source)
            return None
        return Finished(part, [*self.stored(part)])

    def stored(self, part: Part) -> Iterator[list[Stored]]:
        """What lies where in each shard of a part that is whole."""
        for file, paths in self.paths(part):
            digests = zip(paths, part.owns, file.digests, strict=True)
            yield [stored(path, fields, digest) for path, (_, fields), digest in digests]

    def _whole(self, record: Path) -> Part | None:
        """The recorded part, unless it or one of its files is not as it was written."""
        try:
            known = Record.model_validate_json(record.read_bytes())
            if known.sha256 != _sha256(known.part):
                return None
            for file, paths in self.paths(known.part):
                if not all(map(_is_whole, paths, file.digests)):
                    return None
        except (FileNotFoundError, pydantic.ValidationError):
            return None
        return known.part

    def finish(self, part: Part, temporary: Sequence[Path]) -> Part:
        """Record a part: its ``temporary`` files, in the order of `paths`, get their names before."""
        self.record(part.source).unlink(missing_ok=True)
        finals = [path for _, paths in self.paths(part) for path in paths]
        for path, final in zip(temporary, finals, strict=True):
            path.replace(final)
        for number in itertools.count(len(part.files)):  # of a larger part that was there before
            left = [path for own, _ in part.owns if (path := self.path(part.source, number, own)).exists()]
            if not left:
                break
            for path in left:
                path.unlink()
        record = Record(part=part, sha256=_sha256(part))
        _write(self.record(part.source), record.model_dump_json())
        self._bad(part.source).unlink(missing_ok=True)
        return part

    def clear(self, pid: int | None = None) -> None:
        """Remove what the process ``pid``, by default any process, began and was killed over."""
        for left in self.folder.glob(f".*.{'*' if pid is None else pid}.tmp"):
            left.unlink(missing_ok=True)

    def keep(self, sources: Collection[str]) -> None:
        """Remove the parts of all but some sources."""
        names = {_name(source) for source in sources}
        for path in self.folder.glob("*-*.*"):
            if path.name.replace(".", "-").split("-")[1] not in names:
                path.unlink()

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
        _write(self._bad(source), record.model_dump_json())

    def _bad(self, source: str) -> Path:
        return self.folder / f"bad-{_name(source)}.json"


def temporary(final: Path) -> Path:
    """A name beside ``final`` to write to: a worker that outlives its parent for a moment has its own."""
    return final.with_name(f".{final.name}.{os.getpid()}.tmp")


def _write(path: Path, text: str) -> None:
    beside = temporary(path)
    try:
        beside.write_text(text)
        beside.replace(path)
    except BaseException:
        beside.unlink(missing_ok=True)
        raise


def _is_whole(path: Path, digest: Digest) -> bool:
    """Whether a file is as it was written."""
    if digest.sha256 is None:
        return crc_sums(path) == (digest.bytes, digest.crc32c)
    return chunk_sums(path) == (digest.bytes, digest.sha256, digest.crc32c)


def _name(source: str) -> str:
    return hashlib.blake2b(source.encode(), digest_size=16).hexdigest()


def _sha256(part: Part) -> str:
    return hashlib.sha256(part.model_dump_json().encode()).hexdigest()
