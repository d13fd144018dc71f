"""``steps.jsonl`` and ``report.json``: what a run that goes on makes of damaged ones, and what is printed."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tamis.errors import DataError
from tamis.trainer.log import StepLog, losses, read_lines, setbacks
from tamis.trainer.step import Outcome
from tamis.trainer.summary import learned, read

Make = Callable[..., Any]


def write(path: Path, new_batch: Make, done: int, end: int) -> None:
    """Go on after ``done`` steps, until ``end`` are done."""
    with StepLog(path, 10, done) as log:
        for step in range(done, end):
            outcome = Outcome(1.0 + step, 0.1, 1e-3, 5, (), skipped="overflow" if step == 1 else None)
            log.write(new_batch(step, clouds=1), outcome, 1, step)


def lost(lines: list[bytes]) -> list[bytes]:
    return lines[3:]


def changed(lines: list[bytes]) -> list[bytes]:
    return [lines[0], b"#" + lines[1], b"\xff\n", b"3\n", b"[" * 100_000 + b"\n", *lines[2:]]


def never_written(lines: list[bytes]) -> list[bytes]:
    return [*lines[:3], bytes(200) + b"\n"]


@pytest.mark.parametrize(
    ("damage", "steps"),
    [
        (lost, [3, 4, 5, 6, 7]),
        (changed, [0, 2, 3, 4, 5, 6, 7]),
        (never_written, [0, 1, 2, 6, 7]),
    ],
)
def test_lines_are_kept_by_their_step(
    damage: Make, steps: list[int], tmp_path: Path, new_batch: Make, caplog: pytest.LogCaptureFixture
) -> None:
    """None twice and no other one lost, whatever became of the file; and the report counts them."""
    path = tmp_path / "steps.jsonl"
    write(path, new_batch, 0, 8)
    whole = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join(damage(whole)))
    write(path, new_batch, 6, 8)
    assert path.read_bytes() == b"".join(whole[step] for step in steps)
    missing = 8 - len(steps)
    assert f"steps.jsonl: the lines of {missing} of the 6 steps done are damaged or missing" in caplog.text
    found = read_lines(path)
    assert [line["step"] for line in found] == steps
    assert losses(found) == (1.0 + steps[0], 8.0)
    assert setbacks(found) == ({"overflow": 1} if 1 in steps else {})


def test_a_damaged_line_does_not_cost_the_report(tmp_path: Path, new_batch: Make) -> None:
    path = tmp_path / "steps.jsonl"
    write(path, new_batch, 0, 2)
    path.write_bytes(b"{}\n" + path.read_bytes())
    assert [line["step"] for line in read_lines(path)] == [0, 1]


@pytest.mark.parametrize("text", ["[]", "null", "3"])
def test_what_holds_something_else_is_damaged(text: str, tmp_path: Path) -> None:
    path = tmp_path / "report.json"
    assert read(path, {"steps": 0}) == {"steps": 0}
    path.write_text(text)
    with pytest.raises(DataError, match=r"report\.json: is damaged \(it holds .*, not dict\); remove it"):
        read(path, {})


def test_a_perplexity_above_all_numbers_is_printed() -> None:
    found = {
        "unit": "tokens",
        "accuracy": 0.1,
        "majority": 0.2,
        "mean_iou": None,
        "loss": 1000.0,
        "perplexity": None,
        "bits_per_byte": 1442.7,
        "labelled": 5,
        "points": 6,
        "dropped": 0,
    }
    assert "perplexity inf, 1442.700 bits a byte, loss 1000.0000" in learned(json.loads(json.dumps(found)))[0]
