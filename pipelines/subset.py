"""``tamis subset``: some samples of a dataset, or some of their fields, as a dataset of its own."""

from __future__ import annotations

import ast
from collections.abc import Collection, Sequence
from fnmatch import fnmatchcase
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..errors import DataError, UsageError
from ..samplers import draw
from . import rewrite
from .copied import Copied, members, sizes
from .dataset import Dataset
from .made import Made, made_by, origin_of, settings_of
from .manifest import Manifest, SourceDigest
from .records import SPLITS
from .rewrite import FromRaw, Samples
from .text import TOKENS
from .where import Where, condition

ALWAYS = ("xyz", "label", "row")
"""Columns that stay whatever ``fields`` names, as in a build."""

_Kept = NDArray[np.bool_]


def subset(
    path: str | Path,
    out: str | Path,
    *,
    split: str | None = None,
    where: str | None = None,
    sources: Sequence[str] = (),
    fields: Sequence[str] | None = None,
    share: float | None = None,
    seed: int = 0,
) -> Dataset:
    """Write the samples of the dataset at ``path`` that are chosen to ``out/dataset``, and open it.

    A sample is kept if it is of the ``split``, its source matches one of the patterns ``sources`` ("!" before
    a pattern: all but those), and the condition ``where`` holds, as `where` says, in every split. Of these
    ``share``, in (0, 1], of each split is drawn by ``seed`` and the samples' ids: a larger share holds the
    smaller. ``fields``: the columns and annotations to keep, beside `ALWAYS`. Samples are copied as they are,
    with their ids; counts and statistics are of what is kept. A finished ``out`` of the same is returned.

    Raises UsageError for a choice that cannot be made, DataError for one that leaves nothing, for damage,
    with file and offset, for another dataset in ``out``, and for a disk that fails.
    """
    dataset, out = Dataset(path), Path(out)
    options = {"split": split, "where": where, "sources": [*sources], "share": share}
    chosen = {key: value for key, value in options.items() if value}
    chosen |= {"fields": [*fields]} if fields is not None else {}
    chosen |= {"seed": seed} if share is not None else {}
    _check(dataset, split, fields, share)
    holds = None if where is None else _condition(dataset, where)
    made = Made(by="subset", of=[origin_of(dataset)], chosen=chosen)

    def fill(folder: Path) -> None:
        rows = _of_split(dataset, split) & _of_sources(dataset, sources)
        if holds is not None:
            rows = _where(dataset, rows, *holds)
        if share is not None:
            rows = _drawn(dataset, rows, share, seed)
        if not rows.any():
            raise DataError(dataset.path, "none of its samples is chosen", "choose otherwise")
        _write(folder, dataset, np.flatnonzero(rows), fields, made)

    return rewrite.make(out, made, [dataset], fill)


def _check(dataset: Dataset, split: str | None, fields: Sequence[str] | None, share: float | None) -> None:
    if split is not None and split not in dataset.splits:
        there = ", ".join(name for name in SPLITS if name in dataset.splits)
        raise UsageError("--split", f"there is no '{split}'", f"choose of {there}")
    for name in fields or ():
        if name not in dataset.fields:
            raise UsageError("--fields", f"there is no '{name}'", f"choose of {', '.join(dataset.fields)}")
    if share is not None and not 0 < share <= 1:
        raise UsageError("--share", f"is {share}", "give more than 0, at most 1")


def _of_split(dataset: Dataset, split: str | None) -> _Kept:
    """Which samples are of the split, bool (samples,); without one: all."""
    kept = np.full(len(dataset), split is None)
    for part in dataset.splits[split] if split is not None else ():
        kept[slice(*part.rows)] = True
    return kept


def _of_sources(dataset: Dataset, patterns: Sequence[str]) -> _Kept:
    """Which samples have a source that is asked for, bool (samples,)."""
    names = dataset.samples.column("source").to_pylist()
    known = {name: _matches(name, patterns) for name in set(names)}
    for pattern in patterns:
        bare = pattern.removeprefix("!")
        if not any(fnmatchcase(name, bare) for name in known):
            fix = f"sources are as '{min(known)}'"
            raise UsageError("--sources", f"'{pattern}' matches no source with a sample", fix)
    return np.array([known[name] for name in names], bool)


def _matches(name: str, patterns: Sequence[str]) -> bool:
    wanted = [pattern for pattern in patterns if not pattern.startswith("!")]
    unwanted = [pattern[1:] for pattern in patterns if pattern.startswith("!")]
    return (not wanted or any(fnmatchcase(name, pattern) for pattern in wanted)) and not any(
        fnmatchcase(name, pattern) for pattern in unwanted
    )


