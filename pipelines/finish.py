"""The last step of a build: tables of what the shards hold, and the description of the whole."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..errors import DataError
from ..files import write_atomic
from . import manifest, shards
from .checks import chunk_sums
from .manifest import Column, Counts, Figures, FileDigest, Manifest, Range, Skipped, SourceDigest
from .records import CHECK_ROWS, SPLITS, Field, sample_id, sample_name
from .settings import DataSettings

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
    statistics: dict[str, Figures]
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
    folder: Path, about: About, layout: Sequence[range], described: Described, settings: DataSettings
) -> None:
    """Write the tables beside the shards in ``folder``, and ``dataset.json`` last.

    ``layout``: the samples of each shard. Positions and checksums are read back from the shards.
    """
    _write_tables(folder, about, layout, described)
    files = {path.name: _digest(path) for path in sorted(folder.iterdir())}
    ranges = _ranges(about.split, layout)
    whole = Manifest(
        version=manifest.VERSION,
        schema=described.columns,
        annotations=described.annotations,
        classes=list(settings.classes),
        counts=described.counts,
        statistics=described.statistics,
        splits=ranges,
        row_order=described.row_order,
        configuration=settings.configuration(),
        sources=described.sources,
        skipped=dict(described.skipped),
        files=files,
        fingerprint=manifest.fingerprint(described.columns, described.annotations, ranges, files),
    )
    write_atomic(folder / manifest.NAME, manifest.seal(whole))


def _write_tables(folder: Path, about: About, layout: Sequence[range], described: Described) -> None:
    """Index, checksums and descriptions of the samples."""
    fields = {column.name: column.field() for column in described.columns}
    none = np.zeros(len(about.tile), np.int64)
    index: dict[str, Any] = {"id": ids_of(about), "rows": none, "block": none}
    index["shard"] = np.repeat(np.arange(len(layout), dtype=np.int32), [len(rows) for rows in layout])
    if fields:
        rows, block, positions = _write_checksums(folder, len(layout), None, fields)
        index |= {"rows": rows, "block": block} | {f"pos_{name}": at for name, at in positions.items()}
    for one in described.annotations:
        rows, block, positions = _write_checksums(folder, len(layout), one.name, {one.name: one.field()})
        index |= {f"rows_{one.name}": rows, f"block_{one.name}": block}
        index[f"pos_{one.name}"] = positions[one.name]
    schema = shards.index_schema(fields, [one.name for one in described.annotations])
    shards.write_table(folder / shards.INDEX, schema, index)
    pairs = zip(about.source, about.tile, strict=True)
    samples = {"name": [sample_name(source, tile) for source, tile in pairs], **vars(about)}
    shards.write_table(folder / shards.SAMPLES, shards.SAMPLE_SCHEMA, samples)


def _write_checksums(
    folder: Path, count: int, annotation: str | None, fields: Mapping[str, Field]
) -> tuple[NDArray[np.int64], NDArray[np.int64], dict[str, NDArray[np.int64]]]:
    """The checksums of the columns, or of one annotation, in ``count`` shards.

    Rows and first block of each sample, and positions by name, all int64 (samples,).
    """
    rows: list[NDArray[np.int64]] = []
    positions: dict[str, list[NDArray[np.int64]]] = {name: [] for name in fields}
    sums: dict[str, list[NDArray[np.uint32]]] = {name: [] for name in fields}
    for number in range(count):
        found = [*shards.locate(folder / shards.shard_name(number, annotation), fields)]
        rows.append(np.array([one for one, _, _ in found], np.int64))
        for name in fields:
            positions[name].append(np.array([at[name] for _, at, _ in found], np.int64))
            sums[name].append(np.concatenate([checks[name] for _, _, checks in found]))
    whole = {name: np.concatenate(parts) for name, parts in sums.items()}
    shards.write_table(folder / shards.checksums_name(annotation), shards.checksum_schema(fields), whole)
    sizes = np.concatenate(rows)
    counts = -(-sizes // CHECK_ROWS)
    return (
        sizes,
        np.cumsum(counts) - counts,
        {name: np.concatenate(parts) for name, parts in positions.items()},
    )


def _ranges(splits: Sequence[str], layout: Sequence[range]) -> dict[str, list[Range]]:
    """Each split as one range of shards and index rows: the samples are in the order of the splits."""
    ranges = {}
    for split in dict.fromkeys(splits):
        own = [number for number, rows in enumerate(layout) if splits[rows.start] == split]
        rows = (layout[own[0]].start, layout[own[-1]].stop)
        ranges[split] = [Range(shards=(own[0], own[-1] + 1), rows=rows)]
    return ranges


def _digest(path: Path) -> FileDigest:
    size, sha256, sums = chunk_sums(path)
    return FileDigest(bytes=size, sha256=sha256, crc32c=sums)
