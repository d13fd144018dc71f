"""Builds from and into odd places: names, links, an empty folder; sources stay as they are."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tamis import cli
from tamis.errors import DataError
from tamis.pipelines.build import DataSettings, build
from tamis.pipelines.dataset import Dataset
from tamis.pipelines.verify import verify

Digests = Callable[[Path], dict[str, str]]

NAMES = [
    "with space",
    "出典データ",
    "a#b",
    "50%20",
    "brack[et]",
    "{a,b}",
    "line\nbreak",
    "-leading",
    'it\'s "quoted"',
    "back\\slash",
    "$HOME `id`",
    "*?",
    "~",
]


def built_by_command(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], config: Path, *arguments: str
) -> tuple[object, str]:
    monkeypatch.setattr(sys, "argv", ["tamis", "build", str(config), *arguments])
    with pytest.raises(SystemExit) as exit:
        cli.main()
    return exit.value.code, capsys.readouterr().err


@pytest.mark.parametrize("name", NAMES)
def test_odd_names_of_files_folders_and_out(
    config: Callable[..., Path],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    name: str,
) -> None:
    """Names found, and one that is given, are literal; an error of such a file is one line."""
    monkeypatch.chdir(tmp_path)
    root = tmp_path / f"root {name}"
    xyz = np.array([[1.0, 2, 3], [4, 5, 6]])
    for file in (f"{name}/{name}.npy", f"{name}.npy"):
        (root / file).parent.mkdir(parents=True, exist_ok=True)
        np.save(root / file, xyz)
    keys: dict[str, Any] = {"root": str(root), "classes": {}, "tiles": None, "split": None}
    code, said = built_by_command(monkeypatch, capsys, config(**keys), f"--out={name}")
    assert code == 0, said
    dataset = Dataset(tmp_path / name)
    assert verify(dataset.path) == []
    assert sorted(dataset.manifest.sources) == sorted([f"{name}/{name}.npy", f"{name}.npy"])
    assert dataset.sample(0).positions().tolist() == xyz.tolist()
    (root / f"{name}.npy").write_bytes(b"")
    given = config(**keys, files=[f"{name}.npy"])
    code, said = built_by_command(monkeypatch, capsys, given, f"--out={name} 2")
    assert (code, said.count("\n")) == (1, 1), said
    assert "is empty" in said


def test_an_empty_folder_is_one_line_and_leaves_nothing(
    config: Callable[..., Path],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    (tmp_path / "none").mkdir()
    path = config(root=str(tmp_path / "none"), split=None)
    code, said = built_by_command(monkeypatch, capsys, path, f"--out={tmp_path / 'run'}")
    assert (code, said.count("\n")) == (1, 1)
    assert "holds no" in said
    assert not (tmp_path / "run").exists()


def test_a_build_leaves_its_sources_as_they_are(
    settings: DataSettings, tmp_path: Path, raw: Path, digests: Digests
) -> None:
    def stamps() -> Mapping[str, int]:
        return {str(path): path.stat().st_mtime_ns for path in [raw, *raw.rglob("*")]}

    before = digests(raw), stamps()
    build(settings, tmp_path / "run")
    assert (digests(raw), stamps()) == before


def test_sources_root_and_out_that_are_links(
    settings: DataSettings, tmp_path: Path, raw: Path, digests: Digests
) -> None:
    """They are what they lead to; one that is made to lead elsewhere has changed."""
    build(settings, tmp_path / "uncut")
    (tmp_path / "far").mkdir()
    for path in [*raw.iterdir()]:
        path.rename(tmp_path / "far" / path.name)
        path.symlink_to(tmp_path / "far" / path.name)
    (tmp_path / "linked").symlink_to(raw, target_is_directory=True)
    (tmp_path / "place").mkdir()
    (tmp_path / "run").symlink_to(tmp_path / "place", target_is_directory=True)
    linked = settings.model_copy(update={"root": tmp_path / "linked"})
    build(linked, tmp_path / "run")
    assert digests(tmp_path / "place") == digests(tmp_path / "uncut")
    (raw / "c.npy").unlink()
    (raw / "c.npy").symlink_to(tmp_path / "far" / "b.npy")
    with pytest.raises(DataError, match=r"c\.npy: has changed since"):
        build(linked, tmp_path / "run")
