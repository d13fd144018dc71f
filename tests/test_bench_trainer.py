"""The benchmark of the training loop: every loop runs, ratios are within a round, figures are right."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import pytest

from tamis import cli
from tamis.bench import jobs, trainer
from tamis.bench.compare import Report
from tamis.bench.trainer import figures, render, run
from tamis.errors import DataError

TINY = {"clouds": 2, "points": 32, "steps": 11, "rounds": 1}


@pytest.mark.slow  # imports every peer
@pytest.mark.parametrize(
    ("part", "loops", "versions"),
    [
        (
            "overhead",
            ["plain torch", "tamis", "accelerate", "Lightning", "HF Trainer"],
            {"torch", "accelerate", "lightning", "transformers"},
        ),
        (
            "scaling",
            ["tamis, one rank", "tamis, two ranks", "plain torch, one rank", "bare DDP, two ranks"],
            {"torch"},
        ),
    ],
)
def test_every_loop_is_measured(part: str, loops: list[str], versions: set[str]) -> None:
    found = trainer._measured(part, TINY)
    assert [row["loop"] for row in found["rows"]] == loops
    for row in found["rows"]:
        assert "failed" not in row, row
        for of in trainer.OF:
            assert len(row[f"{of}_ms"]) == TINY["rounds"]
            assert min(row[f"{of}_ms"]) > 0
    assert found["versions"].keys() == versions


def rows(**taken_ms: list[float]) -> list[dict[str, Any]]:
    """Rows of loops, whose names have no spaces or commas here."""
    names = {
        "plain": "plain torch",
        "one": "tamis, one rank",
        "two": "tamis, two ranks",
        "bare": "bare DDP, two ranks",
    }
    return [
        {"loop": names.get(n, n), "median_ms": ms, "mean_ms": ms, "cpu_ms": ms} for n, ms in taken_ms.items()
    ]


def report(overhead: list[dict[str, Any]], scaling: list[dict[str, Any]]) -> Report:
    def whole(rows: list[dict[str, Any]], base: str) -> list[dict[str, Any]]:
        return [trainer._with_ratios(row, rows, base) for row in rows]

    return {
        "rows": {
            "overhead": whole(overhead, "plain torch"),
            "scaling": whole(scaling, "bare DDP, two ranks"),
        },
        "sizes": {"overhead": TINY, "scaling": TINY},
    }


def test_figures_are_medians_of_ratios_within_a_round() -> None:
    # The second round was slow for all: a ratio of medians would say 1.
    alone = rows(plain=[10, 20, 10], tamis=[11, 21, 12])
    ranks = rows(one=[10, 20, 30], two=[5, 10, 15], bare=[5, 9, 15])
    found = figures(report(alone, ranks))
    assert [figure.got for figure in found] == pytest.approx([1.1, 1.0, 2.0])
    assert [figure.holds for figure in found] == [False, True, True]
    lines = render(report(alone, ranks)).splitlines()
    assert sum(line.endswith(("  tamis", "  plain torch")) for line in lines) == 2
    assert lines[-3].endswith("<= 1.03     1.10   missed")


def test_a_loop_that_failed_is_told_and_measures_nothing() -> None:
    broken = [{"loop": "tamis", "failed": "no such thing"}, *rows(plain=[1.0])]
    found = figures(report(broken, rows(one=[1.0])))
    assert [figure.got for figure in found] == [None, None, None]
    assert "failed  tamis: no such thing" in render(report(broken, rows(one=[1.0])))


@pytest.mark.slow  # imports torch in another process
def test_a_job_that_ends_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    start = jobs.start

    def broken(python: str, job: dict[str, Any], *rest: Any) -> Any:
        return start(python, {**job, "size": {"clouds": 1}}, *rest)

    monkeypatch.setattr(jobs, "start", broken)
    with pytest.raises(DataError, match=r"^bench trainer, overhead: .*missing.*; see to the cause"):
        run(None, TINY, TINY)


def test_the_command_writes_and_prints(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def measured(name: str, size: dict[str, int]) -> dict[str, Any]:
        found = (
            rows(plain=[1.0], tamis=[1.0]) if name == "overhead" else rows(one=[2.0], two=[1.0], bare=[1.0])
        )
        return {"rows": found, "versions": {}}

    monkeypatch.setattr(trainer, "_measured", measured)
    monkeypatch.setattr(sys, "argv", ["tamis", "bench", "trainer", "--json", str(tmp_path / "out.json")])
    with pytest.raises(SystemExit) as exit:
        cli.main()
    assert exit.value.code == 0
    assert "missed" not in capsys.readouterr().out
    assert all(figure["holds"] for figure in json.loads((tmp_path / "out.json").read_text())["figures"])


def test_ranks_are_told_who_they_are_and_failures_are_told_too() -> None:
    from tamis.bench.ranks import on_ranks

    def who() -> tuple[str, ...]:
        return tuple(os.environ[name] for name in ("RANK", "WORLD_SIZE", "MASTER_ADDR"))

    def failing() -> None:
        if os.environ["RANK"] == "1":
            raise ValueError("the second went wrong")

    assert on_ranks(2, who) == ("0", "2", "127.0.0.1")
    with pytest.raises(RuntimeError, match=r"rank 1 of 2: (.|\n)*the second went wrong"):
        on_ranks(2, failing)
    assert "RANK" not in os.environ
