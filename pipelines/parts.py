"""One source to a part: read it, cut it into samples, write them to shards, and record that it is done."""

from __future__ import annotations

import itertools
import logging
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from ..errors import DataError
from ..metrics import Meter
from . import sources
from .annotations import Annotations, stored
from .annotations import columns as columns_of_annotations
from .cut import Columns, Points, joined, select, wanted, warn_of_dropped
from .journal import Finished, Journal, Part, PartSample, SplitFigures
from .manifest import Column, SourceDigest
from .part_writer import PartWriter
from .pieces import GROUP_ROWS, Pieces, annotations_of, columns_of, cut, grouped, whole
from .prepare.steps import by_row, prepare
from .raw import Raw
from .readers import Scan, chunked, rows_of
from .settings import DataSettings
from .streamed import clouds
from .tally import Counted
from .where import condition

log = logging.getLogger(__name__)

Clouds = Iterator[tuple[Points, Iterable[Pieces]]]
"""Points, and the samples that are cut from them."""

_STREAMED_ROWS = 1 << 22
"""Scans of more rows are read in pieces, if they are cut into tiles."""

_CHUNK_ROWS = 1 << 20
"""Rows of such a piece."""

_TOGETHER = 1 << 12
"""Objects that are made samples of at once."""


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

    def part(self, source: str, meter: Meter) -> Finished:
        """The part of a source, made if it is not finished.

        What is written depends on the source and the settings alone. Raises DataError for a source that
        cannot be read or cut, UsageError for settings that cannot be carried out, OSError where the part
        cannot be written.
        """
        return self.journal.finished(source, self.raw) or self._made(source, meter)

    def _made(self, source: str, meter: Meter) -> Finished:
        path = self.root / source
        try:
            return _Making(self, source, meter).part()
        except MemoryError:
            cause = "needs more memory than there is"
            raise DataError(path, cause, "cut it into smaller files, or lower data.workers") from None


