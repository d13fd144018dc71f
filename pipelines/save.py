"""A sampled cloud as a file: LAS, LAZ, NPY, NPZ, Arrow or Parquet. Each is there whole or not at all."""

from __future__ import annotations

import zipfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import laspy
import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from ..errors import DataError, UsageError
from ..files import atomic, prepare
from .las_copy import write_copy
from .pieces import TOLERANCE, float32_error
from .readers import Scan

LAS_SUFFIXES = (".las", ".laz")
OTHERS = (".npy", ".npz", ".arrow", ".parquet")
SUFFIXES = (*LAS_SUFFIXES, *OTHERS)

LAS, NPY = b"LASF", b"\x93NUM"
"""How these files begin."""


@dataclass(frozen=True)
class Sampled:
    """What became of a scan: row ``index[i]`` of it, int64 (m,), is row i of the result.

    ``xyz``: float64 (m, 3), global, where the rows moved. ``fields``: those whose values are not row
    ``index[i]``'s own, with m rows.
    """

    index: NDArray[np.int64]
    xyz: NDArray[np.float64] | None = None
    fields: dict[str, NDArray[Any]] = field(default_factory=dict)


def check_out(path: Path, out: Path) -> None:
    """Refuse an ``out`` that can hold no cloud, or not that of ``path``, or is the input, or not writable.

    Temporary files of killed runs onto ``out`` are removed. Raises UsageError, and DataError where the system
    refuses to write.
    """
    if out.suffix.lower() not in SUFFIXES:
        raise UsageError(out, f"has no suffix of {', '.join(SUFFIXES)}", "name the output so")
    prepare(out, path)
    if out.suffix.lower() in LAS_SUFFIXES and signature(path) == NPY:
        cause = f"a LAS file is made of a LAS file only, not of {path.name}"
        raise UsageError(out, cause, f"take {', '.join(OTHERS)}")


def save(path: Path, scan: Scan, sampled: Sampled, origin: NDArray[np.float64], out: Path) -> None:
    """Write what was sampled of ``scan``, which was read from ``path``, to ``out``; replaces what is there.

    LAS to LAS or LAZ and NPY to NPY copy whole records, and only what moved or merged is set in them, in the
    type and scale of the file. The others hold every field by its name, and x, y, z as float64; NPZ has xyz
    as float32 (m, 3), counted from ``origin``.
    Raises DataError for what the format, or the type of the file's numbers, cannot hold.
    """
    suffix = out.suffix.lower()
    if suffix in LAS_SUFFIXES:
        _save_las(path, sampled, out)
        return
    if suffix == ".npy" and signature(path) == NPY:
        _save_array(out, _records(path, scan, sampled))
        return
    fields = {name: sampled.fields.get(name, values[sampled.index]) for name, values in scan.fields.items()}
    xyz = scan.xyz[sampled.index] if sampled.xyz is None else sampled.xyz
    if suffix == ".npz":
        _save_zip(out, {"xyz": _near(out, xyz, origin), "origin": origin}, fields)
        return
    columns = {axis: np.ascontiguousarray(xyz[:, i]) for i, axis in enumerate("xyz")}
    _check_names(out, columns, fields)
    if suffix == ".npy":
        _save_array(out, _structured({**columns, **fields}))
    else:
        _save_table(out, {**columns, **fields})


def signature(path: Path) -> bytes:
    """The first four bytes; none where there is no file to read, which the readers tell of."""
    try:
        with path.open("rb") as file:
            return file.read(4)
    except OSError:
        return b""


def _save_las(path: Path, sampled: Sampled, out: Path) -> None:
    las = laspy.read(path)
    las.points = las.points[sampled.index]
    for name, values in sampled.fields.items():
        if name == "rgb" and name not in las.point_format.dimension_names:
            las.red, las.green, las.blue = values.T
        else:
            las[name] = values
    if sampled.xyz is not None:
        steps = np.rint((sampled.xyz - las.header.offsets) / las.header.scales)
        if np.abs(steps).max(initial=0) >= 2**31:
            raise DataError(path, "positions do not fit its offset and scale", "choose another --pick")
        las.X, las.Y, las.Z = steps.astype(np.int32).T
    write_copy(path, las, out, same_points=False)


