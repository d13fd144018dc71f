"""What a rank leaves of its error."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tamis.errors import DataError
from tamis.trainer import worker


def test_an_error_is_told_on_a_full_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "error.json"
    monkeypatch.setenv("TORCHELASTIC_ERROR_FILE", str(path))
    worker._take_room()
    (room,) = tmp_path.iterdir()
    taken = room.stat()
    assert taken.st_blocks > 0
    error = DataError("step-1", "cannot be written (No space left on device)", "see to the disk")
    worker._tell(type(error), error, None)
    assert path.stat().st_ino == taken.st_ino  # written where there was room
    assert json.loads(path.read_bytes())["cause"] == error.cause
    worker._tell(OSError, OSError(32, "Broken pipe"), None)
    assert json.loads(path.read_bytes())["cause"] == error.cause  # the first one counts

    monkeypatch.setenv("TORCHELASTIC_ERROR_FILE", str(tmp_path / "gone" / "error.json"))
    worker._take_room()
    worker._tell(type(error), error, None)
    assert capsys.readouterr().err == f"tamis: {error}\n"
