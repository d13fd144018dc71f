"""``tamis merge``: datasets of equal columns as one, each sample once."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, NamedTuple

from ..errors import DataError, UsageError
from . import rewrite
from .copied import Copied, members, sizes, sums
from .dataset import Dataset
from .made import Made, made_by, origin_of, settings_of
from .manifest import Column, Skipped, SourceDigest
from .members import Member
from .rewrite import FromRaw, Samples, place
from .subset import file_of
from .text import TOKENS

_NOT_OF_CUT = {"classes", "fields", "files", "label", "made", "shard_mb", "where"}
"""Keys of a build that do not change of which rows of a source a sample is."""


class _Taken(NamedTuple):
    """A sample, by the number of its dataset and its row there."""

    member: Member
    dataset: int
    row: int


def merge(paths: Sequence[str | Path], out: str | Path) -> Dataset:
    """Write all samples of the datasets at ``paths`` to ``out/dataset``, and open it.

    Columns and annotations must be equal, in any order (the first dataset's is taken), and so must the
    classes, in the same order, and the order of rows. Samples keep their bytes, ids and splits; one that is
    in several datasets is taken once. Counts and statistics are of all. A finished ``out`` of the same is
    returned.

    Raises UsageError for fewer than two, DataError where they do not go together, naming the first
    difference, for damage, with file and offset, for another dataset in ``out``, and for a disk that fails.
    """
    if len(paths) < 2:
        raise UsageError("tamis merge", f"{len(paths)} dataset(s) given", "give two or more, and then OUT")
    datasets = [Dataset(path) for path in paths]
    for other in datasets[1:]:
        _check_goes_with(datasets[0], other)
    sources, shared = _sources(datasets)
    taken = _taken(datasets, shared)
    made = Made(by="merge", of=[origin_of(dataset) for dataset in datasets])

    def fill(folder: Path) -> None:
        first = datasets[0]
        settings = made_by(
            made, [settings_of(dataset.manifest) for dataset in datasets], first.manifest.row_order
        )
        with ExitStack() as stack:
            copied = [stack.enter_context(Copied(dataset, [*first.fields])) for dataset in datasets]
            size = [sizes(dataset, [*first.fields]) for dataset in datasets]
            samples = Samples(
                members=[one.member for one in taken],
                sizes=[int(size[one.dataset][one.row]) for one in taken],
                columns=first.manifest.columns,
                annotations=first.manifest.annotations,
                arrays=lambda place: copied[taken[place].dataset].arrays(taken[place].row),
            )
            rewrite.write(folder, samples, settings, _from_raw(datasets, sources, len(taken)))

    return rewrite.make(Path(out), made, datasets, fill)


def _check_goes_with(first: Dataset, other: Dataset) -> None:
    """Refuse ``other``, naming the first thing that is not as in ``first``."""
    mine, its = first.manifest, other.manifest
    for what, wanted, found in (
        ("column", mine.columns, its.columns),
        ("annotation", mine.annotations, its.annotations),
    ):
        cause = _difference(what, first, wanted, found)
        if cause:
            raise DataError(other.path, cause, "see `tamis subset --fields`, or build one of them again")
    if its.classes != mine.classes:
        listed = ", ".join(its.classes) or "none"
        cause = f"has the classes {listed}, {first.path} has {', '.join(mine.classes) or 'none'}"
        if sorted(its.classes) == sorted(mine.classes):
            cause = f"has the classes in another order than {first.path}: {listed}"
        raise DataError(other.path, cause, "build one of them again with the data.classes of the other")
    if first.schema and its.row_order != mine.row_order:
        cause = f"has rows in the order '{its.row_order}', {first.path} in '{mine.row_order}'"
        raise DataError(other.path, cause, "build one of them again with the data.row_order of the other")


def _difference(what: str, first: Dataset, wanted: list[Column], found: list[Column]) -> str | None:
    its = {column.name: column for column in found}
    for column in wanted:
        other = its.pop(column.name, None)
        if other is None:
            return f"has no {what} '{column.name}', {first.path} has"
        if other != column:
            return f"has {_said(what, other)}, {first.path} {_said(what, column)}"
    return f"has the {what} '{min(its)}', {first.path} has not" if its else None


def _said(what: str, column: Column) -> str:
    return f"{what} '{column.name}' as {column.dtype} x {column.width} ({column.kind})"


def _sources(datasets: Sequence[Dataset]) -> tuple[dict[str, SourceDigest], set[str]]:
    """All sources, and those that several datasets have. DataError for one that is not the same in all."""
    owner: dict[str, Dataset] = {}
    shared = set[str]()
    for dataset in datasets:
        for name, digest in dataset.manifest.sources.items():
            known = owner.setdefault(name, dataset)
            if known is dataset:
                continue
            if known.manifest.sources[name] != digest:
                cause = f"has another file {name} than {known.path}"
                fix = (
                    f"leave it out with `tamis subset --sources '!{name}'`, or build one of them again with "
                    "data.root a folder higher, which gives its files other names"
                )
                raise DataError(dataset.path, cause, fix)
            shared.add(name)
            if keys := _cut_otherwise(known, dataset):
                cause = f"has cut {name} with another data.{', data.'.join(keys)} than {known.path}"
                fix = f"leave it out of one of them with `tamis subset --sources '!{name}'`"
                raise DataError(dataset.path, cause, fix)
    found = {name: dataset.manifest.sources[name] for name, dataset in owner.items()}
    return dict(sorted(found.items())), shared


def _cut_otherwise(one: Dataset, other: Dataset) -> list[str]:
    """Keys by which two builds make other samples of the same file."""
    a, b = (settings_of(dataset.manifest).configuration() for dataset in (one, other))
    free = set(_NOT_OF_CUT)
    if not any(split and split["kind"] == "blocks" for split in (a["split"], b["split"])):
        free.add("split")  # by whole files: these are not cut for it
    return sorted(key for key in a if key not in free and a[key] != b[key])


def _taken(datasets: Sequence[Dataset], shared: set[str]) -> list[_Taken]:
    """The samples of all, each once, in the order of the index. DataError for two that have one name."""
    taken: dict[tuple[str, int], _Taken] = {}
    own: list[set[tuple[str, int]]] = []
    for number, dataset in enumerate(datasets):
        own.append(set())
        for row, member in enumerate(members(dataset)):
            key = (member.source, member.about.tile)
            one = _Taken(member, number, row)
            known = taken.setdefault(key, one)
            own[-1].add(key)
            if known is not one and (what := _differs(datasets, known, one)):
                name, first = f"{key[0]}#{key[1]}", datasets[known.dataset].path
                cause = f"has another sample {name} than {first}: its {what} is not the same"
                fix = f"leave it out of one of them with `tamis subset --sources '!{key[0]}'`"
                raise DataError(dataset.path, cause, fix)
    _check_splits(datasets, shared)
    _check_text(datasets, shared, own)
    return sorted(taken.values(), key=lambda one: place(one.member))


def _differs(datasets: Sequence[Dataset], one: _Taken, other: _Taken) -> str | None:
    """What is not the same in two samples of one name, by what their datasets say of them."""
    a, b = (_said_of(taken.member) for taken in (one, other))
    for key, value in a.items():
        if b[key] != value:
            return key
    mine, its = (sums(datasets[taken.dataset], taken.row) for taken in (one, other))
    return next((f"'{name}'" for name in mine if mine[name] != its[name]), None)


def _said_of(member: Member) -> dict[str, Any]:
    """What is said of a sample beside its arrays."""
    return member.about.model_dump(include={"split", "rows", "origin", "bounds", "label"})


def _check_splits(datasets: Sequence[Dataset], shared: set[str]) -> None:
    """Refuse sources that are of one split here and of another there: their tiles have other numbers."""
    first: dict[str, tuple[Dataset, set[str]]] = {}
    for dataset in datasets:
        own: dict[str, set[str]] = {}
        table = dataset.samples
        pairs = zip(table.column("source").to_pylist(), table.column("split").to_pylist(), strict=True)
        for source, split in pairs:
            if file_of(dataset.manifest, source) in shared:
                own.setdefault(source, set()).add(split)
        for source, splits in own.items():
            known, other = first.setdefault(source, (dataset, splits))
            if other != splits and _split(known) != _split(dataset):
                here, there = (", ".join(sorted(names)) for names in (splits, other))
                cause = f"has {source} in {here}, {known.path} in {there}"
                fix = f"leave it out of one of them with `tamis subset --sources '!{source}'`"
                raise DataError(dataset.path, cause, fix)


def _split(dataset: Dataset) -> Any:
    return dataset.manifest.configuration["split"]


def _check_text(datasets: Sequence[Dataset], shared: set[str], own: Sequence[set[tuple[str, int]]]) -> None:
    """Refuse texts of which several datasets hold pieces that begin at other places: they would be twice."""
    if TOKENS not in datasets[0].annotations or not shared:
        return
    first: dict[str, tuple[int, frozenset[int]]] = {}
    for number, keys in enumerate(own):
        tiles: dict[str, set[int]] = {}
        for source, tile in keys:
            if file_of(datasets[number].manifest, source) in shared:
                tiles.setdefault(source, set()).add(tile)
        for source, places in sorted(tiles.items()):
            known, other = first.setdefault(source, (number, frozenset(places)))
            if other != places:
                cause = f"has other pieces of {source} than {datasets[known].path}"
                fix = f"leave it out of one of them with `tamis subset --sources '!{source}'`"
                raise DataError(datasets[number].path, cause, fix)


def _from_raw(datasets: Sequence[Dataset], sources: dict[str, SourceDigest], samples: int) -> FromRaw:
    """What is known of the raw files of all; what they had beside, where no sample is in two datasets."""
    skipped: dict[str, Skipped] = {}
    for dataset in datasets:
        skipped |= {n: why for n, why in dataset.manifest.skipped.items() if n not in sources}
    counts = [dataset.manifest.counts for dataset in datasets]
    if samples < sum(count.samples for count in counts):
        return FromRaw(sources, skipped)
    dropped: dict[str, int] = {}
    for count in counts:
        for split, one in count.splits.items():
            dropped[split] = dropped.get(split, 0) + one.dropped
    total, outside = sum(count.dropped for count in counts), sum(count.outside for count in counts)
    return FromRaw(sources, skipped, dropped, total, outside)
