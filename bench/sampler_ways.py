"""Ways of sampling that are measured against each other, and the measuring: in turn, warm, medians."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

FEW = 2
"""Rounds of a peer that another is clearly faster than."""

THREADS = {1: "tamis, one thread", 2: "tamis, two threads"}
"""Names of our ways where they differ in threads."""

_CLEARLY = 2.5
_LEAST_MS, _MOST = 3, 20  # a round is of more calls where one is shorter, but not of more than so many
_WARMED_MS = 100


def the_result(result: Any) -> Any:
    return result


@dataclass(frozen=True)
class Way:
    """``run`` is what is timed; ``answer`` makes of its result what others' can be compared with."""

    name: str
    run: Callable[[], Any]
    answer: Callable[[Any], Any] = the_result


@dataclass(frozen=True)
class Contest:
    """The same work done by us, on one thread and on more, and by peers on one.

    ``k``: rows that come out. ``differs``: of an answer, how it differs from the right one, "" where it does
    not; None where that was looked at on a smaller cloud.
    """

    op: str
    n: int
    k: int
    cloud: str
    ours: Mapping[int, Way]
    peers: Sequence[Way]
    differs: Callable[[Any], str] | None
    fields: int = 0
    outputs: str = "index"

    @property
    def title(self) -> str:
        """Which one it is, as plain text."""
        carried = f", {self.fields} fields" if self.fields else ""
        return f"{self.op} {self.n:,} -> {self.k:,}, {self.cloud or 'any cloud'}, {self.outputs}{carried}"


@dataclass
class Taken:
    """Milliseconds of each round."""

    wall: list[float]
    cpu: list[float]

    @property
    def wall_ms(self) -> float:
        """The median."""
        return statistics.median(self.wall)

    @property
    def cpu_ms(self) -> float:
        """The median, of all threads of this process."""
        return statistics.median(self.cpu)


def wrong(contest: Contest) -> dict[str, str]:
    """Names of ways that fail or give something else -> how it differs."""
    found: dict[str, str] = {}
    if contest.differs is None:
        return found
    for way in (*contest.ours.values(), *contest.peers):
        try:
            difference = contest.differs(way.answer(way.run()))
        except Exception as error:  # noqa: BLE001 - whatever a library raises
            difference = f"raised {type(error).__name__}: {error}"
        if difference:
            found[way.name] = difference
    return found


def measured(contests: Sequence[Contest], rounds: int) -> list[dict[str, Taken]]:
    """For each contest, what its ways took by their names: in turn, each round in another order."""
    ways = [(at, way) for at, one in enumerate(contests) for way in (*one.ours.values(), *one.peers)]
    first = [{way.name: _ms(way, 1)[0] for way in (*one.ours.values(), *one.peers)} for one in contests]
    found = [{name: Taken([], []) for name in of} for of in first]
    wanted = [_rounds(one, of, rounds) for one, of in zip(contests, first, strict=True)]
    for number in range(rounds):
        for place in np.random.default_rng(number).permutation(len(ways)):
            at, way = ways[place]
            taken, ms = found[at][way.name], first[at][way.name]
            if len(taken.wall) == wanted[at][way.name]:
                continue
            if ms < _WARMED_MS:
                way.run()  # its data is in the caches again, and the memory it takes is there
            wall, cpu = _ms(way, min(max(round(_LEAST_MS / ms), 1), _MOST))
            taken.wall.append(wall)
            taken.cpu.append(cpu)
    return found


def _rounds(contest: Contest, first: Mapping[str, float], rounds: int) -> dict[str, int]:
    """By name: few for peers that are clearly not the best."""
    best = min((first[peer.name] for peer in contest.peers), default=0.0)
    few = {peer.name for peer in contest.peers if first[peer.name] > _CLEARLY * best}
    return {name: min(FEW, rounds) if name in few else rounds for name in first}


def _ms(way: Way, times: int) -> tuple[float, float]:
    """Milliseconds of wall and of CPU time a call."""
    cpu, start = time.process_time(), time.perf_counter()
    for _ in range(times):
        way.run()
    wall_s, cpu_s = time.perf_counter() - start, time.process_time() - cpu
    return wall_s * 1e3 / times, cpu_s * 1e3 / times


def rows(contest: Contest, taken: Mapping[str, Taken]) -> list[dict[str, Any]]:
    """A row for each number of threads and peer; on several threads, ourselves on one are a peer too.

    Without any peer a row has None for what is the peer's.
    """
    found: list[dict[str, Any]] = []
    for threads, way in contest.ours.items():
        ours = taken[way.name]
        peers = [contest.ours[1], *contest.peers] if threads > 1 and 1 in contest.ours else contest.peers
        about = {
            "op": contest.op,
            "n": contest.n,
            "k": contest.k,
            "cloud": contest.cloud,
            "fields": contest.fields,
            "outputs": contest.outputs,
            "threads": threads,
            "ours_ms": ours.wall_ms,
            "ours_cpu_ms": ours.cpu_ms,
        }
        found += [{**about, **_beside(ours, peer.name, taken[peer.name])} for peer in peers]
        if not peers:
            nothing = dict.fromkeys(("peer", "peer_ms", "peer_cpu_ms", "ratio"))
            found.append({**about, **nothing, "rounds": len(ours.wall)})
    return found


def _beside(ours: Taken, name: str, theirs: Taken) -> dict[str, Any]:
    return {
        "peer": name,
        "peer_ms": theirs.wall_ms,
        "peer_cpu_ms": theirs.cpu_ms,
        "ratio": theirs.wall_ms / ours.wall_ms,
        "rounds": len(theirs.wall),
    }
