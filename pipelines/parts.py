"""One source to a part: read it, cut it into samples, write them, and record that it is done."""

from __future__ import annotations

import itertools
import logging
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..errors import DataError
from ..metrics import Meter
from . import shards, sources
from .checks import file_sha256
from .cut import Piece, Points, columns_of, cut, select, whole
from .journal import Journal, Part, PartSample
from .manifest import Column, SourceDigest
from .prepare.steps import prepare
from .raw import Raw
from .readers import Source
from .settings import DataSettings
from .where import condition

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Work:
    """What it takes to make parts, beside the names of the sources.

    ``listed``: source -> split of the files that the settings list as val or test.
    """

    root: Path
    settings: DataSettings
    listed: Mapping[str, str]
    journal: Journal

    @property
    def raw(self) -> Raw:
        """The raw files."""
        return Raw(self.root, self.settings)

    def part(self, source: str, meter: Meter) -> Part:
        """The part of a source, made if it is not finished.

        What is written depends on the source and the settings alone. Raises DataError for a source that
        cannot be read or cut, UsageError for settings that cannot be carried out, OSError where the part
        cannot be written.
        """
        return self.journal.finished(source, self.raw) or self._made(source, meter)

    def _made(self, source: str, meter: Meter) -> Part:
        path, settings = self.root / source, self.settings
        try:
            with meter.time("build.read"):
                read, digest = _read(self.raw, source)
            meter.add("build.read", bytes=digest.bytes)
            selected = (prepare(path, select(path, scan, settings), settings.prepare) for scan in read.scans)
            first = next(selected)
            schema = shards.arrow_schema(first.schema)
            samples: list[PartSample] = []
            where = condition(settings.where, settings.classes) if settings.where else None
            dropped = outside = refused = 0
            with self.journal.writing(source, schema) as writer:
                for number, points in enumerate(itertools.chain([first], selected)):
                    dropped, outside = dropped + points.dropped, outside + points.outside
                    meter.add("build.read", points_out=len(points.xyz) + points.dropped + points.outside)
                    for piece in self._pieces(source, number, points, read.objects):
                        with meter.time("build.sample"):
                            columns = columns_of(path, source, points, piece, settings.row_order)
                        meter.add("build.sample", points_in=len(piece.rows), points_out=len(piece.rows))
                        if where and piece.split == "train" and not where.holds(columns["xyz"], columns):
                            refused += 1
                            continue
                        with meter.time("build.pack"):
                            batch = shards.to_batch(schema, columns)
                            writer.write_batch(batch)
                        meter.add("build.pack", points_out=len(piece.rows), bytes=batch.nbytes)
                        label = columns["label"] if settings.classes else np.empty(0, np.int32)
                        samples.append(_describe(points, piece, label))
            if refused:
                log.info("%s: %d samples do not fulfil data.where", path, refused)
        except MemoryError:
            cause = "needs more memory than there is"
            raise DataError(path, cause, "cut it into smaller files, or lower data.workers") from None
        return self.journal.finish(
            Part(
                settings=self.journal.settings,
                source=source,
                bytes=digest.bytes,
                sha256=digest.sha256,
                written=file_sha256(self.journal.path(source)),
                dropped=dropped,
                outside=outside,
                objects=read.objects,
                columns=[
                    Column(name=name, dtype=field.dtype.name, width=field.width, kind=field.kind)
                    for name, field in first.schema.items()
                ],
                samples=samples,
            )
        )

    def _pieces(self, source: str, number: int, points: Points, objects: bool) -> Iterable[Piece]:
        if objects:
            return [whole(source, number, points, self.settings, self.listed)]
        return cut(self.root / source, source, points, self.settings, self.listed)


def _read(raw: Raw, source: str) -> tuple[Source, SourceDigest]:
    try:
        read = raw.opened(source)
        return read, sources.digest(*read.files)
    except OSError as error:
        cause = f"cannot be read ({error.strerror or error})"
        raise DataError(raw.root / source, cause, "see whether it is still there and whole") from None


def stopped(error: Exception, where: Path) -> DataError:
    """A failing disk as one line; what was finished stays for the next call."""
    cause = getattr(error, "strerror", None) or str(error)
    return DataError(
        getattr(error, "filename", None) or where,
        f"the build stopped: {cause}",
        "mend that and run it again, it continues",
    )


def _describe(points: Points, piece: Piece, label: NDArray[Any]) -> PartSample:
    xyz = points.xyz[piece.rows]
    bounds = np.concatenate([xyz.min(axis=0), xyz.max(axis=0)]) if len(xyz) else np.zeros(6)
    known = label[label >= 0]
    return PartSample(
        split=piece.split,
        tile=piece.tile,
        rows=len(piece.rows),
        origin=piece.origin.tolist(),
        bounds=bounds.tolist(),
        label=int(np.bincount(known).argmax()) if len(known) else -1,
    )


def usual(parts: Sequence[Part]) -> Part:
    """The first of the parts whose fields most of them have."""
    kinds = [frozenset(map(_kind, part.columns)) for part in parts]
    most = Counter(kinds)
    return parts[max(range(len(parts)), key=lambda i: (most[kinds[i]], -i))]


def odd(path: Path, part: Part, other: Part) -> DataError | None:
    """An error for a source, at ``path``, whose fields differ from another's.

    Samples of a dataset have equal columns.
    """
    ours, theirs = ({column.name: column for column in one.columns} for one in (part, other))
    fix = "list the fields that all files have in data.fields"
    for name in sorted(ours.keys() ^ theirs.keys()):
        lacks = f"has no field '{name}', {other.source} has it"
        has = f"has a field '{name}', {other.source} has no field of that name"
        return DataError(path, lacks if name in theirs else has, fix)
    for name, column in ours.items():
        if column != theirs[name]:
            ours_text, theirs_text = (f"{c.dtype} x {c.width}" for c in (column, theirs[name]))
            return DataError(path, f"field '{name}' is {ours_text}, in {other.source} {theirs_text}", fix)
    return None


def _kind(column: Column) -> tuple[str, str, int, str]:
    return column.name, column.dtype, column.width, column.kind
