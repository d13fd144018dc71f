"""Worker processes for functions that users wrote: what they break, hang or kill is a worker, not the run."""

from __future__ import annotations

import logging
import os
import threading
import time
from concurrent.futures import ThreadPoolExecutor

from ..errors import DataError, TamisError, UsageError
from .ops.call import Columns
from .user_process import Lost, UserProcess

_log = logging.getLogger(__name__)

_CLOSE_S = 5.0
_END_S = 1.0


class UserCode:
    """Calls functions given as ``module:name`` in up to ``workers`` processes, started as they are needed.

    A function takes ``(columns, seed)``, arrays of its own by name, and returns such a dict with the same
    names, dtypes and widths and as many rows as it likes, the same in each column. A worker imports its
    module at the first call, by this process's ``sys.path`` or from its working folder. What it prints goes
    to stderr.

    A call that takes longer than ``timeout_s``, the start of a worker and the import included, has failed.
    Threads may share it, processes may not.
    """

    def __init__(self, workers: int, timeout_s: float) -> None:
        self._workers, self._timeout_s = workers, timeout_s
        self._pid = os.getpid()
        self._state = threading.Condition()
        self._idle: list[UserProcess] = []
        self._busy = 0
        self._stopped = self._closed = False
        self._wake = os.eventfd(0)  # readable from `stop` on
        # One thread starts all workers and lives as long as they: the kernel kills them when it ends.
        self._starter = ThreadPoolExecutor(1, "tamis-user")

    def call(self, function: str, columns: Columns, seed: int, sample: str) -> Columns:
        """What ``function`` makes of ``columns``, in arrays of their own; waits for a worker that is free.

        ``sample``: its name, for errors. Raises UsageError where there is no such function, and DataError
        where it raises, returns what does not fit, hangs or ends its worker, or where somebody stops or
        kills that: the worker is ended then, and the next call has another. RuntimeError after `stop`.
        """
        if os.getpid() != self._pid:
            fix = "open a Loader in each process"
            raise UsageError(function, "its workers belong to another process", fix)
        self._take_place()
        worker = None
        try:
            worker = self._idle_worker() or self._started(function, sample)
            result = worker.call(function, columns, seed, self._timeout_s)
        except BaseException as error:
            if worker:
                worker.end()
            self._give_place(None)
            if worker and isinstance(error, Lost | TamisError):
                kind = DataError if isinstance(error, Lost) else type(error)
                cause = f"sample '{sample}': worker {worker.pid} {error.cause}"
                raise kind(function, cause, error.fix) from None
            raise
        self._give_place(worker)
        return result

    def stop(self) -> None:
        """Make calls in progress, and any that follow, end at once with RuntimeError; from any thread."""
        if os.getpid() == self._pid:
            with self._state:
                if not self._stopped:
                    self._stopped = True
                    os.eventfd_write(self._wake, 1)
                    self._state.notify_all()

    def close(self) -> None:
        """Stop, and end the workers in a few seconds at most; may be called again, and from any thread."""
        if os.getpid() != self._pid:
            return
        self.stop()
        with self._state:
            if self._closed:
                return
            self._closed = True
            quiet = self._state.wait_for(lambda: not self._busy, _CLOSE_S)
            workers, self._idle = self._idle, []
        for worker in workers:
            worker.ask_to_end()
        until = time.monotonic() + _END_S
        for worker in workers:
            worker.has_ended(until - time.monotonic())
            worker.end()
        self._starter.shutdown()
        if quiet:
            os.close(self._wake)
        else:
            _log.warning("a call of user code has not come back in %.0f s: it is left behind", _CLOSE_S)

    def __del__(self) -> None:
        if hasattr(self, "_starter"):
            self.close()

    def _take_place(self) -> None:
        with self._state:
            self._state.wait_for(lambda: self._stopped or self._busy < self._workers)
            if self._stopped:
                raise RuntimeError("user code was stopped")
            self._busy += 1

    def _give_place(self, worker: UserProcess | None) -> None:
        with self._state:
            self._busy -= 1
            if worker:
                self._idle.append(worker)
            self._state.notify_all()

    def _idle_worker(self) -> UserProcess | None:
        while True:
            with self._state:
                worker = self._idle.pop() if self._idle else None
            if worker is None or not worker.has_ended():
                return worker
            code = worker.end()
            _log.warning("worker %d of user code ended while it was idle (exit code %s)", worker.pid, code)

    def _started(self, function: str, sample: str) -> UserProcess:
        try:
            return self._starter.submit(UserProcess, self._wake).result()
        except OSError as error:
            cause = f"sample '{sample}': no worker can be started ({error.strerror})"
            raise DataError(function, cause, "see to the system's memory and limits of processes") from None
