"""Raw files are opened in one way: what the system says against it is told as of any other bad file."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from ...errors import DataError


@contextmanager
def opening(path: Path) -> Iterator[BinaryIO]:
    """A file to read from. Raises DataError for an OSError, then or while it is read."""
    try:
        with path.open("rb") as file:
            yield file
    except OSError as error:
        raise DataError(path, f"cannot be read ({error.strerror})", "check the path") from None
