"""A dataset on disk, opened: everything a plan needs is mapped, nothing is read until it is asked for."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from ..errors import DataError, UsageError
from ..lazy import lazy
from . import manifest, shards
from .checks import blocks, damaged_chunks, first_damage
from .manifest import Figures, Manifest, Range
from .records import Field, Sample


def folder_of(path: str | Path) -> Path:
    """The folder of a dataset: ``path`` itself or its ``dataset``. Raises DataError where there is none."""
    path = Path(path)
    for folder in (path, path / "dataset"):
        if (folder / manifest.NAME).is_file():
            return folder
    if not path.exists():
        raise DataError(path, "no such dataset", "check the path, or build it with `tamis build`")
    if (path / "dataset.building").exists():
        raise DataError(path, "holds an unfinished build", "run the same build again, it continues")
    raise DataError(
        path, f"holds no dataset ({manifest.NAME} is missing)", "name a folder that `tamis build` wrote"
    )


class Dataset:
    """A built dataset, at its own folder or the folder that holds ``dataset/``.

    Raises DataError where it is missing, incomplete, damaged or of another version. ``dataset.json`` and the
    tables are checked when they are first used, the bytes of shards when they are read.

    ``schema`` and ``annotations``: the fields of the columns, and of the arrays with rows of their own.
    ``ids`` uint64, ``rows`` int64, ``shard`` int32 and ``block`` int64, all (samples,): identity, number of
    rows of the columns, shard and first row in `checks` of each sample. ``positions``: column or annotation
    -> int64 (samples,), its byte position in `shard_path`.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = folder_of(path)
        text = contents(self.path / manifest.NAME)
        self.manifest: Manifest = manifest.unseal(self.path / manifest.NAME, text)
        for name, digest in self.manifest.files.items():
            _check_size(self.path / name, digest.bytes)
        self.schema: dict[str, Field] = {column.name: column.field() for column in self.manifest.columns}
        self.annotations: dict[str, Field] = {one.name: one.field() for one in self.manifest.annotations}
        self.fields: dict[str, Field] = self.schema | self.annotations
        self._check(shards.INDEX)
        index = table(self.path / shards.INDEX)
        self.ids: NDArray[np.uint64] = index["id"]
        self.rows: NDArray[np.int64] = index["rows"]
        self.shard: NDArray[np.int32] = index["shard"]
        self.block: NDArray[np.int64] = index["block"]
        self.positions: dict[str, NDArray[np.int64]] = {name: index[f"pos_{name}"] for name in self.fields}
        self._own = {name: (index[f"rows_{name}"], index[f"block_{name}"]) for name in self.annotations}

    def __repr__(self) -> str:
        return f"Dataset({str(self.path)!r}, {len(self)} samples, row order {self.row_order})"

    def __len__(self) -> int:
        return len(self.ids)

    def __reduce__(self) -> tuple[type[Dataset], tuple[Path]]:
        return Dataset, (self.path,)  # mapped memory does not cross processes

    @property
    def fingerprint(self) -> str:
        """Digest of the content: equal for equal datasets, wherever they lie."""
        return self.manifest.fingerprint

    @property
    def classes(self) -> list[str]:
        """Class names; the label of a row is a position in this list, or -1."""
        return self.manifest.classes

    @property
    def splits(self) -> dict[str, list[Range]]:
        """Split -> ranges of shards and index rows. Only splits that hold samples."""
        return self.manifest.splits

    @property
    def row_order(self) -> str:
        """Order of the rows in a sample: "farthest", "random" or "source"."""
        return self.manifest.row_order

    @property
    def statistics(self) -> dict[str, Figures]:
        """Column -> figures over the train split, or over all where there is none."""
        return self.manifest.statistics

    def shard_path(self, shard: int, name: str | None = None) -> Path:
        """The file of a shard that holds ``name``: its columns are in one, each annotation in its own."""
        return self.path / shards.shard_name(shard, name if name in self.annotations else None)

    def rows_of(self, name: str) -> NDArray[np.int64]:
        """Number of rows of each sample's ``name``, int64 (samples,): ``rows``, or an annotation's own."""
        return self._own[name][0] if name in self._own else self.rows

    def block_of(self, name: str) -> NDArray[np.int64]:
        """First row of each sample's ``name`` in `checks`, int64 (samples,)."""
        return self._own[name][1] if name in self._own else self.block

    @lazy
    def checks(self) -> dict[str, NDArray[np.uint32]]:
        """Column or annotation -> uint32 (blocks,), mapped: running CRC32C at the end of every 256 rows.

        Sample i has blocks ``block_of(name)[i]`` to ``block_of(name)[i] + ceil(rows_of(name)[i] / 256)``.
        """
        sums: dict[str, NDArray[np.uint32]] = {}
        for own in [*([None] if self.schema else []), *self.annotations]:
            self._check(shards.checksums_name(own))
            sums |= table(self.path / shards.checksums_name(own))
        return sums

    @lazy
    def samples(self) -> pa.RecordBatch:
        """``samples.arrow``: name, source, tile, origin, bounds, label and split of each sample, mapped."""
        self._check(shards.SAMPLES)
        return shards.opened(self.path / shards.SAMPLES)[0].get_batch(0)

    def sample(self, row: int, columns: Sequence[str] | None = None) -> Sample:
        """Read one sample whole and check it; ``columns``, and annotations, limits what is read.

        Raises UsageError for a row or column that is not there, DataError, with the offset, for damage.
        """
        if not 0 <= row < len(self):
            raise UsageError(
                "row", f"{row} is not among the {len(self)} samples", f"give 0 to {len(self) - 1}"
            )
        names = list(self.fields) if columns is None else list(columns)
        for name in names:
            if name not in self.fields:
                raise UsageError("columns", f"there is no '{name}'", f"choose among {', '.join(self.fields)}")
        about = {
            name: self.samples.column(name)[row].as_py() for name in ("name", "source", "tile", "origin")
        }
        return Sample(
            columns={name: self._read(row, name) for name in names if name in self.schema},
            annotations={name: self._read(row, name) for name in names if name in self.annotations},
            kinds={name: self.fields[name].kind for name in names},
            origin=np.array(about.pop("origin"), np.float64),
            id=int(self.ids[row]),
            **about,
        )

    def _check(self, name: str) -> None:
        """Refuse a damaged table: a wrong position or origin would not show in what is read with it."""
        try:
            damage = next(damaged_chunks(self.path / name, self.manifest.files[name].crc32c), None)
        except OSError as error:
            raise _unreadable(self.path / name, error) from None
        if damage is not None:
            start, _, bit = damage
            offset = start if bit is None else start + bit // 8
            raise DataError(self.path / name, f"is damaged at offset {offset}", "copy the dataset again")

    def _read(self, row: int, name: str) -> NDArray[Any]:
        rows, block, field = int(self.rows_of(name)[row]), int(self.block_of(name)[row]), self.fields[name]
        path, position = self.shard_path(int(self.shard[row]), name), int(self.positions[name][row])
        array = field.empty(rows)
        data = array.reshape(-1).view(np.uint8).data
        try:
            with path.open("rb", buffering=0) as file:
                file.seek(position)
                taken = 0
                while taken < len(data) and (got := file.readinto(data[taken:])):
                    taken += got
        except OSError as error:
            raise _unreadable(path, error) from None
        if taken < len(data):
            raise DataError(path, f"ends at offset {position + taken}, inside a sample", "copy it again")
        sums = self.checks[name][block : block + blocks(rows)]
        damage = first_damage(data, sums, field.row_bytes)
        if damage is not None:
            where = f"sample {self.samples.column('name')[row]}, column {name}"
            raise DataError(path, f"is damaged at offset {position + damage} ({where})", "copy it again")
        return array


def contents(path: Path) -> bytes:
    """The bytes of a small file. Raises DataError where it cannot be read."""
    try:
        return path.read_bytes()
    except OSError as error:
        raise _unreadable(path, error) from None


def _check_size(path: Path, size: int) -> None:
    try:
        found = path.stat().st_size
    except OSError as error:
        raise _unreadable(path, error) from None
    if found != size:
        raise DataError(path, f"has {found} bytes, {size} were written", "copy it again")


def _unreadable(path: Path, error: OSError) -> DataError:
    """Only a file that is not there is mended by another copy."""
    missing = isinstance(error, FileNotFoundError)
    fix = (
        "copy the dataset again" if missing else "check its rights, the disk, and how many files may be open"
    )
    return DataError(path, f"cannot be read ({error.strerror or error})", fix)


def table(path: Path) -> dict[str, NDArray[Any]]:
    """The columns of a file with one record batch, mapped."""
    try:
        return shards.from_batch(shards.opened(path)[0].get_batch(0))
    except OSError as error:
        raise _unreadable(path, error) from None
    except (pa.ArrowException, ValueError, KeyError) as error:
        raise DataError(path, f"is damaged ({error})", "copy the dataset again") from None