class _Making:
    """One part on its way."""

    def __init__(self, work: Work, source: str, meter: Meter) -> None:
        self._work, self._source, self._meter = work, source, meter
        self._path, self._settings = work.root / source, work.settings
        self._where = condition(work.settings.where, work.settings.classes) if work.settings.where else None
        self._counted: dict[str, Counted] = {}
        self._refused = self._boxes = 0

    def part(self) -> Finished:
        """Make it and record it."""
        dropped = outside = 0
        files = self._paths()
        before = _stamps(files)
        clouds, objects, digest = self._read()
        first, pieces = next(clouds, (None, ()))
        if first is None:
            raise DataError(self._path, "holds no cloud", "leave it out with data.files or data.bad_files")
        columns = _columns(first) if self._work.raw.points else []
        annotations = columns_of_annotations(first.annotations)
        for name in {one.name for one in columns} & {one.name for one in annotations}:
            raise DataError(self._path, f"has a field and an annotation '{name}'", "leave one of them out")
        limit, boxes = self._settings.shard_mb << 20, 0
        with PartWriter(self._work.journal, self._source, columns, annotations, limit) as writer:
            for points, cuts in itertools.chain([(first, pieces)], clouds):
                dropped, outside = dropped + points.dropped, outside + points.outside
                boxes += len(points.annotations.get("boxes", ()))
                for own in cuts:
                    for group in grouped(np.diff(own.starts)):
                        self._write(writer, points, own.part(*group))
            with self._meter.time("build.write", items=0):
                made, found = writer.close()
            if _stamps(files) != before:
                raise DataError(self._path, "changed while it was read", "run it again when it is whole")
            warn_of_dropped(self._path, dropped)
            if self._boxes < boxes:
                log.warning("%s: %d of %d boxes lie in no sample", self._path, boxes - self._boxes, boxes)
            if self._refused:
                log.info("%s: %d samples do not fulfil data.where", self._path, self._refused)
            part = Part(
                settings=self._work.journal.settings,
                source=self._source,
                bytes=digest.bytes,
                sha256=digest.sha256,
                dropped=dropped,
                outside=outside,
                objects=objects,
                columns=columns,
                annotations=annotations,
                files=made,
                figures={
                    split: SplitFigures(
                        classes=one.classes.tolist(),
                        spreads={name: moments.recorded() for name, moments in one.moments.items()},
                    )
                    for split, one in self._counted.items()
                },
            )
            self._work.journal.finish(part, writer.temporary)
        return Finished(part, found)

    def _read(self) -> tuple[Clouds, bool, SourceDigest]:
        """Points with the samples to cut from them; whether those are objects; what the source was."""
        raw = self._work.raw
        try:
            if self._is_large():
                files, objects = raw.files(self._source), False
                spill = self._work.journal.record(self._source).with_suffix(".spill")
                found: Clouds = clouds(
                    *(self._path, self._source, self._chunks, self._settings, self._work.listed, spill)
                )
            else:
                with self._meter.time("build.read"):
                    read = raw.opened(self._source, wanted(self._settings))
                files, objects = read.files, read.objects
                found = self._objects(read.scans) if objects else self._ground(read.scans)
            with self._meter.time("build.read", items=0):
                digest = sources.digest(*files)
        except OSError as error:
            raise _unreadable(self._path, error) from None
        self._meter.add("build.read", bytes=digest.bytes)
        return found, objects, digest

    def _paths(self) -> list[Path]:
        """The files of the source; none where they cannot be told, which who reads it tells of."""
        try:
            return [file for file in self._work.raw.files(self._source) if isinstance(file, Path)]
        except (DataError, OSError):
            return []

    def _is_large(self) -> bool:
        settings = self._settings
        if settings.layout or not settings.tiles or not by_row(settings.prepare):
            return False
        if self._path.stat().st_size < _STREAMED_ROWS:  # a row takes a byte, or more
            return False
        rows = rows_of(self._path, settings.read)
        return rows is not None and rows > _STREAMED_ROWS

    def _chunks(self) -> Iterator[Points]:
        """The kept points of the source, some rows at a time."""
        scans = chunked(self._path, self._settings.read, _CHUNK_ROWS, wanted(self._settings))
        assert scans is not None
        while True:
            try:
                with self._meter.time("build.read"):
                    scan = next(scans, None)
            except OSError as error:
                raise _unreadable(self._path, error) from None
            if scan is None:
                return
            yield self._selected(scan)

    def _selected(self, scan: Scan) -> Points:
        if not self._work.raw.points:
            return Points(scan.xyz, {}, 0, 0, stored(self._path, scan.annotations, self._settings))
        points = select(self._path, scan, self._settings)
        self._meter.add("build.read", points_out=len(scan.xyz))
        return prepare(self._path, points, self._settings.prepare)

    def _ground(self, scans: Iterable[Scan]) -> Clouds:
        for scan in scans:
            points = self._selected(scan)
            yield points, cut(self._path, self._source, points, self._settings, self._work.listed)

    def _objects(self, scans: Iterable[Scan]) -> Clouds:
        """Many at a time; one at a time where they have annotations."""
        number, rows, waiting = 0, 0, list[Points]()
        for points in map(self._selected, scans):
            waiting.append(points)
            rows += len(points.xyz)
            if points.annotations or rows >= GROUP_ROWS or len(waiting) >= _TOGETHER:
                yield self._whole(number, waiting)
                number, rows, waiting = number + len(waiting), 0, []
        if waiting:
            yield self._whole(number, waiting)

    def _whole(self, number: int, clouds: Sequence[Points]) -> tuple[Points, Iterable[Pieces]]:
        points, sizes = joined(clouds), [len(one.xyz) for one in clouds]
        return points, whole(self._source, number, sizes, points, self._settings, self._work.listed)

    def _write(self, writer: PartWriter, points: Points, pieces: Pieces) -> None:
        """Write some samples and count what is in them."""
        meter, rows = self._meter, len(pieces.rows)
        with meter.time("build.sample", items=len(pieces)):
            columns = columns_of(self._path, self._source, points, pieces, self._settings.row_order)
            kept = [i for i in range(len(pieces)) if self._holds(pieces, i, columns)]
            if len(kept) < len(pieces):
                self._refused += len(pieces) - len(kept)
                pieces = pieces.only(kept)
                columns = columns_of(self._path, self._source, points, pieces, self._settings.row_order)
        meter.add("build.sample", points_in=rows, points_out=len(pieces.rows))
        if not len(pieces):
            return
        with meter.time("build.pack", items=len(pieces)):
            if pieces.split not in self._counted:
                widths = {name: math.prod(values.shape[1:]) for name, values in columns.items()}
                self._counted[pieces.split] = Counted(
                    widths if self._work.raw.points else {}, len(self._settings.classes)
                )
            starts = pieces.starts[:-1].tolist()
            self._counted[pieces.split].add(columns if self._work.raw.points else {}, starts)
            labels = columns.get("label") if self._settings.classes else None
        size = sum(values.nbytes for values in columns.values())
        meter.add("build.pack", points_in=len(pieces.rows), points_out=len(pieces.rows), bytes=size)
        annotations: Sequence[Annotations] = [{}] * len(pieces)
        if points.annotations:
            annotations = [*annotations_of(points, pieces, self._settings, self._path)]
        self._boxes += sum(len(own.get("boxes", ())) for own in annotations)
        with meter.time("build.write", items=len(pieces)):
            samples = []
            for i, own in enumerate(annotations):
                begin, end = int(pieces.starts[i]), int(pieces.starts[i + 1])
                label = _label(labels[begin:end] if labels is not None else own.get("label"))
                samples.append(
                    PartSample(
                        split=pieces.split,
                        tile=int(pieces.tile[i]),
                        rows=end - begin,
                        origin=pieces.origin[i].tolist(),
                        bounds=pieces.bounds[i].ravel().tolist(),
                        label=label,
                    )
                )
            writer.add(samples, columns, annotations)
        meter.add("build.write", points_in=len(pieces.rows), points_out=len(pieces.rows), bytes=size)

    def _holds(self, pieces: Pieces, i: int, columns: Columns) -> bool:
        """Whether a sample is kept: of evaluated ones all are."""
        if self._where is None or pieces.split != "train":
            return True
        own = slice(pieces.starts[i], pieces.starts[i + 1])
        return self._where.holds(columns["xyz"][own], {name: values[own] for name, values in columns.items()})


