"""What passes on its way to shards is counted."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

import numpy as np
import pyarrow as pa

from . import shards
from .manifest import Counts, SplitCounts
from .members import Member
from .records import SPLITS, Field
from .statistics import Moments, described_splits, moments_of


class Tally:
    """Counts rows, classes and figures while the samples pass."""

    def __init__(self, fields: Mapping[str, Field], members: Sequence[Member], classes: int) -> None:
        rows = Counter[str]()
        for member in members:
            rows[member.about.split] += member.about.rows
        self._samples = Counter(member.about.split for member in members)
        self._rows = rows
        self._described = described_splits(self._samples)
        self._fields, self._coming = fields, iter(members)
        self._moments, self._own = moments_of(fields), moments_of(fields)
        self._source: tuple[str, str] | None = None
        self._classes = {split: np.zeros(classes, np.int64) for split in self._samples}

    def counted(self, batches: Iterator[pa.RecordBatch], split: str) -> Iterator[pa.RecordBatch]:
        """Pass the batches of one split on, which are those of the next members."""
        for batch in batches:
            member = next(self._coming)
            columns = shards.from_batch(batch)
            if len(self._classes[split]):
                label = columns["label"]
                self._classes[split] += np.bincount(label[label >= 0], minlength=len(self._classes[split]))
            if split in self._described:
                if (split, member.source) != self._source:
                    self._merge()
                    self._source = split, member.source
                for name, column in columns.items():
                    self._own[name].add(column)
            yield batch

    def moments(self) -> dict[str, Moments]:
        """What passed, source by source, as a build counts it."""
        self._merge()
        return self._moments

    def _merge(self) -> None:
        for name, own in self._own.items():
            self._moments[name].merge(own)
        self._own = moments_of(self._fields)

    def counts(self, classes: Sequence[str], dropped: Mapping[str, int]) -> Counts:
        """What passed; ``dropped``: rows of each split that did not."""
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
            dropped=0,
            outside=0,
            splits=splits,
        )
