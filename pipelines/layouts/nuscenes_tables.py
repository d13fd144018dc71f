"""The tables of nuScenes, joined to what is asked of them: scans of the lidar in order, boxes by sample.

They are read once a process; a table that changes is read again.
"""

from __future__ import annotations

from array import array
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from .kept import Kept
from .nuscenes_json import Record, file_name, numbers, quaternion, records, referred, text, whole, wrong
from .poses import instance_number

LIDAR = "LIDAR_TOP"
_CATEGORIES = """
noise animal human.pedestrian.adult human.pedestrian.child human.pedestrian.construction_worker
human.pedestrian.personal_mobility human.pedestrian.police_officer human.pedestrian.stroller
human.pedestrian.wheelchair movable_object.barrier movable_object.debris movable_object.pushable_pullable
movable_object.trafficcone static_object.bicycle_rack vehicle.bicycle vehicle.bus.bendy vehicle.bus.rigid
vehicle.car vehicle.construction vehicle.emergency.ambulance vehicle.emergency.police vehicle.motorcycle
vehicle.trailer vehicle.truck flat.driveable_surface flat.other flat.sidewalk flat.terrain static.manmade
static.other static.vegetation vehicle.ego
"""
CATEGORIES = _CATEGORIES.split()
"""As lidarseg numbers them: what ``category.json`` without it does not say."""

_TABLES = (
    "sensor",
    "calibrated_sensor",
    "scene",
    "sample",
    "sample_data",
    "ego_pose",
    "category",
    "instance",
    "sample_annotation",
)
_LONGEST_S = 1.5
"""As the development kit has it: over a longer time the velocity of an object is not known."""


@dataclass(frozen=True)
class Boxes:
    """The annotated objects, sorted by sample and instance; of sample i those from ``starts[i]`` on.

    ``place`` (m, 7): centre and quaternion w, x, y, z in the world; ``size`` (m, 3): length, width, height;
    ``velocity`` (m, 3): metres a second in the world, NaN where it is not known.
    """

    starts: NDArray[np.int64]
    place: NDArray[np.float64]
    size: NDArray[np.float64]
    velocity: NDArray[np.float64]
    codes: NDArray[np.int32]
    instances: NDArray[np.int64]


@dataclass(frozen=True)
class Tables:
    """What is known of each scan of the lidar, key frame or not; a place is x, y, z, quaternion w, x, y, z.

    ``previous``: the scan before it, -1 for none. ``keyframes``: file -> scan. ``scenes``: the name of the
    scene of each sample. ``labels``: token of a key frame -> file, None without lidarseg. ``images``:
    (sample, camera) -> file of a key frame.
    """

    version: Path
    files: list[str]
    tokens: dict[int, str]
    time_us: NDArray[np.int64]
    ego: NDArray[np.float64]
    sensor: NDArray[np.float64]
    previous: NDArray[np.int64]
    sample: NDArray[np.int64]
    keyframes: dict[str, int]
    scenes: list[str]
    labels: dict[str, str] | None
    cameras: list[str]
    images: dict[tuple[int, str], str]
    boxes: Boxes


_TABLES_KEPT: Kept[Tables] = Kept(2)
_CODES_KEPT: Kept[dict[str, int]] = Kept(4)


def tables(version: Path) -> Tables:
    """The tables in a folder such as ``v1.0-mini``. Raises DataError, with file and token, for a fault."""
    files = [version / f"{name}.json" for name in (*_TABLES, "lidarseg")]
    return _TABLES_KEPT.get(version, files, lambda: _joined(version))


def category_codes(version: Path) -> dict[str, int]:
    """Category -> its code, as ``category.json`` numbers them for lidarseg, or else as lidarseg does."""
    path = version / "category.json"
    return _CODES_KEPT.get(path, [path], lambda: _categories(path)[1])


def _categories(path: Path) -> tuple[dict[str, int], dict[str, int]]:
    """By token, and by name."""
    tokens, codes = {}, {}
    for record in records(path):
        name = text(path, record, "name")
        if "index" in record:
            code = whole(path, record, "index")
            if code > 255:
                raise wrong(path, record, f"its index is {code}, lidarseg's labels end at 255")
        elif name in CATEGORIES:
            code = CATEGORIES.index(name)
        else:
            raise wrong(path, record, f"'{name}' is no category of nuScenes and has no index")
        tokens[text(path, record, "token")] = codes[name] = code
    return tokens, codes


def _joined(version: Path) -> Tables:
    def path(name: str) -> Path:
        return version / f"{name}.json"

    channels = {text(path("sensor"), one, "token"): one for one in records(path("sensor"))}
    cameras = sorted(
        text(path("sensor"), one, "channel") for one in channels.values() if one.get("modality") == "camera"
    )
    at = path("calibrated_sensor")
    mounted: dict[str, tuple[str, list[float]]] = {}
    for one in records(at):
        sensor = referred(at, one, "sensor_token", channels, "sensor.json")
        mounted[text(at, one, "token")] = (text(path("sensor"), sensor, "channel"), _place(at, one))
    at = path("scene")
    names = {text(at, one, "token"): text(at, one, "name") for one in records(at)}
    at = path("sample")
    numbered: dict[str, int] = {}
    scenes: list[str] = []
    times: list[int] = []
    for one in records(at):
        numbered[text(at, one, "token")] = len(scenes)
        scenes.append(referred(at, one, "scene_token", names, "scene.json"))
        times.append(whole(at, one, "timestamp"))
    lidar = _Lidar(path("sample_data"), set(cameras), mounted, numbered)
    return Tables(
        version=version,
        files=lidar.files,
        tokens={row: lidar.tokens[row] for row in lidar.keyframes.values()},
        time_us=np.array(lidar.times, np.int64),
        ego=_egos(path("ego_pose"), path("sample_data"), lidar),
        sensor=np.array(lidar.sensor).reshape(-1, 7),
        previous=lidar.previous(),
        sample=np.array(lidar.sample, np.int64),
        keyframes=lidar.keyframes,
        scenes=scenes,
        labels=_labels(path("lidarseg")),
        cameras=cameras,
        images=lidar.images,
        boxes=_boxes(version, numbered, np.array(times, np.int64)),
    )


