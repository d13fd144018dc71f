"""Argoverse 2, the sensor dataset (Wilson et al. 2021): ``val/LOG/sensors/lidar/TIMESTAMP.feather``.

A source is a scan of the lidar, in the coordinates of the car at that time. ``annotations.feather`` of its
log holds the boxes, in the same coordinates, and ``city_SE3_egovehicle.feather`` the places of the car.
Points have no classes of their own: their code is 0, ignored. Boxes have the codes 1 to 30, in the order of
the authors' list of categories. The folders are the splits; test has no boxes.

Both tables belong to all scans of a log: of them a source's digest takes in its own rows.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ...errors import DataError
from ..readers import File, Scan, read
from .columns import numbers, table, texts
from .kept import Kept
from .layout import PLAIN, Layout, constant, names, with_annotations, with_fields
from .poses import FARTHEST, Sweep, boxes, instance_number, inverse, merged, product, rigid

_CATEGORIES = """
ANIMAL ARTICULATED_BUS BICYCLE BICYCLIST BOLLARD BOX_TRUCK BUS CONSTRUCTION_BARREL CONSTRUCTION_CONE DOG
LARGE_VEHICLE MESSAGE_BOARD_TRAILER MOBILE_PEDESTRIAN_CROSSING_SIGN MOTORCYCLE MOTORCYCLIST OFFICIAL_SIGNALER
PEDESTRIAN RAILED_VEHICLE REGULAR_VEHICLE SCHOOL_BUS SIGN STOP_SIGN STROLLER TRAFFIC_LIGHT_TRAILER TRUCK
TRUCK_CAB VEHICULAR_TRAILER WHEELCHAIR WHEELED_DEVICE WHEELED_RIDER
"""
_CODES = {name: code for code, name in enumerate(_CATEGORIES.split(), 1)}
_SPLITS = ("train", "val", "test")
_PLACE = ["tx_m", "ty_m", "tz_m", "qw", "qx", "qy", "qz"]
_SIZE = ["length_m", "width_m", "height_m"]
_TIME = "timestamp_ns"


class _Log(NamedTuple):
    """The tables of a log, sorted by time: places of the car (p, 7) and boxes (m, 7), (m, 3)."""

    folder: Path
    time_ns: NDArray[np.int64]
    car: NDArray[np.float64]
    box_time_ns: NDArray[np.int64]
    place: NDArray[np.float64]
    size: NDArray[np.float64]
    codes: NDArray[np.int32]
    instances: NDArray[np.int64]

    def at(self, time_ns: int) -> NDArray[np.float64]:
        """The place of the car, (7,), at the time of a scan; DataError where the table lacks it."""
        row = int(np.searchsorted(self.time_ns, time_ns))
        if row == len(self.time_ns) or self.time_ns[row] != time_ns:
            raise DataError(_poses(self.folder), f"has no pose at {_TIME} {time_ns}", "complete the download")
        found: NDArray[np.float64] = self.car[row]
        return found

    def own(self, time_ns: int) -> slice:
        """The boxes of a scan."""
        return slice(*np.searchsorted(self.box_time_ns, [time_ns, time_ns + 1]).tolist())


_KEPT: Kept[_Log] = Kept(4)


def _poses(folder: Path) -> Path:
    return folder / "city_SE3_egovehicle.feather"


def _log(folder: Path) -> _Log:
    annotated = folder / "annotations.feather"
    paths = [_poses(folder), annotated]
    if folder.parent.name == "test" and not annotated.is_file():
        paths.pop()
    return _KEPT.get(folder, paths, lambda: _read_log(folder, *paths))


def _read_log(folder: Path, path: Path, annotated: Path | None = None) -> _Log:
    rows = table(path, [_TIME, *_PLACE])
    time_ns, car = numbers(path, rows, _TIME, np.int64), _placed(path, rows)
    order = np.argsort(time_ns, kind="stable")
    time_ns, car = time_ns[order], car[order]
    if annotated is None:
        whole, wide = np.empty(0, np.int64), np.empty((0, 7))
        return _Log(folder, time_ns, car, whole, wide, np.empty((0, 3)), np.empty(0, np.int32), whole)
    path = annotated
    rows = table(path, [_TIME, "track_uuid", "category", *_SIZE, *_PLACE])
    categories = texts(path, rows, "category")
    unknown = [row for row, name in enumerate(categories) if name not in _CODES]
    if unknown:
        cause = f"row {unknown[0]}: '{categories[unknown[0]]}' is no category of Argoverse 2"
        raise DataError(path, cause, "copy it again")
    tracks = texts(path, rows, "track_uuid")
    of_track = {track: instance_number(track) for track in set(tracks)}
    instances = np.array([of_track[track] for track in tracks], np.int64)
    box_time_ns = numbers(path, rows, _TIME, np.int64)
    order = np.lexsort((instances, box_time_ns))
    return _Log(
        folder,
        time_ns,
        car,
        box_time_ns[order],
        _placed(path, rows)[order],
        np.stack([numbers(path, rows, name) for name in _SIZE], axis=1)[order],
        np.array([_CODES[name] for name in categories], np.int32)[order],
        instances[order],
    )


def _placed(path: Path, rows: Any) -> NDArray[np.float64]:
    """Places (n, 7); DataError for a row that is none."""
    found = np.stack([numbers(path, rows, name) for name in _PLACE], axis=1)
    far = (np.abs(found[:, :3]) >= FARTHEST).any(axis=1) | (np.abs(found[:, 3:]) > 2).any(axis=1)
    wrong = far | (np.abs((np.clip(found[:, 3:], -2, 2) ** 2).sum(axis=1) - 1) > 0.02)
    if wrong.any():
        row = int(np.argmax(wrong))
        cause = f"row {row}: {found[row].tolist()} is no place and quaternion of length 1"
        raise DataError(path, cause, "copy it again")
    return found


def _find(root: Path) -> dict[str, str]:
    return {name: split for split in _SPLITS for name in names(root, f"{split}/*/sensors/lidar/*.feather")}


def _scans(root: Path, name: str, sweeps: int) -> list[tuple[int, Path]]:
    """The time and file of a scan and of those before it, up to ``sweeps``, the latest first."""
    path = root / name
    if sweeps == 1:
        return [(_time(path), path)]
    found = sorted(((_time(one), one) for one in path.parent.glob("*.feather")), reverse=True)
    at = [time_ns for time_ns, _ in found].index(_time(path))
    return found[at : at + sweeps]


def _time(path: Path) -> int:
    if not (path.stem.isascii() and path.stem.isdigit() and len(path.stem) < 19):
        raise DataError(path, "is not named after its time in nanoseconds", "name it as it was published")
    return int(path.stem)


def _files(root: Path, name: str, *, sweeps: int = 1) -> tuple[File, ...]:
    log, scans = _log((root / name).parents[2]), _scans(root, name, sweeps)
    own = log.own(scans[0][0])
    told: list[NDArray[Any]] = [log.at(time_ns) for time_ns, _ in scans]
    told += [log.place[own], log.size[own], log.codes[own], log.instances[own]]
    return (*(path for _, path in scans), b"".join(array.tobytes() for array in told))


def _read(root: Path, name: str, *, sweeps: int = 1) -> Scan:
    log = _log((root / name).parents[2])
    (time_ns, path), *before = _scans(root, name, sweeps)
    pose, own = rigid(log.at(time_ns)), log.own(time_ns)
    scan = with_annotations(
        _plain(path),
        boxes=boxes(np.eye(4), log.place[own, :3], log.size[own], log.place[own, 3:]),
        box_class=log.codes[own],
        box_instance=log.instances[own],
        pose=pose.reshape(1, 16),
    )
    if sweeps == 1:
        return scan
    back, parts = inverse(pose), [Sweep(scan, np.eye(4), 0.0)]
    for earlier, file in before:
        one = _plain(file)
        if one.fields.keys() != scan.fields.keys():
            raise DataError(file, f"has the fields {', '.join(one.fields)}, {name} others", "copy both again")
        parts.append(Sweep(one, product(back, rigid(log.at(earlier))), (time_ns - earlier) / 1e9))
    return merged(parts)


def _plain(path: Path) -> Scan:
    scan = read(path, PLAIN)
    return with_fields(scan, classification=constant(scan, 0).astype(np.uint8))


def _classes(_: Path) -> Mapping[str, list[int]]:
    return {name: [code] for name, code in _CODES.items()}


LAYOUT = Layout(_find, _read, _files, _classes, "classification", takes=frozenset({"sweeps"}))
