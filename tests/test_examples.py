"""The examples run as they are written, and go on where they were cut."""

from __future__ import annotations

import importlib.util
import os
import re
import runpy
import subprocess
import sys
from pathlib import Path

import pytest

from tamis.cli import main

ROOT = Path(__file__).resolve().parent.parent
EXAMPLES = ROOT / "examples"

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]  # each process imports torch


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What ``tamis build quickstart`` makes."""
    folder = tmp_path_factory.mktemp("examples") / "run"
    with pytest.MonkeyPatch.context() as patch, pytest.raises(SystemExit) as exit:
        patch.setattr(sys, "argv", ["tamis", "build", "quickstart", "--out", str(folder)])
        main()
    assert not exit.value.code
    return folder


def run(folder: Path, *arguments: str) -> str:
    """The standard output of a Python command in ``folder``."""
    done = subprocess.run(
        [sys.executable, *arguments],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(ROOT / ".links"), "CUDA_VISIBLE_DEVICES": ""},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    return done.stdout


def needs(package: str) -> None:
    if importlib.util.find_spec(package) is None:
        pytest.skip(f"needs the package {package}: `uv sync --group dev`")


def steps(text: str) -> list[tuple[str, str]]:
    """(step, loss) of each line an example prints."""
    return re.findall(r"step (\d+): loss ([\d.]+)", text)


def test_every_example_is_run_here() -> None:
    here = Path(__file__).read_text(encoding="utf-8")
    assert all(f'"{path.name}"' in here for path in EXAMPLES.glob("*.py"))
    assert len(list(EXAMPLES.glob("*.py"))) == 4


def test_a_plain_loop_that_was_cut_learns_what_a_whole_one_does(
    dataset: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    command = [str(EXAMPLES / "plain_torch.py"), str(dataset), "--steps"]
    first = steps(run(tmp_path, *command, "7"))
    rest = steps(run(tmp_path, *command, "16"))
    monkeypatch.setattr(sys, "argv", [*command, "16", "--checkpoint", str(tmp_path / "whole.pt")])
    runpy.run_path(command[0], run_name="__main__")
    whole = steps(capsys.readouterr().out)
    assert [int(step) for step, _ in whole] == list(range(16))
    assert (len(first), len(rest)) == (7, 9)
    assert first + rest == whole


def test_lightning_goes_on_with_the_next_batch(dataset: Path, tmp_path: Path) -> None:
    needs("lightning")
    command = [str(EXAMPLES / "lightning_module.py"), str(dataset)]
    found = [steps(run(tmp_path, *command, "--steps", most)) for most in ("5", "9")]
    assert [[int(step) for step, _ in part] for part in found] == [[0, 1, 2, 3, 4], [5, 6, 7, 8]]


def test_the_hugging_face_trainer_goes_on_with_the_next_batch(dataset: Path, tmp_path: Path) -> None:
    needs("transformers")
    needs("accelerate")
    command = [str(EXAMPLES / "hf_trainer.py"), str(dataset)]
    for most in (5, 9):
        text = run(tmp_path, *command, "--steps", str(most))
        assert f"the loader gave {most} batches" in text
        assert (tmp_path / "hf" / f"checkpoint-{most}" / "loader.json").exists()
    assert text.count("'loss'") == 4


def test_pairs_of_ranks_share_a_replica(dataset: Path, tmp_path: Path) -> None:
    torchrun = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "4"]
    text = run(tmp_path, *torchrun, str(EXAMPLES / "torchrun_replicas.py"), str(dataset))
    assert "4 ranks, 2 replicas: each of 49 samples once" in text