def _condition(dataset: Dataset, text: str) -> tuple[Where, list[str]]:
    """The condition, and the columns that it looks at."""
    try:
        holds = condition(text, settings_of(dataset.manifest).classes)
    except UsageError as error:
        raise UsageError("--where", error.cause, error.fix) from None
    if "xyz" not in dataset.schema:
        raise UsageError("--where", "is for points: this dataset has none", "leave it out")
    names = set[str]()
    for node in ast.walk(holds.tree):
        match node:
            case ast.Name(id="width" | "depth" | "height"):
                names.add("xyz")
            case ast.Call(func=ast.Name(id="label_share")):
                names.add("label")
            case ast.Call(args=[ast.Constant(value=str(name))]):
                names.add(name)
    for name in sorted(names):
        if name not in dataset.schema or (name != "xyz" and dataset.schema[name].width > 1):
            several = [one for one, field in dataset.schema.items() if field.width == 1]
            cause = f"there is no field '{name}' with one number a row"
            raise UsageError("--where", cause, f"choose of {', '.join(several)}")
    return holds, [name for name in dataset.schema if name in names]


def _where(dataset: Dataset, rows: _Kept, holds: Where, names: Sequence[str]) -> _Kept:
    """Those of the samples ``rows``, bool (samples,), for which it holds; only what it looks at is read."""
    kept, nowhere = rows.copy(), np.zeros((1, 3), np.float32)
    with Copied(dataset, names) as copied:
        for row in np.flatnonzero(rows).tolist():
            columns: dict[str, Any] = copied.arrays(row)
            xyz = columns.get("xyz")
            if xyz is None:  # only their number is asked for
                xyz = np.broadcast_to(nowhere, (int(dataset.rows[row]), 3))
            kept[row] = holds.holds(xyz, columns)
    return kept


def _drawn(dataset: Dataset, rows: _Kept, share: float, seed: int) -> _Kept:
    """A share of the samples ``rows`` of each split, at least one: those whose hashes are the smallest."""
    keys = draw.keys(len(dataset), "subset", seed, dataset.ids)
    kept = np.zeros(len(dataset), bool)
    for split in dataset.splits:
        own = np.flatnonzero(rows & _of_split(dataset, split))
        order = np.lexsort((dataset.ids[own], keys[own]))
        kept[own[order[: max(round(share * len(own)), 1)]]] = True
    return kept


def _write(
    folder: Path, dataset: Dataset, rows: NDArray[np.int64], fields: Sequence[str] | None, made: Made
) -> None:
    there = dataset.manifest
    kept = {*dataset.fields} if fields is None else {*ALWAYS, *fields}
    names = [name for name in dataset.fields if name in kept]
    about, size, numbers = members(dataset), sizes(dataset, names), rows.tolist()
    with Copied(dataset, names) as copied:
        samples = Samples(
            members=[about[row] for row in numbers],
            sizes=size[rows].tolist(),
            columns=[column for column in there.columns if column.name in kept],
            annotations=[one for one in there.annotations if one.name in kept],
            arrays=lambda place: copied.arrays(numbers[place]),
        )
        settings = made_by(made, [settings_of(there)], there.row_order)
        rewrite.write(folder, samples, settings, _from_raw(dataset, rows))


def _from_raw(dataset: Dataset, rows: NDArray[np.int64]) -> FromRaw:
    """What is still known of the raw files: what they had beside is known of whole splits alone."""
    there = dataset.manifest
    used = {*dataset.samples.column("source").take(rows).to_pylist()}
    if len(rows) == len(dataset):
        dropped = {split: count.dropped for split, count in there.counts.splits.items()}
        return FromRaw(there.sources, there.skipped, dropped, there.counts.dropped, there.counts.outside)
    dropped = {}
    for split, count in there.counts.splits.items():
        if np.isin(np.flatnonzero(_of_split(dataset, split)), rows).all():
            dropped[split] = count.dropped
    return FromRaw(_sources(there, used), dropped=dropped, total=sum(dropped.values()))


def _sources(there: Manifest, used: Collection[str]) -> dict[str, SourceDigest]:
    """The files that samples of the sources ``used`` come from.

    A sample of a text may hold several, of which it names the first: of texts all files are listed.
    """
    if any(one.name == TOKENS for one in there.annotations):
        return there.sources
    files = {file_of(there, source) for source in used}
    return {name: digest for name, digest in there.sources.items() if name in files}


def file_of(there: Manifest, source: str) -> str | None:
    """The raw file that a sample's source is, or lies in as in a tar; None where none is listed."""
    parts = PurePosixPath(source).parts
    names = ("/".join(parts[:end]) for end in range(len(parts), 0, -1))
    return source if source in there.sources else next((n for n in names if n in there.sources), None)
