"""NPZ: a zip archive of NPY files, as numpy.savez writes it: arrays of equal length."""

from __future__ import annotations

import logging
import math
import os
import zipfile
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.lib import format as npy
from numpy.typing import NDArray

from ...errors import DataError
from . import ReadSettings, Scan
from .axes import places
from .npy import POSITIONS, is_number, of_array, of_columns

log = logging.getLogger(__name__)

_MEMORY = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
_CHUNK = 1 << 22

_DEFLATE = 1032
"""Most bytes that deflate makes of one (RFC 1951: a match of 258 bytes may take 2 bits)."""


def read(path: Path, settings: ReadSettings) -> Scan:  # noqa: ARG001 (it says all itself)
    """Read the arrays that have a row for each point; others are left out, with a notice.

    Coordinates are ``xyz``, ``points`` or ``pos``, (n, 3 or more), whose columns beyond the third become
    ``column_3``, ...; or x, y and z, (n,). An archive of one array is read as an NPY file would be.
    Objects are never unpickled. Raises DataError where it is cut or damaged, or unpacks to more than the
    machine's memory.
    """
    try:
        with zipfile.ZipFile(path) as archive:
            members = _members(path, archive)
            arrays = {name: _array(path, archive, member) for name, member in members.items()}
    except DataError:
        raise
    # zipfile, zlib and numpy's header parser each raise their own kinds on damaged bytes.
    except (Exception, MemoryError) as error:  # noqa: BLE001
        cause = f"is a damaged or cut NPZ file ({str(error) or type(error).__name__})"
        raise DataError(path, cause, "write it again with numpy.savez") from None
    found = {name: array for name, array in arrays.items() if array is not None}
    left_out = [name for name in arrays if name not in found]
    place = next((name for name in POSITIONS if name in found and found[name].ndim == 2), None)
    if place is None and len(found) == 1 and not left_out:
        return of_array(path, *found.values())
    at = places(list(found))
    leader = place or (list(found)[at[0]] if at else None)
    if leader is not None:
        rows = found[leader].shape[:1]
        left_out += [name for name, array in found.items() if array.ndim == 0 or array.shape[:1] != rows]
    if left_out:
        log.warning("%s: left out %s, which have no number a point", path, ", ".join(sorted(left_out)))
    columns = {name: array for name, array in found.items() if name not in left_out}
    if place:
        extra = {f"column_{i}": columns[place][:, i] for i in range(3, columns[place].shape[1])}
        for name in extra.keys() & columns.keys():
            raise DataError(path, f"has an array '{name}', as a column of '{place}' is called", "rename it")
        columns |= extra
        columns[place] = columns[place][:, :3]
    return of_columns(path, columns, "array")


def _members(path: Path, archive: zipfile.ZipFile) -> dict[str, zipfile.ZipInfo]:
    """The NPY files by name. Raises DataError where their sizes cannot be."""
    members: dict[str, zipfile.ZipInfo] = {}
    size, total = path.stat().st_size, 0
    for member in archive.infolist():
        name = member.filename.removesuffix(".npy")
        if name == member.filename:
            log.warning("%s: left out %s, which is no NPY file", path, member.filename)
            continue
        if name in members:
            raise DataError(path, f"holds two arrays '{name}'", "write it again with numpy.savez")
        packed, unpacked = member.compress_size, member.file_size
        most = {zipfile.ZIP_STORED: packed, zipfile.ZIP_DEFLATED: packed * _DEFLATE}
        if packed > size or unpacked > most.get(member.compress_type, unpacked):
            cause = f"array '{name}' is damaged: {packed} bytes would unpack to {unpacked}"
            raise DataError(path, cause, "copy it again")
        members[name] = member
        total += unpacked
    if total > _MEMORY:
        cause = f"unpacks to {total / 1e9:.1f} GB, this machine has {_MEMORY / 1e9:.1f}"
        raise DataError(path, cause, "cut it into files that fit")
    return members


def _array(path: Path, archive: zipfile.ZipFile, member: zipfile.ZipInfo) -> NDArray[Any] | None:
    """An array, None for what holds no numbers. Memory is taken once its header agrees with its size."""
    with archive.open(member) as file:
        shape, fortran, dtype = _header(file)
        if dtype.names is None and not is_number(dtype) and dtype.kind != "b":
            return None
        start, count = file.tell(), math.prod(shape)
        if dtype.hasobject or start + count * dtype.itemsize != member.file_size:
            cause = f"array '{member.filename}' has {member.file_size - start} bytes for {shape} of {dtype}"
            raise DataError(path, cause, "write it again with numpy.savez, without objects")
        array = np.empty(count, dtype)
        _fill(file, array)
    return array.reshape(shape[::-1]).T if fortran else array.reshape(shape)


def _header(file: Any) -> tuple[tuple[int, ...], bool, np.dtype[Any]]:
    version = npy.read_magic(file)
    reader = {(1, 0): npy.read_array_header_1_0, (2, 0): npy.read_array_header_2_0}.get(version)
    if reader is None:
        raise ValueError(f"NPY version {version}")
    shape, fortran, dtype = reader(file)
    return shape, fortran, dtype


def _fill(file: BinaryIO | Any, array: NDArray[Any]) -> None:
    """Read an array's bytes, and on to the end, where the archive's checksum is compared."""
    space, at = array.view(np.uint8) if array.size and array.dtype.itemsize else np.empty(0, np.uint8), 0
    while at < len(space):
        chunk = file.read(min(_CHUNK, len(space) - at))
        if not chunk:
            raise EOFError(f"an array ends {len(space) - at} bytes early")
        space[at : at + len(chunk)] = np.frombuffer(chunk, np.uint8)
        at += len(chunk)
    file.read(1)
