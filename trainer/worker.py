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
from pathlib import Path
from types import TracebackType

from ..errors import TamisError, system_error

PR_SET_PDEATHSIG = 1


def main(out: Path, started_s: float, command: int) -> None:
    """Join the other ranks and run ``out/config.toml``. ``command``: the process that started this one."""
    _die_with(command)
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # the command tells of Ctrl-C, a rank just ends
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
            "py_callstack": "".join(traceback.format_exception(kind, error, trace)),
        },
    }
    whole = error.plain() if isinstance(error, TamisError) else {}
    temporary = path.with_suffix(".tmp")
    temporary.write_text(json.dumps({"message": told, "told_s": time.time(), **whole}), encoding="utf-8")
    temporary.rename(path)  # another process reads it while this one may be killed


if __name__ == "__main__":
    main(Path(sys.argv[1]), float(sys.argv[2]), int(sys.argv[3]))
