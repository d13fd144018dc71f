"""Starts the ranks of one machine, and all of them again when one is lost. Free of torch.

Ranks need one another at every step, so the loss of one is the loss of all; the last checkpoint brings them
back. Errors that would come again end the run: a wrong key, broken data, a full disk.
"""

from __future__ import annotations

import logging
import os
import select
import shutil
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from ...errors import DataError, LostError, TamisError, from_plain
from .stopping import STOPPED, TOLD, held
from .told import told

log = logging.getLogger(__name__)

RESTARTS = 3
"""How often in a row ranks are started again without a checkpoint beyond the one they went on from."""

LISTENER = "TAMIS_STORE_FD"
"""The variable that gives rank 0 the socket of the ranks' store, listening, so that nobody takes its port."""


def supervise(arguments: Sequence[str], size: int, out: Path, saved: Callable[[], int]) -> None:
    """Run ``size`` ranks, each a ``python *arguments FILE``, FILE being for its error, until all end well.

    ``out``: the folder of the run; ``saved``: gives the step of its last checkpoint. SIGTERM is passed on to
    the ranks, and this returns when they have ended; so it does when SIGTERM has ended one of them. Raises
    the error of the rank that failed first, where another start would not help, or has not helped `RESTARTS`
    times.
    """
    tries, from_step = 0, saved()
    with Ranks(arguments, size, out) as ranks:
        while (error := ranks.run()) is not None:
            curable = isinstance(error, LostError)
            if ranks.stopping and curable:  # some had not begun, or the end of one broke what others did
                log.warning(TOLD)
                return
            step = saved()
            tries, from_step = (1 if step > from_step else tries + 1), step
            if not curable or tries > RESTARTS:
                raise error
            again = "all ranks start again from step %d (try %d of %d)"
            log.warning(f"%s: %s; {again}", error.where, error.cause, step, tries, RESTARTS)


class Ranks:
    """Processes of this machine that make up a run: a context in which SIGTERM is passed on to them."""

    def __init__(self, arguments: Sequence[str], size: int, out: Path) -> None:
        self._arguments, self._size, self._out = arguments, size, out
        self._processes: list[subprocess.Popen[bytes]] = []
        self._before: Any = None
        self.stopping = False

    def run(self) -> TamisError | None:
        """Start all and wait until all have ended, well or because one has failed; its error."""
        with _empty(self._out / ".ranks") as folder:
            files = [folder / f"{rank}.json" for rank in range(self._size)]
            try:
                self._start(files)
                codes = self._wait()
            finally:
                self._kill()
            failed = {rank: code for rank, code in codes.items() if code != 0}
            self.stopping |= not {STOPPED, -signal.SIGTERM}.isdisjoint(failed.values())
            words = {rank: word for rank, file in enumerate(files) if (word := told(file)) is not None}
            return cause(self._out, failed, words) if failed else None

    def _start(self, files: Sequence[Path]) -> None:
        with held(), socket.create_server(("127.0.0.1", 0)) as listener:
            for rank, file in enumerate(files):
                shared = [listener.fileno()] if rank == 0 else []
                places: dict[str, object] = {
                    "RANK": rank,
                    "LOCAL_RANK": rank,
                    "WORLD_SIZE": self._size,
                    "LOCAL_WORLD_SIZE": self._size,
                    "MASTER_ADDR": "127.0.0.1",
                    "MASTER_PORT": listener.getsockname()[1],
                    "TORCHELASTIC_USE_AGENT_STORE": False,  # there is none, whatever was set
                    LISTENER: listener.fileno(),
                }
                environment = os.environ | {name: str(value) for name, value in places.items()}
                # All ranks are here, whatever the host's name means.
                environment.setdefault("GLOO_SOCKET_IFNAME", "lo")
                command = [sys.executable, *self._arguments, str(file)]
                self._processes.append(subprocess.Popen(command, env=environment, pass_fds=shared))
        if self.stopping:  # SIGTERM came when not all ranks were there to pass it on to
            self._pass_on(signal.SIGTERM, None)

    def _wait(self) -> dict[int, int]:
        """Until all have ended, or one has failed: the exit codes of those that have ended."""
        with ExitStack() as opened:
            poll, left = select.poll(), {}
            for process in self._processes:
                fd = os.pidfd_open(process.pid)
                opened.callback(os.close, fd)
                poll.register(fd, select.POLLIN)
                left[fd] = process
            while left and not any(process.returncode for process in self._processes):
                for fd, _ in poll.poll():
                    left.pop(fd).wait()
                    poll.unregister(fd)
        found = {rank: process.returncode for rank, process in enumerate(self._processes)}
        return {rank: code for rank, code in found.items() if code is not None}

    def _kill(self) -> None:
        for process in self._processes:
            process.kill()  # not SIGTERM: they would save, and some hang
        for process in self._processes:
            process.wait()
        self._processes = []

    def __enter__(self) -> Ranks:
        if threading.current_thread() is threading.main_thread():
            self._before = signal.signal(signal.SIGTERM, self._pass_on)
        return self

    def __exit__(self, *_: object) -> None:
        if self._before is not None:
            signal.signal(signal.SIGTERM, self._before)

    def _pass_on(self, number: int, _: object) -> None:
        self.stopping = True
        for process in self._processes:
            process.send_signal(number)


def cause(out: Path, failed: Mapping[int, int], words: Mapping[int, Mapping[str, Any]]) -> TamisError:
    """The error to show of ranks that ``failed``, by exit code, and what ranks told.

    One rank's failure makes others fail. LostError where starting again may help.
    """
    by_time = sorted(words, key=lambda rank: float(words[rank]["told_s"]))
    errors = {rank: from_plain(words[rank]) for rank in by_time if "cause" in words[rank]}
    for error in errors.values():
        if not isinstance(error, LostError):
            return error  # the first: others may be of what the end of that rank broke
    for rank, code in failed.items():
        if code < 0:
            killed = f"was killed by {signal.Signals(-code).name}"
            return LostError(f"rank {rank}", killed, f"see that memory suffices; {_AGAIN}")
    for rank in by_time:
        if rank in errors:
            return errors[rank]
        log.error("rank %d:\n%s", rank, words[rank]["trace"].rstrip())
        return DataError(out, f"rank {rank} stopped with an error, see above", _AGAIN)
    rank, code = next(iter(failed.items()))
    return LostError(f"rank {rank}", f"ended with exit code {code} and without an error", _AGAIN)


_AGAIN = "the same command goes on"


@contextmanager
def _empty(folder: Path) -> Iterator[Path]:
    """A folder for a while, in place of what a killed process left of it."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
