"""The Waymo Open Dataset as Parquet (version 2): ``training/lidar/SEGMENT.parquet`` and its other components.

A source is a segment, each of its frames a sample of its own: the points of all lasers and both returns, from
their range images, in the coordinates of the car. ``lidar_calibration`` and ``vehicle_pose`` belong to it,
and ``lidar_pose``, which says where the car was when the laser on the roof saw each pixel. ``lidar_box``
holds the boxes. ``lidar_segmentation`` labels some frames of the laser on the roof with the codes 1 to 22;
other points have 0, which is ignored. A box has 100 and its type. The folders training, validation and
testing are the splits; testing has no boxes. The velocities of boxes are left out: nothing says in whose
coordinates they are.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from .layout import Layout, must_exist, names
from .waymo_frames import Frames
from .waymo_tables import BOX

_SPLITS = {"training": "train", "validation": "val", "testing": "test"}
_NEEDED = ("lidar_calibration", "vehicle_pose", "lidar_pose")
_SEGMENTED = "lidar_segmentation"
_LABELS = """
car truck bus other_vehicle motorcyclist bicyclist pedestrian sign traffic_light pole construction_cone
bicycle motorcycle building vegetation tree_trunk curb road lane_marker other_ground walkable sidewalk
"""
_BOXES = ("vehicle", "pedestrian", "sign", "cyclist")


def _find(root: Path) -> dict[str, str]:
    return {
        name: split for folder, split in _SPLITS.items() for name in names(root, f"{folder}/lidar/*.parquet")
    }


def _components(root: Path, name: str) -> dict[str, Path]:
    """Component -> the file of a segment, the lidar first."""
    path, found = root / name, {"lidar": root / name}
    needed = _NEEDED if name.startswith("testing/") else (*_NEEDED, "lidar_box")
    for component in needed:
        file = path.parents[1] / component / path.name
        found[component] = must_exist(file, f"the {component} of {name}")
    labels = path.parents[1] / _SEGMENTED / path.name
    return found | ({_SEGMENTED: labels} if labels.is_file() else {})


def _files(root: Path, name: str) -> tuple[Path, ...]:
    return tuple(_components(root, name).values())


def _segmented(root: Path) -> bool:
    return any((root / folder / _SEGMENTED).is_dir() for folder in _SPLITS)


def _read(root: Path, name: str) -> Frames:
    return Frames(_components(root, name), labelled=_segmented(root))


def _classes(root: Path) -> Mapping[str, list[int]]:
    """Those of the points, where there are labels, then those of boxes that are none of them."""
    found: dict[str, list[int]] = {}
    if _segmented(root):
        found = {kind: [code] for code, kind in enumerate(_LABELS.split(), 1)}
    for number, kind in enumerate(_BOXES, BOX + 1):
        found.setdefault(kind, []).append(number)
    return found


LAYOUT = Layout(_find, _read, _files, _classes, "classification", objects=True)
