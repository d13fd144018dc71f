"""What a published dataset lays down: where its scans lie, which are evaluated, where their labels are."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ...errors import DataError
from ..readers import File, ReadSettings, Scan


class Layout(NamedTuple):
    """A published dataset's way to lie in folders below a root.

    ``find(root)``: name of each scan, relative to the root -> its official split. ``read(root, name)``: the
    scan, with its labels as a field, or all scans of a file whose scans are ``objects``, each read when it is
    asked for. ``files(root, name)``: what it is read from, the named file first; of tables that many scans
    share the bytes that are its own stand instead of the table. ``classes(root)``: class -> codes, as the
    dataset's authors number and evaluate them. ``label``: the field that holds the codes. ``objects``:
    whether each scan is an object that stands for itself. ``points``: whether scans hold points; if not,
    annotations are all there is. ``takes``: which of the keys "sweeps" and "images" of [data] ``read`` and
    ``files`` know.
    """

    find: Callable[[Path], dict[str, str]]
    read: Callable[..., Any]
    files: Callable[..., tuple[File, ...]]
    classes: Callable[[Path], Mapping[str, list[int]]]
    label: str
    objects: bool = False
    points: bool = True
    takes: frozenset[str] = frozenset()


PLAIN = ReadSettings()


def names(root: Path, pattern: str) -> list[str]:
    """The files below ``root`` that match, relative to it, sorted."""
    return sorted(path.relative_to(root).as_posix() for path in root.glob(pattern) if path.is_file())


def must_exist(path: Path, what: str) -> Path:
    """The path; DataError where there is no such file."""
    if not path.is_file():
        raise DataError(path, f"is missing: {what}", "complete the download")
    return path


def lines(path: Path, what: str) -> list[str]:
    """The words on each line of a list, without the empty ones; DataError where there is no list."""
    try:
        return [line.strip() for line in must_exist(path, what).read_text().splitlines() if line.strip()]
    except UnicodeDecodeError as error:
        raise DataError(path, f"is no text (offset {error.start})", "copy it again") from None


def with_labels(root: Path, name: str, labels: Path | None) -> tuple[Path, ...]:
    """The files of a scan: its own and, where there are any, its labels."""
    return (root / name,) if labels is None else (root / name, labels)


def one_a_row(path: Path, values: NDArray[Any], scan: Scan, of: str) -> NDArray[Any]:
    """``values``, one for each of the scan's points; DataError where they are not as many."""
    if len(values) != len(scan.xyz):
        raise DataError(path, f"has {len(values)} labels, {of} {len(scan.xyz)} points", "copy both again")
    return values


def with_fields(scan: Scan, **fields: NDArray[Any]) -> Scan:
    """The scan with more fields."""
    return replace(scan, fields={**scan.fields, **fields})


def with_annotations(scan: Scan, **annotations: NDArray[Any]) -> Scan:
    """The scan with more annotations."""
    return replace(scan, annotations={**scan.annotations, **annotations})


def image(path: Path | None) -> NDArray[np.uint8]:
    """The bytes of an image file, none where there is no file. Raises DataError where it cannot be read."""
    try:
        return np.fromfile(path, np.uint8) if path else np.empty(0, np.uint8)
    except OSError as error:
        raise DataError(path or "", f"cannot be read ({error.strerror})", "check the path") from None


def numbered(classes: Sequence[str]) -> dict[str, list[int]]:
    """Each class with its place as its code."""
    return {name: [number] for number, name in enumerate(classes)}


def constant(scan: Scan, code: int) -> NDArray[np.int32]:
    """One code for all points."""
    return np.full(len(scan.xyz), code, np.int32)
