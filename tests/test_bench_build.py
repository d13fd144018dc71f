"""The benchmark of the build: what is compared is the same, and figures are ratios of the right rows."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import laspy
import numpy as np
import pyarrow as pa
import pytest

from tamis import cli
from tamis.bench import bench_build, build_script, build_ways
from tamis.bench.bench_build import Kind, Way, measured, run
from tamis.bench.build_check import differs
from tamis.bench.build_table import DECODE, EVERY, OURS, SCRIPT, figures, render
from tamis.errors import DataError

ROOT = Path(__file__).resolve().parent.parent
SIZE = 10.0


def write(path: Path, points: int) -> None:
    """A scan with colours and an extra dimension, many of whose points lie on the edges of tiles."""
    rng = np.random.default_rng()
    header = laspy.LasHeader(point_format=3, version="1.2")
    header.scales, header.offsets = [0.01] * 3, [770_500, 6_277_500, 0]
    header.add_extra_dim(laspy.ExtraBytesParams("amplitude", "f4"))
    data = laspy.LasData(header)
    xyz = rng.integers(0, 9, (points, 3)) * 5.0 + rng.choice([0, 0.01, 2.5, -0.01], (points, 3))
    data.x, data.y, data.z = (xyz + np.array([770_500, 6_277_500, 100])).T
    data.classification = rng.integers(0, 12, points)
    data.intensity = rng.integers(0, 65536, points)
    data.return_number = rng.integers(1, 5, points)
    data.red = rng.integers(0, 65536, points)
    data["amplitude"] = rng.normal(size=points).astype(np.float32)
    data.gps_time = rng.uniform(0, 4e9, points)
    path.parent.mkdir(parents=True, exist_ok=True)
    data.write(str(path))


@pytest.fixture
def both(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Path:
    """A folder with ``built`` and ``written``: what the build and what the script made of two files."""
    for number, points in enumerate((3000, 700)):
        write(tmp_path / "source" / f"{number}.laz", points)
    job = {"source": str(tmp_path / "source"), "out": str(tmp_path / "built"), "size": SIZE, "workers": 1}
    found = build_ways.work({**job, "way": OURS, "classes": build_script.CLASSES})
    assert found["points"] == 3700
    assert found["wall_s"] > 0
    assert {row["stage"] for row in found["stages"]} >= {"build.read", "build.write"}
    arguments = [str(tmp_path / "source"), str(tmp_path / "written"), f"--size={SIZE}"]
    monkeypatch.setattr(sys, "argv", ["build_script.py", *arguments])
    build_script.main()
    assert json.loads(capsys.readouterr().out).keys() == {"wall_s", "cpu_s"}
    return tmp_path


def test_the_build_and_the_script_give_the_same(both: Path) -> None:
    assert differs(both / "built", both / "written") == ""


def rewritten(path: Path, change: Callable[[dict[str, Any], int], None]) -> None:
    """Change the columns of each tile of a file that the script wrote."""
    with pa.OSFile(str(path), "rb") as file:
        reader = pa.ipc.open_file(file)
        batches = [reader.get_batch(number) for number in range(reader.num_record_batches)]
    with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_file(sink, batches[0].schema) as writer:
        for number, batch in enumerate(batches):
            columns = {name: batch.column(name) for name in batch.schema.names}
            change(columns, number)
            writer.write_batch(pa.record_batch(columns, schema=batch.schema))


@pytest.mark.parametrize("name", ["intensity", "label", "amplitude", "return_number", "gps_time"])
def test_a_value_that_differs_is_found(both: Path, name: str) -> None:
    def change(columns: dict[str, Any], number: int) -> None:
        if number == 3:
            values = columns[name].to_numpy(zero_copy_only=False).copy()
            values[-1] += 1
            columns[name] = pa.array(values)

    rewritten(both / "written" / "0.arrow", change)
    assert f"0.laz: other values of '{name}'" in differs(both / "built", both / "written")


def test_other_tiles_files_and_statistics_are_found(both: Path) -> None:
    card = both / "written" / "dataset.json"
    whole = json.loads(card.read_text())

    def differing(change: Callable[[dict[str, Any]], object]) -> str:
        changed = json.loads(json.dumps(whole))
        change(changed)
        card.write_text(json.dumps(changed))
        return differs(both / "built", both / "written")

    assert "tiles, not" in differing(lambda card: card["files"][0]["tiles"].pop())
    assert "sources" in differing(lambda card: card["files"].pop())
    assert "std of 'amplitude'" in differing(
        lambda card: card["statistics"]["amplitude"].update(std=card["statistics"]["amplitude"]["std"] + 0.01)
    )
    assert differing(lambda _: None) == ""


def row(way: str, workers: int, wall_s: float, kind: str = "a") -> dict[str, Any]:
    times = {"wall_s": wall_s, "cpu_s": wall_s * 2, "whole_s": wall_s + 1, "whole_cpu_s": wall_s}
    about = {"kind": kind, "way": way, "workers": workers, "points": 1000, "fields": EVERY}
    return {**about, "walls_s": [wall_s], **times}


ROWS = [row(DECODE, 1, 9), row(SCRIPT, 1, 20), row(OURS, 1, 10), row(SCRIPT, 2, 12), row(OURS, 2, 5)]


def test_figures_are_ratios_over_all_kinds_beside_the_worst() -> None:
    found = figures([*ROWS, *(row(one["way"], one["workers"], 2, "b") for one in ROWS)])
    decode, script, two, *_ = found
    assert (decode.got, decode.least, decode.beside) == (11 / 12, 0.85, "0.90 for a")
    assert (script.got, script.least, script.beside) == (22 / 12, 1.5, "1.00 for b")
    assert (two.got, two.least, two.holds) == (12 / 7, 1.8, False)
    assert next(f for f in found if "with imports: of decode" in f.what).got == 13 / 14


def test_rows_with_other_fields_have_figures_of_their_own() -> None:
    few = [{**one, "fields": "intensity", "wall_s": one["wall_s"] / 3} for one in ROWS[:3]]
    few[-1]["wall_s"] = 1
    found = figures([*ROWS, *few])
    assert [f.got for f in found if f.what.startswith("one CPU: points/s, of decode")] == [0.9, 3]
    assert found[0].what.endswith(", every field")
    assert found[8].what.endswith(", intensity")


def test_a_way_that_was_not_run_is_no_figure() -> None:
    """Two CPUs cannot be measured where there is one."""
    found = figures(ROWS[:3])
    assert [figure.got is None for figure in found] == [False, False, True, True, False, False, False, False]
    assert figures([*ROWS, row(OURS, 2, 1, "b")])[2].got is None
    report = {"points": {"a": 1000}, "rows": ROWS[:3], "stages": {}}
    assert "two CPUs: points/s, of its own on one" in render(report)


def test_a_run_that_fails_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "a" / "source").mkdir(parents=True)
    (tmp_path / "a" / "source" / "bad.laz").write_bytes(b"LASF" + bytes(400))
    with pytest.raises(DataError, match=r"decode failed: .") as caught:
        measured(Kind("a", "*.laz", 10), Way(DECODE, 1), tmp_path)
    assert "exit code" not in str(caught.value)


def test_a_folder_without_its_files_is_told(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="holds no LAZ file of this benchmark"):
        run(tmp_path / "work", tmp_path)


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_everything_is_measured(tmp_path: Path) -> None:
    write(tmp_path / "raw" / "a.laz", 500)
    mine = os.sched_getaffinity(0)
    kinds = [Kind("made", "*.laz", SIZE, ("intensity",)), Kind("none", "*.las", SIZE)]
    out = tmp_path / "out.json"
    report = run(tmp_path / "work", tmp_path / "raw", copies=2, rounds=1, out=out, kinds=kinds)
    assert os.sched_getaffinity(0) == mine
    ways = [(way.name, way.workers) for way in bench_build.WAYS if way.workers <= len(mine)]
    assert sorted((row["way"], row["workers"]) for row in report["rows"]) == sorted(ways)
    assert report["points"] == {"made": 1000}
    assert {row["fields"] for row in report["rows"]} == {"intensity"}
    for found in report["rows"]:
        assert 0 < found["wall_s"] < found["whole_s"]
        assert 0 < found["cpu_s"] < found["whole_cpu_s"]
    assert next(iter(report["stages"])) == "made, 1 CPU"
    assert json.loads(out.read_text()) == json.loads(json.dumps(report))
    assert sorted(path.name for path in (tmp_path / "work" / "made").iterdir()) == ["source"]
    text = render(report)
    assert "made, 1,000 points" in text
    assert "limiting stage" in text


def test_the_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    asked: dict[str, Any] = {}

    def instead(folder: Path, data: Path | None, **others: Any) -> dict[str, Any]:
        asked.update(data=data, there=folder.is_dir(), parent=folder.parent, **others)
        return {"points": {"a": 1000}, "rows": ROWS, "stages": {}}

    monkeypatch.setattr(bench_build, "run", instead)
    arguments = ["--data", tmp_path, "--copies", 3, "--folder", tmp_path, "--json", tmp_path / "a.json"]
    monkeypatch.setattr(sys, "argv", ["tamis", "bench", "build", *map(str, arguments)])
    with pytest.raises(SystemExit) as exit:
        cli.main()
    assert exit.value.code == 0
    assert asked == {
        "data": tmp_path,
        "there": True,
        "parent": tmp_path,
        "copies": 3,
        "out": tmp_path / "a.json",
    }
    assert "a, 1,000 points" in capsys.readouterr().out
