"""Annotations of scans, arrays with rows of their own: checked, cut to samples, moved as their points are.

boxes (m, 7): centre x, y, z, then length along the box's own x, width along its y, height, and yaw, in
radians about +z, from +x to +y. box_class, box_instance (m,) and box_velocity (m, 2) or (m, 3) have a row a
box. pose (1, 16): a 4 x 4 matrix, row by row, from the points' coordinates to the world's. image and
image_NAME (bytes,): an image file as it is. label (1,): the class of a sample without points.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from ..errors import DataError, UsageError
from ..samplers.fields import Kind, kind_of
from .manifest import Column

if TYPE_CHECKING:
    from .settings import DataSettings

Annotations = dict[str, NDArray[Any]]

_TYPES: dict[str, np.dtype[Any]] = {
    "boxes": np.dtype(np.float32),
    "box_class": np.dtype(np.int32),
    "box_instance": np.dtype(np.int64),
    "box_velocity": np.dtype(np.float32),
    "pose": np.dtype(np.float64),
    "label": np.dtype(np.int32),
}
"""What is stored beside images, in this order, and as what."""

_SHAPES = {
    "boxes": "(boxes, 7)",
    "box_class": "(boxes,)",
    "box_instance": "(boxes,)",
    "box_velocity": "(boxes, 2) or (boxes, 3)",
    "pose": "(1, 16) or (4, 4)",
    "label": "(1,)",
}
_WIDTHS = {"boxes": (7,), "box_velocity": (2, 3), "pose": (16,)}
_CODES = ("box_class", "label")
_IMAGE = re.compile(r"image(_[A-Za-z0-9_-]+)?")
_LARGEST = 2.0**53
_ALIKE = 1e-5
"""A matrix keeps boxes upright where it does so to this share of its size: float32 has rounded it."""


def stored(path: Path, annotations: Mapping[str, NDArray[Any]], settings: DataSettings) -> Annotations:
    """The annotations of a scan, checked, in the order of `columns`; positions stay float64 and global.

    Class codes become class numbers by ``settings.classes``, -1 where no class has the code; without classes
    they stay. Boxes whose centre is outside ``settings.bounds`` are left out, as points are. A velocity may
    be NaN where it is not known.
    Raises DataError, with the annotation and where it goes by rows the row, for a name that is not known, for
    another shape or type, and for values that cannot be.
    """
    checked = {name: _checked(path, name, annotations[name]) for name in _ordered(path, annotations)}
    boxes = len(checked.get("boxes", ()))
    for name, values in checked.items():
        if name.startswith("box_") and ("boxes" not in checked or len(values) != boxes):
            rows = f"{len(values)} rows, 'boxes' {boxes}" if "boxes" in checked else "rows, but no 'boxes'"
            raise _bad(path, name, f"has {rows}", "give one for each box")
    if settings.classes:
        from .cut import class_numbers  # it imports this module

        for name in _CODES:
            if name in checked:
                checked[name] = class_numbers(checked[name], settings.classes)
    if settings.bounds is None:
        return checked
    low, high, at = settings.bounds[:2], settings.bounds[2:], centres(checked)[:, :2]
    return kept(checked, np.flatnonzero(((at >= low) & (at < high)).all(axis=1)))


def columns(annotations: Mapping[str, NDArray[Any]]) -> list[Column]:
    """Name, type, width and kind of what `of_sample` gives, in a fixed order: images last, by name."""
    found = []
    for name in sorted(annotations, key=_place):
        dtype, values = _type(name), annotations[name]
        width = 1 if values.ndim == 1 else values.shape[1]
        found.append(Column(name=name, dtype=dtype.name, width=width, kind=kind_of(name, dtype)))
    return found


def centres(annotations: Mapping[str, NDArray[Any]]) -> NDArray[np.float64]:
    """The centres of the boxes, float64 (m, 3): what decides to which sample a box belongs."""
    found: NDArray[np.float64] = annotations.get("boxes", np.empty((0, 7)))[:, :3].astype(np.float64)
    return found


def kept(annotations: Mapping[str, NDArray[Any]], inside: NDArray[Any]) -> Annotations:
    """The annotations with some of the boxes alone: ``inside``, a bool for each or the rows to keep."""
    return {n: values[inside] if n.startswith("box") else values for n, values in annotations.items()}


def of_sample(
    annotations: Mapping[str, NDArray[Any]],
    origin: NDArray[np.float64],
    inside: NDArray[Any] | None = None,
) -> Annotations:
    """The annotations of one sample as they are stored, counted from its ``origin``, float64 (3,).

    ``inside``: which boxes are its own, a bool for each or their rows; None is all. A box belongs to the
    sample that its centre (`centres`) lies in, so that tiles that lie edge to edge share none. Boxes and
    velocities become float32. The pose takes the sample's own coordinates to the world. What is no box
    belongs to every sample of a scan.
    """
    own = dict(annotations) if inside is None else kept(annotations, inside)
    if "boxes" in own:
        local = own["boxes"].astype(np.float64)
        local[:, :3] -= origin
        own["boxes"] = local
    if "pose" in own:
        own["pose"] = _moved_pose(own["pose"], np.eye(3), -origin)
    return {name: np.ascontiguousarray(values, _type(name)) for name, values in own.items()}


def moved(
    annotations: Mapping[str, NDArray[Any]],
    matrix: NDArray[Any],
    shift: NDArray[Any] | None = None,
    kinds: Mapping[str, Kind] | None = None,
) -> Annotations:
    """The annotations of points that have moved from p to ``matrix`` (3, 3) p + ``shift`` (3,), types kept.

    ``kinds`` says which are boxes, velocities ("vector") and poses; by default their names do. Computed in
    float64. Centres move as points do; yaw turns, and is mirrored by a mirror; sizes and velocities grow with
    the space, a velocity (m, 2) as its part in x and y. The pose still takes a point to its place in the
    world. Raises UsageError where boxes would not be upright boxes afterwards: they turn about z alone, may
    be mirrored in any axis, and grow alike in x and y.
    """
    linear = np.asarray(matrix, np.float64)
    offset = np.zeros(3) if shift is None else np.asarray(shift, np.float64)
    found = {}
    for name, values in annotations.items():
        kind = kinds[name] if kinds is not None else kind_of(name, values.dtype)
        if kind == "box":
            values = _moved_boxes(name, values, linear, offset)
        elif kind == "vector":
            width = values.shape[1]
            values = _applied(linear[:width, :width], values.astype(np.float64)).astype(values.dtype)
        elif kind == "pose":
            values = _moved_pose(values, linear, offset)
        found[name] = values
    return found


def _moved_boxes(
    name: str, boxes: NDArray[Any], matrix: NDArray[np.float64], shift: NDArray[np.float64]
) -> NDArray[Any]:
    if boxes.ndim != 2 or boxes.shape[1] != 7:
        cause = f"have the shape {boxes.shape}, not (boxes, 7)"
        raise UsageError(name, cause, "leave them out where points move")
    across, up = np.hypot(matrix[0, 0], matrix[1, 0]), abs(matrix[2, 2])
    turn = matrix[:2, :2] / across if across else matrix[:2, :2]
    tilted = np.abs([*matrix[2, :2], *matrix[:2, 2]]).max() > _ALIKE * max(across, up)
    if tilted or np.abs(_product(turn.T, turn) - np.eye(2)).max() > _ALIKE or not across * up:
        cause = "would be tilted or skewed: boxes turn about z alone, and grow alike in x and y"
        raise UsageError(name, cause, "leave out the step or operator, or the boxes")
    wide = boxes.astype(np.float64)
    found = wide.copy()
    found[:, :3] = _applied(matrix, wide[:, :3]) + shift
    found[:, 3:5] *= across
    found[:, 5] *= up
    if not np.array_equal(turn, np.eye(2)):
        ahead = np.stack([np.cos(wide[:, 6]), np.sin(wide[:, 6])], axis=1)
        x, y = _applied(turn, ahead).T
        found[:, 6] = np.arctan2(y, x)
    return found.astype(boxes.dtype)


def _moved_pose(pose: NDArray[Any], matrix: NDArray[np.float64], shift: NDArray[np.float64]) -> NDArray[Any]:
    """pose * inverse, so that it takes the moved point to where it took the point."""
    a, b, c = matrix.T
    back = np.stack([np.cross(b, c), np.cross(c, a), np.cross(a, b)]) / np.dot(a, np.cross(b, c))
    found = pose.astype(np.float64).reshape(-1, 4, 4)
    for one in found:
        one[:3, :3] = _product(one[:3, :3], back)
        one[:3, 3] -= _applied(one[:3, :3], shift[None])[0]
    return found.reshape(-1, 16).astype(pose.dtype)


def _applied(matrix: NDArray[np.float64], rows: NDArray[np.float64]) -> NDArray[np.float64]:
    """``matrix`` times each row, written out, so that the bits do not depend on a matrix library."""
    found = np.zeros_like(rows)
    for i in range(rows.shape[1]):
        for j in range(rows.shape[1]):
            found[:, i] += matrix[i, j] * rows[:, j]
    return found


def _product(a: NDArray[np.float64], b: NDArray[np.float64]) -> NDArray[np.float64]:
    return _applied(a, b.T).T


def _place(name: str) -> tuple[int, str]:
    return (list(_TYPES).index(name) if name in _TYPES else len(_TYPES)), name


def _type(name: str) -> np.dtype[Any]:
    return _TYPES.get(name, np.dtype(np.uint8))


def _ordered(path: Path, annotations: Mapping[str, NDArray[Any]]) -> list[str]:
    for name in annotations:
        if name not in _TYPES and not _IMAGE.fullmatch(name):
            known = f"{', '.join(_TYPES)}, image, image_NAME"
            raise _bad(path, name, "is not known", f"name it as one of {known}")
    return sorted(annotations, key=_place)


def _checked(path: Path, name: str, values: NDArray[Any]) -> NDArray[Any]:
    values = np.asarray(values)
    if name not in _TYPES:
        if values.dtype != np.uint8 or values.ndim != 1:
            raise _shape(path, name, values, "uint8 (bytes,)")
        return np.ascontiguousarray(values)
    if name == "pose" and values.shape == (4, 4):
        values = values.reshape(1, 16)
    whole, widths = _TYPES[name].kind == "i", _WIDTHS.get(name)
    wanted = f"{'integers' if whole else 'floats'} {_SHAPES[name]}"
    fits = values.ndim == 1 if widths is None else values.ndim == 2 and values.shape[1] in widths
    if not fits or values.dtype.kind not in ("iu" if whole else "fiu"):
        raise _shape(path, name, values, wanted)
    if name in ("pose", "label") and len(values) != 1:
        raise _shape(path, name, values, wanted)
    if whole:
        limits = np.iinfo(_TYPES[name])
        outside = (values < limits.min) | (values > limits.max)
        _refuse(path, name, outside, values, f"is no {limits.dtype}")
        return values.astype(_TYPES[name])
    values = values.astype(np.float64)
    if name == "box_velocity":  # NaN where it is not known
        _refuse(path, name, (np.abs(values) >= _LARGEST).any(axis=1), values, "is 2^53 or faster")
        return values
    _refuse(path, name, ~np.isfinite(values).all(axis=1), values, "is not finite")
    if name == "pose":
        _refuse(path, name, (values[:, 12:] != [0, 0, 0, 1]).any(axis=1), values, "ends not in 0, 0, 0, 1")
    else:
        _refuse(path, name, (values[:, 3:6] < 0).any(axis=1), values, "has a negative size")
        far = (np.abs(values) >= _LARGEST).any(axis=1)
        _refuse(path, name, far, values, "reaches 2^53 or beyond")
    return values


def _refuse(path: Path, name: str, bad: Any, values: NDArray[Any], why: str) -> None:
    if bad.any():
        row = int(np.argmax(bad))
        raise _bad(path, name, f"row {row} {why} ({', '.join(f'{v:g}' for v in np.atleast_1d(values[row]))})")


def _shape(path: Path, name: str, values: NDArray[Any], wanted: str) -> DataError:
    return _bad(path, name, f"is {values.dtype} {values.shape}, not {wanted}", "correct what reads it")


def _bad(path: Path, name: str, cause: str, fix: str = "mend the file, or leave it out") -> DataError:
    return DataError(path, f"annotation '{name}' {cause}", fix)
