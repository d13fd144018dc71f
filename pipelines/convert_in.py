"""Samples of tars and TFRecord files to a dataset: packed into shards and described as a build does."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from ..errors import DataError
from . import convert_card, shards, sources
from .assemble import Tally, about
from .build import settings_of
from .convert_found import Found, others, ours, split_of
from .convert_read import Kind, samples
from .dali_opened import relative
from .dataset import contents
from .finish import Described, finish
from .manifest import Column, Counts, Manifest, SourceDigest, unseal
from .records import Field
from .settings import DataSettings


def write(root: Path, paths: Sequence[Path], kind: Kind, folder: Path, shard_mb: int | None) -> str:
    """Write the dataset of the samples in ``paths``, files at or below ``root``, to ``folder``.

    Tells what there is. Every file is read twice: once to know what there is, once for the arrays.
    Raises DataError for damage, for samples of different columns, and for shards that are missing.
    """
    names = relative(paths)
    packed = samples(paths, names, kind)
    first = next(packed, None)
    if first is None:
        raise DataError(root, "holds no sample", "name files that have some")
    near = convert_card.description_near(root)
    known = unseal(near[0], contents(near[0])) if near else None
    if first.card() is not None:
        found = ours(first, packed)
        digests = known.sources if known else _digests(paths, names)
        if near and known and near[1]:
            _check_all_there(root, found, known)
    elif near and near[1]:
        raise DataError(first.where, f"has no card, {near[0]} tells of some that have", "convert it again")
    else:
        splits = {path: split_of(root, path) for path in paths}
        found, known = others(first, packed, splits), None
        digests = _digests(paths, names)
    settings = settings_of(known) if known else DataSettings(row_order="source")
    if shard_mb is not None:
        settings = settings.model_copy(update={"shard_mb": shard_mb})
    _write(folder, found, settings, known, digests)
    return _told(found)


def _write(
    folder: Path,
    found: Found,
    settings: DataSettings,
    known: Manifest | None,
    digests: Mapping[str, SourceDigest],
) -> None:
    fields, annotations = _fields(found.columns), _fields(found.annotations)
    splits = [member.about.split for member in found.members]
    layout = shards.divide(found.sizes, splits, settings.shard_mb << 20)
    tally, rows = Tally(fields, found.members, len(settings.classes)), Counter[tuple[str, str]]()
    for number, own in enumerate(layout):
        split = splits[own.start]
        with ExitStack() as stack:
            writers = {
                name: stack.enter_context(_writing(folder, number, name, field))
                for name, field in annotations.items()
            }
            batches = _batches(found, own, shards.arrow_schema(fields), writers)
            if fields:
                path = folder / shards.shard_name(number)
                shards.write_shard(path, shards.arrow_schema(fields), tally.counted(batches, split))
            else:
                for _ in batches:
                    pass
        for name, (_, _, counted) in writers.items():
            rows[split, name] += sum(counted)
    counts = tally.counts([], list(settings.classes), found.dropped)
    for split, count in counts.splits.items():
        mine = {name: rows[split, name] for name in annotations}
        counts.splits[split] = count.model_copy(update={"annotations": mine})
    described = Described(
        columns=found.columns,
        annotations=found.annotations,
        counts=_with_left_out(counts, found, known),
        statistics={name: moments.figures() for name, moments in tally.moments.items()},
        row_order=settings.row_order,
        sources=dict(digests),
        skipped=known.skipped if known else {},
    )
    finish(folder, about(found.members), layout, described, settings)


@contextmanager
def _writing(folder: Path, number: int, name: str, field: Field) -> Iterator[tuple[Any, Any, list[int]]]:
    """Schema and writer of an annotation's shard, and a list for the rows of its samples."""
    schema = shards.arrow_schema({name: field})
    with shards.writing(folder / shards.shard_name(number, name), schema) as writer:
        yield schema, writer, []


def _batches(
    found: Found, rows: range, schema: Any, writers: Mapping[str, tuple[Any, Any, list[int]]]
) -> Iterator[Any]:
    """The columns of samples; their annotations are written on the way, so that each is read once."""
    for row in rows:
        packed = found.packed[row]
        arrays = found.read(packed)
        packed.release()
        for name, (own, writer, counted) in writers.items():
            writer.write_batch(shards.to_batch(own, arrays))
            counted.append(len(arrays[name]))
        yield shards.to_batch(schema, arrays) if schema.names else None


def _with_left_out(counts: Counts, found: Found, known: Manifest | None) -> Counts:
    """The counts with the rows that are not there: of the raw files where ``known`` tells of them."""
    if known is None:
        return counts.model_copy(update={"dropped": found.dropped.total()})
    for split, count in counts.splits.items():
        if split in known.counts.splits:
            dropped = known.counts.splits[split].dropped
            counts.splits[split] = count.model_copy(update={"dropped": dropped})
    return counts.model_copy(update={"dropped": known.counts.dropped, "outside": known.counts.outside})


def _told(found: Found) -> str:
    splits = Counter(member.about.split for member in found.members)
    text = f"{len(found.members):,} samples ({', '.join(f'{n:,} {split}' for split, n in splits.items())})"
    for what, columns in (("columns", found.columns), ("annotations", found.annotations)):
        text += f"; {what} {', '.join(column.name for column in columns)}" if columns else ""
    return text


def _check_all_there(root: Path, found: Found, known: Manifest) -> None:
    there = Counter(member.about.split for member in found.members)
    for split, counts in known.counts.splits.items():
        if there[split] != counts.samples:
            cause = f"holds {there[split]} samples of split {split}, {counts.samples} were converted"
            raise DataError(root, cause, "fetch the missing files, or name the files themselves")


def _digests(paths: Sequence[Path], names: Sequence[str]) -> dict[str, SourceDigest]:
    return {name: sources.digest(path) for path, name in zip(paths, names, strict=True)}


def _fields(columns: Sequence[Column]) -> dict[str, Field]:
    return {column.name: column.field() for column in columns}
