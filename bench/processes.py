"""CPU time and memory of a loader: of all processes that carry its job's mark in their environment.

The mark reaches every descendant, also one that cut itself off from its parent, so that none is missed.
"""

from __future__ import annotations

import os
import resource
import signal
import time
from pathlib import Path

MARK = "TAMIS_BENCH_JOB"

_KILL_S = 5.0  # in which a killed process is gone


def marked(mark: str) -> list[int]:
    """The processes that carry ``mark``, but for the caller."""
    entry = f"{MARK}={mark}".encode()
    found = []
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit() and int(folder.name) != os.getpid():
            try:
                if entry in (folder / "environ").read_bytes().split(b"\0"):
                    found.append(int(folder.name))
            except OSError:
                continue  # ended since, or another user's
    return found


def kill(mark: str, grace_s: float) -> None:
    """End every process that carries ``mark``, unless it ends by itself within ``grace_s`` seconds."""
    end = time.monotonic() + grace_s
    while marked(mark) and time.monotonic() < end:
        time.sleep(0.01)
    end = time.monotonic() + _KILL_S
    while (left := marked(mark)) and time.monotonic() < end:
        for pid in left:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue
        time.sleep(0.01)


def cpu_s(mark: str) -> tuple[float, float]:
    """Seconds, user and system, that (this process, all others of the job) have used so far."""
    ended = resource.getrusage(resource.RUSAGE_CHILDREN)
    others = ended.ru_utime + ended.ru_stime
    for pid in marked(mark):
        try:
            others += time.clock_gettime(_clock(pid)) + _children_s(pid)
        except OSError:
            continue  # ended since: its parent's count has it
    return time.process_time(), others


def pss_mb(mark: str) -> float:
    """MB of memory of all processes of the job: proportional set sizes, where a shared page counts once."""
    total = 0
    for pid in (os.getpid(), *marked(mark)):
        try:
            lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
        except OSError:
            continue
        total += sum(int(line.split()[1]) for line in lines if line.startswith("Pss:"))
    return total * 1024 / 1e6


def _clock(pid: int) -> int:
    """The CPU clock of another process, as clock_getcpuclockid(3) gives it: exact, where /proc has ticks."""
    return (~pid << 3) | 2


def _children_s(pid: int) -> float:
    """CPU seconds of the ended children of a process."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[13]) + int(fields[14])) / os.sysconf("SC_CLK_TCK")
