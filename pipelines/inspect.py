"""What a dataset or a raw file holds, as plain text."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from ..errors import UsageError
from . import las_unit, manifest, oddities, shards
from .dataset import Dataset
from .made import made_of
from .readers import SUFFIXES, Scan, Source, opened
from .records import SPLITS
from .shown import LAS_CLASSES, classes_of, is_las

_MOST_CLASSES = 100  # more are instances or the like
_TOLD = 10  # bad files that are listed
_BAR = 40  # characters of the longest bar of a histogram


def inspect(path: str | Path) -> str:
    """Describe a dataset's folder, or a raw file: schema, counts, bounds, density, classes, and what is odd.

    Raises DataError where it is neither.
    """
    path = Path(path)
    raw = path.is_file() or (path.suffix.lower() in SUFFIXES and not path.is_dir())
    if not raw:
        return "\n".join(_dataset(Dataset(path)))
    source = opened(path)
    return "\n".join(_images(path, source) if source.objects else _scan(path, source.scans[0]))


def look(
    path: Path, picture: Path | None, html: Path | None, *, color: str | None, voxel: float | None
) -> Iterator[str]:
    """What `inspect` says of ``path``; then draw it to ``picture`` and ``html``, where given, and say so.

    Raises UsageError, before anything is read, for what cannot be written, and for options of neither.
    """
    if picture is None and html is None and (color is not None or voxel is not None):
        given = "--color" if color is not None else "--voxel"
        raise UsageError(given, "is for a picture or a page", "give --picture or --html too")
    # What draws is heavy, and most who look want only the text.
    if picture is not None:
        from .picture import check_picture

        check_picture(picture)
    if html is not None:
        from .page import check_page

        check_page(html)
    yield inspect(path)
    if picture is not None:
        from .picture import picture as draw

        yield f"\n{draw(path, picture, voxel=voxel, color=color)}"
    if html is not None:
        from .page import page

        yield f"\n{page(path, html, voxel=voxel, color=color)}"


def _dataset(dataset: Dataset) -> Iterator[str]:
    counts, files = dataset.manifest.counts, dataset.manifest.files
    yield f"dataset      {dataset.path}"
    yield f"fingerprint  {dataset.fingerprint}"
    made = made_of(dataset.manifest)
    if made is not None:
        yield f"made         by {made.by} of {', '.join(origin.name for origin in made.of)}"
    yield f"samples      {counts.samples}"
    if dataset.manifest.skipped:
        yield f"bad files    {len(dataset.manifest.skipped)} left out, see 'skipped' in {manifest.NAME}:"
        for name, skipped in [*dataset.manifest.skipped.items()][:_TOLD]:
            yield f"             {name}: {skipped.reason}"
        if len(dataset.manifest.skipped) > _TOLD:
            yield f"             and {len(dataset.manifest.skipped) - _TOLD} more"
    if dataset.schema:
        yield f"points       {counts.points} (rows a sample: {_spread(dataset.rows)})"
        yield f"left out     {counts.dropped} rows not finite, {counts.outside} outside data.bounds"
        yield f"row order    {dataset.row_order}"
        yield from _ground(dataset)
    for name in dataset.annotations:
        own = dataset.rows_of(name)
        yield f"{name:<12} {own.sum()} (rows a sample: {_spread(own)})"
    sizes = [digest.bytes for name, digest in files.items() if name.startswith("shard-")]
    numbers = {shard[0] for name in files if (shard := shards.shard_of(name))}
    yield f"shards       {len(numbers)}, {_megabytes(min(sizes))} to {_megabytes(max(sizes))} MB"
    yield f"other files  {_megabytes(sum(digest.bytes for digest in files.values()) - sum(sizes))} MB"
    yield ""
    classes = [*dataset.classes, *(["ignored"] if dataset.classes else [])]
    head = ("split", "samples", *(["points"] if dataset.schema else []), *dataset.annotations, *classes)
    rows = []
    for name in (split for split in SPLITS if split in counts.splits):
        count = counts.splits[name]
        cells = [count.points] if dataset.schema else []
        cells += [count.annotations[one] for one in dataset.annotations]
        cells += [count.classes[label] for label in dataset.classes]
        rows.append((name, count.samples, *cells, *([count.ignored] if dataset.classes else [])))
    yield from _table(head, rows)
    yield ""
    if dataset.classes:
        splits = counts.splits.values()
        total = [(name, sum(one.classes[name] for one in splits)) for name in dataset.classes]
        total.append(("ignored", sum(one.ignored for one in splits)))
        yield from _histogram("class", total, "rows" if dataset.schema else "samples")
        yield ""
    if dataset.annotations:
        described = [(name, _type(f.dtype, f.width), f.kind) for name, f in dataset.annotations.items()]
        yield from _table(("annotation", "type", "kind"), described)
    if dataset.schema:
        yield from _columns(dataset)
    yield from _odd(oddities.of_dataset(dataset))


def _columns(dataset: Dataset) -> Iterator[str]:
    figures = dataset.statistics
    yield from _table(
        ("column", "type", "kind", "min", "max", "mean"),
        [
            (
                name,
                _type(field.dtype, field.width),
                field.kind,
                *(_figures(v) for v in (f.min, f.max, f.mean)),
            )
            for (name, field), f in ((item, figures[item[0]]) for item in dataset.schema.items())
        ],
    )


def _ground(dataset: Dataset) -> Iterator[str]:
    """Bounds, and how densely the ground is covered; nothing for a dataset without a point."""
    bounds = shards.from_batch(dataset.samples.select(["bounds"]))["bounds"][dataset.rows > 0]
    rows = dataset.rows[dataset.rows > 0]
    if not len(rows):
        return
    low, high = bounds[:, :3].min(axis=0), bounds[:, 3:].max(axis=0)
    yield f"bounds       {_box(low, high)}"
    area = np.prod(bounds[:, 3:5] - bounds[:, :2], axis=1)
    if (area > 0).any():
        density = rows[area > 0] / area[area > 0]
        yield f"density      {np.median(density):.4g} points per square unit (median of the samples)"


def _images(path: Path, source: Source) -> Iterator[str]:
    sizes = np.array([len(scan.xyz) for scan in source.scans])
    labels = [scan.fields["classification"][0] for scan in source.scans if len(scan.xyz)]
    yield f"file         {path} ({_megabytes(path.stat().st_size)} MB)"
    yield f"images       {len(sizes)}, each a cloud"
    yield f"points       {sizes.sum()} (an image: {_spread(sizes)})"
    yield ""
    codes, counts = np.unique(labels, return_counts=True)
    yield from _histogram("class", [(str(code), count) for code, count in zip(codes, counts, strict=True)])


def _scan(path: Path, scan: Scan) -> Iterator[str]:
    finite = scan.xyz[np.isfinite(scan.xyz).all(axis=1)]
    yield f"file         {path} ({_megabytes(path.stat().st_size)} MB)"
    yield f"points       {len(scan.xyz)} ({len(scan.xyz) - len(finite)} not finite)"
    if len(finite):
        low, high = finite.min(axis=0), finite.max(axis=0)
        yield f"bounds       {_box(low, high)}"
        across, up = las_unit.unit_of(path)
        if across or up:
            yield f"unit         {_unit(across)} of x and y, {_unit(up)} of z"
        with np.errstate(over="ignore"):
            area = float(np.prod((high - low)[:2]))
        if 0 < area < np.inf:
            yield f"density      {len(finite) / area:.4g} points per square unit (of the bounding box)"
    codes = classes_of(scan.fields)
    found, counts = np.unique(np.empty(0) if codes is None else codes, return_counts=True)
    if 0 < len(found) <= _MOST_CLASSES:
        yield ""
        names = LAS_CLASSES if is_las(path) else {}
        pairs = zip(found.tolist(), counts.tolist(), strict=True)
        yield from _histogram("class", [(f"{code} {names.get(code, '')}".strip(), n) for code, n in pairs])
    yield ""
    yield from _table(
        ("field", "type", "min", "max"),
        [
            (name, _type(values.dtype, values[:1].size), *_limits(values))
            for name, values in scan.fields.items()
        ],
    )
    yield from _odd(oddities.of_scan(path, scan))


def _odd(lines: Sequence[str]) -> Iterator[str]:
    if lines:
        yield ""
        yield "worth knowing"
        yield from (f"- {line}" for line in lines)


def _histogram(what: str, counts: Sequence[tuple[str, int]], unit: str = "rows") -> Iterator[str]:
    """Rows or samples by class, with their share and a bar."""
    total, most = max(sum(n for _, n in counts), 1), max((n for _, n in counts), default=0) or 1
    rows = [(name, n, f"{n / total:.1%}", "#" * -(-n * _BAR // most)) for name, n in counts]
    yield from _table((what, unit, "share", ""), rows)


def _unit(unit: las_unit.Unit | None) -> str:
    return f"{unit.name} ({unit.said})" if unit else "not said"


def _limits(values: NDArray[np.generic]) -> tuple[str, str]:
    if not len(values) or values.dtype.kind not in "biuf":
        return "-", "-"
    flat = values.reshape(len(values), -1)
    return _figures(np.fmin.reduce(flat).tolist()), _figures(np.fmax.reduce(flat).tolist())


def _table(head: Sequence[object], rows: Sequence[Sequence[object]]) -> Iterator[str]:
    lines = [[str(cell) for cell in line] for line in (head, *rows)]
    widths = [max(len(line[i]) for line in lines) for i in range(len(head))]
    for line in lines:
        yield "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip()


def _type(dtype: np.dtype[np.generic], width: int) -> str:
    return dtype.name if width <= 1 else f"{dtype.name} x {width}"


def _figures(values: Sequence[float | None]) -> str:
    return " ".join("-" if value is None else f"{value:.6g}" for value in values)


def _box(low: NDArray[np.float64], high: NDArray[np.float64]) -> str:
    pairs = zip("xyz", low.tolist(), high.tolist(), strict=True)
    return ", ".join(f"{axis} {a:.2f} to {b:.2f}" for axis, a, b in pairs)


def _spread(rows: NDArray[np.int64]) -> str:
    return f"{rows.min()} to {rows.max()}, median {np.median(rows):.0f}"


def _megabytes(size: int) -> str:
    return f"{size / 1e6:.2f}"
