"""nuScenes (Caesar et al. 2020): tables ``v1.0-trainval/*.json``, scans ``samples/LIDAR_TOP/*.pcd.bin``.

A source is a key frame of LIDAR_TOP; its boxes, their velocities and the pose are brought to the coordinates
of that lidar at that time. With lidarseg the points carry its codes, which its challenge merges to 16
classes; they number the boxes' classes too. Without it, in v1.0-test and in scans between key frames the code
is 0, which is ignored. v1.0-mini is read where there is no other folder of tables.

The tables belong to all scans: of them a source's digest takes in what is said of its own scans and boxes.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...errors import DataError
from ..readers import File, Scan, read
from .layout import PLAIN, Layout, image, must_exist, one_a_row, with_annotations, with_fields
from .nuscenes_splits import split_of
from .nuscenes_tables import CATEGORIES, LIDAR, Tables, category_codes, tables
from .poses import Sweep, boxes, inverse, merged, product, rigid, turned

_MERGED = {
    "barrier": ["movable_object.barrier"],
    "bicycle": ["vehicle.bicycle"],
    "bus": ["vehicle.bus.bendy", "vehicle.bus.rigid"],
    "car": ["vehicle.car"],
    "construction_vehicle": ["vehicle.construction"],
    "motorcycle": ["vehicle.motorcycle"],
    "pedestrian": [
        "human.pedestrian.adult",
        "human.pedestrian.child",
        "human.pedestrian.construction_worker",
        "human.pedestrian.police_officer",
    ],
    "traffic_cone": ["movable_object.trafficcone"],
    "trailer": ["vehicle.trailer"],
    "truck": ["vehicle.truck"],
    "driveable_surface": ["flat.driveable_surface"],
    "other_flat": ["flat.other"],
    "sidewalk": ["flat.sidewalk"],
    "terrain": ["flat.terrain"],
    "manmade": ["static.manmade"],
    "vegetation": ["static.vegetation"],
}
_LISTED = "sample_data.json lists it"


def _versions(root: Path) -> list[Path]:
    found = sorted(path for path in root.glob("v1.0-*") if path.is_dir())
    if not found:
        raise DataError(root, "has no folder of tables v1.0-trainval, v1.0-mini or v1.0-test", "correct it")
    return [path for path in found if path.name != "v1.0-mini"] or found


def _find(root: Path) -> dict[str, str]:
    return {
        file: split_of(version, joined.scenes[joined.sample[row]])
        for version in _versions(root)
        for joined in [tables(version)]
        for file, row in joined.keyframes.items()
    }


def _row(root: Path, name: str) -> tuple[Tables, int]:
    for version in _versions(root):
        joined = tables(version)
        if name in joined.keyframes:
            return joined, joined.keyframes[name]
    raise DataError(root / name, f"is no key frame of {LIDAR} in sample_data.json", "correct data.files")


def _rows(joined: Tables, row: int, sweeps: int) -> list[int]:
    """The scan and those before it, as many as there are up to ``sweeps``."""
    rows = [row]
    while len(rows) < sweeps and (before := int(joined.previous[rows[-1]])) >= 0:
        rows.append(before)
    return rows


def _labels(root: Path, joined: Tables, row: int) -> Path | None:
    """The file of labels; None for a scan that has none, as those between key frames."""
    token = joined.tokens.get(row)
    if token is None or joined.labels is None or joined.version.name == "v1.0-test":
        return None
    if token not in joined.labels:
        listed = joined.version / "lidarseg.json"
        raise DataError(listed, f"has no labels of sample_data '{token}'", "complete the download")
    return must_exist(root / joined.labels[token], "labels that lidarseg.json lists")


def _images(root: Path, joined: Tables, row: int) -> dict[str, Path | None]:
    """Camera -> file; None where a sample has none of it."""
    sample = int(joined.sample[row])
    files = {camera: joined.images.get((sample, camera)) for camera in joined.cameras}
    return {name: must_exist(root / file, "an image") if file else None for name, file in files.items()}


def _own(joined: Tables, row: int) -> slice:
    """Which boxes a scan's sample has."""
    sample = joined.sample[row]
    return slice(int(joined.boxes.starts[sample]), int(joined.boxes.starts[sample + 1]))


