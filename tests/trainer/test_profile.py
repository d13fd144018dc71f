from __future__ import annotations

import json
import logging
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from tamis import cli
from tamis.metrics import TRAIN, Meter
from tamis.pipelines.dataset import Dataset
from tamis.trainer import loop, profile
from tamis.trainer.mesh import Mesh
from tamis.trainer.profile import profiled

Make = Callable[..., Any]


@pytest.fixture
def wanted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(profile.VARIABLE, "1")


def run(out: Path, meter: Meter, steps: int) -> None:
    """A loop with our stages around a small model."""
    out.mkdir(exist_ok=True)
    model = nn.Sequential(nn.Linear(8, 8), nn.LayerNorm(8))
    with profiled(out, 3, meter, steps) as next_step:
        for _ in range(steps):
            with meter.wait("train.wait"):
                rows = torch.rand(4, 8)
            with meter.time("train.forward"):
                loss = model(rows).sum()
            with meter.time("train.backward"):
                loss.backward()
            next_step()


@pytest.mark.parametrize("steps", [5, 12])
def test_the_trace_names_our_stages_within_the_steps(wanted: None, tmp_path: Path, steps: int) -> None:
    meter = Meter(TRAIN)
    run(tmp_path / "profile", meter, steps)
    assert meter.annotate is None
    assert [path.name for path in (tmp_path / "profile").iterdir()] == ["rank-3.json"]
    trace = json.loads((tmp_path / "profile" / "rank-3.json").read_text())
    events = [e for e in trace["traceEvents"] if e.get("ph") == "X" and e.get("cat") == "user_annotation"]
    spans = [(e["ts"], e["ts"] + e["dur"]) for e in events if e["name"].startswith("ProfilerStep")]
    assert len(spans) == profile.ACTIVE
    for stage in ("train.wait", "train.forward", "train.backward"):
        found = [(e["ts"], e["ts"] + e["dur"]) for e in events if e["name"] == stage]
        assert len(found) == profile.ACTIVE, stage
        for start, end in found:
            assert any(first <= start < end <= last for first, last in spans), stage
    # What torch did in a stage lies within it.
    forward = [(e["ts"], e["ts"] + e["dur"]) for e in events if e["name"] == "train.forward"]
    layers = [e["ts"] for e in trace["traceEvents"] if e.get("name") == "aten::layer_norm"]
    assert layers
    assert all(any(start <= at <= end for start, end in forward) for at in layers)


def test_nothing_happens_unless_wanted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(profile.VARIABLE, raising=False)
    run(tmp_path / "profile", Meter(TRAIN), 10)
    assert not list((tmp_path / "profile").iterdir())


def test_a_run_too_short_says_so(wanted: None, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING), profiled(tmp_path / "profile", 0, Meter(TRAIN), 4) as next_step:
        next_step()
    assert "--profile: 4 steps are left, 5 are needed" in caplog.text
    assert not list(tmp_path.iterdir())


def test_a_step_that_fails_leaves_the_meter_as_it_was(wanted: None, tmp_path: Path) -> None:
    meter = Meter(TRAIN)
    with pytest.raises(ZeroDivisionError), profiled(tmp_path, 0, meter, 10) as next_step:
        next_step()
        raise ZeroDivisionError
    assert meter.annotate is None


def test_each_rank_of_a_run_leaves_its_trace(
    wanted: None, run_settings: Make, dataset: Dataset, tmp_path: Path, run_ranks: Make
) -> None:
    def work(mesh: Mesh) -> None:
        loop.run(run_settings(), dataset, tmp_path, mesh, 0.0)

    run_ranks(2, work)
    assert {path.name for path in (tmp_path / "profile").iterdir()} == {"rank-0.json", "rank-1.json"}
    for path in (tmp_path / "profile").iterdir():
        names = [event.get("name") for event in json.loads(path.read_text())["traceEvents"]]
        for stage in ("train.wait", "train.h2d", "train.forward", "train.backward", "train.step"):
            assert names.count(stage) >= profile.ACTIVE, stage
        assert any(str(name).startswith("gloo:all_reduce") for name in names)


@pytest.mark.parametrize("flags", [[], ["--profile"]])
def test_the_flag_is_told_through_the_environment(monkeypatch: pytest.MonkeyPatch, flags: list[str]) -> None:
    told = []
    monkeypatch.setenv(profile.VARIABLE, "0")
    monkeypatch.setattr("tamis.trainer.launch.train", lambda *_: told.append(profile.wanted()))
    monkeypatch.setattr(sys, "argv", ["tamis", "train", "quickstart", *flags])
    with pytest.raises(SystemExit):
        cli.main()
    assert told == [bool(flags)]
