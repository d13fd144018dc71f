"""What ``tamis stream`` tells: while it reads, on a terminal, and at the end."""

from __future__ import annotations

import io
import os
import pty
import re
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from tamis import cli
from tamis.errors import DataError
from tamis.loaders.loader import Loader, LoaderSettings
from tamis.metrics import STREAM, Meter, stage_rows
from tamis.pipelines.build import build
from tamis.pipelines.dataset import Dataset
from tamis.pipelines.settings import DataSettings, TextSettings
from tamis.trainer.feed import loader_of
from tamis.trainer.settings import Settings
from tamis.trainer.stream import stream

Make = Callable[..., Settings]


def test_the_table_tells_what_was_read(run_settings: Make, dataset: Dataset) -> None:
    text = stream(run_settings(), dataset.path, 3)
    assert "first batch of 5 samples of 32 points" in text
    assert "2 more in" in text
    assert "limiting stage: stream." in text
    assert "\x1b" not in text


def test_one_batch_has_no_rate(run_settings: Make, dataset: Dataset) -> None:
    assert re.fullmatch(
        r"first batch of 5 samples of 32 points after [\d.]+ s", stream(run_settings(), dataset.path, 1)
    )


@pytest.mark.parametrize("where", ["dataset", "parent"])
def test_a_dataset_alone_can_be_streamed(
    dataset: Dataset, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    path: Path = dataset.path if where == "dataset" else dataset.path.parent
    monkeypatch.setenv("FORCE_COLOR", "1")  # asks for colours, and not for a table that moves in a file
    monkeypatch.setattr(
        sys, "argv", ["tamis", "stream", str(path), "--steps", "2", "--set", "loader.batch=3"]
    )
    with pytest.raises(SystemExit) as exit:
        cli.main()
    assert not exit.value.code
    out = capsys.readouterr().out
    assert "first batch of 3 samples" in out
    assert "\x1b" not in out


def test_texts_are_streamed_by_tokens(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "a.txt").write_bytes(b"some words, " * 50)
    build(DataSettings(root=tmp_path, text=TextSettings(length=64)), tmp_path / "run")
    sets = ["--set", "loader.batch=3", "--set", "trainer.points=64"]
    monkeypatch.setattr(sys, "argv", ["tamis", "stream", str(tmp_path / "run"), "--steps", "2", *sets])
    with pytest.raises(SystemExit) as exit:
        cli.main()
    assert not exit.value.code
    out = capsys.readouterr().out
    assert "first batch of 3 samples of 64 tokens" in out
    assert "million tokens/s" in out


def test_a_terminal_shows_the_table_while_batches_come(
    run_settings: Make, dataset: Dataset, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = io.StringIO()
    console = Console(file=file, force_terminal=True, width=120, height=20, legacy_windows=False)
    take = Loader.__next__

    def shown(words: str) -> bool:
        return words in file.getvalue()

    def slow(loader: Loader) -> Any:
        """Gives no batch before what is due is on the screen."""
        if loader.state_dict()["step"] in (0, 3):
            words = "waiting for the first batch" if loader.state_dict()["step"] == 0 else "2 more in"
            end = time.monotonic() + 30
            while not shown(words):
                assert time.monotonic() < end, f"'{words}' never came"
                time.sleep(0.01)
        return take(loader)

    monkeypatch.setattr(Loader, "__next__", slow)
    text = stream(run_settings(), dataset.path, 5, console)
    live = file.getvalue()
    assert "limiting stage: stream." in live
    assert "samples/s" in live
    assert "4 more in" in text
    assert "\x1b" not in text
    assert live.rstrip().endswith("\x1b[2K"), "the live table is wiped, the final one is the caller's"


def test_an_error_leaves_the_terminal_as_it_was(
    run_settings: Make, dataset: Dataset, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(loader: Loader) -> Any:
        raise DataError("shard", "is damaged", "build again")

    monkeypatch.setattr(Loader, "__next__", broken)
    file = io.StringIO()
    console = Console(file=file, force_terminal=True, width=120, height=20, legacy_windows=False)
    with pytest.raises(DataError, match="is damaged"):
        stream(run_settings(), dataset.path, 5, console)
    assert "\x1b[?25h" in file.getvalue(), "the cursor is shown again"


def test_the_command_shows_it_on_a_real_terminal(dataset: Dataset) -> None:
    command = [sys.executable, "-m", "tamis", "stream", str(dataset.path), "--steps", "4"]
    host, terminal = pty.openpty()
    environ = {k: v for k, v in os.environ.items() if k not in ("NO_COLOR", "TTY_COMPATIBLE")}
    process = subprocess.Popen(command, stdout=terminal, env=environ | {"TERM": "xterm", "COLUMNS": "120"})
    os.close(terminal)
    shown = b""
    while True:
        try:
            shown += os.read(host, 1 << 16)
        except OSError:  # nobody has the terminal open any more
            break
    os.close(host)
    assert process.wait() == 0
    assert b"waiting for the first batch" in shown
    assert b"\x1b[?25l" in shown
    final = shown.rpartition(b"\x1b[?25h")[2]
    assert b"3 more in" in final
    assert b"\x1b[" not in final.rpartition(b"\x1b[2K")[2]


def test_a_feeder_that_waits_for_its_readers_is_seen_to(run_settings: Make, dataset: Dataset) -> None:
    settings = run_settings()
    feeding = LoaderSettings(**settings.loader.model_dump() | {"feeder": "node", "slots": 2})
    meter = Meter(STREAM)
    with loader_of(settings.model_copy(update={"loader": feeding}), dataset, meter) as loader:
        next(loader)
        start_s = time.perf_counter()
        for _ in range(4):
            time.sleep(0.2)
            next(loader)
        rows = {
            row["stage"]: row for row in stage_rows(STREAM, meter.table[None], time.perf_counter() - start_s)
        }
    assert rows["stream.fetch"]["items"] > 0
    assert rows["stream.deliver"]["blocked"] > 0.5
