"""Samples of NPY files: members of tars in the manner of WebDataset, or files of a folder."""

from __future__ import annotations

import io
import logging
import math
import tarfile
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import IO, Annotated, Any, Literal, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray
from pydantic import AfterValidator
from pydantic import Field as Limits

from ..config import ConfigPath, Model
from ..errors import DataError, system_error
from . import dali
from .dali_opened import READER, Opened, field_of, folder_of, relative
from .records import Field

_log = logging.getLogger(__name__)

T = TypeVar("T")

_RULE = "an extension is all that follows the first dot of a file's name: mend the columns or the files"
_BLOCK = 512  # of a tar
_HEADER = 1 << 16  # NPY headers are shorter


def _extensions(columns: dict[str, str]) -> dict[str, str]:
    for name, extension in columns.items():
        if extension.split(".")[-1] != "npy" or any(c.isspace() or c in ";/" for c in extension):
            raise ValueError(f"column {name} has extension {extension!r}: give one like 'xyz.npy'")
    if len(set(columns.values())) < len(columns):
        raise ValueError("two columns have the same extension")
    return columns


Extensions = Annotated[dict[str, str], Limits(min_length=1), AfterValidator(_extensions)]
"""Column -> extension of its NPY file: all that follows the first dot of the file's name."""


class WebdatasetSource(Model):
    """Plain tars. A sample: the members whose paths are alike up to the first dot of their last part."""

    kind: Literal["webdataset"] = "webdataset"
    paths: tuple[ConfigPath, ...] = Limits(min_length=1)
    columns: Extensions


class NumpySource(Model):
    """The files of a folder and of the folders in it; a sample as in a tar."""

    kind: Literal["numpy"] = "numpy"
    root: ConfigPath
    columns: Extensions


class Member(NamedTuple):
    """Where in a tar the contents of a member are; ``whole``: they are there, in one piece."""

    offset: int
    size: int
    whole: bool


class OpenedTars(Opened):
    """Raises DataError for a tar that is damaged or cut, and a sample that lacks a component."""

    def __init__(self, settings: WebdatasetSource) -> None:
        self._columns = settings.columns
        where = folder_of(settings.paths)
        self._tars = {path: grouped(path, members(path), self._columns) for path in settings.paths}
        fields: dict[str, Field] = {}
        for path, tar in self._tars.items():
            for sample, own in tar.items():
                if not all(member.whole for member in own):
                    raise DataError(
                        path, f"sample '{sample}' has a link or a sparse file", "store whole files"
                    )
                fields = fields or self._first_fields(path, sample, own)
        short = dict(zip(self._tars, relative([*self._tars]), strict=True))
        samples = [(f"{short[path]}/{sample}", 0) for path, tar in self._tars.items() for sample in tar]
        super().__init__(where, samples, fields, [*self._tars.values()])

    def _first_fields(self, path: Path, sample: str, own: list[Member]) -> dict[str, Field]:
        fields = {}
        with path.open("rb") as tar:
            for name, member in zip(self._columns, own, strict=True):
                tar.seek(member.offset)
                where = f"{path}: sample {sample}"
                try:
                    shape, _, dtype = npy_header(io.BytesIO(tar.read(min(member.size, _HEADER))))
                except ValueError as error:
                    raise DataError(where, f"column {name} {error}", "write it again") from None
                fields[name] = field_of(where, name, dtype, shape)
        return fields

    def nodes(self, folder: Path, **options: Any) -> tuple[Any, ...]:
        """See `Opened`. DALI is given an index of the wanted members, with the sample's number for a name."""
        indices, number = [], 0
        for place, tar in enumerate(self._tars.values()):
            lines = [f"v1.2 {len(tar)}"]
            for own in tar.values():
                parts = zip(self._columns.values(), own, strict=True)
                lines.append(" ".join(f"{name} {m.offset} {m.size} {number}" for name, m in parts))
                number += 1
            indices.append(folder / f"{place}.index")
            indices[-1].write_text("\n".join(lines) + "\n")
        fn = dali.module("fn")
        columns = fn.readers.webdataset(
            paths=[str(path) for path in self._tars],
            index_paths=[str(path) for path in indices],
            ext=[*self._columns.values()],
            missing_component_behavior="error",
            dont_use_mmap=True,  # a file that is cut under its map ends the process
            name=READER,
            **options,
        )
        columns = columns if isinstance(columns, list | tuple) else [columns]
        return (*columns, fn.get_property(columns[0], key="source_info"))

    def number(self, origin: str) -> int:
        """See `Opened`."""
        return int(origin.rpartition(":")[2])

    def column(self, name: str, raw: NDArray[Any]) -> NDArray[Any]:  # noqa: ARG002
        """See `Opened`."""
        return npy(raw)


