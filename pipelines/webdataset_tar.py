"""Tars in the manner of WebDataset: a sample is the members whose names are alike up to the first dot.

Written so that equal samples give equal bytes; read by place, so that samples may be taken in any order.
"""

from __future__ import annotations

import io
import tarfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..errors import DataError, system_error
from ..files import sync
from .dali_files import Member, members


@contextmanager
def writing(path: Path) -> Iterator[tarfile.TarFile]:
    """A tar to put members into; on the disk when the block ends."""
    with path.open("wb") as file:
        with tarfile.open(fileobj=file, mode="w", format=tarfile.GNU_FORMAT, encoding="utf-8") as tar:
            yield tar
        file.flush()
    sync(path)


def put(tar: tarfile.TarFile, name: str, data: bytes) -> None:
    """Add a member of nobody's, of no time, readable by all."""
    member = tarfile.TarInfo(name)
    member.size, member.mtime, member.mode = len(data), 0, 0o644
    member.uid = member.gid = 0
    member.uname = member.gname = ""
    tar.addfile(member, io.BytesIO(data))


def npy_bytes(values: NDArray[Any]) -> bytes:
    """The NPY file of an array."""
    file = io.BytesIO()
    np.lib.format.write_array(file, np.ascontiguousarray(values), allow_pickle=False)
    return file.getvalue()


def samples(path: Path) -> dict[str, dict[str, Member]]:
    """Key -> extension -> place of the samples of a tar, in stored order.

    As webdataset does, files whose name begins with a dot and ``__name__`` are passed over.
    Raises DataError, with the byte, for a damaged or cut tar, a member that is no plain file, and one that is
    there twice.
    """
    found: dict[str, dict[str, Member]] = {}
    for name, member in members(path):
        folder, slash, base = name.removeprefix("./").rpartition("/")
        stem, _, extension = base.partition(".")
        if not stem or (not slash and base.startswith("__") and base.endswith("__")):
            continue
        where = f"{path}: member '{name}' at byte {member.offset}"
        if not member.whole:
            raise DataError(where, "is a link or a sparse file", "store whole files")
        own = found.setdefault(f"{folder}{slash}{stem}", {})
        if extension in own:
            raise DataError(where, "is there twice", "write it again")
        own[extension] = member
    return found


def content(path: Path, member: Member) -> bytes:
    """The bytes of a member."""
    try:
        with path.open("rb") as file:
            file.seek(member.offset)
            data = file.read(member.size)
    except OSError as error:
        raise system_error(error, path) from None
    if len(data) < member.size:
        raise DataError(path, f"ends at byte {member.offset + len(data)}, inside a member", "fetch it again")
    return data
