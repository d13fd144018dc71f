"""ModelNet10 and 40 (Wu et al. 2015): ``chair/train/chair_0001.off``, ``chair/test/...``, an object a mesh.

10,000 points are drawn from the surface of each, evenly by area. The folders' names are the classes.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from ...errors import DataError
from ..readers import Scan, read
from .layout import PLAIN, Layout, constant, names, numbered, with_fields


def _find(root: Path) -> dict[str, str]:
    found = names(root, "*/train/*.off") + names(root, "*/test/*.off")
    held = {name.split("/")[0] for name in found}
    for kind in _kinds(root):
        if kind not in held:
            raise DataError(
                root / kind, "holds no mesh *.off in train or test", "complete the download, or remove it"
            )
    return {name: name.split("/")[1] for name in found}


def _files(root: Path, name: str) -> tuple[Path, ...]:
    return (root / name,)


def _read(root: Path, name: str) -> Scan:
    scan = read(root / name, PLAIN)
    return with_fields(scan, classification=constant(scan, _kinds(root).index(name.split("/")[0])))


def _kinds(root: Path) -> list[str]:
    return sorted(
        path.name for path in root.iterdir() if (path / "train").is_dir() or (path / "test").is_dir()
    )


def _classes(root: Path) -> Mapping[str, list[int]]:
    kinds = _kinds(root)
    if not kinds:
        raise DataError(root, "has no folder CLASS/train or CLASS/test", "correct data.root")
    return numbered(kinds)


LAYOUT = Layout(_find, _read, _files, _classes, "classification", objects=True)
