"""Parquet, and Arrow IPC files (Feather), through pyarrow: a row a point, a column a field."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager
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

    with _damage_told(path), pa.OSFile(str(path), "rb") as source:
        table = _table(path, pa, source)
        table.validate(full=True)
    return _scan(path, pa, table, 0)


def chunks(path: Path, settings: ReadSettings, rows: int) -> Iterator[Scan] | None:  # noqa: ARG001
    """As `read`, at most ``rows`` at a time; None where all rows must be seen to tell how long lists are."""
    import pyarrow as pa

    with _damage_told(path), pa.OSFile(str(path), "rb") as source:
        schema = _parquet(source).schema_arrow if _is_parquet(path) else pa.ipc.open_file(source).schema
    return _pieces(path, pa, rows) if _is_even(pa, schema) else None


def rows(path: Path, settings: ReadSettings) -> int | None:  # noqa: ARG001 (it says all itself)
    """How many rows there are; None as of `chunks`, and for Feather where pyarrow cannot count them."""
    import pyarrow as pa

    with _damage_told(path), pa.OSFile(str(path), "rb") as source:
        if _is_parquet(path):
            file = _parquet(source)
            return int(file.metadata.num_rows) if _is_even(pa, file.schema_arrow) else None
        file = pa.ipc.open_file(source)
        counts = hasattr(file, "count_rows")  # since 26
        return int(file.count_rows()) if counts and _is_even(pa, file.schema) else None


def _is_even(pa: Any, schema: Any) -> bool:
    """Whether the types of all columns say how many numbers a row has."""
    kinds = [_stored(pa, kind) for kind in schema.types]
    return not any(pa.types.is_list(kind) or pa.types.is_large_list(kind) for kind in kinds)


def _pieces(path: Path, pa: Any, most: int) -> Iterator[Scan]:
    done = 0
    with _damage_told(path):
        source = pa.OSFile(str(path), "rb")
    with source:
        tables = _tables(path, pa, source, most)
        while True:
            with _damage_told(path):
                table = next(tables, None)
                if table is None:
                    return
                table.validate(full=True)
            yield _scan(path, pa, table, done)
            done += table.num_rows


def _tables(path: Path, pa: Any, source: Any, most: int) -> Iterator[Any]:
    """The rows, ``most`` a table; one table at least."""
    if not _is_parquet(path):
        file = pa.ipc.open_file(source)
        promised, schema = None, file.schema
        batches = (file.get_batch(at) for at in range(file.num_record_batches))
    else:
        file = _parquet(source)
        promised, schema = file.metadata.num_rows, file.schema_arrow
        batches = file.iter_batches(batch_size=most)
    held, done = schema.empty_table(), 0
    waiting: list[Any] = []
    for batch in batches:
        waiting.append(batch)
        done += batch.num_rows
        if held.num_rows + sum(part.num_rows for part in waiting) < most:
            continue
        held = pa.concat_tables([held, pa.Table.from_batches(waiting, schema)])
        waiting.clear()
        for at in range(0, held.num_rows - most + 1, most):
            yield held.slice(at, most)
        held = held.slice(held.num_rows // most * most)
    if promised not in (None, done):
        raise _too_few(path, promised, done)
    held = pa.concat_tables([held, pa.Table.from_batches(waiting, schema)])
    if held.num_rows or not done:
        yield held


def _scan(path: Path, pa: Any, table: Any, first: int) -> Scan:
    """The cloud of a table whose first row is row ``first`` of the file."""
    names = table.column_names
    twice = [name for at, name in enumerate(names) if name in names[:at]]
    if twice:
        raise DataError(path, f"has two columns '{twice[0]}'", "rename one")
    columns: dict[str, NDArray[Any]] = {}
    left_out = []
    for name in names:
        values = _values(path, pa, name, table.column(name), first)
        if values is None:
            left_out.append(f"{name} ({table.schema.field(name).type})")
        else:
            columns[name] = values
    if left_out:
        if not first:
            log.warning("%s: left out %s, which hold no numbers", path, ", ".join(left_out))
        for axis in ("xyz", "x", "y", "z"):
            named = [text for text in left_out if text.startswith(f"{axis} (")]
            if named and not (axis != "xyz" and "xyz" in columns):
                raise DataError(path, f"column {named[0]} holds no numbers", "store floats or integers")
    return of_columns(path, columns, "column")


@contextmanager
def _damage_told(path: Path) -> Iterator[None]:
    """Tell what pyarrow raises, its own kinds and Python's, as a DataError."""
    try:
        yield
    except DataError:
        raise
    # On what is damaged none of them is a bug of ours.
    except (Exception, MemoryError) as error:  # noqa: BLE001
        cause = f"is a damaged or cut table ({type(error).__name__}: {error})"
        raise DataError(path, cause, "copy it again") from None