class _Lidar:
    """The records of ``sample_data.json`` that are of the lidar, in the order of the table."""

    def __init__(
        self,
        path: Path,
        cameras: set[str],
        mounted: dict[str, tuple[str, list[float]]],
        numbered: dict[str, int],
    ) -> None:
        self.path = path
        self.files: list[str] = []
        self.tokens: list[str] = []
        self.ego: list[str] = []
        self.times: list[int] = []
        self.sensor: list[list[float]] = []
        self.sample: list[int] = []
        self.keyframes: dict[str, int] = {}
        self.images: dict[tuple[int, str], str] = {}
        self._before: list[str] = []
        for one in records(path):
            channel, place = referred(path, one, "calibrated_sensor_token", mounted, "calibrated_sensor.json")
            if channel != LIDAR and not (channel in cameras and one.get("is_key_frame")):
                continue
            sample = referred(path, one, "sample_token", numbered, "sample.json")
            file = file_name(path, one)
            if channel != LIDAR:
                self.images[sample, channel] = file
                continue
            if one.get("is_key_frame"):
                self.keyframes[file] = len(self.files)
            self.files.append(file)
            self.tokens.append(text(path, one, "token"))
            self.ego.append(text(path, one, "ego_pose_token"))
            self.times.append(whole(path, one, "timestamp"))
            self.sensor.append(place)
            self.sample.append(sample)
            self._before.append(text(path, one, "prev"))

    def previous(self) -> NDArray[np.int64]:
        """The row before each in time, -1 for none."""
        rows = {token: row for row, token in enumerate(self.tokens)}
        for row, token in enumerate(self._before):
            if token and token not in rows:
                record = {"token": self.tokens[row]}
                raise wrong(self.path, record, f"its prev '{token}' is no scan of {LIDAR}")
        return np.array([rows[token] if token else -1 for token in self._before], np.int64)


def _place(path: Path, record: Record) -> list[float]:
    return [*numbers(path, record, "translation", 3), *quaternion(path, record)]


def _egos(path: Path, data: Path, lidar: _Lidar) -> NDArray[np.float64]:
    """The places of the car, a row a scan."""
    wanted: dict[str, list[int]] = {}
    for row, token in enumerate(lidar.ego):
        wanted.setdefault(token, []).append(row)
    found = np.full((len(lidar.ego), 7), np.nan)
    for one in records(path):
        rows = wanted.pop(text(path, one, "token"), None)
        if rows is not None:
            found[rows] = _place(path, one)
    for token, rows in wanted.items():
        record = {"token": lidar.tokens[rows[0]]}
        raise wrong(data, record, f"its ego_pose_token '{token}' is not in {path.name}")
    return found


def _labels(path: Path) -> dict[str, str] | None:
    if not path.is_file():
        return None
    return {text(path, one, "sample_data_token"): file_name(path, one) for one in records(path)}


def _boxes(version: Path, numbered: dict[str, int], times: NDArray[np.int64]) -> Boxes:
    codes = _categories(version / "category.json")[0]
    at = version / "instance.json"
    kinds: dict[str, tuple[int, int]] = {}
    for one in records(at):
        token = text(at, one, "token")
        kinds[token] = referred(at, one, "category_token", codes, "category.json"), instance_number(token)
    at = version / "sample_annotation.json"
    # A million records: as lists of Python's numbers they would fill a gigabyte.
    samples, kind, instances, places, sizes = array("q"), array("q"), array("q"), array("d"), array("d")
    for one in records(at):
        samples.append(referred(at, one, "sample_token", numbered, "sample.json"))
        code, instance = referred(at, one, "instance_token", kinds, "instance.json")
        kind.append(code)
        instances.append(instance)
        places.extend(_place(at, one))
        width, length, height = numbers(at, one, "size", 3)
        sizes.extend((length, width, height))
    sample, owner = np.array(samples, np.int64), np.array(instances, np.int64)
    place = np.array(places, np.float64).reshape(-1, 7)
    time_us = times[sample]
    order = np.lexsort((owner, sample))
    return Boxes(
        starts=np.searchsorted(sample[order], np.arange(len(times) + 1)),
        place=place[order],
        size=np.array(sizes, np.float64).reshape(-1, 3)[order],
        velocity=_velocities(owner, time_us, place[:, :3])[order],
        codes=np.array(kind, np.int32)[order],
        instances=owner[order],
    )


def _velocities(
    instance: NDArray[np.int64], time_us: NDArray[np.int64], centre: NDArray[np.float64]
) -> NDArray[np.float64]:
    """From an object's place before to that after it, as the development kit computes it; NaN if unknown."""
    order = np.lexsort((time_us, instance))
    same = np.zeros(len(order) + 1, bool)
    same[1:-1] = instance[order][1:] == instance[order][:-1]
    rows = np.arange(len(order))
    first, last = order[rows - same[:-1]], order[np.minimum(rows + same[1:], max(len(rows) - 1, 0))]
    seconds = (time_us[last] - time_us[first]) / 1e6
    known = (seconds > 0) & (seconds <= _LONGEST_S * np.where(same[:-1] & same[1:], 2, 1))
    found = np.full((len(order), 3), np.nan)
    moved = centre[last] - centre[first]
    found[order[known]] = moved[known] / seconds[known, None]
    return found
