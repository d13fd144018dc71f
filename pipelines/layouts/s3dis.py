"""S3DIS (Armeni et al. 2016): ``Area_5/office_1/office_1.txt`` and its parts ``Annotations/chair_3.txt``.

The parts hold all points of a room again, each with x, y, z, r, g, b; they say what it is, so the room is
read from them. The room's own file must be there all the same: the scan has its name. ``instance`` counts the
parts in the order of their names. Area 5 is evaluated, as is usual.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np

from ...errors import DataError
from ..readers import ReadSettings, Scan, read
from .layout import Layout, constant, must_exist, names, numbered

_CLASSES = (
    "ceiling",
    "floor",
    "wall",
    "beam",
    "column",
    "window",
    "door",
    "table",
    "chair",
    "sofa",
    "bookcase",
    "board",
    "clutter",
)
_OTHER = _CLASSES.index("clutter")  # stairs are none of the thirteen
_COLUMNS = ReadSettings(columns=["x", "y", "z", "red", "green", "blue"])


def _find(root: Path) -> dict[str, str]:
    rooms = [name for name in names(root, "Area_*/*/*.txt") if Path(name).stem == Path(name).parent.name]
    for folder in sorted(root.glob("Area_*/*/Annotations")):
        room = folder.parent
        must_exist(room / f"{room.name}.txt", f"{room.name} has {folder.name}, but not the file of the room")
    return {name: "test" if name.startswith("Area_5/") else "train" for name in rooms}


def _files(root: Path, name: str) -> tuple[Path, ...]:
    parts = sorted((root / name).parent.glob("Annotations/*.txt"))
    if not parts:
        raise DataError(
            (root / name).parent / "Annotations", "holds no part of the room", "complete the download"
        )
    return (root / name, *parts)


def _read(root: Path, name: str) -> Scan:
    scans, fields = [], []
    for number, part in enumerate(_files(root, name)[1:]):
        scan = read(part, _COLUMNS)
        kind = part.stem.split("_")[0]
        code = _CLASSES.index(kind) if kind in _CLASSES else _OTHER
        scans.append(scan.xyz)
        rgb = scan.fields["rgb"]
        if len(rgb) and not (rgb.min() >= 0 and rgb.max() < 256):
            raise DataError(part, f"has a colour of {rgb.min():g} to {rgb.max():g}, not 0 to 255", "mend it")
        fields.append((rgb.astype(np.uint8), constant(scan, code), constant(scan, number)))
    rgb, classification, instance = (np.concatenate(columns) for columns in zip(*fields, strict=True))
    found = {"rgb": rgb, "classification": classification, "instance": instance}
    return Scan(np.concatenate(scans), found)


def _classes(_: Path) -> Mapping[str, list[int]]:
    return numbered(_CLASSES)


LAYOUT = Layout(_find, _read, _files, _classes, "classification")
