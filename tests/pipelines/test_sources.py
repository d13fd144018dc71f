from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from tamis.errors import DataError, UsageError
from tamis.pipelines import sources
from tamis.pipelines.build import DataSettings, build
from tamis.pipelines.splits import FilesSplit

AWKWARD = [
    "出典データ",
    "샘플",
    "straße ä",
    "e\u0301 nfd",
    "with space#1%20",
    "a{000..003}",
    "brack[et]*?",
    "\N{PACKAGE}",
    "x" * 200,
]


@pytest.mark.parametrize("name", AWKWARD)
def test_r12_a_name_that_exists_is_literal(tmp_path: Path, name: str) -> None:
    """R12: the same bytes under any path give the same cloud."""
    for folder in ("plain", name):
        (tmp_path / folder).mkdir()
        np.save(tmp_path / folder / "c.npy", np.array([[1, 2, 3], [4, 5, 6.0]]))
    for file in (name + "/c.npy", name):
        if file == name:
            (tmp_path / "c").mkdir()
            np.save(tmp_path / "c" / "c.npy", np.array([[1, 2, 3], [4, 5, 6.0]]))
            (tmp_path / "c" / "c.npy").rename(tmp_path / "c" / name)
            file = f"c/{name}"
        settings = DataSettings(root=tmp_path, files=[file], row_order="source")
        dataset = build(settings, tmp_path / "out" / str(len(file)))
        sample = dataset.sample(0)
        assert sample.source == file
        assert sample.positions().tolist() == [[1, 2, 3], [4, 5, 6]]


def test_r12_not_found_is_not_empty(tmp_path: Path) -> None:
    np.save(tmp_path / "none.npy", np.empty((0, 3)))
    dataset = build(DataSettings(root=tmp_path, files=["none.npy"], row_order="source"), tmp_path / "out")
    assert dataset.rows.tolist() == [0]
    with pytest.raises(DataError, match="no such file"):
        build(DataSettings(root=tmp_path, files=["missing.npy"]), tmp_path / "other")
    assert not (tmp_path / "other").exists()


