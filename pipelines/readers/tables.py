"""Parquet, and Arrow IPC files (Feather), through pyarrow: a row a point, a column a field."""

from __future__ import annotations

import logging
import os
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...errors import DataError
from . import ReadSettings, Scan
from .npy import of_columns

log = logging.getLogger(__name__)

_MEMORY = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def read(path: Path, settings: ReadSettings) -> Scan:  # noqa: ARG001 (it says all itself)
    """Read all rows. Coordinates are columns x, y and z, or ``xyz`` (n, 3), a list of three numbers a row.

    Lists of one length become vectors, (n, w); true and false 1 and 0; times the whole numbers that they
    are stored as. Texts, lists of many lengths and structures are left out, with a notice. Raises DataError
    where the file is cut or damaged, and for a missing value, with its column and row.
    """
    import pyarrow as pa

    try:
        table = _table(path, pa)
        table.validate(full=True)
    except DataError:
        raise
    # pyarrow raises its own kinds and Python's; on what is damaged none of them is a bug of ours.
    except (Exception, MemoryError) as error:  # noqa: BLE001
        cause = f"is a damaged or cut table ({type(error).__name__}: {error})"
        raise DataError(path, cause, "copy it again") from None
    names = table.column_names
    twice = [name for at, name in enumerate(names) if name in names[:at]]
    if twice:
        raise DataError(path, f"has two columns '{twice[0]}'", "rename one")
    columns: dict[str, NDArray[Any]] = {}
    left_out = []
    for name in names:
        values = _values(path, pa, name, table.column(name))
        if values is None:
            left_out.append(f"{name} ({table.schema.field(name).type})")
        else:
            columns[name] = values
    if left_out:
        log.warning("%s: left out %s, which hold no numbers", path, ", ".join(left_out))
        for axis in ("xyz", "x", "y", "z"):
            named = [text for text in left_out if text.startswith(f"{axis} (")]
            if named and not (axis != "xyz" and "xyz" in columns):
                raise DataError(path, f"column {named[0]} holds no numbers", "store floats or integers")
    return of_columns(path, columns, "column")


def _table(path: Path, pa: Any) -> Any:
    """All rows. Raises DataError for a Parquet file that unpacks to more than the machine's memory."""
    with path.open("rb") as file:
        head = file.read(4)
    # Not mapped: a file that shrinks while it is read would end the process.
    with pa.OSFile(str(path), "rb") as source:
        if head != b"PAR1":
            return pa.ipc.open_file(source).read_all()
        from pyarrow import parquet

        # Checksums are compared where the writer made them. The footer is asked for no more than the sizes of
        # its groups: pyarrow ends the process where what it says of their columns is damaged, but in a read.
        file = parquet.ParquetFile(source, page_checksum_verification=True)
        groups = range(file.metadata.num_row_groups)
        unpacked = sum(file.metadata.row_group(at).total_byte_size for at in groups)
        if unpacked > _MEMORY:
            cause = f"unpacks to {unpacked / 1e9:.1f} GB, this machine has {_MEMORY / 1e9:.1f}"
            raise DataError(path, cause, "cut it into files that fit")
        table = file.read()
        if table.num_rows != file.metadata.num_rows:
            cause = f"is damaged: it promises {file.metadata.num_rows} rows, it holds {table.num_rows}"
            raise DataError(path, cause, "copy it again")
        return table


def _values(path: Path, pa: Any, name: str, column: Any) -> NDArray[Any] | None:
    """The numbers of a column, (n,) or (n, w); None where it holds none."""
    kind = column.type
    if isinstance(kind, pa.BaseExtensionType):
        kind = kind.storage_type
        column = pa.chunked_array([chunk.storage for chunk in column.chunks], kind)
    if pa.types.is_dictionary(kind):
        kind = kind.value_type
        column = column.cast(kind) if _is_number(pa, kind) else column
    if _is_number(pa, kind):
        return _numbers(path, pa, name, column, kind)
    if not (pa.types.is_fixed_size_list(kind) or pa.types.is_list(kind) or pa.types.is_large_list(kind)):
        return None
    if not _is_number(pa, kind.value_type):
        return None
    _check_null(path, name, column)
    width = _width(pa, column)
    if not width:
        return None
    flat = pa.chunked_array([chunk.flatten() for chunk in column.chunks], kind.value_type)
    return _numbers(path, pa, name, flat, kind.value_type, width).reshape(-1, width)


def _is_number(pa: Any, kind: Any) -> bool:
    t = pa.types
    return bool(t.is_integer(kind) or t.is_floating(kind) or t.is_boolean(kind) or t.is_temporal(kind))


def _width(pa: Any, column: Any) -> int:
    """Numbers a row, 0 where rows differ in that."""
    if pa.types.is_fixed_size_list(column.type):
        return int(column.type.list_size)
    import pyarrow.compute as pc

    lengths = pc.list_value_length(column).to_numpy()
    return int(lengths[0]) if len(lengths) and (lengths == lengths[0]).all() else 0


def _numbers(path: Path, pa: Any, name: str, column: Any, kind: Any, width: int = 1) -> NDArray[Any]:
    _check_null(path, name, column, width)
    if pa.types.is_boolean(kind):
        column = column.cast(pa.uint8())
    elif pa.types.is_temporal(kind):
        log.info("%s: column %s holds %s, kept as whole numbers", path, name, kind)
        column = column.cast(pa.int32() if kind.bit_width == 32 else pa.int64())
    values: NDArray[Any] = column.to_numpy()
    return values


def _check_null(path: Path, name: str, column: Any, width: int = 1) -> None:
    if not column.null_count:
        return
    row = int(np.flatnonzero(column.is_null().to_numpy())[0]) // width
    raise DataError(path, f"column '{name}' has no value in row {row}", "fill it, or leave such rows out")
