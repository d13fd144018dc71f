from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tamis.config import dumps
from tamis.errors import DataError, UsageError
from tamis.files import locked
from tamis.pipelines.build import build
from tamis.trainer import loop
from tamis.trainer.launch import train

Make = Callable[..., Any]
ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(autouse=True)
def _no_torchrun(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "TAMIS_START"):
        monkeypatch.delenv(name, raising=False)


def test_the_whole_way(run_settings: Make, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "run"
    report = train(run_settings(), out)
    assert report is not None
    assert report["eval"]["labelled"] > 500
    assert {r["stage"] for r in report["stages"]} >= {
        "build.read",
        "build.write",
        "stream.fetch",
        "train.step",
    }
    written = {p.name for p in out.iterdir()}
    assert written >= {
        "dataset",
        "config.toml",
        "report.json",
        "predictions.arrow",
        "checkpoints",
        "steps.jsonl",
    }
    printed = capsys.readouterr().out
    assert "limiting stage: " in printed
    assert "test: accuracy" in printed
    assert "8 steps, 8 updates on 1 rank(s)" in printed


def test_wall_s_counts_from_the_start_of_the_command(
    run_settings: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TAMIS_START", repr(time.time() - 1000))
    report = train(run_settings(steps=1), tmp_path / "run")
    assert report is not None
    assert 1000 < report["wall_s"] < 1060


def test_a_finished_run_is_only_reported(
    run_settings: Make, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "run"
    first = train(run_settings(steps=2), out)
    printed = capsys.readouterr().out
    times = {p: p.stat().st_mtime_ns for p in out.rglob("*")}
    assert train(run_settings(steps=2), out) == first
    assert capsys.readouterr().out == printed
    assert {p: p.stat().st_mtime_ns for p in out.rglob("*")} == times


def test_only_the_number_of_steps_may_rise(run_settings: Make, scan: Path, tmp_path: Path) -> None:
    out = tmp_path / "run"
    train(run_settings(steps=2), out)
    others: list[tuple[dict[str, Any], str, str]] = [
        ({"lr": 0.5}, "trainer.lr", "0.01, not 0.5"),
        ({"steps": 1}, "trainer.steps", "2, not 1"),
        ({"steps": 3, "seed": 1}, "trainer.seed", "0, not 1"),
    ]
    for other, key, values in others:
        with pytest.raises(UsageError, match=f"another {key}: {values}"):
            train(run_settings(**{"steps": 2} | other), out)
    raised = train(run_settings(steps=4), out)
    assert raised is not None
    assert (raised["steps"], raised["resumed_from"]) == (4, 2)
    assert "steps = 4" in (out / "config.toml").read_text()


def test_before_the_first_checkpoint_anything_may_be_corrected(
    run_settings: Make, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    settings = run_settings()
    wrong = settings.model_copy(update={"model": settings.model.model_copy(update={"features": ("rgb",)})})
    with pytest.raises(DataError, match="'rgb'"):
        train(wrong, tmp_path / "run")
    assert train(settings, tmp_path / "run") is not None


def test_a_damaged_report_is_named(run_settings: Make, tmp_path: Path) -> None:
    train(run_settings(), tmp_path / "run")
    (tmp_path / "run" / "report.json").write_text("{")
    with pytest.raises(DataError, match=r"report.json: is damaged .*; remove it"):
        train(run_settings(), tmp_path / "run")


def test_what_a_killed_process_left_is_removed(run_settings: Make, tmp_path: Path) -> None:
    out = tmp_path / "run"
    out.mkdir()
    for name in (".predictions.arrow.0", ".predictions.arrow.77.tmp", ".config.toml.8.tmp"):
        (out / name).touch()
    train(run_settings(), out)
    assert not [p.name for p in out.iterdir() if p.name.startswith(".")]


def test_the_raw_files_may_have_moved(run_settings: Make, scan: Path, tmp_path: Path) -> None:
    out = tmp_path / "run"
    settings = run_settings(steps=1)
    first = train(settings, out)
    scan.parent.rename(tmp_path / "elsewhere")
    moved = settings.model_copy(
        update={"data": settings.data.model_copy(update={"root": tmp_path / "elsewhere"})}
    )
    assert train(moved, out) == first


def test_a_ready_dataset_is_used(run_settings: Make, settings_of: Make, tmp_path: Path) -> None:
    train(run_settings(steps=1), tmp_path / "first")
    values = run_settings(steps=1).model_dump(mode="json")
    ready = settings_of(**values | {"data": {"path": str(tmp_path / "first")}})
    report = train(ready, tmp_path / "second")
    assert report is not None
    assert not (tmp_path / "second" / "dataset").exists()


def test_a_folder_in_use_is_refused(run_settings: Make, tmp_path: Path) -> None:
    with locked(tmp_path / "run"), pytest.raises(DataError, match="another tamis process"):
        train(run_settings(), tmp_path / "run")


def test_a_failed_build_leaves_no_configuration(run_settings: Make, scan: Path, tmp_path: Path) -> None:
    settings = run_settings(steps=1)
    scan.write_bytes(scan.read_bytes()[:-100])
    with pytest.raises(DataError, match=r"field\.las"):
        train(settings, tmp_path / "run")
    assert not (tmp_path / "run" / "config.toml").exists()


def command(config: Path, out: Path) -> subprocess.Popen[str]:
    arguments = [sys.executable, "-m", "tamis", "train", str(config), "--out", str(out)]
    environment = {k: v for k, v in os.environ.items() if k != "RANK"} | {"OMP_NUM_THREADS": "1"}
    return subprocess.Popen(
        arguments, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment
    )


def running(out: Path) -> list[int]:
    """Processes that work on ``out``."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            arguments = (process / "cmdline").read_bytes()
            state = (process / "stat").read_text().rpartition(")")[2].split()[0]
        except OSError:
            continue
        if str(out).encode() in arguments and state != "Z":
            found.append(int(process.name))
    return found


def config_of(settings: Any, path: Path, dp: int) -> Path:
    layout = settings.layout.model_copy(update={"dp": dp})
    path.write_text(dumps(settings.model_copy(update={"layout": layout})))
    return path


@pytest.mark.soak
@pytest.mark.timeout(300)
def test_kill_9_of_a_run_on_two_ranks(run_settings: Make, run_ranks: Make, tmp_path: Path) -> None:
    """The command is killed in the middle: no rank outlives it, and the same command ends as an uncut run."""
    settings = run_settings(steps=120, checkpoint_steps=10)
    config = config_of(settings, tmp_path / "small.toml", dp=2)
    whole = tmp_path / "whole"
    dataset = build(settings.data, whole)
    run_ranks(2, lambda mesh: loop.run(settings, dataset, whole, mesh, 0.0))

    out = tmp_path / "cut"
    cut = command(config, out)
    until = time.monotonic() + 60
    while not (out / "checkpoints" / "step-00000030").exists():
        assert cut.poll() is None
        assert time.monotonic() < until
        time.sleep(0.01)
    assert len(running(out)) == 3
    cut.kill()
    cut.communicate()
    until = time.monotonic() + 10
    while running(out):
        assert time.monotonic() < until, "a rank outlived its command"
        time.sleep(0.05)
    assert not (out / "report.json").exists()

    again = command(config, out)
    printed, errors = again.communicate(timeout=100)
    assert again.returncode == 0, errors
    assert "120 updates on 2 rank(s)" in printed
    assert json.loads((out / "report.json").read_text())["resumed_from"] >= 30
    for name in ("steps.jsonl", "predictions.arrow"):
        assert (out / name).read_bytes() == (whole / name).read_bytes(), name


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_an_error_of_a_rank_is_one_line(run_settings: Make, tmp_path: Path) -> None:
    out = tmp_path / "run"
    settings = run_settings(steps=5)
    train(
        settings.model_copy(update={"trainer": settings.trainer.model_copy(update={"steps": 1})}),
        tmp_path / "x",
    )
    ready = settings.data.model_copy(update={"path": tmp_path / "x"})
    shard = max((tmp_path / "x" / "dataset").glob("shard*"), key=lambda p: p.stat().st_size)
    data = bytearray(shard.read_bytes())
    for place in range(len(data) // 4, len(data) * 3 // 4, 50):
        data[place] ^= 255
    shard.write_bytes(data)
    config = config_of(settings.model_copy(update={"data": ready}), tmp_path / "small.toml", dp=2)
    failed = command(config, out)
    printed, errors = failed.communicate(timeout=100)
    assert failed.returncode == 1
    assert printed == ""
    assert len(errors.splitlines()) == 1, errors
    assert errors.startswith(f"tamis: {shard}")
    assert "offset" in errors


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_the_shipped_3d_run_uses_eight_processes_and_three_levels(tmp_path: Path) -> None:
    """And each axis: what is sent along it is in the report, with the bubble and every rank's part."""
    ratio = '{kind = "steps", start = 0.25, end = 1.0, steps = 9, milestones = [3, 6]}'
    sets = ["trainer.steps=9", f"loader.ratio={ratio}", "report.every=3"]
    args = [part for one in sets for part in ("--set", one)]
    done = subprocess.run(
        [sys.executable, "-m", "tamis", "train", "quickstart_3d", "--out", str(tmp_path / "run"), *args],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT / ".links")},
        capture_output=True,
        text=True,
        check=False,
        timeout=280,
    )
    assert done.returncode == 0, done.stderr
    report = json.loads((tmp_path / "run" / "report.json").read_text())
    assert report["world_size"] == 8
    assert [level["k"] for level in report["levels"]] == [128, 256, 512]
    assert [level["steps"] for level in report["levels"]] == [3, 3, 3]
    assert all(set(figures) >= {"dp_replicate", "tp", "pp"} for figures in report["collectives"].values())
    assert 0 < report["bubble_predicted"] < 1
    assert 0 < report["bubble_fraction"] < 1
    places = {(rank["pp"], rank["dp_replicate"], rank["tp"]) for rank in report["ranks"]}
    assert len(places) == 8
    assert report["parameters_per_rank"] == [rank["parameters"] for rank in report["ranks"]]
    rows = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    assert [row["step"] for row in rows] == [2, 5, 8]
