"""The last step of a build: tables of what the shards hold, and the description of the whole."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..errors import DataError
from ..files import sync, write_atomic
from ..samplers.threads import threads_for
from . import manifest, shards
from .manifest import Column, Counts, Figures, FileDigest, Manifest, Range, Skipped, SourceDigest
from .records import CHECK_ROWS, SPLITS, sample_id, sample_name
from .settings import DataSettings
from .statistics import Moments, described_splits, every, step_of
from .stored import Stored, digest_of, owns, stored

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class About:
    """What is known of the samples beside their arrays, in the order of the index.

    ``tile`` and ``label`` integers (n,), ``origin`` float64 (n, 3), ``bounds`` float64 (n, 6).
    """

    source: Sequence[str]
    tile: Sequence[int]
    split: Sequence[str]
    origin: NDArray[np.float64]
    bounds: NDArray[np.float64]
    label: Sequence[int]


@dataclass(frozen=True)
class Described:
    """What `dataset.json` says that the shards do not."""

    columns: list[Column]
    annotations: list[Column]
    counts: Counts
    moments: dict[str, Moments]
    row_order: str
    sources: dict[str, SourceDigest]
    skipped: Mapping[str, Skipped] = field(default_factory=dict)


def ids_of(about: About) -> NDArray[np.uint64]:
    """The samples' ids, uint64 (n,). Raises DataError where two are equal."""
    pairs = zip(about.source, about.tile, strict=True)
    ids = np.array([sample_id(source, tile) for source, tile in pairs], np.uint64)
    if len(np.unique(ids)) < len(ids):
        (twice, _), *_ = Counter(ids.tolist()).most_common(1)
        first, second, *_ = (
            sample_name(about.source[i], about.tile[i])
            for i in np.flatnonzero(ids == np.uint64(twice)).tolist()
        )
        raise DataError(first, f"has the same id as {second}", "rename one of the files")
    return ids


def warn_of_empty_splits(found: Collection[str], settings: DataSettings) -> None:
    """Name the splits that should hold something and are not among those ``found``."""
    for split in SPLITS:
        if split not in found and (split == "train" or getattr(settings.split, split, None)):
            log.warning("split %s holds no sample", split)


def finish(
    folder: Path,
    about: About,
    layout: Sequence[range],
    described: Described,
    settings: DataSettings,
    known: Mapping[str, Stored] | None = None,
) -> None:
    """Write the tables beside the shards in ``folder``, flush all to the disk, and write ``dataset.json``.

    ``layout``: the samples of each shard. ``known``: file name -> what lies where in it, if that is known; of
    other shards it is read back.
    """
    whole = looked_through(folder, len(layout), described, known or {})
    index = write_tables(folder, about, layout, described, whole)
    names = sorted(path.name for path in folder.iterdir())
    with ThreadPoolExecutor(threads_for(None, len(names))) as pool:
        digests = pool.map(lambda name: _digest(folder / name, whole.get(name)), names)
        files = dict(zip(names, digests, strict=True))
        for _ in pool.map(lambda name: sync(folder / name), names):
            pass
    ranges = _ranges(about.split, layout)
    described_whole = Manifest(
        version=manifest.VERSION,
        schema=described.columns,
        annotations=described.annotations,
        classes=list(settings.classes),
        counts=described.counts,
        statistics=_statistics(folder, about.split, described, index),
        splits=ranges,
        row_order=described.row_order,
        configuration=settings.configuration(),
        sources=described.sources,
        skipped=dict(described.skipped),
        files=files,
        fingerprint=manifest.fingerprint(described.columns, described.annotations, ranges, files),
    )
    write_atomic(folder / manifest.NAME, manifest.seal(described_whole))


def _digest(path: Path, known: Stored | None) -> FileDigest:
    """The digest of a file, which may be known."""
    if known is None or known.digest is None or known.digest.sha256 is None:
        return digest_of(path)
    return FileDigest(bytes=known.digest.bytes, sha256=known.digest.sha256, crc32c=known.digest.crc32c)


