"""Samples of tars and TFRecord files to a dataset: packed into shards and described as a build does."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path

from ..errors import DataError
from . import convert_card, rewrite, sources
from .convert_found import Arrays, Found, others, ours, split_of
from .convert_read import Kind, samples
from .dali_opened import relative
from .dataset import Dataset, contents
from .made import settings_of
from .manifest import Manifest, SourceDigest, unseal
from .rewrite import FromRaw, Samples
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
    rewrite.write(folder, _samples(found), settings, _from_raw(found, known, digests))
    return rewrite.told(Dataset(folder))


def _samples(found: Found) -> Samples:
    def arrays(row: int) -> Arrays:
        packed = found.packed[row]
        read = found.read(packed)
        packed.release()
        return read

    return Samples(found.members, found.sizes, found.columns, found.annotations, arrays)


def _from_raw(found: Found, known: Manifest | None, digests: Mapping[str, SourceDigest]) -> FromRaw:
    """Of the rows that are not there: those of the raw files where ``known`` tells of them."""
    if known is None:
        return FromRaw(digests, dropped=found.dropped, total=found.dropped.total())
    dropped = {split: count.dropped for split, count in known.counts.splits.items()}
    return FromRaw(digests, known.skipped, dropped, known.counts.dropped, known.counts.outside)


def _check_all_there(root: Path, found: Found, known: Manifest) -> None:
    there = Counter(member.about.split for member in found.members)
    for split, counts in known.counts.splits.items():
        if there[split] != counts.samples:
            cause = f"holds {there[split]} samples of split {split}, {counts.samples} were converted"
            raise DataError(root, cause, "fetch the missing files, or name the files themselves")


def _digests(paths: Sequence[Path], names: Sequence[str]) -> dict[str, SourceDigest]:
    return {name: sources.digest(path) for path, name in zip(paths, names, strict=True)}
