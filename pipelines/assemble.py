"""Finished parts to a dataset: order the samples, pack them into shards, describe the whole."""

from __future__ import annotations

import itertools
import logging
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from ..errors import DataError
from ..metrics import Meter
from . import shards
from .finish import About, Described, finish, warn_of_empty_splits
from .journal import Journal, Part, PartSample
from .manifest import Counts, Skipped, SourceDigest, SplitCounts
from .records import SPLITS, Field
from .settings import DataSettings
from .splits import BlocksSplit
from .statistics import Moments

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Member:
    """A sample on its way from batch ``number`` of its source's part to its shard."""

    source: str
    number: int
    about: PartSample


def assemble(
    folder: Path,
    parts: Sequence[Part],
    skipped: Mapping[str, Skipped],
    journal: Journal,
    settings: DataSettings,
    listed: Mapping[str, str],
    meter: Meter,
) -> None:
    """Write a whole dataset to ``folder``, ``dataset.json`` last.

    ``skipped``: the sources that are left out. ``listed``: source -> split of the files that the settings
    list as val or test.
    The bytes depend on the sources and the settings alone. Raises DataError where no sample came out or two
    have the same id.
    """
    members = _in_order(folder, parts)
    objects = {part.source for part in parts if part.objects}
    warn_of_empty_splits({member.about.split for member in members}, settings)
    if settings.split is not None and not isinstance(settings.split, BlocksSplit):
        _warn_of_shared_ground([member for member in members if member.source not in objects])
    fields = {column.name: column.field() for column in parts[0].columns}
    schema = shards.arrow_schema(fields)
    row_bytes = sum(field.row_bytes for field in fields.values())
    splits = [member.about.split for member in members]
    layout = shards.divide([m.about.rows * row_bytes for m in members], splits, settings.shard_mb << 20)

    tally = Tally(fields, members, len(settings.classes))
    for number, rows in enumerate(layout):
        with meter.time("build.write", items=len(rows)):
            own = _batches([members[row] for row in rows], journal, schema)
            batches = tally.counted(own, splits[rows.start])
            shards.write_shard(folder / shards.shard_name(number), schema, batches)
        points = sum(members[row].about.rows for row in rows)
        meter.add("build.write", points_in=points, points_out=points, bytes=points * row_bytes)
    described = Described(
        columns=parts[0].columns,
        annotations=[],
        counts=tally.counts(parts, list(settings.classes), _dropped(parts, settings, listed)),
        statistics={name: moments.figures() for name, moments in tally.moments.items()},
        row_order=settings.row_order,
        sources={part.source: SourceDigest(bytes=part.bytes, sha256=part.sha256) for part in parts},
        skipped=skipped,
    )
    finish(folder, about(members), layout, described, settings)


def about(members: Sequence[Member]) -> About:
    """What ``samples.arrow`` says of the samples."""
    return About(
        source=[member.source for member in members],
        tile=[member.about.tile for member in members],
        split=[member.about.split for member in members],
        origin=np.array([member.about.origin for member in members], np.float64),
        bounds=np.array([member.about.bounds for member in members], np.float64),
        label=[member.about.label for member in members],
    )


def _in_order(folder: Path, parts: Sequence[Part]) -> list[Member]:
    """All samples by split, source and tile, which is the order of the index."""
    members = [
        Member(part.source, number, about) for part in parts for number, about in enumerate(part.samples)
    ]
    if not members:
        raise DataError(
            folder.parent, "no sample came out", "lower data.tiles.min_points or widen data.bounds"
        )
    return sorted(members, key=lambda m: (SPLITS.index(m.about.split), m.source, m.about.tile))


def _dropped(parts: Sequence[Part], settings: DataSettings, listed: Mapping[str, str]) -> Mapping[str, int]:
    """Rows of each split that were not finite. Without a position a row is in no block of ground."""
    dropped = Counter[str]()
    if not isinstance(settings.split, BlocksSplit):
        for part in parts:
            dropped[listed.get(part.source, "train")] += part.dropped
    return dropped


def _batches(members: Sequence[Member], journal: Journal, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    """The members' rows, columns in the order of ``schema``: sources may list theirs in another."""
    for source, own in itertools.groupby(members, key=lambda member: member.source):
        reader, _ = shards.opened(journal.path(source))
        for member in own:
            yield reader.get_batch(member.number).select(schema.names)


class Tally:
    """Counts rows, classes and figures while the samples pass."""

    def __init__(self, fields: Mapping[str, Field], members: Sequence[Member], classes: int) -> None:
        rows = Counter[str]()
        for member in members:
            rows[member.about.split] += member.about.rows
        self._samples = Counter(member.about.split for member in members)
        self._rows = rows
        # What is learnt from may be described by what is learnt from only.
        self._described = {"train"} if "train" in self._samples else set(self._samples)
        total = sum(rows[split] for split in self._described)
        self.moments = {name: Moments(field, total) for name, field in fields.items()}
        self._classes = {split: np.zeros(classes, np.int64) for split in self._samples}

    def counted(self, batches: Iterator[pa.RecordBatch], split: str) -> Iterator[pa.RecordBatch]:
        """Pass the batches of one split on."""
        for batch in batches:
            columns = shards.from_batch(batch)
            if len(self._classes[split]):
                label = columns["label"]
                self._classes[split] += np.bincount(label[label >= 0], minlength=len(self._classes[split]))
            if split in self._described:
                for name, column in columns.items():
                    self.moments[name].add(column)
            yield batch

    def counts(self, parts: Sequence[Part], classes: Sequence[str], dropped: Mapping[str, int]) -> Counts:
        """What passed."""
        splits = {
            split: SplitCounts(
                samples=self._samples[split],
                points=self._rows[split],
                classes=dict(zip(classes, self._classes[split].tolist(), strict=True)),
                ignored=self._rows[split] - int(self._classes[split].sum()) if classes else 0,
                dropped=dropped.get(split, 0),
            )
            for split in SPLITS
            if split in self._samples
        }
        return Counts(
            samples=sum(count.samples for count in splits.values()),
            points=sum(count.points for count in splits.values()),
            dropped=sum(part.dropped for part in parts),
            outside=sum(part.outside for part in parts),
            splits=splits,
        )


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
    trained = {source: box for source, (split, box) in boxes.items() if split == "train"}
    pairs = [
        (source, other)
        for source, (split, box) in boxes.items()
        if split != "train"
        for other, known in trained.items()
        if np.all(box[:2] < known[3:5]) and np.all(known[:2] < box[3:5])
    ]
    if pairs:
        more = f" (and {len(pairs) - 1} more pairs)" if len(pairs) > 1 else ""
        log.warning("%s (evaluated) and %s (trained on) cover common ground%s", *pairs[0], more)
