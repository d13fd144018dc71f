"""The samples of tars and TFRecord files, looked through: what each is, and all in the order of an index."""

from __future__ import annotations

import itertools
import logging
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath
from typing import Any

from numpy.typing import NDArray

from ..errors import DataError
from .convert_foreign import Noted, Schema
from .convert_read import Packed
from .journal import PartSample
from .manifest import Column
from .members import Member
from .records import SPLITS, Field

log = logging.getLogger(__name__)

SPLIT_WORDS = {"train": "train", "val": "val", "valid": "val", "validation": "val", "test": "test"}
"""Words in the names of folders and files that tell their split; without one it is train."""

Arrays = Mapping[str, NDArray[Any]]


@dataclass(frozen=True)
class Found:
    """All samples, in the order of the index: what they are, where, how large, and how to read one.

    ``dropped``: split -> rows that are left out, as their positions are not finite.
    """

    members: list[Member]
    packed: list[Packed]
    sizes: list[int]
    columns: list[Column]
    annotations: list[Column]
    read: Callable[[Packed], Arrays]
    dropped: Counter[str]


def ours(first: Packed, more: Iterator[Packed]) -> Found:
    """Samples that have cards. Raises DataError where their columns differ."""
    columns: tuple[list[Column], list[Column]] | None = None
    members: list[Member] = []
    packed: list[Packed] = []
    sizes: list[int] = []
    for one in _chain(first, more):
        card = one.card()
        if card is None:
            raise DataError(one.where, f"has no card, {first.where} has one", "convert it again")
        own = [stored.column() for stored in card.columns], [stored.column() for stored in card.annotations]
        columns = columns or own
        if own != columns:
            cause = f"has {_listed(*own)}, {first.where} {_listed(*columns)}"
            raise DataError(one.where, cause, "convert datasets of equal columns only")
        about = PartSample(
            split=card.split,
            tile=card.tile,
            rows=card.rows,
            origin=card.origin,
            bounds=card.bounds,
            label=card.label,
        )
        members.append(Member(card.source, len(members), about))
        sizes.append(sum(s.rows * s.field().row_bytes for s in [*card.columns, *card.annotations]))
        one.release()
        packed.append(one)
    assert columns is not None
    return _ordered(Found(members, packed, sizes, *columns, _read_ours, Counter()))


def _read_ours(one: Packed) -> Arrays:
    card = one.card()
    if card is None:
        raise DataError(one.where, "changed while it was read", "run it again")
    return {stored.name: one.array(stored) for stored in [*card.columns, *card.annotations]}


def others(first: Packed, more: Iterator[Packed], splits: Mapping[Path, str]) -> Found:
    """Samples of other programs; ``splits``: of their files. Raises DataError where their fields differ."""
    schema = Schema()
    packed: list[Packed] = []
    noted: list[Noted] = []
    for one in _chain(first, more):
        if packed and one.card() is not None:
            raise DataError(one.where, f"has a card, {first.where} has none", "convert them apart")
        noted.append(schema.note(one.where, one.fields()))
        one.release()
        packed.append(one)
        if noted[-1].dropped:
            log.warning("%s: left out %d rows whose position is not finite", one.where, noted[-1].dropped)
    columns, annotations, label = schema.columns(), schema.annotations(), schema.label()
    members: list[Member] = []
    sizes: list[int] = []
    dropped = Counter[str]()
    for one, note in zip(packed, noted, strict=True):
        split = splits[one.path]
        dropped[split] += note.dropped
        about = PartSample(
            split=split,
            tile=one.tile,
            rows=note.rows,
            origin=note.origin.tolist(),
            bounds=note.bounds.tolist(),
            label=note.numbers[label] if label else -1,
        )
        members.append(Member(one.source, len(members), about))
        size = sum(note.rows * field.row_bytes for field in columns.values())
        sizes.append(size + sum(note.lengths[name] * f.row_bytes for name, f in annotations.items()))

    def read(one: Packed) -> Arrays:
        return schema.arrays(one.where, one.fields())

    found = Found(members, packed, sizes, _columns(columns), _columns(annotations), read, dropped)
    return _ordered(found)


def _ordered(found: Found) -> Found:
    """By split, source and tile, which is the order of the index."""
    keys = [(SPLITS.index(one.about.split), one.source, one.about.tile) for one in found.members]
    order = sorted(range(len(keys)), key=keys.__getitem__)
    for before, after in itertools.pairwise(order):
        if keys[before] == keys[after]:
            one, other = found.packed[before].where, found.packed[after].where
            raise DataError(other, f"is the same sample as {one}", "give each file once")
    return replace(
        found,
        members=[found.members[i] for i in order],
        packed=[found.packed[i] for i in order],
        sizes=[found.sizes[i] for i in order],
    )


def split_of(root: Path, path: Path) -> str:
    """By the last folder or part of the file's name that is such a word."""
    name = PurePosixPath(path.name if path == root else path.relative_to(root).as_posix())
    stem = name.name.partition(".")[0].replace("_", "-").split("-")
    words = [word.lower() for word in [*name.parts[:-1], *stem]]
    return next((SPLIT_WORDS[word] for word in reversed(words) if word in SPLIT_WORDS), "train")


def _columns(fields: Mapping[str, Field]) -> list[Column]:
    return [
        Column(name=name, dtype=field.dtype.name, width=field.width, kind=field.kind)
        for name, field in fields.items()
    ]


def _listed(*columns: Sequence[Column]) -> str:
    return ", ".join(f"'{one.name}' ({one.dtype} x {one.width})" for own in columns for one in own)


def _chain(first: Packed, more: Iterator[Packed]) -> Iterator[Packed]:
    yield first
    yield from more
