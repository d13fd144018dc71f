"""ScanNet v2 (Dai et al. 2017): ``scans/scene0000_00/scene0000_00_vh_clean_2.ply`` and ``..._2.labels.ply``.

The vertices are the points; those of the second file carry their class in NYU's numbering of 40. The
benchmark's lists ``scannetv2_train.txt``, ``_val.txt`` and ``_test.txt`` lie at the root.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from ...errors import DataError
from ..readers import Scan, read
from .layout import PLAIN, Layout, constant, lines, must_exist, names, one_a_row, with_fields, with_labels

_CLASSES = {
    "wall": [1],
    "floor": [2],
    "cabinet": [3],
    "bed": [4],
    "chair": [5],
    "sofa": [6],
    "table": [7],
    "door": [8],
    "window": [9],
    "bookshelf": [10],
    "picture": [11],
    "counter": [12],
    "desk": [14],
    "curtain": [16],
    "refrigerator": [24],
    "shower curtain": [28],
    "toilet": [33],
    "sink": [34],
    "bathtub": [36],
    "otherfurniture": [39],
}
_SPLITS = ("train", "val", "test")

log = logging.getLogger(__name__)


def _find(root: Path) -> dict[str, str]:
    found = {}
    for split in _SPLITS:
        listed = root / f"scannetv2_{split}.txt"
        if split == "test" and not listed.is_file():
            continue  # scenes without labels, which many do not download
        for scene in lines(listed, "the benchmark's list of scenes"):
            folder = "scans_test" if split == "test" and (root / "scans_test").is_dir() else "scans"
            name = f"{folder}/{scene}/{scene}_vh_clean_2.ply"
            must_exist(root / name, f"{listed.name} lists it")
            found[name] = split
    if left := [name for name in names(root, "scans*/*/*_vh_clean_2.ply") if name not in found]:
        more = f" and {len(left) - 1} more" if len(left) > 1 else ""
        log.warning("%s: left out %s%s, which no list scannetv2_*.txt names", root, left[0], more)
    return found


def _labels(root: Path, name: str) -> Path | None:
    path = (root / name).with_suffix(".labels.ply")
    if path.is_file():
        return path
    listed = root / "scannetv2_test.txt"
    if listed.is_file() and Path(name).parent.name in lines(listed, "the list of test scenes"):
        return None
    raise DataError(path, f"is missing: the labels of {name}", "complete the download")


def _files(root: Path, name: str) -> tuple[Path, ...]:
    return with_labels(root, name, _labels(root, name))


def _read(root: Path, name: str) -> Scan:
    scan, labels = read(root / name, PLAIN), _labels(root, name)
    if labels is None:
        return with_fields(scan, classification=constant(scan, 0))
    codes = read(labels, PLAIN).fields.get("label")
    if codes is None:
        raise DataError(labels, "has no property 'label'", "copy it again")
    codes = one_a_row(labels, codes, scan, name)
    return with_fields(scan, classification=codes.astype(np.int32))


def _classes(_: Path) -> Mapping[str, list[int]]:
    return _CLASSES


LAYOUT = Layout(_find, _read, _files, _classes, "classification")
