"""Tables beside scans, Arrow IPC (Feather) or Parquet, a column at a time."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...errors import DataError
from .layout import must_exist

_FIX = "copy it again"


def table(path: Path, names: Sequence[str]) -> Any:
    """A pyarrow.Table of some columns.

    Raises DataError where the file is missing, cut or damaged, and for a column that it lacks.
    """
    import pyarrow as pa
    from pyarrow import parquet

    must_exist(path, "a table of the dataset")
    try:
        with pa.OSFile(str(path), "rb") as source:
            if path.suffix == ".parquet":
                file = parquet.ParquetFile(source, page_checksum_verification=True)
                has(path, file.schema_arrow.names, names)
                found = file.read(columns=list(names))
            else:
                whole = pa.ipc.open_file(source).read_all()
                has(path, whole.column_names, names)
                found = whole.select(list(names))
        found.validate(full=True)
    # pyarrow raises its own kinds and Python's; on what is damaged none of them is a bug of ours.
    except (Exception, MemoryError) as error:  # noqa: BLE001
        raise damaged(path, error) from None
    return found


def damaged(path: Path, error: BaseException) -> DataError:
    """What pyarrow found, as one line."""
    if isinstance(error, DataError):
        return error
    return DataError(path, f"is a damaged or cut table ({type(error).__name__}: {error})", _FIX)


def numbers(path: Path, rows: Any, name: str, dtype: Any = np.float64) -> NDArray[Any]:
    """A column of numbers, (n,). Raises DataError for another kind, and for a row without a finite value."""
    column = rows.column(name)
    values = _filled(path, name, column)
    wanted = np.dtype(dtype)
    if values.dtype.kind not in ("iuf" if wanted.kind == "f" else "iu"):
        raise DataError(path, f"column '{name}' holds {column.type}, no numbers", _FIX)
    if values.dtype.kind == "f" and not np.isfinite(values).all():
        row = int(np.argmin(np.isfinite(values)))
        raise DataError(path, f"column '{name}' is {values[row]} in row {row}", _FIX)
    return values.astype(wanted)


def texts(path: Path, rows: Any, name: str) -> list[str]:
    """A column of texts. Raises DataError for another kind, and for a row without one."""
    column = rows.column(name)
    found: list[str] = _filled(path, name, column).tolist()
    if not all(isinstance(one, str) for one in found):
        raise DataError(path, f"column '{name}' holds {column.type}, no texts", _FIX)
    return found


def _filled(path: Path, name: str, column: Any) -> NDArray[Any]:
    if column.null_count:
        row = int(np.flatnonzero(column.is_null().to_numpy())[0])
        raise DataError(path, f"column '{name}' has no value in row {row}", _FIX)
    values: NDArray[Any] = column.to_numpy()
    return values


def has(path: Path, columns: Sequence[str], wanted: Sequence[str]) -> None:
    """Raise DataError where one of the ``wanted`` columns is lacking."""
    lacking = [name for name in wanted if name not in columns]
    if lacking:
        raise DataError(path, f"has no column '{lacking[0]}'", _FIX)
