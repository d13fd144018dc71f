"""PCD, the files of PCL: ascii, binary and binary_compressed, with every field that they have."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from ...errors import DataError
from . import ReadSettings, Scan
from .axes import scan_of
from .opening import opening
from .pcd_header import PADDING, PcdField, PcdHeader, read_header
from .text_numbers import parsed

log = logging.getLogger(__name__)

_PART = 1 << 20
_MOST_FILL = 4096
"""PCL fills the last page of a file with zeros, up to so many."""

_STANDS = (0.0, 0.0, 0.0, 1.0, 0.0, 0.0, 0.0)
Columns = list[NDArray[Any]]


def read(path: Path, settings: ReadSettings) -> Scan:  # noqa: ARG001 (it says all itself)
    """Read all points, an organised cloud row by row; rows without finite coordinates stay.

    Fields named ``_`` are padding and passed over; one of COUNT w is (n, w). ``rgb`` and ``rgba``, four bytes
    as a float or an integer, become ``rgb`` uint8 (n, 3), and ``alpha`` uint8 (n,) of ``rgba``. VIEWPOINT is
    not applied. Raises DataError, with line, field or byte, where the file is not whole.
    """
    with opening(path) as file:
        header = read_header(path, file)
        _notice(path, header)
        return _scan(path, header, KINDS_OF_DATA[header.data](path, file, header))


def chunks(path: Path, settings: ReadSettings, rows: int) -> Iterator[Scan] | None:  # noqa: ARG001
    """As `read`, at most ``rows`` points at a time; None where they do not lie one behind the other."""
    with opening(path) as file:
        kind = read_header(path, file).data
    return _pieces(path, rows) if kind == "binary" else None


def rows(path: Path, settings: ReadSettings) -> int | None:  # noqa: ARG001 (it says all itself)
    """How many points there are; None where only reading them tells."""
    with opening(path) as file:
        header = read_header(path, file)
        if header.data != "binary":
            return None
        _check_points(path, file, header)
        return header.points


def _notice(path: Path, header: PcdHeader) -> None:
    if header.viewpoint != _STANDS:
        shown = " ".join(f"{value:g}" for value in header.viewpoint)
        log.info("%s: its VIEWPOINT %s is not applied to the points", path, shown)


def _scan(path: Path, header: PcdHeader, columns: Columns) -> Scan:
    names = [field.name for field in _kept(header.fields)]
    return scan_of(path, *_with_colours(names, columns), "write it again with other FIELDS")


def _pieces(path: Path, most: int) -> Iterator[Scan]:
    with opening(path) as file:
        header = read_header(path, file)
        _notice(path, header)
        _check_points(path, file, header)
        for first in range(0, max(header.points, 1), most):
            n = min(most, header.points - first)
            yield _scan(path, header, _rows(path, file, header.fields, first, n))


def _kept(fields: Sequence[PcdField]) -> list[PcdField]:
    return [field for field in fields if field.name != PADDING]


def _ascii(path: Path, file: BinaryIO, header: PcdHeader) -> Columns:
    """A point a line. Coordinates may have more digits than their type holds, which is kept to."""
    width = sum(field.count for field in header.fields)
    numbers = parsed(path, file, width, "", header.line).columns
    n = len(numbers[0])
    if n != header.points:
        raise DataError(path, f"its header promises {header.points} points, it holds {n}", "copy it again")
    columns, at = [], 0
    for field in header.fields:
        own = numbers[at : at + field.count]
        if field.name != PADDING:
            typed = [_typed(path, field, values) for values in own]
            columns.append(typed[0] if field.count == 1 else np.stack(typed, axis=1))
        at += field.count
    return columns


def _typed(path: Path, field: PcdField, values: NDArray[Any]) -> NDArray[Any]:
    """The numbers in the type of their field; integers must be whole and fit."""
    if field.dtype.kind == "f":
        with np.errstate(over="ignore"):
            return values.astype(field.dtype)
    limits = np.iinfo(field.dtype)
    fits = (values >= limits.min) & (values <= limits.max)
    if values.dtype.kind == "f":
        # Beyond 2^53 a float does not hold every whole number.
        fits &= (values == np.floor(values)) & (np.abs(values) < 2.0**53)
    if not fits.all():
        row = int(np.argmin(fits))
        cause = f"field '{field.name}' of point {row} is {values[row]}, which is no {field.dtype.name}"
        raise DataError(path, cause, "write it again with another TYPE or SIZE")
    return values.astype(field.dtype)


def _binary(path: Path, file: BinaryIO, header: PcdHeader) -> Columns:
    """A point after the other, as they lay in memory."""
    _check_points(path, file, header)
    return _rows(path, file, header.fields, 0, header.points)


def _check_points(path: Path, file: BinaryIO, header: PcdHeader) -> None:
    """Refuse a binary file whose size is not that of its points."""
    row = sum(field.bytes for field in header.fields)
    what = f"{header.points} points of {row} bytes"
    _check_size(path, file, file.tell(), header.points * row, what)


def _rows(path: Path, file: BinaryIO, fields: Sequence[PcdField], first: int, n: int) -> Columns:
    """The next ``n`` points, point ``first`` being that where ``file`` is."""
    kept = _kept(fields)
    columns = [_empty(n, field) for field in kept]
    offsets, row = [], 0
    for field in fields:
        if field.name != PADDING:
            offsets.append(row)
        row += field.bytes
    shapes = [(field.dtype, (field.count,)) if field.count > 1 else field.dtype for field in kept]
    names = [f"f{i}" for i in range(len(kept))]
    layout = np.dtype({"names": names, "formats": shapes, "offsets": offsets, "itemsize": row})
    step = max(_PART // row, 1)
    for start in range(0, n, step):
        # A part at a time: the rows as they are in the file take no second copy of all.
        part = np.fromfile(file, layout, min(step, n - start))
        if len(part) < min(step, n - start):
            raise DataError(path, f"was cut while it was read, at point {first + start}", "read it again")
        for name, column in zip(names, columns, strict=True):
            column[start : start + len(part)] = part[name]
    return columns


def _empty(n: int, field: PcdField) -> NDArray[Any]:
    return np.empty((n, field.count) if field.count > 1 else n, field.dtype)


def _compressed(path: Path, file: BinaryIO, header: PcdHeader) -> Columns:
    """A field after the other, compressed with LZF, behind the sizes of both as uint32.

    Writers do not agree on whether padding is among them: the size tells.
    """
    from .lzf import decoded

    sizes = np.frombuffer(file.read(8), np.uint8)
    if not header.points and not len(sizes):
        return [_empty(0, field) for field in _kept(header.fields)]
    if len(sizes) < 8:
        raise DataError(path, f"is cut: it ends at byte {file.tell()}, before its points", "copy it again")
    packed, size = (int(value) for value in sizes.view("<u4"))
    _check_size(path, file, file.tell(), packed, f"{packed} compressed bytes")
    fields = next((own for own in (header.fields, _kept(header.fields)) if _bytes(own, header) == size), None)
    if fields is None:
        wanted = _bytes(header.fields, header)
        cause = f"holds {size} bytes of points, its header promises {header.points} points, {wanted} bytes"
        raise DataError(path, cause, "copy it again")
    data = np.fromfile(file, np.uint8, packed)
    payload = decoded(data, size)
    if isinstance(payload, str):
        if packed != size:
            raise DataError(path, payload, "copy it again")
        # What LZF cannot make smaller, some writers store as it is.
        payload = data
    columns, at = [], 0
    for field in fields:
        end = at + field.bytes * header.points
        if field.name != PADDING:
            values = payload[at:end].view(field.dtype)
            # Behind fields of odd sizes it starts where a number of its type may not: then it is copied.
            values = np.require(values, requirements="A")
            columns.append(values.reshape(-1, field.count) if field.count > 1 else values)
        at = end
    return columns


def _bytes(fields: Sequence[PcdField], header: PcdHeader) -> int:
    return header.points * sum(field.bytes for field in fields)


def _check_size(path: Path, file: BinaryIO, start: int, wanted: int, what: str) -> None:
    """Refuse a file that does not end where its points do, but for zeros that fill a page."""
    size = os.fstat(file.fileno()).st_size
    beyond = size - start - wanted
    if beyond > 0:
        file.seek(start + wanted)
        rest = file.read(_MOST_FILL + 1)
        file.seek(start)
        if len(rest) > _MOST_FILL or rest.strip(b"\0"):
            cause = f"has {beyond} bytes beyond its {what}, which end at byte {start + wanted}"
            raise DataError(path, cause, "copy it again")
    if beyond < 0:
        cause = f"is cut: its header promises {what} from byte {start} on, it ends at byte {size}"
        raise DataError(path, cause, "copy it again")


def _with_colours(names: list[str], columns: Columns) -> tuple[list[str], Columns]:
    """Packed colours taken apart: 0xAARRGGBB. Others keep their name."""
    out_names, out = [], Columns()
    for name, values in zip(names, columns, strict=True):
        packed = name in ("rgb", "rgba") and values.ndim == 1 and values.dtype.itemsize == 4
        if not packed or "rgb" in out_names:
            out_names.append(name)
            out.append(values)
            continue
        bits = np.ascontiguousarray(values).view("<u4")
        out_names.append("rgb")
        out.append(np.stack([(bits >> shift).astype(np.uint8) for shift in (16, 8, 0)], axis=1))
        if name == "rgba" and "alpha" not in names:
            out_names.append("alpha")
            out.append((bits >> 24).astype(np.uint8))
    return out_names, out


KINDS_OF_DATA = {"ascii": _ascii, "binary": _binary, "binary_compressed": _compressed}
"""What reads the points of each kind of DATA."""