def test_patterns_match_once_and_sorted(tmp_path: Path) -> None:
    for name in ("b.npy", "a.npy", "deep/c.NPY", "deep/notes.txt"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(b"x")
    assert sources.find(tmp_path, []) == ["a.npy", "b.npy", "deep/c.NPY"]
    assert sources.find(tmp_path, ["*.npy", "a*", "**/*.txt"]) == ["a.npy", "b.npy", "deep/notes.txt"]


@pytest.mark.parametrize("pattern", ["*.laz", "", "nothing.npy"])
def test_a_pattern_that_matches_nothing(tmp_path: Path, pattern: str) -> None:
    (tmp_path / "a.npy").write_bytes(b"x")
    with pytest.raises((DataError, UsageError), match=r"data\.files"):
        sources.find(tmp_path, [pattern])


@pytest.mark.parametrize("pattern", ["/etc/passwd", "../x.npy", "a**b"])
def test_a_pattern_that_is_none(tmp_path: Path, pattern: str) -> None:
    with pytest.raises((UsageError, DataError), match=r"data\.files"):
        sources.find(tmp_path, [pattern])


def leave_out(path: Path, kind: str) -> None:
    """Something at ``path`` that may be meant as a file of points."""
    if kind == "dangling":
        path.symlink_to("nowhere")
    elif kind == "loop":
        path.symlink_to(path.name)
    elif kind == "folder":
        path.mkdir()
    else:
        os.mkfifo(path)


@pytest.mark.parametrize("kind", ["dangling", "loop", "folder", "pipe"])
@pytest.mark.parametrize("patterns", [[], ["**/*"], ["deep/*.laz"], ["deep/b.laz"]])
def test_nothing_is_left_out_without_a_word(tmp_path: Path, kind: str, patterns: list[str]) -> None:
    (tmp_path / "deep").mkdir()
    (tmp_path / "a.npy").write_bytes(b"x")
    (tmp_path / "deep" / "a.laz").write_bytes(b"x")
    leave_out(tmp_path / "deep" / "b.laz", kind)
    with pytest.raises(DataError, match=r"deep/b\.laz: (is|no such file)"):
        sources.find(tmp_path, patterns)
    assert sources.find(tmp_path, ["*.npy", "deep/a*"]) == ["a.npy", "deep/a.laz"]


def test_linked_folders_are_followed_and_loops_end(tmp_path: Path) -> None:
    raw, elsewhere = tmp_path / "raw", tmp_path / "elsewhere"
    for folder in (raw, elsewhere):
        folder.mkdir()
        (folder / "a.npy").write_bytes(b"x")
    (raw / "linked").symlink_to(elsewhere)
    (elsewhere / "back").symlink_to(raw)
    (raw / "self").symlink_to(raw)
    (raw / "b.npy").symlink_to(elsewhere / "a.npy")
    assert sources.find(raw, []) == ["a.npy", "b.npy", "linked/a.npy"]
    assert sources.find(raw, ["**/a.npy"]) == ["a.npy", "linked/a.npy"]


def test_a_folder_that_cannot_be_read_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("shut", "open"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "a.npy").write_bytes(b"x")
    listed = Path.iterdir

    def iterdir(folder: Path) -> Iterator[Path]:
        if folder.name == "shut":
            raise PermissionError(13, "Permission denied")
        return listed(folder)

    monkeypatch.setattr(Path, "iterdir", iterdir)
    with pytest.raises(DataError, match=r"shut: cannot be read \(Permission denied\)"):
        sources.find(tmp_path, [])
    assert sources.find(tmp_path, ["open/*"]) == ["open/a.npy"]


@pytest.mark.parametrize("seed", range(5))
def test_patterns_match_as_those_of_pathlib(tmp_path: Path, seed: int) -> None:
    rng = np.random.default_rng(seed)
    for _ in range(20):
        path = tmp_path.joinpath(
            *rng.choice(list("ab"), rng.integers(1, 5)), f"{rng.choice(list('xyz'))}.npy"
        )
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"x")
    for pattern in ("*/*.npy", "**/x.npy", "a/**/[xy].npy", "**/b/*", "a/?/**/*.npy", "**/a/**/b/*"):
        wanted = {p.relative_to(tmp_path).as_posix() for p in tmp_path.glob(pattern) if p.is_file()}
        if wanted:
            assert sources.find(tmp_path, [pattern]) == sorted(wanted)
        else:
            with pytest.raises(DataError, match="no such file"):
                sources.find(tmp_path, [pattern])


def test_a_folder_without_scans(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"\.laz"):
        sources.find(tmp_path, [])


def test_root_comes_from_the_settings_or_the_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TAMIS_DATA", str(tmp_path))
    assert sources.folder(None) == tmp_path
    assert sources.folder(tmp_path / "..") == tmp_path / ".."
    monkeypatch.delenv("TAMIS_DATA")
    with pytest.raises(UsageError, match=r"data\.root.*TAMIS_DATA"):
        sources.folder(None)
    with pytest.raises(DataError, match="no such folder"):
        sources.folder(tmp_path / "missing")


def test_listed_files_must_be_among_the_sources(tmp_path: Path) -> None:
    for name in ("a.npy", "b.npy", "c.npy"):
        (tmp_path / name).write_bytes(b"x")
    split = FilesSplit(kind="files", val=["a*"], test=["b.npy"])
    assert sources.splits_by_file(tmp_path, split, ["a.npy", "b.npy"]) == {"a.npy": "val", "b.npy": "test"}
    with pytest.raises(UsageError, match=r"among data\.files"):
        sources.splits_by_file(tmp_path, FilesSplit(kind="files", test=["c.npy"]), ["a.npy", "b.npy"])
    with pytest.raises(UsageError, match="in val and in test"):
        sources.splits_by_file(
            tmp_path, FilesSplit(kind="files", val=["a.npy"], test=["*"]), ["a.npy", "b.npy", "c.npy"]
        )
    assert sources.splits_by_file(tmp_path, None, ["a.npy"]) == {}
