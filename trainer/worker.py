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
    from .parallel.data import data_parallel
    from .settings import Settings

    logging.basicConfig(format="tamis: %(message)s", level=logging.INFO)
    settings = load(out / "config.toml", [], Settings)
    with data_parallel(settings.layout.dp) as ranks:
        loop.run(settings, Dataset(settings.dataset_path(out)), out, ranks, started_s)


def _die_with(command: int) -> None:
    """Have the kernel kill this process when the command dies, even of kill -9: no orphan goes on writing."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != command:  # it died before the line above
        sys.exit(1)


def _tell(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    """Leave the error where the command finds it: one message then reaches the user, not one a rank."""
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
    path = Path(os.environ["TORCHELASTIC_ERROR_FILE"])
    path.write_text(json.dumps({"message": told, **whole}), encoding="utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]), float(sys.argv[2]), int(sys.argv[3]))
