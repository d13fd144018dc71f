"""Where the scanner of KITTI's odometry sequences was: ``poses.txt``, ``calib.txt``, ``times.txt``.

A pose is that of the left camera; Tr takes the scanner's coordinates to the camera's. The pose of the scanner
is therefore inverse(Tr) * pose * Tr, as SemanticKITTI's own scripts have it.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from ...errors import DataError
from .kept import Kept
from .layout import lines
from .poses import FARTHEST, Floats, inverse, product

_FIX = "complete the download"
_KEPT: Kept[NDArray[np.float64]] = Kept(64)


def has_poses(root: Path) -> bool:
    """Whether all sequences below the root that have scans have poses too."""
    folders = [path.parent for path in root.glob("sequences/[0-9][0-9]/velodyne")]
    return all((one / name).is_file() for one in folders for name in ("poses.txt", "calib.txt"))


def pose_of(folder: Path, number: int) -> Floats:
    """The motion (4, 4) from a scan's coordinates to those of the sequence's first scan.

    Raises DataError, with file and line, where a table is missing, damaged or too short.
    """
    files = [folder / "poses.txt", folder / "calib.txt"]
    return _at(files[0], number, _KEPT.get(files[0], files, lambda: _poses(*files)))


def time_of(folder: Path, number: int) -> float:
    """When a scan was taken, in seconds. Raises DataError as `pose_of` does."""
    path = folder / "times.txt"
    return float(_at(path, number, _KEPT.get(path, [path], lambda: _times(path))))


def _at(path: Path, number: int, rows: NDArray[np.float64]) -> NDArray[np.float64]:
    if number >= len(rows):
        raise DataError(path, f"has {len(rows)} lines, none for scan {number}", _FIX)
    found: NDArray[np.float64] = rows[number]
    return found


def _poses(poses: Path, calibration: Path) -> NDArray[np.float64]:
    for at, line in enumerate(lines(calibration, "where the scanner is mounted"), 1):
        if line.startswith("Tr:"):
            mounted = _motion(calibration, at, line[3:].split())
            break
    else:
        raise DataError(calibration, "has no line 'Tr:'", _FIX)
    told = lines(poses, "where each scan was taken")
    camera = [_motion(poses, at, line.split()) for at, line in enumerate(told, 1)]
    if not camera:
        return np.empty((0, 4, 4))
    return product(inverse(mounted), product(np.stack(camera), mounted))


def _times(path: Path) -> NDArray[np.float64]:
    told = lines(path, "when each scan was taken")
    return np.array([_numbers(path, at, [line], 1)[0] for at, line in enumerate(told, 1)], np.float64)


def _motion(path: Path, line: int, words: Sequence[str]) -> Floats:
    found = np.eye(4)
    found[:3] = np.reshape(_numbers(path, line, words, 12), (3, 4))
    turn = found[:3, :3]
    if np.abs(product(turn, turn.T) - np.eye(3)).max() > 1e-2:
        raise DataError(path, f"line {line} is no rigid motion", "copy it again")
    return found


def _numbers(path: Path, line: int, words: Sequence[str], count: int) -> list[float]:
    try:
        values = [float(word) for word in words]
    except ValueError:
        values = []
    if len(values) != count or not (np.abs(values) < FARTHEST).all():
        cause = f"line {line} has not {count} numbers: {' '.join(words)!r:.60}"
        raise DataError(path, cause, "copy it again")
    return values
