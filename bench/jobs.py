"""Runs jobs of the benchmark, each in a process of its own that leaves nothing behind."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import tempfile
import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from . import processes

_PACKAGE = Path(__file__).parent.parent
_GRACE_S = 2.0


class Failed(Exception):
    """A job that gave no answer; the message says why, on one line."""


@dataclass
class Running:
    """A job that was started. ``mark``: what its processes carry."""

    process: subprocess.Popen[bytes]
    folder: tempfile.TemporaryDirectory[str]
    mark: str

    def wait(self, timeout_s: float) -> int:
        """Wait until it has ended; its exit code. Raises Failed where it has not in time."""
        try:
            return self.process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            raise Failed(f"did not end within {timeout_s:.0f} s") from None

    def answer(self, timeout_s: float) -> dict[str, Any]:
        """Its answer, once it has ended; then every process of it is ended. Raises Failed."""
        folder = Path(self.folder.name)
        try:
            code = self.wait(timeout_s)
            if code or not (folder / "answer").is_file():
                raise Failed(_reason(code, (folder / "errors").read_text(errors="replace")))
            answer: dict[str, Any] = json.loads((folder / "answer").read_text())
            return answer
        finally:
            self.end()

    def end(self) -> None:
        """End every process of it, and remove its files."""
        ended = self.process.poll() is not None
        processes.kill(self.mark, _GRACE_S if ended else 0.0)  # some then still remove what they shared
        self.process.wait()
        self.folder.cleanup()


def start(
    python: str, job: Mapping[str, Any], cache: Path | None, environment: Mapping[str, str] | None = None
) -> Running:
    """Start ``job`` under an interpreter that need not have tamis installed.

    ``cache``: a folder for bytecode, where the interpreter cannot keep that beside its modules: without it
    each job could spend seconds on compiling its imports.
    """
    folder = tempfile.TemporaryDirectory(prefix="tamis-bench-")
    path = Path(folder.name)
    (path / "tamis").symlink_to(_PACKAGE, target_is_directory=True)
    (path / "job").write_text(json.dumps({**job, "answer": str(path / "answer")}))
    mark = uuid.uuid4().hex
    ours = {
        processes.MARK: mark,
        "PYTHONPATH": str(path),
        **({"PYTHONPYCACHEPREFIX": str(cache / "bytecode")} if cache else {}),
        **(environment or {}),
    }
    inherited = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    with (path / "job").open() as given, (path / "errors").open("w") as errors:
        process = subprocess.Popen(
            [python, "-m", "tamis.bench.work"],
            stdin=given,
            stdout=subprocess.DEVNULL,
            stderr=errors,
            env={**inherited, **ours},
            start_new_session=True,
        )
    return Running(process, folder, mark)


def _reason(code: int, errors: str) -> str:
    """Why a job failed: the signal that ended it, or the last line that it wrote."""
    if code < 0:
        return f"was ended by {signal.Signals(-code).name}"
    lines = [line.strip() for line in errors.splitlines() if line.strip()]
    return lines[-1][:500] if lines else f"ended with exit code {code} and no answer"
