"""Files are whole or absent; a folder is held by one process."""

from __future__ import annotations

import pickle
import subprocess
import sys
from pathlib import Path

import pytest

from tamis.errors import DataError, UsageError
from tamis.files import atomic, locked, write_atomic


def test_a_failed_write_leaves_the_old_file_and_nothing_else(tmp_path: Path) -> None:
    path = tmp_path / "a"
    write_atomic(path, "old")
    with pytest.raises(OSError, match="full"), atomic(path) as temporary:
        temporary.write_text("half")
        raise OSError("disk full")
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


def test_a_second_process_is_refused_until_the_first_is_killed(tmp_path: Path) -> None:
    code = (
        "import time; from pathlib import Path; from tamis.files import locked\n"
        f"with locked(Path({str(tmp_path)!r})): print('held', flush=True); time.sleep(60)"
    )
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "held\n"
        with pytest.raises(DataError, match="another tamis process"), locked(tmp_path):
            pass
        holder.kill()
    with locked(tmp_path):
        pass


def test_errors_are_one_line_and_cross_processes() -> None:
    error = DataError("a.laz", "is damaged\n at byte 7", "fetch it again")
    assert str(error) == "a.laz: is damaged at byte 7; fetch it again"
    copy = pickle.loads(pickle.dumps(error))
    assert (type(copy), str(copy), copy.exit_code) == (DataError, str(error), 1)
    assert isinstance(UsageError("k", "is too large"), ValueError)
    assert UsageError.exit_code == 2


def test_a_folder_in_which_nothing_was_done_is_gone_again(tmp_path: Path) -> None:
    with locked(tmp_path / "a" / "b"):
        pass
    with locked(tmp_path / "used"):
        (tmp_path / "used" / "file").touch()
    assert not (tmp_path / "a" / "b").exists()
    assert (tmp_path / "used" / "file").exists()
