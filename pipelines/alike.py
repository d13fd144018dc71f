"""Whether sources have equal fields: samples of a dataset have equal columns and annotations."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from ..errors import DataError
from .journal import Part
from .manifest import Column


def usual(parts: Sequence[Part]) -> Part:
    """The first of the parts whose fields most of them have."""
    kinds = [frozenset(map(_kind, [*part.columns, *part.annotations])) for part in parts]
    most = Counter(kinds)
    return parts[max(range(len(parts)), key=lambda i: (most[kinds[i]], -i))]


def odd(path: Path, part: Part, other: Part) -> DataError | None:
    """An error for a source, at ``path``, whose fields differ from another's.

    Samples of a dataset have equal columns.
    """
    ours, theirs = (
        {column.name: column for column in [*one.columns, *one.annotations]} for one in (part, other)
    )
    loose = {column.name for one in (part, other) for column in one.annotations}
    for name in sorted(ours.keys() ^ theirs.keys()):
        lacks = f"has no field '{name}', {other.source} has it"
        has = f"has a field '{name}', {other.source} has no field of that name"
        fix = "list the fields that all files have in data.fields"
        fix = "give the annotation in all files, or in none" if name in loose else fix
        return DataError(path, lacks if name in theirs else has, fix)
    for name, column in ours.items():
        if column != theirs[name]:
            ours_text, theirs_text = (f"{c.dtype} x {c.width}" for c in (column, theirs[name]))
            fix = (
                "leave it out of data.fields (the label is read all the same), or bring the files to one type"
            )
            fix = "bring the files to one type" if name in loose else fix
            return DataError(path, f"field '{name}' is {ours_text}, in {other.source} {theirs_text}", fix)
    return None


def _kind(column: Column) -> tuple[str, str, int, str]:
    return column.name, column.dtype, column.width, column.kind
