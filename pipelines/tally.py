"""What passes on its way to shards is counted."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .manifest import Counts, SplitCounts
from .members import Member
from .records import SPLITS, Field
from .statistics import Moments, described_splits


def by_label(labels: Iterable[int], classes: int) -> NDArray[np.int64]:
    """How many samples are of each class, int64 (classes,), -1 of none: those without points count so."""
    found = np.zeros(classes, np.int64)
    for label in labels:
        if 0 <= label < classes:
            found[label] += 1
    return found


class Counted:
    """Rows of each class, and moments of columns of some ``widths``."""

    def __init__(self, widths: Mapping[str, int], classes: int) -> None:
        self.classes = np.zeros(classes, np.int64)
        self.moments = {name: Moments(width) for name, width in widths.items()}

    def add(self, columns: Mapping[str, NDArray[Any]], starts: Sequence[int] = (0,)) -> None:
        """Count samples, one behind the other, that begin at the rows ``starts``."""
        if len(self.classes) and columns:
            label = columns["label"]
            self.classes += np.bincount(label[label >= 0], minlength=len(self.classes))
        for name, moments in self.moments.items():
            moments.add(columns[name], starts)


class Tally:
    """Counts rows, classes and figures while the samples pass."""

    def __init__(self, fields: Mapping[str, Field], members: Sequence[Member], classes: int) -> None:
        rows = Counter[str]()
        for member in members:
            rows[member.about.split] += member.about.rows
        self._samples = Counter(member.about.split for member in members)
        self._rows = rows
        self._described = described_splits(self._samples)
        self._widths, self._number = {name: field.width for name, field in fields.items()}, classes
        self._coming, self._source = iter(members), ("", "")
        self._own = self._none()
        self._classes = {split: np.zeros(classes, np.int64) for split in self._samples}
        if not fields:  # no row of points passes
            for split in self._samples:
                own = (member.about.label for member in members if member.about.split == split)
                self._classes[split] = by_label(own, classes)
        self._moments = self._none().moments

    def _none(self) -> Counted:
        return Counted(self._widths, self._number)

    def add(self, columns: Mapping[str, NDArray[Any]]) -> None:
        """Count the columns of the next member."""
        member = next(self._coming)
        source = member.about.split, member.source
        if source != self._source:
            self._merge()
            self._source = source
        self._own.add(columns)

    def moments(self) -> dict[str, Moments]:
        """Those of what is described, source by source, as a build counts them."""
        self._merge()
        return self._moments

    def _of(self, split: str) -> int:
        """What classes count: rows, or samples where there are no points."""
        return self._rows[split] if self._widths else self._samples[split]

    def _merge(self) -> None:
        """Count the samples of a source."""
        split, _ = self._source
        if split:
            self._classes[split] += self._own.classes
        if split in self._described:
            for name, moments in self._moments.items():
                moments.merge(self._own.moments[name])
        self._own = self._none()

    def counts(self, classes: Sequence[str], dropped: Mapping[str, int]) -> Counts:
        """What passed; ``dropped``: rows of each split that did not."""
        self._merge()
        splits = {
            split: SplitCounts(
                samples=self._samples[split],
                points=self._rows[split],
                classes=dict(zip(classes, self._classes[split].tolist(), strict=True)),
                ignored=self._of(split) - int(self._classes[split].sum()) if classes else 0,
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