def _stamps(files: Sequence[Path]) -> list[tuple[int, int, int]]:
    """Which files these are, and when they were changed last, which no copy sets."""
    try:
        found = [file.stat() for file in files]
    except OSError:  # what is wrong is told by who reads it
        return []
    return [(one.st_ino, one.st_size, one.st_ctime_ns) for one in found]


def _unreadable(path: Path, error: OSError) -> DataError:
    cause = f"cannot be read ({error.strerror or error})"
    return DataError(path, cause, "see whether it is still there and whole")


def _columns(points: Points) -> list[Column]:
    return [
        Column(name=name, dtype=field.dtype.name, width=field.width, kind=field.kind)
        for name, field in points.schema.items()
    ]


def _label(labels: NDArray[np.int32] | None) -> int:
    """The class that most rows are of, -1 for none."""
    known = labels[labels >= 0] if labels is not None else np.empty(0, np.int32)
    return int(np.bincount(known).argmax()) if len(known) else -1


def stopped(error: Exception, where: Path) -> DataError:
    """A failing disk as one line; what was finished stays for the next call."""
    cause = getattr(error, "strerror", None) or str(error)
    return DataError(
        getattr(error, "filename", None) or where,
        f"the build stopped: {cause}",
        "mend that and run it again, it continues",
    )
