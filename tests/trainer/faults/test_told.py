"""What a rank leaves of its error."""

from __future__ import annotations

from pathlib import Path

import pytest

from tamis.errors import DataError
from tamis.trainer.faults.told import take_room, tell, told


def test_an_error_is_told_on_a_full_disk(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "0.json"
    assert told(path) is None
    take_room(path)
    (room,) = tmp_path.iterdir()
    taken = room.stat()
    assert taken.st_blocks > 0
    error = DataError("step-1", "cannot be written (No space left on device)", "see to the disk")
    tell(path, error)
    assert path.stat().st_ino == taken.st_ino  # written where there was room
    found = told(path)
    assert found is not None
    assert found["cause"] == error.cause
    tell(path, OSError(32, "Broken pipe"))
    assert told(path) == found  # the first one counts

    gone = tmp_path / "gone" / "0.json"
    take_room(gone)
    tell(gone, error)
    assert capsys.readouterr().err == f"tamis: {error}\n"


def test_what_is_no_error_of_ours_is_told_with_its_trace(tmp_path: Path) -> None:
    try:
        raise KeyError("nowhere")
    except KeyError as error:
        tell(tmp_path / "0.json", error)
    found = told(tmp_path / "0.json")
    assert found is not None
    assert "cause" not in found
    assert "KeyError: 'nowhere'" in found["trace"]
    assert "test_told.py" in found["trace"]
