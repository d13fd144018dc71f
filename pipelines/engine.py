"""The engine that makes parts: in this process, or in several that are started for it.

Sources are made largest first, so that the last ones to be finished are small. What comes out does not depend
on who made it.
"""

from __future__ import annotations

import logging
import os
import select
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from numpy.typing import NDArray

from ..errors import DataError, from_plain
from ..metrics import Meter
from .bad import Killed
from .journal import Finished
from .parts import Work
from .settings import DataSettings
from .worker import plain
from .worker_process import Lost, WorkerProcess

Made = tuple[str, Finished | DataError]
"""A source and its part, or why it has none."""


_WORTH = 16 << 20
"""Bytes of sources that take about as long to read as a process takes to start."""


def workers_for(settings: DataSettings, sizes: Mapping[str, int]) -> int:
    """How many processes make parts of sources of these ``sizes``; 1 is this one.

    Where nothing is said, as many as the CPUs, but no more than pay; where bad files are skipped, the CPUs:
    a library that crashes over a file then takes no more than a worker with it.
    """
    wanted = settings.workers or len(os.sched_getaffinity(0))
    if settings.workers is None and settings.bad_files == "stop":
        wanted = min(wanted, 1 + sum(sizes.values()) // _WORTH)
    return max(min(wanted, len(sizes)), 1)


def made(work: Work, sizes: Mapping[str, int], workers: int, meter: Meter) -> Iterator[Made]:
    """Make the parts of the sources, in the order in which they are done; the time is added to ``meter``.

    ``sizes``: their names and bytes, by which they are planned. A source that cannot be read or cut comes
    with its error, and so does one that ends the worker that reads it; another takes that one's place.

    Raises UsageError for settings that cannot be carried out, DataError where a part cannot be written or no
    worker starts. What workers were at when the caller stops is lost.
    """
    if workers == 1:
        return _made_here(work, planned(sizes), meter)
    return _made_by_workers(work, deque(planned(sizes)), workers, meter)


def planned(sizes: Mapping[str, int]) -> list[str]:
    """The names of sources in the order in which they are begun: the largest first."""
    return sorted(sizes, key=lambda name: (-sizes[name], name))


def size(work: Work, name: str) -> int:
    """Bytes of a source, 0 where it is not there."""
    try:
        return (work.root / name).stat().st_size
    except OSError:  # it will be told of when it is read
        return 0


def _made_here(work: Work, names: Sequence[str], meter: Meter) -> Iterator[Made]:
    for name in names:
        try:
            part: Finished | DataError = work.part(name, meter)
        except DataError as error:
            part = error
        yield name, part


def _made_by_workers(work: Work, left: deque[str], workers: int, meter: Meter) -> Iterator[Made]:
    about, running, poll = plain(work), dict[int, WorkerProcess](), select.poll()

    def start() -> None:
        worker = WorkerProcess()
        running[worker.replies] = worker
        poll.register(worker.replies, select.POLLIN)

    def end(worker: WorkerProcess) -> None:
        poll.unregister(worker.replies)
        del running[worker.replies]
        worker.end()
        work.journal.clear(worker.pid)

    try:
        for _ in range(workers):
            start()
        while running:
            for descriptor, _ in poll.poll():
                worker = running[descriptor]
                try:
                    result = _result(worker, meter)
                except Lost as lost:
                    end(worker)
                    yield blamed(work, worker.source, lost)
                    if left:
                        start()
                    continue
                if result is None:
                    worker.say(about)
                if left:
                    worker.source = left.popleft()
                    worker.say(worker.source)
                else:
                    end(worker)
                if result is not None:
                    yield result
    finally:
        for worker in [*running.values()]:
            end(worker)


def _result(worker: WorkerProcess, meter: Meter) -> Made | None:
    """What a worker has to say: None where it is ready for the first source. Raises Lost."""
    about, figures = worker.reply()
    if about is None:
        return None
    return heard(about, figures, meter)


def heard(about: Mapping[str, Any], figures: Mapping[str, NDArray[Any]], meter: Meter) -> Made:
    """What a worker says of a source; what it logged is logged here, and its time added to ``meter``."""
    meter.table += figures["figures"]
    for name, level, text in about["logged"]:
        logger = logging.getLogger(name)
        if logger.isEnabledFor(level):
            logger.log(level, "%s", text)
    if "part" in about:
        return about["source"], Finished.of_plain(about["part"], figures)
    error = from_plain(about["error"])
    if about["stops"] or not isinstance(error, DataError):
        raise error
    return about["source"], error


def blamed(work: Work, source: str | None, lost: Lost) -> Made:
    """The source that a worker was lost over. Raises DataError where it was none."""
    if source is None:
        cause = f"a process to read files {lost.how} before it began"
        raise DataError("data.workers", cause, "see what it printed, or set data.workers = 1")
    fix = "see whether the file is whole; leave it out with data.files or data.bad_files"
    kind = DataError
    if lost.outside:
        kind, fix = Killed, "see who did, such as a system without memory left, and run it again"
    return source, kind(work.root / source, f"the process that read it {lost.how}", fix)
