"""The error of a rank as a file, where the command that started the ranks finds it. Free of torch."""

from __future__ import annotations

import json
import os
import sys
import time
import traceback
from contextlib import suppress
from pathlib import Path
from typing import Any

from ...errors import TamisError, system_error

_ROOM = 1 << 16  # bytes: more than an error takes, unless it names thousands of samples


def take_room(file: Path) -> None:
    """Take the space of an error on the disk now: it may be that the disk is full then."""
    with suppress(OSError):
        _room(file).write_bytes(bytes(_ROOM))


def tell(file: Path, error: BaseException) -> None:
    """Write an error to ``file``, unless one is there: what follows the first is its echo."""
    if file.exists():
        return
    if isinstance(error, OSError):
        error = system_error(error, "a rank")
    whole = error.plain() if isinstance(error, TamisError) else {}
    trace = "".join(traceback.format_exception(error))[-_ROOM // 4 :]
    text = json.dumps({"told_s": time.time(), "trace": trace, **whole})
    room = _room(file)
    try:
        with os.fdopen(os.open(room, os.O_RDWR | os.O_CREAT, 0o666), "wb") as opened:  # not cut first
            opened.write(text.encode())
            opened.truncate()
        room.rename(file)  # another process reads it while this one may be killed
    except OSError:
        print(f"tamis: {error}", file=sys.stderr)  # noqa: T201 - there is no other way left


def told(file: Path) -> dict[str, Any] | None:
    """What was told: ``told_s``, ``trace``, and what `TamisError.plain` gives; None where nothing was."""
    found: dict[str, Any] | None = json.loads(file.read_bytes()) if file.exists() else None
    return found


def _room(file: Path) -> Path:
    return file.with_suffix(".room")