def _files(root: Path, name: str, *, sweeps: int = 1, images: bool = False) -> tuple[File, ...]:
    joined, row = _row(root, name)
    rows, own = _rows(joined, row, sweeps), _own(joined, row)
    scans = [must_exist(root / joined.files[one], _LISTED) for one in rows]
    labels = [path for one in rows if (path := _labels(root, joined, one))]
    shown = [path for path in _images(root, joined, row).values() if path] if images else []
    told: list[NDArray[Any]] = [joined.time_us[rows], joined.ego[rows], joined.sensor[rows]]
    all_boxes = joined.boxes
    told += [all_boxes.place[own], all_boxes.size[own], all_boxes.velocity[own]]
    told += [all_boxes.codes[own], all_boxes.instances[own]]
    return (*scans, *labels, *shown, b"".join(array.tobytes() for array in told))


def _read(root: Path, name: str, *, sweeps: int = 1, images: bool = False) -> Scan:
    joined, row = _row(root, name)
    pose = _pose(joined, row)
    scan = with_annotations(_labelled(root, joined, row), **_annotations(joined, row, pose))
    if images:
        shown = {f"image_{camera}": image(path) for camera, path in _images(root, joined, row).items()}
        scan = with_annotations(scan, **shown)
    if sweeps == 1:
        return scan
    back = inverse(pose)
    parts = [Sweep(scan, np.eye(4), 0.0)]
    for before in _rows(joined, row, sweeps)[1:]:
        lag_s = float(joined.time_us[row] - joined.time_us[before]) / 1e6
        motion = product(back, _pose(joined, before))
        parts.append(Sweep(_labelled(root, joined, before), motion, lag_s))
    return merged(parts)


def _pose(joined: Tables, row: int) -> NDArray[np.float64]:
    """From the lidar at the time of a scan to the world."""
    return product(rigid(joined.ego[row]), rigid(joined.sensor[row]))


def _labelled(root: Path, joined: Tables, row: int) -> Scan:
    path = must_exist(root / joined.files[row], _LISTED)
    scan, labels = read(path, PLAIN), _labels(root, joined, row)
    if labels is None:
        return with_fields(scan, classification=np.zeros(len(scan.xyz), np.uint8))
    codes = one_a_row(labels, np.fromfile(labels, np.uint8), scan, path.name)
    last = max(len(CATEGORIES) - 1, *category_codes(joined.version).values())
    if len(codes) and codes.max() > last:
        at = int(np.argmax(codes > last))
        cause = f"point {at} has the label {codes[at]}, the last is {last}"
        raise DataError(labels, cause, "copy both again")
    return with_fields(scan, classification=codes)


def _annotations(joined: Tables, row: int, pose: NDArray[np.float64]) -> dict[str, NDArray[Any]]:
    own, back, found = _own(joined, row), inverse(pose), joined.boxes
    return {
        "boxes": boxes(back, found.place[own, :3], found.size[own], found.place[own, 3:]),
        "box_class": found.codes[own],
        "box_instance": found.instances[own],
        "box_velocity": turned(back[:3, :3], found.velocity[own]),
        "pose": pose.reshape(1, 16),
    }


def _classes(root: Path) -> Mapping[str, list[int]]:
    codes: dict[str, int] = {}
    for version in _versions(root):
        for name, code in category_codes(version).items():
            if codes.setdefault(name, code) != code:
                path = version / "category.json"
                raise DataError(path, f"numbers '{name}' {code}, others {codes[name]}", "use one of them")
    found = {kind: [codes[name] for name in names if name in codes] for kind, names in _MERGED.items()}
    return {kind: own for kind, own in found.items() if own}


LAYOUT = Layout(_find, _read, _files, _classes, "classification", takes=frozenset({"sweeps", "images"}))