def _records(path: Path, scan: Scan, sampled: Sampled) -> NDArray[Any]:
    """The rows of an NPY file as it holds them."""
    array = np.array(np.load(path, mmap_mode="r", allow_pickle=False)[sampled.index])
    values, names = dict(sampled.fields), array.dtype.names
    if names is None:
        if sampled.xyz is not None:
            array[:, :3] = _held(path, sampled.xyz, array.dtype)
        for name, column in values.items():
            array[:, int(name.removeprefix("column_"))] = column
        return array
    if "rgb" in values and "rgb" not in names:
        values |= dict(zip(("red", "green", "blue"), values.pop("rgb").T, strict=True))
    if sampled.xyz is not None:
        together = "xyz" in names and "xyz" not in scan.fields
        moved = {"xyz": sampled.xyz} if together else dict(zip("xyz", sampled.xyz.T, strict=True))
        values |= {name: _held(path, places, array[name].dtype) for name, places in moved.items()}
    for name, column in values.items():
        array[name] = column
    return array


def _held(path: Path, xyz: NDArray[np.float64], dtype: np.dtype[Any]) -> NDArray[Any]:
    """Positions as ``dtype``, rounded where it has whole numbers only; refused where it ends before."""
    whole = dtype.kind in "iu"
    wanted = np.rint(xyz) if whole else xyz
    with np.errstate(over="ignore", invalid="ignore"):
        held = wanted.astype(dtype)
    fit = held == wanted if whole else np.isfinite(held)
    if not fit.all():
        cause = f"positions from {xyz.min():g} to {xyz.max():g} do not fit its type {dtype}"
        raise DataError(path, cause, "choose another --pick, or an OUT that is no .npy")
    return held


def _near(out: Path, xyz: NDArray[np.float64], origin: NDArray[np.float64]) -> NDArray[np.float32]:
    """float32 from ``origin``; refused where that is too coarse."""
    shifted = xyz - origin
    error = float32_error(shifted)
    if error > TOLERANCE:
        cause = f"the cloud is so wide that float32 would be off by up to {error:.2g}"
        raise DataError(out, cause, "write .npy, .arrow or .parquet, which hold float64")
    return shifted.astype(np.float32)


def _check_names(out: Path, ours: dict[str, NDArray[Any]], fields: dict[str, NDArray[Any]]) -> None:
    for name in sorted(ours.keys() & fields.keys()):
        raise DataError(out, f"a field is called '{name}', as the position is", "rename it in the input")


def _structured(columns: dict[str, NDArray[Any]]) -> NDArray[Any]:
    rows = len(columns["x"])
    array = np.empty(rows, [(name, values.dtype, values.shape[1:]) for name, values in columns.items()])
    for name, values in columns.items():
        array[name] = values
    return array


def _save_array(out: Path, array: NDArray[Any]) -> None:
    # To a file that is only written numpy writes past Python, and would not say why the system refuses it.
    with atomic(out) as temporary, temporary.open("wb+") as file:
        np.save(file, array, allow_pickle=False)


def _save_zip(out: Path, ours: dict[str, NDArray[Any]], fields: dict[str, NDArray[Any]]) -> None:
    """As numpy.savez does, which has names of its own that fields may bear."""
    _check_names(out, ours, fields)
    with atomic(out) as temporary, zipfile.ZipFile(temporary, "w") as archive:
        for name, values in {**ours, **fields}.items():
            with archive.open(f"{name}.npy", "w", force_zip64=True) as file:
                np.lib.format.write_array(file, np.ascontiguousarray(values), allow_pickle=False)


def _save_table(out: Path, columns: dict[str, NDArray[Any]]) -> None:
    arrays = {name: _arrow(out, name, values) for name, values in columns.items()}
    schema = [pa.field(name, array.type, nullable=array.null_count > 0) for name, array in arrays.items()]
    table = pa.table(list(arrays.values()), pa.schema(schema))
    with atomic(out) as temporary, temporary.open("wb") as file:
        if out.suffix.lower() == ".parquet":
            from pyarrow import parquet

            parquet.write_table(table, file)
        else:
            with pa.ipc.new_file(file, table.schema) as writer:
                writer.write_table(table)


def _arrow(out: Path, name: str, values: NDArray[Any]) -> pa.Array:
    """Vectors become fixed-size lists, one within another."""
    if 0 in values.shape[1:]:  # pyarrow would divide by it
        raise DataError(out, f"field '{name}' has rows of shape {values.shape[1:]}", "write .npy or .npz")
    native = np.ascontiguousarray(values, values.dtype.newbyteorder("="))
    try:
        array = pa.array(native.reshape(-1))
    except pa.ArrowException:
        cause = f"field '{name}' has type {values.dtype}, which Arrow has not"
        raise DataError(out, cause, "write .npy or .npz") from None
    for width in reversed(values.shape[1:]):
        inner = pa.field("item", array.type, nullable=False)
        array = pa.FixedSizeListArray.from_arrays(array, type=pa.list_(inner, width))
    return array
