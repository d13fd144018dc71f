"""A folder of images a class: ``cat/1.jpg``, ``dog/2.png``, or such below ``train``, ``val`` and ``test``.

The folders' names, sorted, are the classes. An image is kept as its file has it: JPEG, PNG, WebP or BMP.
Hidden files and folders (".name") are no part of it.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path

import numpy as np

from ...errors import DataError
from ..readers import Scan
from ..records import SPLITS
from .images import check_image
from .layout import Layout, image, numbered

log = logging.getLogger(__name__)

_SUFFIXES = (".jpg", ".jpeg", ".png", ".webp", ".bmp")


def _find(root: Path) -> dict[str, str]:
    levels, kinds = _levels(root), {*_kinds(root)}
    found: dict[str, str] = {}
    for split, level in levels.items():
        for kind in _folders(level):
            own = [entry.name for entry in _listed(level / kind) if _is_image(entry)]
            found |= {(level / kind / name).relative_to(root).as_posix(): split for name in own}
            kinds -= {kind} if own else set()
    if kinds:
        log.warning("%s: no image in the folder of %s", root, ", ".join(sorted(kinds)[:5]))
    beside = [name for name in _folders(root) if root not in levels.values() and name not in levels]
    if beside:
        log.warning("%s: left out %s, beside %s", root, ", ".join(beside[:5]), ", ".join(levels))
    return found


def _read(root: Path, name: str) -> Scan:
    path = root / name
    data = image(path)
    check_image(path, data.tobytes())
    label = np.array([_number(root, path.parent.name)], np.int32)
    return Scan(np.empty((0, 3)), {}, annotations={"image": data, "label": label})


def _files(root: Path, name: str) -> tuple[Path, ...]:
    return (root / name,)


def _classes(root: Path) -> Mapping[str, list[int]]:
    kinds = _kinds(root)
    if not kinds:
        raise DataError(root, "has no folder CLASS or train/CLASS with images", "correct data.root")
    return numbered(kinds)


def _levels(root: Path) -> dict[str, Path]:
    """The folders that hold those of the classes, by split: one alone where none is named after a split."""
    named = {split: root / split for split in SPLITS if (root / split).is_dir() and _folders(root / split)}
    return named or {"train": root}


def _kinds(root: Path) -> list[str]:
    return sorted({kind for level in _levels(root).values() for kind in _folders(level)})


def _number(root: Path, kind: str) -> int:
    """The number of a class. A build asks for each image: what is known holds while no folder changes."""
    levels = [root, *(root / split for split in SPLITS)]
    changed = tuple(level.stat().st_mtime_ns if level.is_dir() else None for level in levels)
    return _numbers(root, changed)[kind]


@lru_cache(maxsize=8)
def _numbers(root: Path, changed: tuple[int | None, ...]) -> dict[str, int]:  # noqa: ARG001 (it is a key)
    return {kind: number for number, kind in enumerate(_kinds(root))}


def _folders(level: Path) -> list[str]:
    return [entry.name for entry in _listed(level) if entry.is_dir()]


def _listed(folder: Path) -> list[os.DirEntry[str]]:
    """What is in a folder, sorted, without what is hidden. Raises DataError for names that are not UTF-8."""
    try:
        with os.scandir(folder) as entries:
            found = sorted((entry for entry in entries if entry.name[0] != "."), key=lambda entry: entry.name)
    except OSError as error:
        raise DataError(folder, f"cannot be read ({error.strerror})", "check its rights") from None
    for entry in found:
        try:
            entry.name.encode()
        except UnicodeEncodeError:
            cause = f"the name {os.fsencode(entry.name)!r} is not UTF-8"
            raise DataError(folder, cause, "rename it") from None
    return found


def _is_image(entry: os.DirEntry[str]) -> bool:
    return entry.name.lower().endswith(_SUFFIXES) and entry.is_file()


LAYOUT = Layout(_find, _read, _files, _classes, "label", objects=True, points=False)
