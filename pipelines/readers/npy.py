"""NPY: an (n, 3 or more) array, or a structured one with x, y and z."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...errors import DataError
from . import ReadSettings, Scan


def read(path: Path, settings: ReadSettings) -> Scan:  # noqa: ARG001 (it says all itself)
    """Read an array of points; columns beyond the third become ``column_3``, ``column_4``, ...

    Objects are never unpickled. Raises DataError for another shape or element type.
    """
    array = _load(path)
    if array.dtype.names is None:
        return _plain(path, array)
    return _structured(path, array)


def _load(path: Path) -> NDArray[Any]:
    try:
        # Mapping checks the promised size against the file before any memory is taken.
        mapped = np.load(path, mmap_mode="r", allow_pickle=False)
        return np.array(mapped)
    # The header is Python text: a damaged one fails in the tokenizer, the parser, numpy's types or mmap.
    except Exception as error:  # noqa: BLE001
        raise DataError(
            path, f"is not a whole NPY file ({error})", "write it again with numpy.save"
        ) from None


def _plain(path: Path, array: NDArray[Any]) -> Scan:
    if array.ndim != 2 or array.shape[1] < 3:
        raise DataError(path, f"has shape {array.shape}", "store points as (n, 3) or wider")
    if not _is_number(array.dtype):
        raise DataError(path, f"has type {array.dtype}", "store floats or integers of up to 64 bits")
    extra = {f"column_{i}": array[:, i] for i in range(3, array.shape[1])}
    return Scan(array[:, :3].astype(np.float64), extra)


def _is_number(dtype: np.dtype[Any]) -> bool:
    return dtype.kind in "iuf" and dtype.itemsize <= 8


def _structured(path: Path, array: NDArray[Any]) -> Scan:
    names = array.dtype.names or ()
    if array.ndim != 1:
        raise DataError(path, f"has structured rows of shape {array.shape}", "store one row a point, (n,)")
    if "xyz" in names and array["xyz"].shape[1:] == (3,) and _is_number(array["xyz"].dtype):
        return Scan(array["xyz"].astype(np.float64), {name: array[name] for name in names if name != "xyz"})
    missing = [axis for axis in "xyz" if axis not in names]
    if missing:
        cause = f"has no field '{missing[0]}' among {', '.join(names)}"
        raise DataError(path, cause, "store fields x, y and z, or one field xyz of three numbers")
    axes = [array[axis] for axis in "xyz"]
    for axis, values in zip("xyz", axes, strict=True):
        if values.ndim != 1 or not _is_number(values.dtype):
            raise DataError(path, f"field '{axis}' has type {array.dtype[axis]}", "store one number a row")
    xyz = np.stack([values.astype(np.float64) for values in axes], axis=1)
    return Scan(xyz, {name: array[name] for name in names if name not in ("x", "y", "z")})
