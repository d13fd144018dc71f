"""NPY: an (n, 3 or more) array, or a structured one with x, y and z. Named columns become a cloud here."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...errors import DataError
from . import ReadSettings, Scan
from .axes import places, scan_of

POSITIONS = ("xyz", "points", "pos")
"""Names of one column that holds all coordinates."""

RENAME = "rename one"


def read(path: Path, settings: ReadSettings) -> Scan:  # noqa: ARG001 (it says all itself)
    """Read an array of points; columns beyond the third become ``column_3``, ``column_4``, ...

    Objects are never unpickled. Raises DataError for another shape or element type.
    """
    return next(_pieces(path, None))


def chunks(path: Path, settings: ReadSettings, rows: int) -> Iterator[Scan]:  # noqa: ARG001
    """As `read`, at most ``rows`` points at a time."""
    return _pieces(path, rows)


def rows(path: Path, settings: ReadSettings) -> int:  # noqa: ARG001 (it says all itself)
    """How many points there are. Raises DataError where the file does not hold them."""
    with _damage_told(path):
        return int(_mapped(path).shape[0])


def _pieces(path: Path, most: int | None) -> Iterator[Scan]:
    """All points, or ``most`` at a time."""
    n = max(rows(path, ReadSettings()), 1)
    for first in range(0, n, most or n):
        with _damage_told(path):
            # Mapped anew: what was read of a map counts as memory of the process until it ends.
            part = np.array(_mapped(path)[first : first + (most or n)])
        yield of_array(path, part)


def of_array(path: Path, array: NDArray[Any]) -> Scan:
    """The cloud of one array. Raises DataError for another shape or element type."""
    if array.dtype.names is not None:
        if array.ndim != 1:
            raise DataError(
                path, f"has structured rows of shape {array.shape}", "store one row a point, (n,)"
            )
        return of_columns(path, {name: array[name] for name in array.dtype.names}, "field")
    if array.ndim != 2 or array.shape[1] < 3:
        raise DataError(path, f"has shape {array.shape}", "store points as (n, 3) or wider")
    if not is_number(array.dtype):
        raise DataError(path, f"has type {array.dtype}", "store floats or integers of up to 64 bits")
    extra = {f"column_{i}": array[:, i] for i in range(3, array.shape[1])}
    return Scan(array[:, :3].astype(np.float64), extra)


def of_columns(path: Path, columns: dict[str, NDArray[Any]], word: str) -> Scan:
    """The cloud of named columns of equal length, a ``word`` being what the format calls one.

    Coordinates are one column of `POSITIONS`, (n, 3), or columns x, y and z, (n,), as `axes` knows them.
    Raises DataError where they are not there or no numbers.
    """
    whole = next((name for name in POSITIONS if name in columns and columns[name].shape[1:] == (3,)), None)
    if whole is not None:
        _check_number(path, whole, columns[whole], word)
        rest = {name: column for name, column in columns.items() if name != whole}
        xyz = columns[whole].astype(np.float64)
        if {"x", "y", "z"} & rest.keys():
            return Scan(xyz, rest)
        return scan_of(path, ["x", "y", "z", *rest], [*xyz.T, *rest.values()], RENAME)
    names = list(columns)
    at = places(names)
    if at is None:
        cause = f"has no {word}s x, y and z (it has {', '.join(names) or 'none at all'})"
        raise DataError(path, cause, f"store them, or one {word} xyz of three numbers")
    for axis in (names[place] for place in at):
        if columns[axis].ndim != 1:
            cause = f"{word} '{axis}' has rows of shape {columns[axis].shape[1:]}"
            raise DataError(path, cause, "store one number a row")
        _check_number(path, axis, columns[axis], word)
    return scan_of(path, names, list(columns.values()), RENAME)


def is_number(dtype: np.dtype[Any]) -> bool:
    """Whether an element is a number that fits 64 bits."""
    return dtype.kind in "iuf" and dtype.itemsize <= 8


def _check_number(path: Path, name: str, column: NDArray[Any], word: str) -> None:
    if not is_number(column.dtype):
        cause = f"{word} '{name}' has type {column.dtype}"
        raise DataError(path, cause, "store floats or integers of up to 64 bits")


def _mapped(path: Path) -> NDArray[Any]:
    """The array in the file. Mapping checks the promised size against it before any memory is taken."""
    mapped: NDArray[Any] = np.load(path, mmap_mode="r", allow_pickle=False)
    return mapped if mapped.ndim else mapped.reshape(1)


@contextmanager
def _damage_told(path: Path) -> Iterator[None]:
    try:
        yield
    # The header is Python text: a damaged one fails in the tokenizer, the parser, numpy's types or mmap.
    except Exception as error:  # noqa: BLE001
        raise DataError(
            path, f"is not a whole NPY file ({error})", "write it again with numpy.save"
        ) from None
