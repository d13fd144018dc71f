"""Who broke a collective: ranks that were let down ask all others what they do, and name who is silent.

torch tells only that an operation failed or took too long, on every rank but the one to blame.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time
import traceback
from collections.abc import Mapping
from datetime import timedelta
from pathlib import Path
from types import FrameType
from typing import Any

import torch.distributed as dist
from torch._C._distributed_c10d import PrefixStore, TCPStore

from ...errors import LostError

_POLL_S, _ANSWER_S = 1.0, 4.0
_OURS = Path(__file__).parents[2]
_TORCH = f"{os.sep}torch{os.sep}distributed{os.sep}"
_NAMED = 4  # ranks that a message names, of each kind


class Watch:
    """Says what this rank does when another asks. ``store``: a prefix of this start's own.

    A thread with a connection of its own, as the main thread may be the one that hangs.
    """

    def __init__(self, name: str, rank: int, world: int) -> None:
        self._rank, self._world = rank, world
        self._name = name
        self._ended = threading.Event()
        self._main = threading.main_thread().ident
        threading.Thread(target=self._listen, name="watch", daemon=True).start()

    def end(self) -> None:
        """Say nothing more: the other ranks do not need this one any longer."""
        self._ended.set()

    def _listen(self) -> None:
        try:
            store = self._connected()
            while not self._ended.wait(_POLL_S):
                if store.check(["asked"]):
                    frames = sys._current_frames()
                    store.set(f"at/{self._rank}", json.dumps(_place(frames.get(self._main or 0))))
                    return
        except RuntimeError:
            return  # whoever holds the store is gone: nobody can ask

    def explained(self, error: RuntimeError) -> LostError:
        """The error to raise for one of torch's: the call that failed, and which ranks were not in a call."""
        self.end()
        found: dict[int, dict[str, Any]] = {}
        # A stopped process may hold the store, and a call to it would never return.
        asking = threading.Thread(target=self._ask, args=(found,), daemon=True)
        asking.start()
        asking.join(_ANSWER_S + _POLL_S)
        others = {rank: found.get(rank) for rank in range(self._world) if rank != self._rank}
        frames = [frame for frame, _ in traceback.walk_tb(error.__traceback__)]
        cause = f"{_called(frames)} failed ({_short(error)}): {_blamed(others)}"
        return LostError(f"rank {self._rank}", cause, "the same command goes on")

    def _ask(self, found: dict[int, dict[str, Any]]) -> None:
        try:
            store = self._connected()
            store.set("asked", "1")
            store.set(f"at/{self._rank}", json.dumps({"waits": True, "place": "an error"}))
            until_s = time.monotonic() + _ANSWER_S
            while len(found) < self._world and time.monotonic() < until_s:
                for rank in range(self._world):
                    if rank not in found and store.check([f"at/{rank}"]):
                        found[rank] = json.loads(store.get(f"at/{rank}"))
                time.sleep(0.1)
        except RuntimeError:
            return  # the store is gone too, so nobody can answer

    def _connected(self) -> PrefixStore:
        host, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
        timeout = timedelta(seconds=_ANSWER_S)
        store = TCPStore(host, port, is_master=False, timeout=timeout, wait_for_workers=False)
        return PrefixStore(f"{self._name}/watch", store)


def broken(error: RuntimeError) -> bool:
    """Whether an error is of the communication between ranks. gloo's are told only by their text."""
    return isinstance(error, dist.DistError) or "/gloo/" in str(error)


def _place(frame: FrameType | None) -> dict[str, Any]:
    """Where a thread is, innermost frame ``frame``: in tamis, and whether it waits for other ranks there."""
    frames: list[FrameType] = []
    while frame is not None:
        frames.insert(0, frame)
        frame = frame.f_back
    return {"waits": bool(frames) and _TORCH in frames[-1].f_code.co_filename, "place": _called(frames)}


def _called(frames: list[FrameType]) -> str:
    """What was called where in tamis; ``frames``: from the outermost to the innermost."""
    ours = [i for i, frame in enumerate(frames) if _inside(frame)]
    if not ours:
        return frames[-1].f_code.co_qualname if frames else "nothing"
    at = frames[ours[-1]]
    file = Path(at.f_code.co_filename).relative_to(_OURS)
    place = f"{at.f_code.co_qualname}, {file}:{at.f_lineno}"
    within = [f.f_code.co_name for f in frames[ours[-1] + 1 :] if f.f_code.co_name != "wrapper"]
    return f"{within[0]} in {place}" if within else place


def _inside(frame: FrameType) -> bool:
    file = Path(frame.f_code.co_filename)
    return file.is_relative_to(_OURS) and "site-packages" not in file.relative_to(_OURS).parts


def _short(error: RuntimeError) -> str:
    """gloo's message without the place in its own source, its advice and its peer's address."""
    text = str(error).partition("] ")[2] if str(error).startswith("[") else str(error)
    return text.split(". This is")[0].splitlines()[0][:200]


def _blamed(others: Mapping[int, dict[str, Any] | None]) -> str:
    """Whom to blame of the others: those who say nothing, else those who do something else than wait."""
    silent = [f"rank {rank}" for rank, told in others.items() if told is None]
    if silent:
        return f"{_listed(silent)} said nothing when asked: ended, stopped, or its machine is lost"
    told = {rank: answer for rank, answer in others.items() if answer}
    busy = [f"rank {rank} is at {answer['place']}" for rank, answer in told.items() if not answer["waits"]]
    waiting = [f"rank {rank} in {answer['place']}" for rank, answer in told.items()]
    return _listed(busy) if busy else "all ranks wait: " + _listed(waiting)


def _listed(names: list[str]) -> str:
    more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
    return ", ".join(names[:_NAMED]) + more
