"""``tamis eval``: the scores of the report, of any checkpoint, whatever layout wrote it."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from tamis import cli, cli_runs
from tamis.config import check, dumps
from tamis.errors import DataError, UsageError
from tamis.files import locked
from tamis.pipelines.build import build
from tamis.pipelines.dataset import Dataset
from tamis.pipelines.settings import DataSettings
from tamis.trainer import loop
from tamis.trainer.checkpoints import checkpoint
from tamis.trainer.eval_run import evaluate
from tamis.trainer.mesh import Mesh, alone
from tamis.trainer.settings import Settings

Make = Callable[..., Any]


@pytest.fixture
def go(killed_in: Make) -> Make:
    """``go(settings, run)``: run to the end, or to the step it is killed in."""

    def run_it(settings: Settings, run: Path, mesh: Mesh | None = None, cut: int | None = None) -> None:
        (run / "config.toml").write_text(dumps(settings))
        with killed_in(cut):
            loop.run(settings, Dataset(settings.dataset_path(run)), run, mesh or alone(), 0.0)

    return run_it


def report(run: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((run / "report.json").read_text())["eval"]
    return found


def test_the_scores_are_those_of_the_report(
    run_settings: Make, dataset: Dataset, tmp_path: Path, go: Make
) -> None:
    """To the bit, and the predictions; the run stays as it is."""
    go(run_settings(steps=6, checkpoint_steps=3), tmp_path)
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    found = evaluate(tmp_path)
    assert found == {"step": 6, "split": "test", "scores": report(tmp_path)}
    assert json.loads((tmp_path / "eval" / "eval.json").read_text()) == found
    same = (tmp_path / "eval" / "predictions.arrow").read_bytes()
    assert same == (tmp_path / "predictions.arrow").read_bytes()
    new = {path for path in tmp_path.rglob("*") if path.is_file()} - before.keys()
    assert {path.name for path in new} == {"eval.json", "predictions.arrow"}
    assert all(path.read_bytes() == raw for path, raw in before.items())


def test_a_killed_run_is_judged_as_that_step_of_a_whole_one(
    run_settings: Make, dataset: Dataset, tmp_path: Path, go: Make
) -> None:
    settings = run_settings(steps=6, checkpoint_steps=3)
    go(settings, tmp_path, cut=5)
    killed = evaluate(str(tmp_path), out=tmp_path / "killed")
    assert not (tmp_path / "report.json").exists()
    go(settings, tmp_path)
    whole = evaluate(tmp_path, step=3, out=tmp_path / "whole")
    assert killed == whole
    assert whole["step"] == 3
    assert whole["scores"]["loss"] != report(tmp_path)["loss"]
    one, two = ((tmp_path / name / "predictions.arrow").read_bytes() for name in ("killed", "whole"))
    assert one == two


@pytest.mark.parametrize(
    "layout",
    [
        pytest.param({"pp": 2, "microbatches": 3}, id="pp2"),
        pytest.param({"dp": 2, "shard": 2, "tp": 2}, id="fsdp2 tp2", marks=pytest.mark.slow),
    ],
)
def test_any_layout_is_judged_in_one_process(
    layout: dict[str, Any], run_settings: Make, dataset: Dataset, tmp_path: Path, run_ranks: Make, go: Make
) -> None:
    values = run_settings(steps=3).model_dump(mode="json", exclude_none=True)
    values["layout"] |= layout
    settings = check(values, Settings, where="here")
    run_ranks(settings.layout, lambda mesh: go(settings, tmp_path, mesh))
    wanted = report(tmp_path)
    assert evaluate(tmp_path)["scores"] == wanted | {"loss": pytest.approx(wanted["loss"], rel=1e-12)}


def test_another_split_is_judged_with_its_own_counts(
    run_settings: Make,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    go: Make,
) -> None:
    values = run_settings(steps=2).model_dump(mode="json", exclude_none=True)
    values["data"]["split"] |= {"val": [1]}
    settings = check(values, Settings, where="here")
    data = build(settings.data, tmp_path)
    go(settings, tmp_path)
    monkeypatch.setattr(sys, "argv", ["tamis", "eval", str(tmp_path), "--split", "val"])
    monkeypatch.setattr("signal.signal", lambda *_: None)
    monkeypatch.setattr(cli_runs, "tell_progress", lambda: None)  # it would stay so for other tests
    with pytest.raises(SystemExit) as exit:
        cli.main()
    assert not exit.value.code
    found = json.loads((tmp_path / "eval" / "eval.json").read_text())
    assert (found["step"], found["split"]) == (2, "val")
    scores, counts = found["scores"], data.manifest.counts.splits["val"]
    assert scores["points"] == counts.points
    assert scores["labelled"] == counts.points - counts.ignored
    assert scores["dropped"] == counts.dropped
    assert scores["labelled"] != report(tmp_path)["labelled"]
    rows = pa.ipc.open_file(tmp_path / "eval" / "predictions.arrow").read_all()["row"].to_pylist()
    tiles = [data.sample(row, ["row"]) for part in data.splits["val"] for row in range(*part.rows)]
    assert rows == sorted(row for tile in tiles for row in tile.columns["row"].tolist())
    printed = capsys.readouterr().out.splitlines()
    assert printed[0] == "after 2 steps"
    assert printed[1].startswith(f"val: accuracy {scores['accuracy']:.4f} ")
    assert f"val: {scores['labelled']:,} labelled of {counts.points:,} points" in printed[2]


def test_texts_have_scores_and_no_predictions(settings_of: Make, tmp_path: Path, go: Make) -> None:
    (tmp_path / "texts").mkdir()
    for name in ("a", "b"):
        (tmp_path / "texts" / f"{name}.txt").write_text("a drum sieve " * 30)
    data = {"root": str(tmp_path / "texts"), "text": {"length": 32}}
    data |= {"split": {"kind": "files", "test": ["b.txt"]}}
    settings = settings_of(
        data=data,
        model={"kind": "tokens", "width": 24, "heads": 2, "depth": 1},
        trainer={"points": 32, "steps": 3, "checkpoint_steps": 0},
    )
    build(DataSettings.model_validate(data | {"root": tmp_path / "texts"}), tmp_path)
    go(settings, tmp_path)
    assert evaluate(tmp_path)["scores"] == report(tmp_path)
    assert [path.name for path in (tmp_path / "eval").iterdir()] == ["eval.json"]


def test_what_cannot_be_judged_is_refused(
    run_settings: Make, dataset: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, go: Make
) -> None:
    settings = run_settings(steps=3, checkpoint_steps=2)
    with pytest.raises(DataError, match=r"holds no run \(config\.toml is missing\)"):
        evaluate(tmp_path)
    go(settings, tmp_path, cut=1)
    with pytest.raises(DataError, match="holds no checkpoint yet; train first"):
        evaluate(tmp_path)
    go(settings, tmp_path)
    with pytest.raises(UsageError, match="--step: there is no checkpoint of step 1; there are 2, 3"):
        evaluate(tmp_path, step=1)
    with pytest.raises(UsageError, match=r"--split: .* has no split 'val'; it has test, train"):
        evaluate(tmp_path, split="val")
    with locked(tmp_path / "there"):
        (tmp_path / "there" / "file").touch()
        with pytest.raises(DataError, match="another tamis process is writing here"):
            evaluate(tmp_path, out=tmp_path / "there")
    (tmp_path / "folder" / "eval.json").mkdir(parents=True)
    with pytest.raises(UsageError, match=r"eval\.json: is a folder; name a file"):
        evaluate(tmp_path, out=tmp_path / "folder")
    assert [path.name for path in (tmp_path / "folder").iterdir()] == ["eval.json"]  # before it took long
    (tmp_path / "folder" / "eval.json").rmdir()
    part = next(path for path in sorted((tmp_path / "checkpoints" / "step-00000003").iterdir()))
    whole = part.read_bytes()
    part.write_bytes(whole[:-1])
    with pytest.raises(DataError, match=r"step-00000003"):
        evaluate(tmp_path)
    part.write_bytes(whole)
    dataset.path.rename(tmp_path / "old")
    other = {"row_order": "source"}
    build(DataSettings.model_validate(settings.data.model_dump() | other), tmp_path)
    with pytest.raises(DataError, match=r"is not the dataset that .*step-00000003 learned from"):
        evaluate(tmp_path)
    assert not list(tmp_path.rglob("eval.json"))


def test_a_checkpoint_that_goes_while_it_is_read_gives_way_to_the_next(
    run_settings: Make, dataset: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, go: Make
) -> None:
    """A run that is going on keeps the last few only."""
    go(run_settings(steps=3, checkpoint_steps=2), tmp_path)
    last = tmp_path / "checkpoints" / "step-00000003"
    newer = last.with_name("step-00000004")
    read = checkpoint.read

    def slowly(path: Path) -> Any:
        if path == last:
            last.rename(newer)
        return read(path)

    monkeypatch.setattr(checkpoint, "read", slowly)
    assert evaluate(tmp_path)["scores"] == report(tmp_path)
    assert newer.is_dir()
    newer.rename(last)
    with pytest.raises(UsageError, match="--step: there is no checkpoint of step 3; there are 2, 4"):
        evaluate(tmp_path, step=3)