class OpenedFolder(Opened):
    """Raises DataError for a file that is not a whole NPY file of a dtype DALI reads, and a missing one."""

    def __init__(self, settings: NumpySource) -> None:
        root = settings.root.absolute()
        if not root.is_dir():
            raise DataError(root, "is no folder", "check the path")
        found = sorted(path for path in root.rglob("*") if path.is_file())
        samples = grouped(root, ((p.relative_to(root).as_posix(), p) for p in found), settings.columns)
        self._files = dict(zip(settings.columns, zip(*samples.values(), strict=True), strict=bool(samples)))
        self._numbers = {str(path): i for files in self._files.values() for i, path in enumerate(files)}
        fields: dict[str, Field] = {}
        for name, files in self._files.items():
            for path in files:
                field = _field_of_file(path, name)
                first = fields.setdefault(name, field)
                if field != first:
                    cause = (
                        f"has rows of {field.width} {field.dtype}, {files[0]} of {first.width} {first.dtype}"
                    )
                    raise DataError(path, cause, "store the files of a column alike")
        sizes = [path.stat().st_size for own in samples.values() for path in own]
        super().__init__(root, [(sample, 0) for sample in samples], fields, sizes)

    def nodes(self, folder: Path, **options: Any) -> tuple[Any, ...]:  # noqa: ARG002
        """See `Opened`. A reader a column: as they have the same seed they draw the same order."""
        fn = dali.module("fn")
        columns = [
            fn.readers.numpy(
                files=[str(path) for path in files],
                dont_use_mmap=True,
                name=f"{READER}{place or ''}",
                **options,
            )
            for place, files in enumerate(self._files.values())
        ]
        return (*columns, *(fn.get_property(column, key="source_info") for column in columns))

    def number(self, origin: str) -> int:
        """See `Opened`."""
        return self._numbers[origin]

    def column(self, name: str, raw: NDArray[Any]) -> NDArray[Any]:  # noqa: ARG002
        """See `Opened`."""
        return raw


