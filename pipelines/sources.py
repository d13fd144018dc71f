"""The raw files of a dataset: found below one folder, named relative to it."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator, Sequence
from fnmatch import fnmatchcase
from pathlib import Path, PurePosixPath

from ..errors import DataError, UsageError
from .checks import file_sha256
from .manifest import SourceDigest
from .readers import SUFFIXES, File
from .splits import FilesSplit, HashSplit

ENVIRONMENT = "TAMIS_DATA"
Parts = tuple[str, ...]


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
    patterns: every file with the suffix of a format that can be read. Links are followed.
    Raises DataError for a pattern that matches nothing or what is no file, and for a folder or link on the
    way that cannot be read; UsageError for a pattern that leaves ``root``.
    """
    if not patterns:
        found = {name for name in _walk(root, ("**", "*")) if _has_suffix(name)}
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
    """Source -> "val" or "test" for the files that a `FilesSplit` names or a `HashSplit` draws."""
    listed: dict[str, str] = {}
    if isinstance(split, HashSplit):
        drawn = {source: split.of(source) for source in sources}
        return {source: name for source, name in drawn.items() if name != "train"}
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


def digest(*files: File) -> SourceDigest:
    """Size and SHA-256 of a source: of its files one after another.

    Where it has parts of files that others share, the SHA-256 is that of the files' and these bytes.
    """
    paths = [file for file in files if isinstance(file, Path)]
    parts = [file for file in files if isinstance(file, bytes)]
    sha256 = file_sha256(*paths)
    if parts:
        sha256 = hashlib.sha256(b"".join([bytes.fromhex(sha256), *parts])).hexdigest()
    return SourceDigest(bytes=sum(path.stat().st_size for path in paths), sha256=sha256)


def _has_suffix(name: str) -> bool:
    return PurePosixPath(name).suffix.lower() in SUFFIXES


def _match(root: Path, pattern: str, key: str) -> list[str]:
    if Path(pattern).is_absolute() or ".." in Path(pattern).parts:
        raise UsageError(key, f"'{pattern}' leaves the folder data.root", "write it relative to data.root")
    literal = root / pattern
    try:
        if pattern and literal.is_file():
            return [literal.relative_to(root).as_posix()]
    except (ValueError, OSError) as error:
        raise UsageError(key, f"'{pattern}' is no pattern ({error})", "write it as in '*.laz'") from None
    found = [*_walk(root, PurePosixPath(pattern).parts)]
    if not found:
        raise DataError(literal, "no such file", f"correct {key}")
    return found


def _walk(root: Path, pattern: Parts) -> Iterator[str]:
    """The files below ``root`` that match; what would be left out without a word is refused."""
    folders: list[tuple[Parts, frozenset[str]]] = [((), frozenset())]
    while folders:
        folder, above = folders.pop()
        path = root.joinpath(*folder)
        real = os.path.realpath(path)
        if real in above:
            continue  # a link back: what is there has been found under its shorter name
        for name in _listed(path):
            parts, entry = (*folder, name), path / name
            matched, entered = _matches(parts, pattern), _may_hold(parts, pattern)
            if not matched and not entered:
                continue
            try:
                is_folder, is_file = entry.is_dir(), entry.is_file()
            except OSError as error:
                raise _unreadable(entry, error) from None
            if is_folder:
                # With such a name, or named itself, it is meant as a file.
                if matched and (_has_suffix(name) or parts == pattern):
                    raise DataError(
                        entry, "is a folder, not a file of points", "rename it, or correct data.files"
                    )
                if entered:
                    folders.append((parts, above | {real}))
            elif is_file:
                if matched:
                    yield "/".join(parts)
            elif entry.is_symlink():
                raise DataError(entry, "no such file: it is a link that leads nowhere", "mend or remove it")
            elif matched and (_has_suffix(name) or parts == pattern):
                raise DataError(entry, "is no file", "remove it, or name others in data.files")


def _listed(folder: Path) -> list[str]:
    try:
        return sorted(entry.name for entry in folder.iterdir())
    except OSError as error:
        raise _unreadable(folder, error) from None


def _unreadable(path: Path, error: OSError) -> DataError:
    cause = f"cannot be read ({error.strerror})"
    return DataError(path, cause, "check its rights, or leave it out with data.files")


def _matches(parts: Parts, pattern: Parts) -> bool:
    """Whether a path matches; ``**`` stands for any number of folders."""
    if not pattern or not parts:
        return not parts and all(part == "**" for part in pattern)
    if pattern[0] == "**":
        return _matches(parts, pattern[1:]) or _matches(parts[1:], pattern)
    return fnmatchcase(parts[0], pattern[0]) and _matches(parts[1:], pattern[1:])


def _may_hold(folder: Parts, pattern: Parts) -> bool:
    """Whether something below a folder may match."""
    if not folder or not pattern:
        return bool(pattern)
    return pattern[0] == "**" or (fnmatchcase(folder[0], pattern[0]) and _may_hold(folder[1:], pattern[1:]))
