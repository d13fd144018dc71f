"""SemanticKITTI (Behley et al. 2019): ``sequences/08/velodyne/000123.bin``, ``.../labels/000123.label``.

A label is a uint32: the class code in the lower half, the number of the object in the upper one. Sequence 8
validates, 11 to 21 are for the benchmark's server and come without labels.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np

from ...errors import DataError
from ..readers import Scan, read
from .layout import PLAIN, Layout, names, one_a_row, with_fields, with_labels

_CLASSES = {
    "car": [10, 252],
    "bicycle": [11],
    "motorcycle": [15],
    "truck": [18, 258],
    "other-vehicle": [13, 16, 20, 256, 257, 259],
    "person": [30, 254],
    "bicyclist": [31, 253],
    "motorcyclist": [32, 255],
    "road": [40, 60],
    "parking": [44],
    "sidewalk": [48],
    "other-ground": [49],
    "building": [50],
    "fence": [51],
    "vegetation": [70],
    "trunk": [71],
    "terrain": [72],
    "pole": [80],
    "traffic-sign": [81],
}
_VALIDATES, _FIRST_OF_TEST = 8, 11


def _find(root: Path) -> dict[str, str]:
    found = {}
    for name in names(root, "sequences/[0-9][0-9]/velodyne/*.bin"):
        sequence = int(name.split("/")[1])
        found[name] = "test" if sequence >= _FIRST_OF_TEST else "val" if sequence == _VALIDATES else "train"
    return found


def _labels(root: Path, name: str) -> Path | None:
    """The file of labels; None for a scan of the test sequences, which have none."""
    path = root / name.replace("/velodyne/", "/labels/").replace(".bin", ".label")
    if path.is_file():
        return path
    if int(name.split("/")[1]) >= _FIRST_OF_TEST:
        return None
    raise DataError(path, f"is missing: the labels of {name}", "complete the download")


def _files(root: Path, name: str) -> tuple[Path, ...]:
    return with_labels(root, name, _labels(root, name))


def _read(root: Path, name: str) -> Scan:
    scan, labels = read(root / name, PLAIN), _labels(root, name)
    if labels is None:
        none = np.zeros(len(scan.xyz), np.uint16)
        return with_fields(scan, classification=none, instance=none)
    if labels.stat().st_size % 4:
        raise DataError(labels, f"has {labels.stat().st_size} bytes, no multiple of 4", "copy it again")
    codes = one_a_row(labels, np.fromfile(labels, "<u4"), scan, name)
    lower, upper = codes & 0xFFFF, codes >> 16
    return with_fields(scan, classification=lower.astype(np.uint16), instance=upper.astype(np.uint16))


def _classes(_: Path) -> Mapping[str, list[int]]:
    return _CLASSES


LAYOUT = Layout(_find, _read, _files, _classes, "classification")
