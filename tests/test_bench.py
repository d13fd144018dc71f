"""The benchmark of loaders: rows that compare, failures that are rows, and right arithmetic."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tamis import cli
from tamis.bench import clouds, jobs, peers, processes
from tamis.bench.clouds import Arrays, Clouds, Shape
from tamis.bench.compare import Report, Row, best, best_peer, figures, render
from tamis.bench.loader import run
from tamis.bench.measure import measure, touch
from tamis.bench.peers import Epoch
from tamis.bench.readers import readers
from tamis.bench.sweep import Effort, Sweep
from tamis.errors import DataError

ROW = {"loader", "set", "delivery", "settings"}
FIGURES = {"batch_bytes", "gb_s", "samples_s", "first_s", "cpu_ms", "rss_mb"}
TINY = Shape("clouds", 12, 50, 300, batch=4)
QUICK = Effort(epochs=3, least_s=0, rounds=2, timeout_s=100)


@pytest.fixture
def sweep_only(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """``sweep_only(file, (delivery, settings), ...)``: what is measured of a loader."""

    def only(file: str, *swept: tuple[str, dict[str, Any]]) -> None:
        monkeypatch.setattr(peers.load(file), "settings", lambda _: list(swept))

    return only


@pytest.fixture
def made(tmp_path: Path) -> Clouds:
    return clouds.write(TINY, tmp_path / "clouds" / peers.STORED)


@pytest.mark.slow
def test_loaders_that_deliver_the_same_clouds_have_equal_rows(
    tmp_path: Path, sweep_only: Callable[..., None]
) -> None:
    sweep_only("tamis", ("in-process", {"feeder": "inline", "verify": "never"}))
    sweep_only("torch_dataloader", ("process", {"collate": "concatenate", "workers": 1}))
    out, files = tmp_path / "out.json", ["tamis", "bare", "torch_dataloader"]
    report = run(tmp_path / "d", tmp_path / "e", only=files, out=out, shapes=[TINY], sizes={}, effort=QUICK)
    assert [row["loader"] for row in report["rows"]] == ["tamis", "bare preadv", "torch DataLoader"]
    for row in report["rows"]:
        assert set(row) >= ROW | FIGURES, row.get("failed")
        assert all(row[name] > 0 for name in FIGURES)
    rows = clouds.Clouds(tmp_path / "d" / "clouds" / peers.STORED).rows
    wanted = round((15 * rows.sum() + 8 * len(rows)) / 3)
    assert {row["batch_bytes"] for row in report["rows"]} == {wanted}
    assert {
        name: row.get("rounds") for name, row in zip(files, report["rows"], strict=True)
    } == dict.fromkeys(files, 2)
    assert report["rows"][2]["others_ms"] > 0, "the worker's CPU is counted"
    assert json.loads(out.read_text()) == report


@pytest.mark.slow
def test_what_cannot_run_is_a_failed_row_and_the_rest_goes_on(
    tmp_path: Path, sweep_only: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    good = {"feeder": "inline", "verify": "first"}
    sweep_only("tamis", ("in-process", {**good, "verify": "sometimes"}), ("in-process", good))
    monkeypatch.setattr(peers.load("grain"), "NEEDS", ("no_such_module",))
    monkeypatch.setenv("PATH", str(tmp_path))
    out = tmp_path / "out.json"
    report = run(
        tmp_path / "d",
        tmp_path / "e",
        only=["grain", "tamis"],
        out=out,
        shapes=[TINY],
        sizes={},
        effort=QUICK,
    )
    bad, fine, away = report["rows"]
    assert all(set(row) >= ROW for row in report["rows"])
    assert "sometimes" in bad["failed"]
    assert "failed" not in fine
    assert "no uv" in away["failed"]
    assert away["loader"] == "Grain"
    assert "sometimes" in render(report)

    sweep_only("tamis", ("in-process", good))
    again = run(
        tmp_path / "d", tmp_path / "e", only=["tamis"], out=out, shapes=[TINY], sizes={}, effort=QUICK
    )
    assert [row["loader"] for row in again["rows"]] == ["Grain", "tamis"], "the others are kept"
    out.write_text("[]")
    with pytest.raises(DataError, match=r"out\.json: is no report"):
        run(tmp_path / "d", tmp_path / "e", only=["tamis"], out=out, shapes=[TINY], sizes={})


@pytest.mark.parametrize(
    ("script", "timeout_s", "reason"),
    [
        ("kill -9 $$", 100, "was ended by SIGKILL"),
        ("sleep 1000", 0.2, "did not end within 0 s"),
        ("exit 0", 100, "no answer"),
        ("echo 'what: went wrong' >&2; exit 3", 100, "what: went wrong"),
        ("setsid sleep 1000 & exit 0", 100, "no answer"),
    ],
)
def test_a_job_that_fails_says_why_and_leaves_nothing(
    tmp_path: Path, script: str, timeout_s: float, reason: str
) -> None:
    python = tmp_path / "python"
    python.write_text(f"#!/bin/sh\n{script}\n")
    python.chmod(0o755)
    job = jobs.start(str(python), {}, tmp_path)
    with pytest.raises(jobs.Failed, match=reason):
        job.answer(timeout_s)
    assert not processes.marked(job.mark)
    assert not Path(job.folder.name).exists()


def opening(batches: list[Arrays]) -> Callable[[], Any]:
    @contextmanager
    def opened() -> Iterator[Epoch]:
        yield lambda: iter(batches)

    return opened


def test_every_byte_must_be_delivered_once(made: Clouds) -> None:
    batches = [made.batch_of(batch) for batch in made.batches]
    found = measure(opening(batches[::-1]), made, "none", 3, 0)
    assert found["epochs"] == 3
    batches[0]["rgb"][7, 1] ^= 1
    with pytest.raises(ValueError, match="other bytes"):
        measure(opening(batches), made, "none", 3, 0)
    batches[0]["rgb"][7, 1] ^= 1
    for wrong in (batches[1:], [*batches, batches[0]]):
        with pytest.raises(ValueError, match="other bytes"):
            measure(opening(wrong), made, "none", 3, 0)


@pytest.mark.parametrize("seed", range(3))
def test_content_ignores_order_and_touch_reads_all(seed: int) -> None:
    rng = np.random.default_rng(seed)
    n = int(rng.integers(1, 100))
    batch = {"xyz": rng.random((n, 3), np.float32), "rgb": rng.integers(0, 256, (n, 3), np.uint8)}
    order = rng.permutation(n)
    assert clouds.content({name: values[order] for name, values in batch.items()}) == clouds.content(batch)
    raw = batch["rgb"].tobytes()
    whole = len(raw) // 8 * 8
    words = sum(int.from_bytes(raw[i : i + 8], "little") for i in range(0, whole, 8)) % 2**64
    assert touch(batch["rgb"]) == words + sum(raw[whole:])
    assert touch(batch["rgb"].T) == touch(np.ascontiguousarray(batch["rgb"].T))


def test_cpu_and_memory_are_those_of_all_marked_processes() -> None:
    code = (
        "import time; kept = b'x' * 50_000_000\n"
        "while time.process_time() < 0.3: pass\n"
        "print(flush=True); input()"
    )
    before = processes.cpu_s("a mark")[1]
    memory = processes.pss_mb("a mark")
    with subprocess.Popen(
        [sys.executable, "-c", code],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env={**os.environ, processes.MARK: "a mark"},
        start_new_session=True,
    ) as child:
        assert child.stdin is not None
        assert child.stdout is not None
        child.stdout.readline()
        assert processes.marked("a mark") == [child.pid]
        assert processes.marked("another mark") == []
        living = processes.cpu_s("a mark")[1] - before
        assert processes.pss_mb("a mark") > memory + 40
        child.stdin.close()
    assert 0.3 <= living <= processes.cpu_s("a mark")[1] - before


@pytest.mark.slow
def test_the_cpu_of_four_readers_and_their_feeder_is_added_up(
    tmp_path: Path, made: Clouds, sweep_only: Callable[..., None]
) -> None:
    sweep_only("tamis", ("process", {"feeder": "node", "verify": "never"}))
    sweep = Sweep(TINY, tmp_path / "clouds", tmp_path, QUICK)
    rows: list[Row] = []
    sweep.measure(["tamis"], rows.append)
    one, four = readers(sweep, rows)
    assert (one["readers"], four["readers"]) == (1, 4)
    assert four["cpu_ms"] > one["cpu_ms"] > one["others_ms"] > 0, "of readers and their feeder"


def row(loader: str, set: str, delivery: str, gb_s: float, cpu_ms: float, **settings: Any) -> Row:
    about = {"loader": loader, "set": set, "delivery": delivery, "settings": settings}
    rest = {"samples_s": 1.0, "first_s": 0.5, "rss_mb": 100.0, "batch_bytes": 8_000_000}
    return {**about, "gb_s": gb_s, "cpu_ms": cpu_ms, **rest}


def report() -> Report:
    rows = [
        row("tamis", "8mb", "process", 6.0, 3.0, verify="never"),
        row("tamis", "8mb", "process", 4.0, 2.0, verify="always"),
        row("tamis", "8mb", "in-process", 4.5, 2.0, verify="never"),
        row("tamis", "8mb", "in-process", 2.0, 4.0, verify="always"),
        row("bare preadv", "8mb", "in-process", 5.0, 1.0),
        row("torch DataLoader", "8mb", "process", 1.0, 12.0, collate="default"),
        row("torch DataLoader", "8mb", "process", 2.0, 8.0, collate="concatenate"),
        row("torch DataLoader", "8mb", "in-process", 9.0, 1.0, collate="default"),
        row("SPDL", "8mb", "process", 4.0, 9.0, arena="pool"),
        {**row("Grain", "8mb", "process", 99.0, 0.1), "failed": "it did"},
        row("tamis", "clouds", "process", 3.0, 2.0),
    ]
    readers = [
        {"loader": "tamis", "settings": {}, "readers": 1, "cpu_ms": 4.0, "others_ms": 2.0},
        {"loader": "tamis", "settings": {}, "readers": 4, "cpu_ms": 8.0, "others_ms": 2.2},
        {"loader": "torch DataLoader", "settings": {}, "readers": 4, "cpu_ms": 40.0, "others_ms": 30.0},
    ]
    sampling = {
        "on_the_way": {"kernel_samples_s": 1000.0, "loader_samples_s": 940.0},
        "prefix": {"failed": "no disk"},
    }
    return {"rows": rows, "readers": readers, "sampling": sampling}


def test_figures_are_ratios_of_the_right_rows() -> None:
    found = {figure.what: (figure.got, figure.holds) for figure in figures(report())}
    assert list(found.values()) == [
        (None, False),  # nothing to compare with on the set clouds
        (1.5, False),  # 6 GB/s of SPDL's 4
        (6.0, True),  # of the default collate's 1, not of the in-process 9
        (4.0, True),  # 8 ms of the leaner DataLoader to our leaner 2
        (None, False),
        (None, False),
        (0.9, True),
        (0.4, True),  # stands beside: nothing is wanted of it
        (1.1, True),
        (0.2, True),
        (0.94, False),
        (None, False),
    ]


def test_best_leaves_out_failed_rows_and_our_own() -> None:
    rows = report()["rows"]
    assert best(rows, set="8mb", delivery="process", verify="always") == rows[1]
    peer = best_peer(rows, set="8mb", delivery="process")
    assert peer is not None
    assert peer["loader"] == "SPDL"
    assert best(rows, loader="Grain") is None


def test_the_table_has_every_row_and_figure() -> None:
    lines = render(report()).splitlines()
    assert sum(line.startswith("  ") for line in lines) == 3 + len(report()["rows"])  # 3 heads
    assert any("failed  Grain: it did" in line for line in lines)
    shown = [next(line for line in lines if line.startswith(figure.what)) for figure in figures(report())]
    assert shown[1].split()[-7:] == [">=", "2", "1.50", "missed", "(SPDL,", "arena", "pool)"]
    assert shown[2].endswith(">= 4     6.00")


def test_every_peer_is_listed_and_lists_settings_without_its_library() -> None:
    folder = Path(peers.__file__).parent
    offering = {path.stem for path in folder.glob("*.py") if "\nNAME = " in path.read_text()}
    assert offering == set(peers.FILES)
    names = [peers.load(file).NAME for file in peers.FILES]
    assert len(set(names)) == len(names)
    for file in peers.FILES:
        for shape in clouds.SHAPES:
            swept = peers.load(file).settings(shape.name)
            assert swept
            assert len({json.dumps(one) for one in swept}) == len(swept), f"{file} measures a setting twice"
            assert {delivery for delivery, _ in swept} <= {"process", "in-process"}
    code = (
        "import sys; from tamis.bench import peers\n"
        "for file in peers.FILES: peers.load(file)\n"
        "sys.exit(bool({'torch', 'numba', 'pyarrow', 'nvidia', 'grain'} & set(sys.modules)))"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_an_unknown_peer_is_refused(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            sys, "argv", ["tamis", "bench", "loader", "--only", "nobody", "--folder", str(tmp_path)]
        )
        with pytest.raises(SystemExit) as exit:
            cli.main()
    error = capsys.readouterr().err
    assert exit.value.code == 2
    assert "nobody" in error
    assert "torch_dataloader" in error
    assert not list(tmp_path.iterdir())
