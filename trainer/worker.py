"""One rank of a run: ``python -m tamis.trainer.worker OUT STARTED COMMAND``, as `launch` starts it."""

from __future__ import annotations

import ctypes
import json
import logging
import os
import signal
import sys
import time
import traceback
from contextlib import suppress
from pathlib import Path
from types import TracebackType

from ..errors import TamisError, system_error

PR_SET_PDEATHSIG = 1

_ROOM = 1 << 16  # bytes: more than an error takes, unless it names thousands of samples


def main(out: Path, started_s: float, command: int) -> None:
    """Join the other ranks and run ``out/config.toml``. ``command``: the process that started this one."""
    _die_with(command)
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # the command tells of Ctrl-C, a rank just ends
    _take_room()
    sys.excepthook = _tell

    from ..config import load  # here, as they take seconds in which all that may happen
    from ..pipelines.dataset import Dataset
    from . import loop
    from .mesh import joined
    from .settings import Settings

    logging.basicConfig(format="tamis: %(message)s", level=logging.INFO)
    settings = load(out / "config.toml", [], Settings)
    with joined(settings.layout) as mesh:
        try:
            loop.run(settings, Dataset(settings.dataset_path(out)), out, mesh, started_s)
        except Exception as error:
            # Before this rank leaves the group, which makes the others fail too.
            _tell(type(error), error, error.__traceback__)
            raise


def _die_with(command: int) -> None:
    """Have the kernel kill this process when the command dies, even of kill -9: no orphan goes on writing."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != command:  # it died before the line above
        sys.exit(1)


def _take_room() -> None:
    """Take the space of an error on the disk now: it may be that the disk is full."""
    with suppress(OSError):
        _room().write_bytes(bytes(_ROOM))


def _room() -> Path:
    return Path(os.environ["TORCHELASTIC_ERROR_FILE"]).with_suffix(".room")


def _tell(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    """Leave the error where the command finds it: one message then reaches the user, not one a rank."""
    path = Path(os.environ["TORCHELASTIC_ERROR_FILE"])
    if path.exists():
        return  # told before
    if isinstance(error, OSError):
        error = system_error(error, "a rank")
        kind = type(error)
    told = {
        "message": str(error),
        "extraInfo": {
            "timestamp": int(time.time()),
            "py_callstack": "".join(traceback.format_exception(kind, error, trace))[-_ROOM // 4 :],
        },
    }
    whole = error.plain() if isinstance(error, TamisError) else {}
    text = json.dumps({"message": told, "told_s": time.time(), **whole})
    room = _room()
    try:
        with os.fdopen(os.open(room, os.O_RDWR | os.O_CREAT, 0o666), "wb") as file:  # not cut first
            file.write(text.encode())
            file.truncate()
        room.rename(path)  # another process reads it while this one may be killed
    except OSError:
        print(f"tamis: {error}", file=sys.stderr)  # noqa: T201 - there is no other way left


if __name__ == "__main__":
    main(Path(sys.argv[1]), float(sys.argv[2]), int(sys.argv[3]))
