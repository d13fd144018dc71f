"""Files that are whole or absent: atomic writes, and a lock on a folder."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from glob import escape
from pathlib import Path

from .errors import DataError, UsageError, system_error


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

    A reader sees the old file or the whole new one. On failure the temporary file is removed, and an error of
    the system that names it, or no file, names ``path``.
    """
    temporary = _temporary(path)
    try:
        yield temporary
        sync(temporary)
        temporary.replace(path)
        sync(path.parent)
    except BaseException as error:
        with suppress(OSError):  # it may be what could not be made
            temporary.unlink(missing_ok=True)
        if isinstance(error, OSError) and error.errno and str(error.filename or temporary) == str(temporary):
            error.filename = str(path)
        raise


def _temporary(path: Path) -> Path:
    return path.with_name(f".{path.name}.{os.getpid()}.tmp")


def prepare(path: Path, source: Path | None = None) -> None:
    """Refuse a ``path`` that cannot be written, or is the ``source``, before the work for it is done.

    A temporary file comes and goes, and those go that `atomic` left because its process was killed.
    Raises UsageError for a folder, or none to write in, and for the source, and DataError where the system
    refuses.
    """
    try:
        if not path.parent.is_dir():
            raise UsageError(path, "its folder does not exist", "make it first")
        if path.is_dir():
            raise UsageError(path, "is a folder", "name a file")
        if source is not None and path.exists() and source.exists() and path.samefile(source):
            raise UsageError(path, "is the input itself", "name another output")
        temporary = _temporary(path)
        temporary.touch()
        temporary.unlink()
        for left in path.parent.glob(f".{escape(path.name)}.*.tmp"):
            number = left.name.split(".")[-2]
            if number.isdecimal() and not Path("/proc", number).exists():
                left.unlink(missing_ok=True)
    except OSError as error:
        raise system_error(OSError(error.errno, error.strerror), path) from None


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
