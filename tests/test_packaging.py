"""The wheel holds every module and every data file, and works without the checkout."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
NOT_PACKAGED = {"tests", "docs", "examples", "build", "dist", "runs"}


def shipped_files() -> set[str]:
    """What the wheel must hold, found by walking the tree and not by reading pyproject.toml."""
    found = set()
    for path in ROOT.rglob("*"):
        parts = path.relative_to(ROOT).parts
        if (
            path.is_dir()
            or parts[0] in NOT_PACKAGED
            or any(p.startswith(".") or p == "__pycache__" for p in parts)
        ):
            continue
        if path.suffix in (".py", ".html") or path.name == "py.typed" or parts[0] == "configs":
            found.add("/".join(("tamis", *parts)))
    return found


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    source = folder / "source"
    hidden = shutil.ignore_patterns(".*", "__pycache__", "runs", "build", "dist", "*.egg-info")
    shutil.copytree(ROOT, source, ignore=hidden)
    build = f"from setuptools import build_meta as b; print(b.build_wheel({str(folder)!r}))"
    done = subprocess.run(
        [sys.executable, "-c", build], cwd=source, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return folder / done.stdout.split()[-1]


def test_wheel_holds_everything_and_nothing_else(wheel: Path) -> None:
    names = zipfile.ZipFile(wheel).namelist()
    packaged = {n for n in names if ".dist-info/" not in n}
    assert packaged == shipped_files()
    assert {Path(n).name for n in names} >= {"LICENSE", "NOTICE", "laspy_append-bug.laz", "quickstart.toml"}


def test_every_package_folder_is_named() -> None:
    named = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]["packages"]
    folders = {Path(f).parent.as_posix().replace("/", ".") for f in shipped_files() if f.endswith(".py")}
    assert set(named) == folders


def test_wheel_works_without_the_checkout(wheel: Path, tmp_path: Path) -> None:
    zipfile.ZipFile(wheel).extractall(tmp_path / "site")
    code = (
        "import sys, tamis; print(tamis.__file__); from tamis.cli import main;"
        "sys.argv = ['tamis', 'config', 'quickstart']; main()"
    )
    done = subprocess.run(
        [
            sys.executable,
            "-S",
            "-c",
            f"import sys; sys.path[1:1] = {[str(tmp_path / 'site'), *sys.path]!r}; {code}",
        ],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": ""},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert str(tmp_path) in done.stdout.splitlines()[0]
    assert "laspy_append-bug.laz" in done.stdout
