"""``steps.jsonl``: a line for every global batch, written by rank 0."""

from __future__ import annotations

import json
import logging
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Self

from ..files import write_atomic
from ..loaders.loader import Batch
from .replays.steps import parsed
from .step import Outcome

news = logging.getLogger(__name__)

NEWS_S, FLUSH_S = 10.0, 1.0


class StepLog:
    """Appends a line a step, and tells how far the run is now and then.

    What an earlier process wrote after the step this one resumes from is cut off, and no line holds a time,
    so the file of a run that was cut and resumed reads as that of a run that was not.
    """

    def __init__(self, path: Path, steps: int, done: int) -> None:
        # What follows the last line's end was torn.
        lines = path.read_bytes().split(b"\n")[:-1] if path.exists() else []
        kept = {step: text for text in lines if (line := parsed(text)) and 0 <= (step := line["step"]) < done}
        if len(kept) < done:  # files are in memory first: a machine that fails may lose the last of them
            told = "%s: the lines of %d of the %d steps done are damaged or missing"
            news.warning(told, path, done - len(kept), done)
        write_atomic(path, b"".join(kept[step] + b"\n" for step in sorted(kept)))
        self._file = path.open("a", encoding="utf-8")
        self._steps, self._told_s = steps, time.monotonic()
        self._flushed_s = 0.0

    def write(self, batch: Batch, outcome: Outcome, samples: int, crc: int) -> None:
        """One step: ``samples`` and ``crc`` are of the global batch, see `feed.tally`."""
        line = {
            **described(batch, outcome),
            "samples": samples,
            "points": outcome.points,
            "crc": crc % 2**32,
            "skipped": outcome.skipped,
            "recomputed": outcome.recomputed,
        }
        self._file.write(json.dumps(line) + "\n")
        now_s = time.monotonic()
        if now_s > self._flushed_s + FLUSH_S:  # not every step: a system call takes longer than the line
            self._flushed_s = now_s
            self._file.flush()
        if now_s > self._told_s + NEWS_S:
            self._told_s = now_s
            loss = f"loss {outcome.loss:.4f}" if outcome.loss is not None else outcome.skipped
            news.info("step %d of %d: %s", batch.step + 1, self._steps, loss)

    def flush(self) -> None:
        """Hand what was written to the system: before a checkpoint, whose steps a resumed run keeps."""
        self._file.flush()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()


def described(batch: Batch, outcome: Outcome) -> dict[str, Any]:
    """Which step it was, and what came of it."""
    return {
        "step": batch.step,
        "epoch": batch.epoch,
        "loss": outcome.loss,
        "lr": outcome.lr,
        "grad_norm": outcome.grad_norm,
        "k": batch.k,
        "scale": outcome.scale,
    }


def read_lines(path: Path) -> list[dict[str, Any]]:
    """What was written of each step; damaged lines are left out."""
    return [line for text in path.read_bytes().splitlines() if (line := parsed(text)) is not None]


def losses(steps: Sequence[dict[str, Any]]) -> tuple[float | None, float | None]:
    """The first and the last loss of a run, by what `read_lines` gives."""
    found = [loss for line in steps if (loss := line["loss"]) is not None]
    return (found[0], found[-1]) if found else (None, None)


def setbacks(steps: Sequence[dict[str, Any]]) -> dict[str, int]:
    """How many steps of a run were skipped, by why, and how many were ``recomputed``."""
    found = Counter(line["skipped"] for line in steps if line.get("skipped"))
    found["recomputed"] = sum(line.get("recomputed", False) for line in steps)
    return {why: number for why, number in sorted(found.items()) if number}
