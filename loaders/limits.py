"""How much memory this process may still take: what the machine has, and what its control groups allow."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple


class Limit(NamedTuple):
    """``bytes`` that may still be taken, and ``source``: the file that says so."""

    bytes: int
    source: Path


def available(root: Path = Path("/")) -> Limit:
    """The tightest limit on memory that applies. ``root``: where ``proc`` and ``sys`` are, for tests."""
    return min([_machine(root), *_groups(root)])


def _machine(root: Path) -> Limit:
    path = root / "proc/meminfo"
    for line in path.read_text().splitlines():
        if line.startswith("MemAvailable:"):
            return Limit(int(line.split()[1]) * 1024, path)
    return Limit(2**63, path)


def _groups(root: Path) -> Iterator[Limit]:
    """The limits of the control group of this process and of those above it, of version 2 and 1."""
    for line in _text(root / "proc/self/cgroup").splitlines():
        _, controllers, group = line.split(":", 2)
        if controllers == "":
            folders, names = [root / "sys/fs/cgroup"], ("memory.max", "memory.current", "inactive_file")
        elif "memory" in controllers.split(","):
            folders = [root / "sys/fs/cgroup/memory"]
            names = ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")
        else:
            continue
        for part in Path(group.lstrip("/")).parts:  # inside a container the path may not exist: its root does
            folders.append(folders[-1] / part)
        for folder in folders:
            yield from _group(folder, *names)


def _group(folder: Path, limit: str, usage: str, reclaimable: str) -> Iterator[Limit]:
    most, used = _text(folder / limit).strip(), _text(folder / usage).strip()
    if not most.isdigit() or not used.isdigit():  # no such group, or "max"
        return
    cache = 0
    for line in _text(folder / "memory.stat").splitlines():
        name, _, value = line.partition(" ")
        if name == reclaimable:
            cache = int(value)
    yield Limit(max(int(most) - int(used) + cache, 0), folder / limit)


def _text(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:  # not there, or not for us to see: no limit is known from it
        return ""
