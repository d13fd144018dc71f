"""The frames of a segment of the Waymo Open Dataset, each a scan that is read when it is asked for."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, overload

import numpy as np
from numpy.typing import NDArray

from ...errors import DataError
from ..readers import Scan
from .poses import Floats
from .waymo_range import to_points
from .waymo_rows import Key, Rows, image, image_columns
from .waymo_tables import boxes, cars, lasers

_RETURNS = [f"[LiDARComponent].range_image_return{number}" for number in (1, 2)]
_PIXELS = "[LiDARPoseComponent].range_image_return1"
_LABELS = [f"[LiDARSegmentationLabelComponent].range_image_return{number}" for number in (1, 2)]


class Frames(Sequence[Scan]):
    """The frames of a segment by time.

    ``files``: component -> its file; "lidar_box" and "lidar_segmentation" may be missing. With ``labelled``
    points have a field ``instance``, as those of other segments do.
    """

    def __init__(self, files: Mapping[str, Path], *, labelled: bool) -> None:
        """Read the small components. Raises DataError for one that is missing, damaged or does not fit."""
        self._files, self._labelled = files, labelled
        self._seen = Rows(files["lidar"], image_columns(_RETURNS))
        self._pixels = Rows(files["lidar_pose"], image_columns([_PIXELS]))
        segmented = files.get("lidar_segmentation")
        self._labels = Rows(segmented, image_columns(_LABELS)) if segmented else None
        self._cars, self._lasers = cars(files["vehicle_pose"]), lasers(files["lidar_calibration"])
        self._boxes = boxes(files.get("lidar_box"))
        self._keys: dict[int, list[Key]] = {}
        for key in self._seen.keys:
            self._keys.setdefault(key[0], []).append(key)
        self._times = sorted(self._keys)

    def __len__(self) -> int:
        return len(self._times)

    @overload
    def __getitem__(self, frame: int) -> Scan: ...
    @overload
    def __getitem__(self, frame: slice) -> list[Scan]: ...
    def __getitem__(self, frame: int | slice) -> Scan | list[Scan]:
        if isinstance(frame, slice):
            return [self._scan(time) for time in self._times[frame]]
        return self._scan(self._times[frame])

    def __iter__(self) -> Iterator[Scan]:
        return map(self._scan, self._times)

    def _scan(self, time: int) -> Scan:
        car = self._cars.get(time)
        if car is None:
            fix = "complete the download"
            raise DataError(self._files["vehicle_pose"], f"has no pose of the frame {time}", fix)
        # Asked for in the order of the file, put together in that of the lasers.
        parts = {key: self._of_laser(key, car) for key in self._keys[time]}
        found = [part for key in sorted(parts) for part in parts[key]]
        fields = {name: np.concatenate([own[name] for _, own in found]) for name in found[0][1]}
        own = self._boxes["time"] == time
        annotations = {name: values[own] for name, values in self._boxes.items() if name != "time"}
        annotations["pose"] = car.reshape(1, 16)
        return Scan(np.concatenate([xyz for xyz, _ in found]), fields, annotations=annotations)

    def _of_laser(self, key: Key, car: Floats) -> list[tuple[Floats, dict[str, NDArray[Any]]]]:
        """The points of each return of a laser in a frame, and their fields."""
        laser = self._lasers.get(key[1])
        if laser is None:
            fix = "complete the download"
            raise DataError(self._files["lidar_calibration"], f"has no laser {key[1]}", fix)
        pixels = image(self._pixels, key, [_PIXELS], 6)[0] if key in self._pixels.keys else None
        found = []
        told = self._told(key)
        for number, seen in enumerate(image(self._seen, key, _RETURNS, 4)):
            if seen is None:
                continue
            beams = laser.beams(len(seen))
            _check(self._files["lidar_calibration"], key, beams.shape, seen.shape[:1])
            if pixels is not None:
                _check(self._pixels.path, key, pixels.shape[:2], seen.shape[:2])
            xyz, there = to_points(seen[..., 0], beams, laser.mounted, pixels, car)
            fields: dict[str, NDArray[Any]] = {
                name: seen[there, channel].astype(np.float32)
                for channel, name in enumerate(("intensity", "elongation", "no_label_zone"), 1)
            }
            fields["laser"] = np.full(len(xyz), key[1], np.uint8)
            fields["return_number"] = np.full(len(xyz), number + 1, np.uint8)
            labels = told[number]
            if labels is not None:
                _check(self._files["lidar_segmentation"], key, labels.shape[:2], seen.shape[:2])
            else:
                labels = np.zeros((*seen.shape[:2], 2), np.int32)
            fields["classification"] = labels[there, 1].astype(np.int32)
            if self._labelled:
                fields["instance"] = labels[there, 0].astype(np.int32)
            found.append((xyz, fields))
        if not found:
            raise DataError(self._seen.path, f"laser {key[1]} at {key[0]} has no image", "copy it again")
        return found

    def _told(self, key: Key) -> list[NDArray[Any] | None]:
        """The labels of each return, (h, w, 2) instance and class, None where there are none."""
        if self._labels is None or key not in self._labels.keys:
            return [None, None]
        return image(self._labels, key, _LABELS, 2, "iu")


def _check(path: Path, key: Key, own: Sequence[int], seen: Sequence[int]) -> None:
    if tuple(own) != tuple(seen):
        of, its = ("x".join(map(str, shape)) for shape in (own, seen))
        cause = f"laser {key[1]} at {key[0]}: has values for {of} pixels, the range image {its}"
        raise DataError(path, cause, "copy both again")
