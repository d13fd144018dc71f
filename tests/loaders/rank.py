"""A rank that opens a loader and does what it is told: a command a line, in JSON, and an answer to each.

Without arguments it is what forks such ranks, which saves them a second of imports each.
"""

from __future__ import annotations

import json
import os
import select
import socket
import sys
import time
import warnings
from typing import Any

from crc32c import crc32c

from tamis.errors import TamisError
from tamis.loaders.loader import Batch, Loader

warnings.simplefilter("error")  # what is noise at the end of a program is seen


def content(batch: Batch) -> list[Any]:
    """The batch's step, and a checksum of each of its arrays."""
    arrays: dict[str, Any] = {**batch.columns, "ids": batch.ids, "weight": batch.weight}
    arrays |= {"mask": batch.mask} if batch.mask is not None else {"offsets": batch.offsets}
    return [batch.step, batch.epoch, batch.k, {name: crc32c(arrays[name]) for name in sorted(arrays)}]


class Rank:
    """``kept``: batches that are not dropped."""

    def __init__(self, loader: Loader) -> None:
        self.loader: Any = loader
        self.kept: list[Batch] = []

    def take(self, n: int | None = None, keep: bool = False) -> list[Any]:
        """``n`` batches, None for all that come."""
        got: list[Any] = []
        while n is None or len(got) < n:
            batch = next(self.loader, None)
            if batch is None:
                break
            got.append(content(batch))
            if keep:
                self.kept.append(batch)
            del batch
        return got

    def stroll(self, pause_s: float = 0.05) -> None:
        """Batches without end, none of them waited for."""
        while next(self.loader, None):
            time.sleep(pause_s)

    def again(self) -> list[Any]:
        """The batches kept, as they are now."""
        return [content(batch) for batch in self.kept]

    def feeder(self) -> int:
        """The feeder's process."""
        return int(self.loader._feed._link._feeder_pid)

    def load(self, state: dict[str, Any] | None) -> None:
        """Go on from a state, None: from the start."""
        if state is None:
            state = {**self.loader.state_dict(), "step": 0, "epoch": 0}
            state["datasets"][0]["consumed"] = 0
        self.loader.load_state_dict(state)

    def state(self) -> dict[str, Any]:
        """Where it is."""
        return self.loader.state_dict()  # type: ignore[no-any-return]

    def close(self) -> None:
        """As users do."""
        self.loader.close()

    def drop(self) -> None:
        """Forget the loader."""
        self.loader = None

    def leave(self, code: int) -> None:
        """End without closing."""
        sys.exit(code)

    def vanish(self) -> None:
        """End without a trace of clean-up."""
        os._exit(0)

    def fail(self) -> None:
        """End by an error that nobody catches."""
        raise SystemError("this rank fails")


def say(answer: Any) -> None:
    """One line."""
    sys.stdout.write(json.dumps(answer) + "\n")
    sys.stdout.flush()


def main() -> None:
    """Answer until there is nothing more to read."""
    try:
        rank = Rank(Loader(sys.argv[1], **json.loads(sys.argv[2])))
    except TamisError as error:
        say({"error": str(error)})
        return
    say("open")
    for line in sys.stdin:
        command, *arguments = json.loads(line)
        try:
            say(getattr(rank, command)(*arguments))
        except TamisError as error:
            say({"error": str(error)})
        except KeyboardInterrupt:
            say({"error": "interrupted"})


def serve() -> bool:
    """Fork a process for each request on the socket at stdin, which is told how each ends; True in a child.

    A request is a JSON object of ``arguments``, ``environ`` and ``group``, with its stdin, stdout and stderr.
    """
    server, ends = socket.socket(fileno=0), dict[int, int]()
    while True:
        ready: list[Any] = select.select([server, *ends], [], [])[0]  # type: ignore[type-var]
        for pidfd in ends.keys() & set(ready):
            pid = ends.pop(pidfd)
            os.close(pidfd)
            code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
            server.send(json.dumps(["ended", pid, code]).encode())
        if server not in ready:
            continue
        data, files, _, _ = socket.recv_fds(server, 1 << 16, 3)
        if not data:
            server.close()
            return False
        request = json.loads(data)
        pid = os.fork()
        if not pid:
            server.detach()
            for target, fd in enumerate(files):
                os.dup2(fd, target)
                os.close(fd)
            for pidfd in ends:
                os.close(pidfd)
            os.environ.update(request["environ"])
            sys.path.append(request["environ"].get("PYTHONPATH", ""))
            sys.argv[1:] = request["arguments"]
            return True
        os.setpgid(pid, request["group"])  # here, so that the group is there for the next
        for fd in files:
            os.close(fd)
        ends[os.pidfd_open(pid)] = pid
        server.send(json.dumps(["started", pid]).encode())


if __name__ == "__main__":
    if len(sys.argv) > 1 or serve():
        main()