def looked_through(
    folder: Path, count: int, described: Described, known: Mapping[str, Stored]
) -> dict[str, Stored]:
    """What lies where in each file of the ``count`` shards, by its name."""
    wanted = {
        shards.shard_name(number, own): fields
        for own, fields in owns(described.columns, described.annotations)
        for number in range(count)
    }
    with ThreadPoolExecutor(threads_for(None, len(wanted))) as pool:
        found = pool.map(
            lambda name: known[name] if name in known else stored(folder / name, wanted[name]), wanted
        )
        return dict(zip(wanted, found, strict=True))


def write_tables(
    folder: Path,
    about: About,
    layout: Sequence[range],
    described: Described,
    whole: Mapping[str, Stored],
) -> dict[str, Any]:
    """Index, checksums and descriptions of the samples; the columns of the index."""
    none = np.zeros(len(about.tile), np.int64)
    index: dict[str, Any] = {"id": ids_of(about), "rows": none, "block": none}
    index["shard"] = np.repeat(np.arange(len(layout), dtype=np.int32), [len(rows) for rows in layout])
    for own, fields in owns(described.columns, described.annotations):
        files = [whole[shards.shard_name(number, own)] for number in range(len(layout))]
        rows = np.concatenate([one.rows for one in files])
        counts = -(-rows // CHECK_ROWS)
        end = "" if own is None else f"_{own}"
        index |= {f"rows{end}": rows, f"block{end}": np.cumsum(counts) - counts}
        index |= {f"pos_{name}": np.concatenate([one.positions[name] for one in files]) for name in fields}
        sums = {name: np.concatenate([one.sums[name] for one in files]) for name in fields}
        shards.write_table(folder / shards.checksums_name(own), shards.checksum_schema(fields), sums)
    schema = shards.index_schema(
        [one.name for one in described.columns], [one.name for one in described.annotations]
    )
    shards.write_table(folder / shards.INDEX, schema, index)
    pairs = zip(about.source, about.tile, strict=True)
    samples = {"name": [sample_name(source, tile) for source, tile in pairs], **vars(about)}
    shards.write_table(folder / shards.SAMPLES, shards.SAMPLE_SCHEMA, samples)
    return index


def _statistics(
    folder: Path, splits: Sequence[str], described: Described, index: Mapping[str, Any]
) -> dict[str, Figures]:
    """Figures of each column; percentiles are those of every second, third, ... row of all samples."""
    fields = {column.name: column.field() for column in described.columns}
    if not fields:
        return {}
    chosen = np.flatnonzero(np.isin(splits, described_splits(splits)))
    rows, shard = index["rows"][chosen], index["shard"][chosen]
    step = step_of(int(rows.sum()))
    first = -(np.cumsum(rows) - rows) % step
    kept: dict[str, list[NDArray[Any]]] = {name: [] for name in fields}
    for number in np.unique(shard).tolist():
        own = shard == number
        data = np.frombuffer(shards.opened(folder / shards.shard_name(number))[1], np.uint8)
        for name, one in fields.items():
            positions = index[f"pos_{name}"][chosen][own]
            kept[name].append(every(data, positions, rows[own], first[own], step, one))
    return {name: one.figures(np.concatenate(kept[name])) for name, one in described.moments.items()}


def _ranges(splits: Sequence[str], layout: Sequence[range]) -> dict[str, list[Range]]:
    """Each split as one range of shards and index rows: the samples are in the order of the splits."""
    ranges = {}
    for split in dict.fromkeys(splits):
        own = [number for number, rows in enumerate(layout) if splits[rows.start] == split]
        rows = (layout[own[0]].start, layout[own[-1]].stop)
        ranges[split] = [Range(shards=(own[0], own[-1] + 1), rows=rows)]
    return ranges
