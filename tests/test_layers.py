"""Imports only run down the floors of the house."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
FLOOR = {
    "samplers": 1,
    "pipelines": 2,
    "loaders": 3,
    "trainer": 4,
    "bench": 5,
    "cli": 6,
    "cli_bench": 6,
    "cli_datasets": 6,
    "cli_end": 6,
    "cli_runs": 6,
    "cli_scans": 6,
    "__main__": 7,
    "__init__": 7,
}


def floor(module: str) -> int:
    return FLOOR.get(module.split(".")[0], 0)  # config, errors, files and metrics are the ground


def modules() -> list[Path]:
    folders = ("samplers", "pipelines", "loaders", "trainer", "bench", "configs")
    return sorted([*ROOT.glob("*.py"), *(p for f in folders for p in (ROOT / f).rglob("*.py"))])


def imported(path: Path) -> Iterator[tuple[int, str]]:
    """(line, module below the package) of every import of tamis in a file."""
    parts = path.relative_to(ROOT).with_suffix("").parts
    package = parts[:-1]
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and node.level:
            base = package[: len(package) - node.level + 1]
            target = [*base, *(node.module.split(".") if node.module else [])]
            yield from ((node.lineno, ".".join([*target, a.name])) for a in node.names)
        elif isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "tamis":
            yield node.lineno, (node.module or "").removeprefix("tamis").lstrip(".")
        elif isinstance(node, ast.Import):
            yield from (
                (node.lineno, a.name.removeprefix("tamis").lstrip("."))
                for a in node.names
                if a.name.split(".")[0] == "tamis"
            )


def test_imports_run_down() -> None:
    up = []
    for path in modules():
        name = path.relative_to(ROOT)
        own = floor(".".join(name.with_suffix("").parts))
        up += [f"{name}, line {line}: {target}" for line, target in imported(path) if floor(target) > own]
    assert not up, "imports from a floor above their own"


def test_the_check_sees_an_upward_import(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(globals(), "ROOT", tmp_path)
    (tmp_path / "samplers").mkdir()
    module = tmp_path / "samplers" / "bad.py"
    module.write_text("from ..trainer import loop\nfrom ..errors import DataError\n")
    assert [floor(target) for _, target in imported(module)] == [4, 0]


def test_no_file_outgrows_one_room() -> None:
    lines = {path: len(path.read_text(encoding="utf-8").splitlines()) for path in modules()}
    assert len(lines) > 200
    assert not [f"{path.relative_to(ROOT)}: {n} lines" for path, n in lines.items() if n > 400]


def test_light_modules_do_not_load_torch() -> None:
    """Build workers and feeders must stay small: torch costs two seconds and half a gigabyte."""
    code = (
        "import sys, tamis.cli, tamis.pipelines.build, tamis.loaders.loader, tamis.trainer.settings;"
        "sys.exit('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
