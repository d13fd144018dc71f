"""One rank of a run: ``python -m tamis.trainer.worker OUT STARTED COMMAND FILE``, as `launch` starts it."""

from __future__ import annotations

import logging
import os
import signal
import sys
from pathlib import Path
from typing import NoReturn

from .faults.orphans import die_with
from .faults.stopping import STOPPED, Stopped, let_in
from .faults.told import take_room, tell


def main(out: Path, started_s: float, command: int, file: Path) -> None:
    """Join the other ranks and run ``out/config.toml``.

    ``command``: the process that started this one; ``file``: for the error that ends this one.
    """
    die_with(command)
    if signal.getsignal(signal.SIGINT) != signal.SIG_IGN:  # as a job in the background has it
        signal.signal(signal.SIGINT, signal.SIG_DFL)  # the command tells of Ctrl-C, a rank just ends
    let_in()
    take_room(file)
    try:
        _run(out, started_s)
    except Stopped:
        sys.exit(STOPPED)
    except Exception as error:  # noqa: BLE001 - the command raises it
        _end(file, error)


def _run(out: Path, started_s: float) -> None:
    from ..config import load  # here, as they take seconds in which all that may happen
    from ..pipelines.dataset import Dataset
    from . import loop
    from .mesh import joined
    from .settings import Settings

    logging.basicConfig(format="tamis: %(message)s", level=logging.INFO)
    settings = load(out / "config.toml", [], Settings)
    with joined(settings.layout) as mesh:
        loop.run(settings, Dataset(settings.dataset_path(out)), out, mesh, started_s)


def _end(file: Path, error: Exception) -> NoReturn:
    """Leave the error where the command finds it: one message then reaches the user, not one a rank."""
    tell(file, error)
    sys.stderr.flush()
    os._exit(1)  # not by way of threads that may wait for ranks that are gone


if __name__ == "__main__":
    main(Path(sys.argv[1]), float(sys.argv[2]), int(sys.argv[3]), Path(sys.argv[4]))
