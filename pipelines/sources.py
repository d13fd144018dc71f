"""The raw files of a dataset: found below one folder, named relative to it."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from ..errors import DataError, UsageError
from .readers import SUFFIXES
from .splits import FilesSplit

ENVIRONMENT = "TAMIS_DATA"


def folder(root: Path | None) -> Path:
    """The folder of raw files: ``data.root``, else the environment's TAMIS_DATA."""
    if root is None:
        named = os.environ.get(ENVIRONMENT)
        if not named:
            raise UsageError(
                "data.root",
                f"neither this key nor the environment variable {ENVIRONMENT} is set",
                "set one of them",
            )
        root = Path(named)
    if not root.is_dir():
        raise DataError(root, "no such folder of raw files", f"correct data.root or {ENVIRONMENT}")
    return root


def find(root: Path, patterns: Sequence[str], key: str = "data.files") -> list[str]:
    """Names relative to ``root`` of the files that ``patterns`` match, sorted, each once.

    A pattern that exists as it stands is a name, whatever brackets, braces or spaces it holds. Without
    patterns: every file with the suffix of a format that can be read.
    Raises DataError for a pattern that matches nothing, UsageError for one that is no pattern.
    """
    if not patterns:
        found = {p.relative_to(root).as_posix() for p in root.rglob("*") if _readable(p)}
        if not found:
            raise DataError(root, f"holds no {', '.join(SUFFIXES)} file", "name others in data.files")
    else:
        found = {name for pattern in patterns for name in _match(root, pattern, key)}
    for name in found:
        try:
            name.encode()
        except UnicodeEncodeError:
            raise DataError(root, f"the file name {os.fsencode(name)!r} is not UTF-8", "rename it") from None
    return sorted(found)


def splits_by_file(root: Path, split: object, sources: Sequence[str]) -> dict[str, str]:
    """Source -> "val" or "test" for the files that a `FilesSplit` names."""
    listed: dict[str, str] = {}
    if not isinstance(split, FilesSplit):
        return listed
    for name, patterns in (("val", split.val), ("test", split.test)):
        for pattern in patterns:
            key = f"data.split.{name}"
            own = [source for source in find(root, [pattern], key) if source in sources]
            if not own:
                raise UsageError(key, f"'{pattern}' names nothing that is among data.files", "add it there")
            for source in own:
                if listed.setdefault(source, name) != name:
                    raise UsageError("data.split", f"{source} is in val and in test", "list it once")
    return listed


def _readable(path: Path) -> bool:
    return path.suffix.lower() in SUFFIXES and path.is_file()


def _match(root: Path, pattern: str, key: str) -> list[str]:
    if Path(pattern).is_absolute() or ".." in Path(pattern).parts:
        raise UsageError(key, f"'{pattern}' leaves the folder data.root", "write it relative to data.root")
    literal = root / pattern
    try:
        if pattern and literal.is_file():
            return [literal.relative_to(root).as_posix()]
        found = [p.relative_to(root).as_posix() for p in root.glob(pattern) if p.is_file()]
    except (ValueError, OSError) as error:
        raise UsageError(key, f"'{pattern}' is no pattern ({error})", "write it as in '*.laz'") from None
    if not found:
        raise DataError(literal, "no such file", f"correct {key}")
    return found
