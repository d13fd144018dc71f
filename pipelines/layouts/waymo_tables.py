"""The small components of a segment of the Waymo Open Dataset: where the car was, its lasers, the boxes."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ...errors import DataError
from .columns import numbers, table, texts
from .poses import FARTHEST, Floats, instance_number, product
from .waymo_range import inclinations
from .waymo_rows import LASER, TIME

BOX = 100
"""What is added to a box's type: points number other classes from 1."""

_FIX = "copy it again"
_POSE = "[VehiclePoseComponent].world_from_vehicle.transform"
_MOUNTED = "[LiDARCalibrationComponent].extrinsic.transform"
_LEAST, _MOST, _BEAMS = (
    f"[LiDARCalibrationComponent].beam_inclination.{one}" for one in ("min", "max", "values")
)
_CENTRE = [f"[LiDARBoxComponent].box.center.{axis}" for axis in "xyz"]
_SIZE = [f"[LiDARBoxComponent].box.size.{axis}" for axis in "xyz"]
_HEADING, _TYPE = "[LiDARBoxComponent].box.heading", "[LiDARBoxComponent].type"
_OBJECT = "key.laser_object_id"


class Laser(NamedTuple):
    """Where a laser is mounted, (4, 4), and the inclinations of its beams, or their least and most."""

    mounted: Floats
    least: float
    most: float
    listed: Floats | None

    def beams(self, height: int) -> Floats:
        """The inclinations of ``height`` beams, upwards, in radians; as many as are listed if any are."""
        return inclinations(self.least, self.most, height) if self.listed is None else self.listed


def cars(path: Path) -> dict[int, Floats]:
    """Time of a frame -> the motion (4, 4) from the car to the world."""
    rows = table(path, [TIME, _POSE])
    return dict(zip(numbers(path, rows, TIME, np.int64).tolist(), _motions(path, rows, _POSE), strict=True))


def lasers(path: Path) -> dict[int, Laser]:
    """Number of a laser -> what is known of it."""
    rows = table(path, [LASER, _MOUNTED, _LEAST, _MOST, _BEAMS])
    beams = [None if one is None else np.array(one, np.float64) for one in rows.column(_BEAMS).to_pylist()]
    for row, one in enumerate(beams):
        if one is not None and not (np.abs(one) < FARTHEST).all():
            raise DataError(path, f"column '{_BEAMS}' is not finite in row {row}", _FIX)
    parts = (_motions(path, rows, _MOUNTED), numbers(path, rows, _LEAST), numbers(path, rows, _MOST), beams)
    return dict(zip(numbers(path, rows, LASER, np.int64).tolist(), map(Laser, *parts), strict=True))


def boxes(path: Path | None) -> dict[str, NDArray[Any]]:
    """The boxes of a segment, in the order of the file, and the ``time`` of each; none without a file."""
    if path is None:
        whole = np.empty(0, np.int64)
        none = whole.astype(np.int32)
        return {"boxes": np.empty((0, 7)), "box_class": none, "box_instance": whole, "time": whole}
    rows = table(path, [TIME, _OBJECT, *_CENTRE, *_SIZE, _HEADING, _TYPE])
    tokens = texts(path, rows, _OBJECT)
    return {
        "boxes": np.stack([numbers(path, rows, name) for name in (*_CENTRE, *_SIZE, _HEADING)], axis=1),
        "box_class": numbers(path, rows, _TYPE, np.int32) + np.int32(BOX),
        "box_instance": np.array([instance_number(token) for token in tokens], np.int64),
        "time": numbers(path, rows, TIME, np.int64),
    }


def _motions(path: Path, rows: Any, name: str) -> Sequence[Floats]:
    """A column of rigid motions, row by row in lists of 16."""
    found = []
    for row, values in enumerate(rows.column(name).to_pylist()):
        motion = np.array(values if values is not None else [], np.float64)
        known = motion.size == 16 and bool((np.abs(motion) < FARTHEST).all())
        turn = motion.reshape(4, 4)[:3, :3] if known else np.zeros((3, 3))
        if np.abs(product(turn, turn.T) - np.eye(3)).max() > 1e-3 or motion[12:].tolist() != [0, 0, 0, 1]:
            raise DataError(path, f"column '{name}' has no rigid motion of 16 numbers in row {row}", _FIX)
        found.append(motion.reshape(4, 4))
    return found
