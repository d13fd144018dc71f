"""Readers: one file of points in, a `Scan` out. The format is told by content, not by name."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...errors import DataError

SUFFIXES = (".las", ".laz", ".npy")


@dataclass(frozen=True)
class Scan:
    """A file's points: ``xyz`` float64 (n, 3) in the file's units; ``fields``: name -> (n,) or (n, w)."""

    xyz: NDArray[np.float64]
    fields: dict[str, NDArray[Any]]


def read(path: Path) -> Scan:
    """Read a LAS, LAZ or NPY file whole, with every field it has.

    Fields keep their name, type and values; ``red``, ``green``, ``blue`` become ``rgb`` (n, 3). `storable`
    brings those that are kept to a type that can be stored.
    Raises DataError, one line with the file and the cause, for whatever is no whole file of points.
    """
    from . import las, npy

    readers: dict[bytes, Callable[[Path], Scan]] = {b"LASF": las.read, b"\x93NUM": npy.read}
    if path.exists() and not path.is_file():
        raise DataError(path, "is no file", "name a file of points")
    try:
        with path.open("rb") as file:
            signature = file.read(4)
    except OSError as error:
        raise DataError(path, f"cannot be read ({error.strerror})", "check the path") from None
    if not signature:
        raise DataError(path, "is empty", "copy it again")
    reader = readers.get(signature)
    if reader is None:
        raise DataError(path, f"is neither LAS/LAZ nor NPY (it starts with {signature!r})", "convert it")
    scan = reader(path)
    return Scan(np.ascontiguousarray(scan.xyz, np.float64), _join_colours(scan.fields))


def _join_colours(fields: dict[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
    parts = [fields.get(name) for name in ("red", "green", "blue")]
    if "rgb" in fields or any(part is None or part.ndim != 1 for part in parts):
        return fields
    if len({part.dtype for part in parts if part is not None}) > 1:
        return fields
    joined: dict[str, NDArray[Any]] = {}
    for name, array in fields.items():
        if name == "red":
            joined["rgb"] = np.stack(parts, axis=1)  # type: ignore[arg-type]
        elif name not in ("green", "blue"):
            joined[name] = array
    return joined


def storable(path: Path, name: str, array: NDArray[Any]) -> NDArray[Any]:
    """Bring a field, (n,) or (n, w), to a type that every Arrow reader knows, without changing a value.

    Little-endian integers and floats of 8 to 64 bits; raises DataError for what is none.
    """
    kind, size = array.dtype.kind, array.dtype.itemsize
    if array.ndim == 2 and array.shape[1] == 1:
        array = array[:, 0]
    if array.ndim > 2 or 0 in array.shape[1:]:
        raise DataError(path, f"field '{name}' has rows of shape {array.shape[1:]}", "store vectors, (n, w)")
    if kind == "b":
        return array.astype(np.uint8)
    if kind == "f" and size == 2:
        return array.astype(np.float32)
    if kind in "iu" or (kind == "f" and size <= 8):
        return np.ascontiguousarray(array, array.dtype.newbyteorder("<"))
    raise DataError(path, f"field '{name}' has type {array.dtype}", "store integers or floats up to 64 bits")
