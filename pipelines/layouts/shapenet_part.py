"""ShapeNet part (Yi et al. 2016, with normals): ``02691156/1a04e3ea.txt``, rows x, y, z, nx, ny, nz, part.

``synsetoffset2category.txt`` names the categories; ``train_test_split/shuffled_train_file_list.json``, and
the same with val and test, list the objects of each split. Parts are numbered over all categories, 0 to 49.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from ...errors import DataError
from ..readers import ReadSettings, Scan, read
from .layout import Layout, lines, must_exist, names

_PARTS = {
    "Airplane": range(4),
    "Bag": range(4, 6),
    "Cap": range(6, 8),
    "Car": range(8, 12),
    "Chair": range(12, 16),
    "Earphone": range(16, 19),
    "Guitar": range(19, 22),
    "Knife": range(22, 24),
    "Lamp": range(24, 28),
    "Laptop": range(28, 30),
    "Motorbike": range(30, 36),
    "Mug": range(36, 38),
    "Pistol": range(38, 41),
    "Rocket": range(41, 44),
    "Skateboard": range(44, 47),
    "Table": range(47, 50),
}
_COLUMNS = ReadSettings(columns=["x", "y", "z", "nx", "ny", "nz", "part"])
_SPLITS = ("train", "val", "test")

log = logging.getLogger(__name__)


def _find(root: Path) -> dict[str, str]:
    found = {}
    for split in _SPLITS:
        path = must_exist(
            root / "train_test_split" / f"shuffled_{split}_file_list.json", "the list of a split's objects"
        )
        try:
            listed = json.loads(path.read_bytes())
            objects = [str(one).removeprefix("shape_data/") for one in listed]
        except (ValueError, TypeError) as error:
            raise DataError(path, f"is no list in JSON ({error})", "copy it again") from None
        for one in objects:
            must_exist(root / f"{one}.txt", f"{path.name} lists it")
            found[f"{one}.txt"] = split
    if left := [name for name in names(root, "[0-9]*/*.txt") if name not in found]:
        more = f" and {len(left) - 1} more" if len(left) > 1 else ""
        log.warning("%s: left out %s%s, which no list of train_test_split names", root, left[0], more)
    return found


def _files(root: Path, name: str) -> tuple[Path, ...]:
    return (root / name,)


def _read(root: Path, name: str) -> Scan:
    scan = read(root / name, _COLUMNS)
    part = scan.fields["part"]
    whole = part.astype(np.int32)
    if (whole != part).any():
        row = int(np.flatnonzero(whole != part)[0])
        raise DataError(root / name, f"row {row}: part {part[row]:g} is no whole number", "copy it again")
    category = _categories(root)[name.split("/")[0]]
    number = np.full(len(whole), list(_PARTS).index(category), np.int32)
    return Scan(scan.xyz, {**scan.fields, "part": whole, "category": number})


def _categories(root: Path) -> dict[str, str]:
    """Folder -> category."""
    path = root / "synsetoffset2category.txt"
    pairs = [line.split() for line in lines(path, "the names of the folders")]
    for number, pair in enumerate(pairs, 1):
        if len(pair) != 2 or pair[0] not in _PARTS:
            raise DataError(
                path, f"line {number} has {' '.join(pair)!r}, no known category and folder", "copy it again"
            )
    return {folder: name for name, folder in pairs}


def _classes(_: Path) -> Mapping[str, list[int]]:
    return {f"{name} {part - parts[0]}": [part] for name, parts in _PARTS.items() for part in parts}


LAYOUT = Layout(_find, _read, _files, _classes, "part", objects=True)
