"""Finished parts to a dataset: shards of parts are taken as they are, small ones packed together."""

from __future__ import annotations

import errno
import itertools
import logging
import os
import shutil
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from ..errors import DataError
from ..metrics import Meter
from ..samplers.threads import threads_for
from . import shards
from .finish import Described, finish, warn_of_empty_splits
from .journal import Finished, Journal, Part, PartFile
from .manifest import Counts, Skipped, SourceDigest, SplitCounts
from .members import Member, about
from .parts import Work
from .records import SPLITS, Field
from .settings import DataSettings
from .shard_writer import ShardWriter
from .splits import BlocksSplit
from .statistics import Moments, described_splits, moments_of
from .stored import Stored
from .tally import by_label

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class _Piece:
    """A shard of a part, in whose files ``bytes`` of arrays lie."""

    part: Part
    file: PartFile
    paths: list[Path]
    stored: list[Stored]

    @property
    def bytes(self) -> int:
        """Bytes of the arrays."""
        files = zip(self.stored, self.part.owns, strict=True)
        return sum(int(one.rows.sum()) * sum(f.row_bytes for f in own.values()) for one, (_, own) in files)

    def holds(self, place: int, fields: Mapping[str, Field]) -> bool:
        """Whether its file at ``place``, the same in all parts, has just these fields, in this order."""
        return [*self.part.owns[place][1].items()] == [*fields.items()]


def assemble(
    folder: Path, parts: Sequence[Finished], skipped: Mapping[str, Skipped], work: Work, meter: Meter
) -> None:
    """Write a whole dataset to ``folder``, ``dataset.json`` last.

    ``skipped``: the sources that are left out. The bytes depend on the sources and the settings alone.
    Raises DataError where no sample came out or two have the same id.
    """
    settings, first = work.settings, parts[0].part
    pieces = [*_pieces(parts, work.journal)]
    members = [
        Member(piece.part.source, number, sample)
        for piece in pieces
        for number, sample in enumerate(piece.file.samples)
    ]
    if not members:
        raise DataError(folder.parent, "no sample came out", _of_nothing(settings))
    objects = {one.part.source for one in parts if one.part.objects}
    warn_of_empty_splits({member.about.split for member in members}, settings)
    if settings.split is not None and not isinstance(settings.split, BlocksSplit):
        _warn_of_shared_ground([member for member in members if member.source not in objects])
    sizes, splits = [piece.bytes for piece in pieces], [piece.file.split for piece in pieces]
    together = shards.pack(sizes, splits, settings.shard_mb << 20)
    groups = [pieces[group.start : group.stop] for group in together]
    known: dict[str, Stored] = {}
    with meter.time("build.write", items=0), ThreadPoolExecutor(threads_for(None, len(groups))) as pool:
        for found in pool.map(partial(_shard, folder, first), range(len(groups)), groups):
            known |= found
    samples = np.cumsum([0, *(sum(len(piece.file.samples) for piece in group) for group in groups)]).tolist()
    layout = [range(start, stop) for start, stop in itertools.pairwise(samples)]
    described = Described(
        columns=first.columns,
        annotations=first.annotations,
        counts=_counts(parts, pieces, settings, work.listed),
        moments=_moments(parts),
        row_order=settings.row_order,
        sources={
            one.part.source: SourceDigest(bytes=one.part.bytes, sha256=one.part.sha256) for one in parts
        },
        skipped=skipped,
    )
    finish(folder, about(members), layout, described, settings, known)


def _of_nothing(settings: DataSettings) -> str:
    """What to do where no sample came out: the keys that can leave out all, of those that are set."""
    steps = {
        "lower data.tiles.min_points": settings.tiles,
        "widen data.bounds": settings.bounds,
        "look at data.prepare": settings.prepare,
        "loosen data.where": settings.where,
    }
    return " or ".join(step for step, key in steps.items() if key) or "see whether the files hold points"


def _pieces(parts: Sequence[Finished], journal: Journal) -> Iterator[_Piece]:
    """The shards of all parts by split and source, in which samples are by tile: the order of the index."""
    for split in SPLITS:
        for one in parts:
            for (file, paths), found in zip(journal.paths(one.part), one.stored, strict=True):
                if file.split == split:
                    yield _Piece(one.part, file, paths, found)


