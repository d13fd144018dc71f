"""``tamis convert``: datasets to tars in the manner of WebDataset or to TFRecord files, and back."""

from __future__ import annotations

import os
import shutil
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from glob import escape
from pathlib import Path
from typing import Literal

import pyarrow as pa
from crc32c import crc32c

from ..errors import DataError, UsageError, system_error
from ..files import sync
from . import convert_in, convert_out, manifest
from .convert_read import Kind
from .dataset import Dataset, folder_of
from .tfrecord import masked

To = Literal["dataset", "webdataset", "tfrecord"]

PASSED = (".idx", ".index", ".json", ".md", ".txt", ".yaml")
"""Suffixes of files that lie beside those that are read, as an index does."""


def convert(path: Path, out: Path, to: To | None = None, shard_mb: int | None = None) -> str:
    """Write the samples of ``path`` to the folder ``out`` in another format, and tell how many they are.

    ``path``: a dataset, a tar or TFRecord file, or a folder of one kind of them. ``to``: by default
    webdataset for a dataset and dataset for others. ``shard_mb``: MiB of arrays a shard holds at most, by
    default those of the dataset, else 64. ``out`` is there whole at the end, or not at all.

    Samples of files that this wrote come back as they were; others' as docs/convert.md says. Raises
    UsageError for an ``out`` that is not empty and for what cannot be converted, DataError for damage, with
    the file and the byte, and for a disk that fails.
    """
    dataset = _is_dataset(path)
    to = to or ("webdataset" if dataset else "dataset")
    if dataset == (to == "dataset"):
        cause = "is a dataset already" if dataset else "is no dataset, which alone becomes " + to
        raise UsageError(path, cause, "choose another --to" if dataset else "convert it to a dataset first")
    if shard_mb is not None and shard_mb < 1:
        raise UsageError("--shard-mb", f"is {shard_mb}", "give 1 or more")
    with _whole(path, out) as folder:
        if to == "dataset":
            files, kind = _files(path)
            return f"{out}: {convert_in.write(path, files, kind, folder, shard_mb)}"
        opened = Dataset(path)
        limit = shard_mb or int(opened.manifest.configuration.get("shard_mb", 64))
        count = convert_out.write(opened, folder, to, limit)
        return f"{out}: {len(opened):,} samples in {count:,} files"


def _is_dataset(path: Path) -> bool:
    return any((folder / manifest.NAME).is_file() for folder in (path, path / "dataset"))


@contextmanager
def _whole(path: Path, out: Path) -> Iterator[Path]:
    """A folder beside ``out`` that becomes it at the end; nothing stays of one that fails.

    What killed runs left of theirs is removed. A failing disk becomes one line.
    """
    out = Path(os.path.realpath(out))
    temporary = out.with_name(f".{out.name}.{os.getpid()}.tmp")
    try:
        _check_out(path, out)
        out.parent.mkdir(parents=True, exist_ok=True)
        for left in out.parent.glob(f".{escape(out.name)}.*.tmp"):
            number = left.name.split(".")[-2]
            if number.isdecimal() and not Path("/proc", number).exists():
                shutil.rmtree(left, ignore_errors=True)
        shutil.rmtree(temporary, ignore_errors=True)
        temporary.mkdir()
        yield temporary
        sync(temporary)
        temporary.rename(out)
        sync(out.parent)
    except (OSError, pa.ArrowException) as error:
        shutil.rmtree(temporary, ignore_errors=True)
        plain = error if isinstance(error, OSError) else OSError(str(error))
        if str(plain.filename or temporary).startswith(str(temporary)):
            plain = OSError(plain.errno, plain.strerror or str(plain))
        raise system_error(plain, out) from None
    except BaseException:
        shutil.rmtree(temporary, ignore_errors=True)
        raise


def _check_out(path: Path, out: Path) -> None:
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise UsageError(out, "exists and is no empty folder", "choose another OUT")
    if out.is_mount():
        raise UsageError(out, "is where a disk is mounted", "name a folder in it")
    source = Path(os.path.realpath(folder_of(path) if _is_dataset(path) else path))
    if source.is_dir() and out.is_relative_to(source):
        raise UsageError(out, "lies in the input", "choose another OUT")


def _files(path: Path) -> tuple[list[Path], Kind]:
    """The files of samples at or below ``path``, sorted, and what they are."""
    if not path.exists():
        raise DataError(path, "no such file or folder", "check the path")
    found: dict[Path, Kind] = {}
    for file in sorted(path.rglob("*")) if path.is_dir() else [path]:
        if not file.is_file() or (path.is_dir() and _is_beside(file.relative_to(path))):
            continue
        kind = _kind_of(file)
        if kind is None:
            fix = "unpack it if it is compressed, or name what is to be converted"
            raise DataError(file, "is neither a tar nor a TFRecord file", fix)
        found[file] = kind
    kinds = sorted(set(found.values()))
    if not found:
        raise DataError(path, "holds no dataset, tar or TFRecord file", "check the path")
    if len(kinds) > 1:
        raise DataError(path, "holds tars and TFRecord files", "name the folder of one kind")
    return [*found], kinds[0]


def _is_beside(file: Path) -> bool:
    """Whether a file of a folder is none of samples by its name: hidden, a mark as Spark's, an index."""
    hidden = any(part.startswith(".") for part in file.parts)
    return hidden or file.name.startswith("_") or file.suffix.lower() in PASSED


def _kind_of(path: Path) -> Kind | None:
    """Told by the first bytes; by the name where they are damaged, or there are none."""
    try:
        with path.open("rb") as file:
            head = file.read(512)
    except OSError as error:
        raise system_error(error, path) from None
    if len(head) >= 12 and struct.pack("<I", masked(crc32c(head[:8]))) == head[8:12]:
        return "tfrecord"
    name = path.name.lower()
    if head[257:262] == b"ustar" or name.endswith(".tar"):
        return "tar"
    return "tfrecord" if ".tfrecord" in name else None  # as in a.tfrecord-00000-of-00002
