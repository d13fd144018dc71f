"""Processes, looked at from outside."""

from __future__ import annotations

import time
from pathlib import Path

_LONG_S = 0.4  # a job that is continued as a whole starts its processes one after another
_LOOK_S = 0.25  # a look counts for no more: the watching process may have been stopped as well


class Watch:
    """Tells whether a process is stopped (SIGSTOP), which nothing announces."""

    def __init__(self, pid: int) -> None:
        self._stat = Path(f"/proc/{pid}/stat")
        self._looked_s: float | None = None  # where the last look found it stopped
        self._stopped_s = 0.0

    def stopped(self) -> bool:
        """Whether the process has been stopped for 0.4 s, as far as looks every 0.25 s or so can tell."""
        now_s = time.monotonic()
        if not self._is_stopped():
            self._looked_s, self._stopped_s = None, 0.0
            return False
        if self._looked_s is not None:
            self._stopped_s += min(now_s - self._looked_s, _LOOK_S)
        self._looked_s = now_s
        return self._stopped_s >= _LONG_S

    def _is_stopped(self) -> bool:
        try:
            text = self._stat.read_text()
        except OSError:  # it has ended: that is announced
            return False
        return text.rpartition(")")[2].split()[0] == "T"


def peak_bytes(pid: int | str = "self") -> int:
    """The most memory that a process has had at once, of what it runs now, from Linux's /proc.

    ``getrusage`` would tell more: what its parent had when it started it counts there.
    """
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) * 1024
    raise ProcessLookupError(f"process {pid} has no memory: it has ended")
