"""The command line: help at once, errors as one plain line, exit 1 for data and 2 for usage."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tamis import cli


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    """(exit code, stdout, stderr) of a command run in this process."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", ["tamis", *arguments])
        with pytest.raises(SystemExit) as exit:
            cli.main()
    captured = capsys.readouterr()
    return int(exit.value.code or 0), captured.out, captured.err


def test_help_names_every_command_and_loads_nothing_heavy() -> None:
    heavy = {"numpy", "numba", "torch", "pyarrow", "pydantic"}
    code = f"import sys, tamis.cli; print(*({heavy} & set(sys.modules)))"
    assert subprocess.check_output([sys.executable, "-c", code], text=True).split() == []
    text = subprocess.check_output([sys.executable, "-m", "tamis", "--help"], text=True)
    assert all(
        name in text for name in ("build", "inspect", "verify", "stream", "train", "predict", "config")
    )


def test_config_prints_what_it_reads_back(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    code, text, _ = run(capsys, "config", "quickstart", "--set", "trainer.lr=0.5")
    assert code == 0
    assert "lr = 0.5" in text
    (tmp_path / "again.toml").write_text(text)
    assert run(capsys, "config", str(tmp_path / "again.toml"))[1] == text


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (["build", "none.toml"], 1, ["none.toml", "no such configuration", "quickstart"]),
        (["build"], 2, ["Missing argument 'CONFIG'"]),
        (["bild"], 2, ["bild", "build"]),
        (
            ["config", "quickstart", "--set", "trainer.stpes=1"],
            2,
            ["--set trainer.stpes=1", "trainer.steps"],
        ),
        (["config", "quickstart", "--set", "trainer.steps=many"], 2, ["trainer.steps", "many"]),
        (["config", "quickstart", "--set", "layout.tp=4"], 2, ["layout.tp 4", "model.heads 2"]),
        (["config", "quickstart", "--set", "layout.pp=3"], 2, ["layout.microbatches 3", "loader.batch"]),
        (["verify", "nowhere"], 1, ["nowhere"]),
        (["inspect", "nowhere"], 1, ["nowhere"]),
        (["predict", "nowhere", "a.laz", "-o", "b.laz"], 1, ["nowhere"]),
        (["build", "quickstart", "--set", "data.root=nowhere", "--out", "run"], 1, ["nowhere"]),
        (["build", "quickstart", "--set", 'data.files=["no*.laz"]', "--out", "run"], 1, ["no*.laz"]),
        (["stream", "quickstart", "--out", "run"], 1, ["run", "tamis build"]),
    ],
)
def test_misuse_is_one_plain_line(
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    arguments: list[str],
    code: int,
    words: list[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    exit, out, err = run(capsys, *arguments)
    assert (exit, out) == (code, "")
    assert err.startswith("tamis: ")
    assert err.count("\n") == 1
    assert all(word in err for word in words), err
    assert not list(tmp_path.rglob("*.arrow")), "something was left half-written"


def test_ctrl_c_says_that_the_command_continues(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(path: Path) -> str:
        raise KeyboardInterrupt

    monkeypatch.setattr("tamis.pipelines.inspect.inspect", interrupted)
    code, _, err = run(capsys, "inspect", "anything")
    assert (code, err) == (130, "tamis: interrupted; the same command continues\n")