def _shard(folder: Path, first: Part, number: int, group: Sequence[_Piece]) -> dict[str, Stored]:
    """Make the files of a shard; what lies in each. Columns are in the order of the ``first`` part's."""
    found = {}
    for place, (own, fields) in enumerate(first.owns):
        path = folder / shards.shard_name(number, own)
        if len(group) == 1 and group[0].holds(place, fields):
            _link(group[0].paths[place], path)
            found[path.name] = group[0].stored[place]
            continue
        with ShardWriter(path, fields) as shard:
            for piece in group:
                if piece.holds(place, fields):
                    shard.copy(piece.paths[place], piece.stored[place])
                else:
                    for arrays in shards.samples(piece.paths[place]):
                        shard.write(arrays)
            found[path.name] = shard.finish()
    return found


def _link(path: Path, to: Path) -> None:
    """Give a finished file a second name, so that it stays with the parts; a copy where that cannot be."""
    try:
        os.link(path, to)
    except OSError as error:
        if error.errno not in (errno.EPERM, errno.EXDEV, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK):
            raise
        shutil.copyfile(path, to)


def _counts(
    parts: Sequence[Finished], pieces: Sequence[_Piece], settings: DataSettings, listed: Mapping[str, str]
) -> Counts:
    dropped = _dropped(parts, settings, listed)
    splits = {}
    for split in SPLITS:
        own = [piece for piece in pieces if piece.file.split == split]
        if not own:
            continue
        figures = [one.part.figures[split] for one in parts if split in one.part.figures]
        classes = [sum(counts) for counts in zip(*(one.classes for one in figures), strict=True)]
        samples = [sample for piece in own for sample in piece.file.samples]
        points = counted = sum(sample.rows for sample in samples)
        if not parts[0].part.columns:  # of samples without points each is counted, by its own label
            labels, counted = (sample.label for sample in samples), len(samples)
            classes = by_label(labels, len(settings.classes)).tolist()
        annotations = Counter[str]()
        for piece in own:
            for (name, _), one in zip(piece.part.owns, piece.stored, strict=True):
                if name is not None:
                    annotations[name] += int(one.rows.sum())
        splits[split] = SplitCounts(
            samples=len(samples),
            points=points,
            classes=dict(zip(settings.classes, classes, strict=True)),
            ignored=counted - sum(classes) if settings.classes else 0,
            dropped=dropped[split],
            annotations=dict(annotations),
        )
    return Counts(
        samples=sum(count.samples for count in splits.values()),
        points=sum(count.points for count in splits.values()),
        dropped=sum(one.part.dropped for one in parts),
        outside=sum(one.part.outside for one in parts),
        splits=splits,
    )


def _dropped(parts: Sequence[Finished], settings: DataSettings, listed: Mapping[str, str]) -> Counter[str]:
    """Rows of each split that were not finite. Without a position a row is in no block of ground."""
    dropped = Counter[str]()
    if not isinstance(settings.split, BlocksSplit):
        for one in parts:
            dropped[listed.get(one.part.source, "train")] += one.part.dropped
    return dropped


def _moments(parts: Sequence[Finished]) -> dict[str, Moments]:
    """Of the columns of the described samples, merged in the order of the sources."""
    first, *_ = parts
    fields = {column.name: column.field() for column in first.part.columns}
    found = moments_of(fields)
    splits = described_splits({split for one in parts for split in one.part.figures})
    for split in splits:
        for one in parts:
            if split in one.part.figures:
                for name, moments in found.items():
                    moments.merge(Moments.of(one.part.figures[split].spreads[name]))
    return found


def _warn_of_shared_ground(members: Sequence[Member]) -> None:
    """Name the first trained and evaluated files whose bounding boxes overlap: the score may be too good."""
    boxes: dict[str, tuple[str, NDArray[np.float64]]] = {}
    for member in members:
        if member.about.rows:
            box = np.array(member.about.bounds)
            if member.source in boxes:
                known = boxes[member.source][1]
                box = np.concatenate([np.minimum(known[:3], box[:3]), np.maximum(known[3:], box[3:])])
            boxes[member.source] = (member.about.split, box)
    trained = [source for source, (split, _) in boxes.items() if split == "train"]
    known = np.array([boxes[source][1] for source in trained]).reshape(-1, 6)
    pair, more = None, -1
    for source, (split, box) in boxes.items():
        if split != "train":
            common = ((box[:2] < known[:, 3:5]) & (known[:, :2] < box[3:5])).all(axis=1)
            if pair is None and common.any():
                pair = source, trained[int(common.argmax())]
            more += int(common.sum())
    if pair is not None:
        others = f" (and {more} more pairs)" if more else ""
        log.warning("%s (evaluated) and %s (trained on) cover common ground%s", *pair, others)
