"""Files that are whole or absent: atomic writes, and a lock on a folder."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from .errors import DataError


def sync(path: Path) -> None:
    """Flush a file, or a folder's entries, to the disk."""
    fd = os.open(path, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


@contextmanager
def atomic(path: Path) -> Iterator[Path]:
    """Yield a temporary path beside ``path``; on success it is flushed and renamed to ``path``.

    A reader sees the old file or the whole new one. On failure the temporary file is removed.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        yield temporary
        sync(temporary)
        temporary.replace(path)
        sync(path.parent)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def write_atomic(path: Path, data: bytes | str) -> None:
    """Write ``data`` to ``path`` so that it is there whole or not at all."""
    with atomic(path) as temporary:
        temporary.write_bytes(data.encode() if isinstance(data, str) else data)


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Hold ``folder`` alone (a kernel lock: it goes with the process, however that dies).

    It is made if it is not there, and removed again if nothing was put in. Raises DataError where another
    process holds it.
    """
    folder.mkdir(parents=True, exist_ok=True)
    fd = os.open(folder, os.O_RDONLY)
    try:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise DataError(
                folder, "another tamis process is writing here", "wait for it or choose another --out"
            ) from None
        try:
            yield
        finally:
            if not any(folder.iterdir()):
                folder.rmdir()
    finally:
        os.close(fd)
