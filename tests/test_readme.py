"""The commands of the README hold: the main job runs, the test command is what CI begins with."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pytest

ROOT = Path(__file__).resolve().parent.parent
README = (ROOT / "README.md").read_text(encoding="utf-8")
COMMANDS = re.findall(r"```bash\n(.*?)\n```", README, re.DOTALL)
SNIPPETS = re.findall(r"```python\n(.*?)\n```", README, re.DOTALL)


def test_the_readme_needs_two_commands() -> None:
    assert len(COMMANDS) == 2
    assert all("\n" not in command for command in COMMANDS)


def test_ci_begins_with_the_readmes_test_command() -> None:
    calls = [line for line in (ROOT / ".ci" / "run").read_text().splitlines() if line.startswith("uv run")]
    assert calls[0] == COMMANDS[1]


@pytest.mark.timeout(300)
def test_the_main_job_and_the_snippets_run_as_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    install, command = (shlex.split(part) for part in COMMANDS[0].split("&&"))
    assert install == ["pip", "install", "uv"]
    assert command[:3] == ["uv", "run", "tamis"]
    # `uv run` would install the project into this environment once more; the program is the same.
    done = subprocess.run(
        [sys.executable, "-m", "tamis", *command[3:]],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT / ".links")},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    out = tmp_path / "runs" / "quickstart"
    report = json.loads((out / "report.json").read_text())
    assert report["world_size"] == 2
    assert report["eval"]["accuracy"] >= 0.90
    assert report["eval"]["majority"] < 0.6
    assert report["eval"]["dropped"] == 0
    assert f"limiting stage: {report['limiting_stage']}" in done.stdout
    predictions = pa.ipc.open_file(out / "predictions.arrow").read_all()
    assert len(predictions) == report["eval"]["points"]

    monkeypatch.chdir(tmp_path)
    assert SNIPPETS
    for snippet in SNIPPETS:
        exec(compile(snippet, "README.md", "exec"), {})
