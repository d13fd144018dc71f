"""SemanticKITTI (Behley et al. 2019): ``sequences/08/velodyne/000123.bin``, ``.../labels/000123.label``.

A label is a uint32: the class code in the lower half, the number of the object in the upper one. Sequence 8
validates, 11 to 21 are for the benchmark's server and come without labels.

``poses.txt`` of a sequence has a line a scan: the motion, 3 x 4 row by row, from its left camera to that of
the first scan; ``Tr`` of ``calib.txt`` is that from the scanner to the camera, ``times.txt`` has seconds.
Where all sequences have the first two, each scan has its pose. Scans that are merged keep the labels they
have.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from ...errors import DataError
from ..readers import File, Scan, read
from .kitti_poses import has_poses, pose_of, time_of
from .layout import PLAIN, Layout, names, one_a_row, with_annotations, with_fields, with_labels
from .poses import Sweep, inverse, merged, product

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

log = logging.getLogger(__name__)


def _find(root: Path) -> dict[str, str]:
    found = {}
    for name in names(root, "sequences/[0-9][0-9]/velodyne/*.bin"):
        sequence = int(name.split("/")[1])
        found[name] = "test" if sequence >= _FIRST_OF_TEST else "val" if sequence == _VALIDATES else "train"
    _check_all_there(root, found)
    return found


def _check_all_there(root: Path, found: Mapping[str, str]) -> None:
    """Labels come in an archive of their own: those without a scan tell that scans are missing."""
    sequences = {name.split("/")[1] for name in found}
    without = set()
    for name in names(root, "sequences/[0-9][0-9]/labels/*.label"):
        scan, sequence = name.replace("/labels/", "/velodyne/").replace(".label", ".bin"), name.split("/")[1]
        if sequence not in sequences:
            without.add(sequence)
        elif scan not in found:
            raise DataError(root / scan, f"is missing: the scan of {name}", "complete the download")
    if without:
        log.warning("%s: left out sequences %s: no scan in velodyne", root, ", ".join(sorted(without)))


def _labels(root: Path, name: str) -> Path | None:
    """The file of labels; None for a scan of the test sequences, which have none."""
    path = root / name.replace("/velodyne/", "/labels/").replace(".bin", ".label")
    if path.is_file():
        return path
    if int(name.split("/")[1]) >= _FIRST_OF_TEST:
        return None
    raise DataError(path, f"is missing: the labels of {name}", "complete the download")


def _files(root: Path, name: str, *, sweeps: int = 1) -> tuple[File, ...]:
    before = _before(root, name, sweeps)
    files = [file for one in (name, *before) for file in with_labels(root, one, _labels(root, one))]
    if sweeps == 1 and not has_poses(root):
        return tuple(files)
    folder = (root / name).parents[1]
    told = [pose_of(folder, _number(one)) for one in (name, *before)]
    if sweeps > 1:
        told += [np.array([time_of(folder, _number(one)) for one in (name, *before)])]
    return (*files, b"".join(array.tobytes() for array in told))


def _number(name: str) -> int:
    stem = Path(name).stem
    if not (stem.isascii() and stem.isdigit()):
        raise DataError(name, "is not named after its number", "name it as it was published")
    return int(stem)


def _before(root: Path, name: str, sweeps: int) -> list[str]:
    """The scans right before one, the latest first: as many as there are below ``sweeps``."""
    path, found = root / name, []
    for number in range(_number(name) - 1, _number(name) - sweeps, -1):
        earlier = path.with_name(f"{number:0{len(path.stem)}}.bin")
        if number < 0 or not earlier.is_file():
            break
        found.append(earlier.relative_to(root).as_posix())
    return found


def _read(root: Path, name: str, *, sweeps: int = 1) -> Scan:
    scan = _labelled(root, name)
    if sweeps == 1 and not has_poses(root):
        return scan
    folder, number = (root / name).parents[1], _number(name)
    pose = pose_of(folder, number)
    scan = with_annotations(scan, pose=pose.reshape(1, 16))
    if sweeps == 1:
        return scan
    back, parts = inverse(pose), [Sweep(scan, np.eye(4), 0.0)]
    for before in _before(root, name, sweeps):
        lag_s = time_of(folder, number) - time_of(folder, _number(before))
        motion = product(back, pose_of(folder, _number(before)))
        parts.append(Sweep(_labelled(root, before), motion, lag_s))
    return merged(parts)


def _labelled(root: Path, name: str) -> Scan:
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


LAYOUT = Layout(_find, _read, _files, _classes, "classification", takes=frozenset({"sweeps"}))