def _is_parquet(path: Path) -> bool:
    with path.open("rb") as file:
        return file.read(4) == b"PAR1"


def _parquet(source: Any) -> Any:
    """A Parquet file. Checksums are compared where the writer made them.

    The footer is asked for no more than the sizes of its groups: pyarrow ends the process where what it says
    of their columns is damaged, but in a read.
    """
    from pyarrow import parquet

    return parquet.ParquetFile(source, page_checksum_verification=True)


def _table(path: Path, pa: Any, source: Any) -> Any:
    """All rows. Raises DataError for a Parquet file that unpacks to more than the machine's memory.

    ``source`` is not mapped: a file that shrinks while it is read would end the process.
    """
    if not _is_parquet(path):
        return pa.ipc.open_file(source).read_all()
    file = _parquet(source)
    groups = range(file.metadata.num_row_groups)
    unpacked = sum(file.metadata.row_group(at).total_byte_size for at in groups)
    if unpacked > _MEMORY:
        cause = f"unpacks to {unpacked / 1e9:.1f} GB, this machine has {_MEMORY / 1e9:.1f}"
        raise DataError(path, cause, "cut it into files that fit")
    table = file.read()
    if table.num_rows != file.metadata.num_rows:
        raise _too_few(path, file.metadata.num_rows, table.num_rows)
    return table


def _too_few(path: Path, promised: int, held: int) -> DataError:
    cause = f"is damaged: it promises {promised} rows, it holds {held}"
    return DataError(path, cause, "copy it again")


def _stored(pa: Any, kind: Any) -> Any:
    """What a type is stored as, an extension's and a dictionary's values too."""
    if isinstance(kind, pa.BaseExtensionType):
        kind = kind.storage_type
    return kind.value_type if pa.types.is_dictionary(kind) else kind


def _values(path: Path, pa: Any, name: str, column: Any, first: int) -> NDArray[Any] | None:
    """The numbers of a column, (n,) or (n, w); None where it holds none. ``first``: as of `_scan`."""
    kind = column.type
    if isinstance(kind, pa.BaseExtensionType):
        kind = kind.storage_type
        column = pa.chunked_array([chunk.storage for chunk in column.chunks], kind)
    if pa.types.is_dictionary(kind):
        kind = kind.value_type
        column = column.cast(kind) if _is_number(pa, kind) else column
    if _is_number(pa, kind):
        return _numbers(path, pa, name, column, kind, first)
    if not (pa.types.is_fixed_size_list(kind) or pa.types.is_list(kind) or pa.types.is_large_list(kind)):
        return None
    if not _is_number(pa, kind.value_type):
        return None
    _check_null(path, name, column, first)
    width = _width(pa, column)
    if not width:
        return None
    flat = pa.chunked_array([chunk.flatten() for chunk in column.chunks], kind.value_type)
    if len(flat) != len(column) * width:
        # Of a slice, which pyarrow does not check as it does the whole.
        cause = f"column '{name}' is damaged: {len(flat)} numbers in {len(column)} rows of {width}"
        raise DataError(path, cause, "copy it again")
    return _numbers(path, pa, name, flat, kind.value_type, first, width).reshape(-1, width)


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


def _numbers(
    path: Path, pa: Any, name: str, column: Any, kind: Any, first: int, width: int = 1
) -> NDArray[Any]:
    _check_null(path, name, column, first, width)
    if pa.types.is_boolean(kind):
        column = column.cast(pa.uint8())
    elif pa.types.is_temporal(kind):
        if not first:
            log.info("%s: column %s holds %s, kept as whole numbers", path, name, kind)
        column = column.cast(pa.int32() if kind.bit_width == 32 else pa.int64())
    values: NDArray[Any] = column.to_numpy()
    return values


def _check_null(path: Path, name: str, column: Any, first: int, width: int = 1) -> None:
    if not column.null_count:
        return
    row = first + int(np.flatnonzero(column.is_null().to_numpy())[0]) // width
    raise DataError(path, f"column '{name}' has no value in row {row}", "fill it, or leave such rows out")
