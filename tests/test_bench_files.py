"""One table of all files, and one of the cases that users have reported."""

from __future__ import annotations

import json
import re
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from tamis import cli
from tamis.bench import every_file
from tamis.bench.reader_cases import TESTS, Case, made, result
from tamis.bench.stored import stored
from tamis.pipelines.dataset import Dataset

ROOT = Path(__file__).resolve().parent.parent
CASES = [*made()]


def test_every_report_names_the_tests_that_there_are() -> None:
    """None is left out that has a test, and none is named that has not."""
    found = {
        (name.upper(), path.stem)
        for path in (ROOT / "tests" / "pipelines").glob("test_*.py")
        for name in re.findall(r"^def test_(r\d\d)_", path.read_text(encoding="utf-8"), re.MULTILINE)
    }
    assert found == {(report, module) for report, modules in TESTS.items() for module in modules}
    assert {case.report for case in CASES} == set(TESTS)


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case.report} {case.case[:30]}")
def test_a_case_is_as_it_has_to_be(case: Case, tmp_path: Path) -> None:
    row = result(case, tmp_path)
    assert row["wrong"] == ""
    assert row["result"] == ("refused" if case.refused else "built")


def of(name: str) -> Case:
    return next(case for case in CASES if case.case == name)


@pytest.mark.parametrize(
    ("case", "said"),
    [
        (replace(of("decimal comma"), refused=""), "refused: line 9"),
        (replace(of("decimal comma"), refused="no such file"), "wanted: no such file"),
        (replace(of("stored raw"), refused="no such file"), "built, not refused"),
        (replace(of("no points"), xyz=np.ones((1, 3))), "refused: no sample"),
        (replace(of("organised, 64 x 16"), xyz=of("stored raw").xyz), "877 points, not 50"),
        (replace(of("500 points 0.1 mm apart"), apart=499), "500 places along x"),
        (replace(of("PLY, four fields"), fields={"t": np.zeros(40)}), "other values of 't'"),
        (replace(of("PLY, four fields"), fields={"u": np.zeros(40)}), "has no field 'u'"),
    ],
)
def test_what_is_wrong_is_told(case: Case, said: str, tmp_path: Path) -> None:
    assert said in result(case, tmp_path)["wrong"]


@pytest.fixture
def few(monkeypatch: pytest.MonkeyPatch) -> None:
    cases = [of("decimal comma"), of("stored raw")]
    monkeypatch.setattr(
        every_file, "cases", lambda folder: [result(c, folder / str(i)) for i, c in enumerate(cases)]
    )


def ran(monkeypatch: pytest.MonkeyPatch, *arguments: object) -> object:
    monkeypatch.setattr(sys, "argv", ["tamis", "bench", "files", *map(str, arguments)])
    with pytest.raises(SystemExit) as exit:
        cli.main()
    return exit.value.code


@pytest.mark.usefixtures("few")
def test_the_command_and_a_file_of_no_format(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    raw = tmp_path / "raw"
    (raw / "deep").mkdir(parents=True)
    np.save(raw / "deep" / "a.npy", np.arange(12.0).reshape(4, 3))
    (raw / "notes.md").write_text("words")
    (raw / "cut.ply").write_bytes(b"ply\nformat ascii 1.0\nelement vertex 9\n")
    assert ran(monkeypatch, raw, "--json", tmp_path / "out.json") == 0
    rows = {row["file"]: row for row in json.loads((tmp_path / "out.json").read_text())["files"]}
    assert {name: row["result"] for name, row in rows.items()} == {
        "deep/a.npy": "built",
        "notes.md": "refused",
        "cut.ply": "refused",
    }
    assert "is of no format that is read" in rows["notes.md"]["reason"]
    assert rows["deep/a.npy"]["as_read_by"] == "numpy"
    said = capsys.readouterr().out
    assert "test_r07_* in test_ply" in said
    assert said.endswith("all as expected\n")


@pytest.mark.usefixtures("few")
def test_what_is_not_as_expected_fails_the_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    np.save(tmp_path / "a.npy", np.arange(12.0).reshape(4, 3))

    def moved(dataset: Dataset) -> object:
        xyz, columns = stored(dataset)
        return xyz + 1, columns

    monkeypatch.setattr(every_file, "stored", moved)
    assert ran(monkeypatch, tmp_path) == 1
    assert "a.npy: coordinates are off by 1" in capsys.readouterr().err


def test_a_folder_that_is_not_there_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert ran(monkeypatch, tmp_path / "none") == 1
    assert "no such folder of raw files" in capsys.readouterr().err
