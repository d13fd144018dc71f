"""A process that makes parts: it is told what there is to do once, then a source at a time.

It talks over stdin and stdout as workers for user code do. What a source breaks is this process alone.
"""

from __future__ import annotations

import json
import logging
import signal
from pathlib import Path
from typing import Any

import pyarrow as pa
from numpy.typing import NDArray

from ..errors import TamisError, UsageError
from ..metrics import BUILD, Meter
from .journal import Journal
from .parts import Work, stopped
from .settings import DataSettings
from .user_messages import filled, message, received, sent
from .user_worker import die_with, take_pipes


class _ParentGone(Exception):
    """Nothing more will be asked for. What a reader raises, EOFError among it, is not this."""


def plain(work: Work) -> dict[str, Any]:
    """What a worker has to know, as plain values. Keys keep their order: that of the classes counts."""
    return {
        "root": str(work.root),
        "settings": work.settings.content().model_dump(mode="json"),
        "listed": dict(work.listed),
        "folder": str(work.journal.folder),
        "digest": work.journal.settings,
    }


def main(parent: int) -> None:
    """Serve the process ``parent`` over stdin and stdout.

    It says that it is ready, and is then sent what `plain` makes and names of sources, until it is killed.
    A reply holds the part, or an error made plain and whether it stops the build, what was logged, and the
    figures of the stages.
    """
    die_with(parent)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the parent, which ends its workers
    requests, replies = take_pipes()

    def fill(room: memoryview) -> None:
        try:
            filled(requests, room)
        except EOFError:
            raise _ParentGone from None

    try:
        sent(replies, message(None))
        about, _ = received(fill)
        work = Work(
            Path(about["root"]),
            DataSettings.model_validate_json(json.dumps(about["settings"])),
            about["listed"],
            Journal(Path(about["folder"]), about["digest"]),
        )
        logged = _Logged()
        while True:
            source, _ = received(fill)
            meter = Meter(BUILD)
            reply, arrays = made(work, source, meter)
            reply |= {"source": source, "logged": logged.taken()}
            sent(replies, message(reply, {**arrays, "figures": meter.table}))
    except (_ParentGone, BrokenPipeError):
        return


def made(work: Work, source: str, meter: Meter) -> tuple[dict[str, Any], dict[str, NDArray[Any]]]:
    """The part of a source or an error, as plain values, and the arrays that belong to a part."""
    try:
        text, arrays = work.part(source, meter).plain()
        return {"part": text}, arrays
    except TamisError as error:
        return {"error": error.plain(), "stops": isinstance(error, UsageError)}, {}
    except (OSError, pa.ArrowException) as error:  # what cannot be read is a DataError: this is the output
        return {"error": stopped(error, work.journal.folder.parent).plain(), "stops": True}, {}


class _Logged(logging.Handler):
    """What is logged here, for the parent to log."""

    def __init__(self) -> None:
        super().__init__()
        self._records: list[tuple[str, int, str]] = []
        logging.getLogger().addHandler(self)
        logging.getLogger("tamis").setLevel(logging.INFO)

    def emit(self, record: logging.LogRecord) -> None:
        """Keep a record."""
        self._records.append((record.name, record.levelno, record.getMessage()))

    def taken(self) -> list[tuple[str, int, str]]:
        """What has come since the last call."""
        records, self._records = self._records, []
        return records