def members(path: Path) -> Iterator[tuple[str, Member]]:
    """Name and place of every member of a plain tar but its folders; DataError where it is damaged or cut."""
    end = 0
    try:
        with path.open("rb") as file, tarfile.open(fileobj=file, mode="r:") as tar:
            for one in tar:
                stored = one.size if one.isreg() else 0
                end = one.offset_data + -(-stored // _BLOCK) * _BLOCK
                if not one.isdir():
                    yield one.name, Member(one.offset_data, one.size, one.isreg() and not one.issparse())
            _check_end(path, file, end)
    except tarfile.TarError as error:
        raise DataError(
            path, f"is not a whole, plain tar ({error})", "write it again, uncompressed"
        ) from None
    except OSError as error:
        raise system_error(error, path) from None


def _check_end(path: Path, file: IO[bytes], end: int) -> None:
    """Refuse a tar that lacks its end, two empty blocks, or has anything but empty blocks after them."""
    file.seek(end)
    if file.read(2 * _BLOCK) != bytes(2 * _BLOCK):
        raise DataError(path, f"is cut or damaged at byte {end}: no end-of-archive marker", "fetch it again")
    while rest := file.read(1 << 20):
        if rest.strip(b"\0"):
            cause = f"has data after its end-of-archive marker at byte {end}"
            raise DataError(path, cause, "do not join tars end to end: list each")


def grouped(where: Path, files: Iterable[tuple[str, T]], columns: Mapping[str, str]) -> dict[str, list[T]]:
    """Samples by name, each with the value that ``files`` (name, value) have for each column.

    DataError names a sample that has only some of the columns, or one twice. Files of samples that have none
    are left out, and a warning names the first; files whose name begins with a dot are passed over.
    """
    wanted = [*columns.values()]
    found: dict[str, dict[str, T]] = {}
    for path, value in files:
        folder, slash, base = path.removeprefix("./").rpartition("/")
        stem, _, extension = base.partition(".")
        own = found.setdefault(f"{folder}{slash}{stem}", {}) if stem else {}
        if extension in own and extension in wanted:
            raise DataError(
                where, f"sample '{folder}{slash}{stem}' has {extension!r} twice", "write it again"
            )
        own[extension] = value
    samples, strangers = {}, []
    for name, own in found.items():
        lacking = [extension for extension in wanted if extension not in own]
        if not lacking:
            samples[name] = [own[extension] for extension in wanted]
        elif len(lacking) < len(wanted):
            raise _lacks(where, name, lacking[0], wanted, own)
        else:
            strangers.append(name)
    if strangers and not samples:
        raise _lacks(where, strangers[0], wanted[0], wanted, found[strangers[0]])
    if strangers:
        _log.warning("%s: '%s' and %d others have no column", where, strangers[0], len(strangers) - 1)
    return samples


def _lacks(where: Path, name: str, lacking: str, wanted: list[str], own: Iterable[str]) -> DataError:
    present = ", ".join(map(repr, sorted(own)))
    cause = f"sample '{name}' lacks {lacking!r}: wanted {', '.join(map(repr, wanted))}, present {present}"
    return DataError(where, cause, _RULE)


def npy_header(file: IO[bytes]) -> tuple[tuple[int, ...], bool, np.dtype[Any]]:
    """Shape, whether in Fortran order, and dtype of an NPY file, whose data come next; or ValueError."""
    try:
        if np.lib.format.read_magic(file) == (1, 0):
            return np.lib.format.read_array_header_1_0(file)
        return np.lib.format.read_array_header_2_0(file)
    # The header is Python text: a damaged one fails in the tokenizer, the parser or numpy's types.
    except Exception as error:  # noqa: BLE001
        raise ValueError(f"is not an NPY file ({error})") from None


def npy(raw: NDArray[np.uint8]) -> NDArray[Any]:
    """The array in the bytes of an NPY file, without a copy where it is native and in C order."""
    head = io.BytesIO(raw[:_HEADER].tobytes())
    shape, fortran, dtype = npy_header(head)
    _check_size(shape, dtype, len(raw) - head.tell())
    values = raw[head.tell() :].view(dtype)
    values = values.reshape(shape[::-1]).T if fortran else values.reshape(shape)
    return np.ascontiguousarray(values, dtype.newbyteorder("=")).reshape(shape)


def _check_size(shape: tuple[int, ...], dtype: np.dtype[Any], found: int) -> None:
    promised = math.prod(shape) * dtype.itemsize
    if dtype.hasobject or dtype.itemsize == 0:
        raise ValueError(f"has dtype {dtype}")
    if found != promised:
        raise ValueError(f"is not a whole NPY file: {found} bytes of data instead of {promised}")


def _field_of_file(path: Path, name: str) -> Field:
    try:
        with path.open("rb") as file:
            shape, _, dtype = npy_header(file)
            _check_size(shape, dtype, path.stat().st_size - file.tell())
    except ValueError as error:
        raise DataError(path, str(error), "write it again") from None
    except OSError as error:
        raise system_error(error, path) from None
    if dtype not in dali.DTYPES:
        raise DataError(path, f"has dtype {dtype}, which DALI does not read", "store native numbers")
    return field_of(path, name, dtype, shape)
