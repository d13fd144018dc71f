"""Four readers of one replica: one feeder that all share, and four DataLoaders."""

from __future__ import annotations

import uuid
from typing import Any

from . import jobs
from .compare import DATALOADER, OURS, Row, best
from .sweep import Sweep

READERS = 4


def readers(sweep: Sweep, rows: list[Row]) -> list[Row]:
    """CPU a batch of all processes together, and of those that are no reader, of 1 and 4 readers.

    Each has the setting that costs its loader least CPU. Every reader reads every byte.
    """
    wanted = (("tamis", OURS, 1), ("tamis", OURS, READERS), ("torch_dataloader", DATALOADER, READERS))
    found = []
    for file, loader, n in wanted:
        lean = best(rows, "cpu_ms", loader=loader, set=sweep.shape.name, delivery="process")
        if lean is not None:
            row = {name: lean[name] for name in ("loader", "set", "delivery", "settings")} | {"readers": n}
            found.append(row | _measured(sweep, file, row["settings"], n))
    return found


def _measured(sweep: Sweep, file: str, settings: dict[str, Any], n: int) -> Row:
    run = uuid.uuid4().hex
    started = [sweep.start(file, settings, 0, _rank(run, i, n)) for i in range(n)]
    try:
        for one in started:  # until the last has ended, since what the first started serves all
            one.wait(sweep.effort.timeout_s)
        answers = [one.answer(sweep.effort.timeout_s) for one in started]
    except jobs.Failed as error:
        return {"failed": str(error)}
    finally:
        for one in started:
            one.end()
    return {name: sum(answer[name] for answer in answers) for name in ("cpu_ms", "others_ms")}


def _rank(run: str, rank: int, ranks: int) -> dict[str, str]:
    """What torchrun tells a rank."""
    return {
        "TORCHELASTIC_RUN_ID": run,
        "TORCHELASTIC_RESTART_COUNT": "0",
        "LOCAL_RANK": str(rank),
        "RANK": str(rank),
        "LOCAL_WORLD_SIZE": str(ranks),
        "WORLD_SIZE": str(ranks),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": "29500",
    }
