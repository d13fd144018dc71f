"""What samples that other programs wrote hold, and what of it are columns of points.

Known from the extension in a tar (https://github.com/webdataset/webdataset has the customs) or from the
feature in a TFRecord. Numbers become fields by their own names; what is none, text and images too, stays as
it is: uint8 (n,). `Schema` is told all samples before it says which fields have a row a point.
"""

from __future__ import annotations

import io
import json
import zipfile
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..errors import DataError
from ..samplers.fields import kind_of
from .cut import LARGEST
from .dali_files import npy
from .pieces import TOLERANCE, corner, float32_error, local
from .readers import storable
from .records import Field
from .tfrecord import Values

Fields = dict[str, NDArray[Any]]

POSITIONS = ("xyz", "points", "pts", "pos", "coord", "coords", "pointcloud", "point_cloud", "pc", "npy")
"""Names of positions, the first that a sample has; "npy" is a file that has no other."""

LABELS = ("cls", "label")
"""Names of a sample's own class where they hold one number."""

_THREES = ("vector", "colour")  # kinds that have three numbers a row, in a list too
_NPY = b"\x93NUMPY"
_FIX = "write it again"


def of_members(where: str, contents: Iterable[tuple[str, bytes]]) -> Fields:
    """Fields of the members of a sample in a tar, given as (extension, bytes)."""
    fields: Fields = {}
    for extension, data in contents:
        name, _, suffix = extension.rpartition(".")
        own = f"{where}: member '{extension}'"
        try:
            if suffix == "npy":
                found = _of_array(name or "npy", npy(np.frombuffer(data, np.uint8)))
            elif suffix == "npz":
                found = _of_zip(data)
            elif suffix == "cls":
                found = {extension: np.array(int(data), np.int64)}
            else:
                if suffix == "json":
                    json.loads(data)
                found = {extension: np.frombuffer(data, np.uint8)}
        # A damaged archive or header fails in zipfile, zlib, the tokenizer or numpy's types.
        except Exception as error:  # noqa: BLE001
            raise DataError(own, f"cannot be read ({error})", _FIX) from None
        _add(own, fields, found)
    return fields


def of_features(where: str, features: Mapping[str, Values]) -> Fields:
    """Fields of the features of a tf.train.Example; a name has '_' where a feature's has '/'."""
    fields: Fields = {}
    for name, values in features.items():
        own = f"{where}: feature '{name}'"
        if isinstance(values, list) and len(values) > 1:
            raise DataError(own, f"lists {len(values)} byte strings", "store one a feature")
        if not isinstance(values, list):
            found: Fields = {name: values}
        elif values and values[0].startswith(_NPY):
            try:
                found = _of_array(name, npy(np.frombuffer(values[0], np.uint8)))
            except ValueError as error:
                raise DataError(own, str(error), _FIX) from None
        else:
            found = {name: np.frombuffer(b"".join(values), np.uint8)}
        _add(own, fields, {one.replace("/", "_"): array for one, array in found.items()})
    return fields


@dataclass(frozen=True)
class Noted:
    """A sample as `Schema` noted it.

    ``rows`` of its columns; ``dropped`` rows have no finite position and are left out. ``origin`` float64
    (3,) and ``bounds`` (6,) of the positions. ``lengths`` of all fields, and the one number of those of
    `LABELS` that have one.
    """

    rows: int
    dropped: int
    origin: NDArray[np.float64]
    bounds: NDArray[np.float64]
    lengths: dict[str, int]
    numbers: dict[str, int]


class Schema:
    """What all samples have: tell it each with `note`, then it says what is a column."""

    def __init__(self) -> None:
        self._first = ""
        self._fields: dict[str, Field] = {}
        self._columns: set[str] = set()
        self._single: set[str] = set()

    def note(self, where: str, fields: Fields) -> Noted:
        """Note a sample. Raises DataError where its fields are unlike those of the first."""
        arrays = _alike(where, fields)
        own = {
            name: Field(values.dtype, 1 if values.ndim == 1 else values.shape[1], kind_of(name, values.dtype))
            for name, values in arrays.items()
        }
        lengths = {name: len(values) for name, values in arrays.items()}
        columns = {name for name, length in lengths.items() if length == lengths.get("xyz")}
        numbers = {name: int(arrays[name][0]) for name in LABELS if name in own and _is_single(arrays[name])}
        if not self._first:
            self._first, self._fields, self._columns, self._single = where, own, columns, {*numbers}
        self._check(where, own)
        self._columns &= columns
        self._single &= numbers.keys()
        if "xyz" not in arrays:
            return Noted(0, 0, np.zeros(3), np.zeros(6), lengths, numbers)
        finite = arrays["xyz"][_finite(arrays["xyz"])]
        xyz, origin = finite.astype(np.float64), _origin(where, finite)
        bounds = np.concatenate([xyz.min(axis=0), xyz.max(axis=0)]) if len(xyz) else np.zeros(6)
        return Noted(len(xyz), len(arrays["xyz"]) - len(xyz), origin, bounds, lengths, numbers)

    def columns(self) -> dict[str, Field]:
        """The fields that have a row a point in every sample, ``xyz`` first."""
        names = [name for name in self._fields if name in self._columns]
        return {name: self._stored(name) for name in sorted(names, key=lambda name: name != "xyz")}

    def annotations(self) -> dict[str, Field]:
        """The other fields but the sample's label."""
        apart = self._columns | {self.label()}
        return {name: self._stored(name) for name in self._fields if name not in apart}

    def label(self) -> str | None:
        """The field that is the sample's own class."""
        return next((name for name in LABELS if name in self._single - self._columns), None)

    def arrays(self, where: str, fields: Fields) -> Fields:
        """A sample's columns and annotations as a dataset holds them.

        Positions that are float32 and right to half a unit in a thousand stay as they are, with origin 0;
        others are counted from the middle of the cloud.
        """
        arrays = _alike(where, fields)
        if "xyz" in arrays:
            finite = _finite(arrays["xyz"])
            arrays |= {name: arrays[name][finite] for name in self._columns}
            origin = _origin(where, arrays["xyz"])
            if origin.any() or arrays["xyz"].dtype != np.float32:
                arrays["xyz"] = local(Path(where), arrays["xyz"].astype(np.float64), origin)
        wanted = self.columns() | self.annotations()
        if "label" in wanted:
            arrays["label"] = _label(f"{where}: field 'label'", arrays["label"])
        return {name: arrays[name] for name in wanted}

    def _stored(self, name: str) -> Field:
        field = self._fields[name]
        if name == "xyz":
            return Field(np.dtype(np.float32), 3, field.kind)
        if name == "label" and field.dtype.kind in "iu":
            return Field(np.dtype(np.int32), field.width, field.kind)
        return field

    def _check(self, where: str, own: Mapping[str, Field]) -> None:
        fix = "store the same fields in all samples"
        for name in sorted(own.keys() ^ self._fields.keys()):
            without, has = (where, self._first) if name in self._fields else (self._first, where)
            raise DataError(without, f"has no field '{name}', {has} has it", fix)
        for name, field in own.items():
            first = self._fields[name]
            if field != first:
                ours, theirs = (f"{one.dtype} x {one.width}" for one in (field, first))
                raise DataError(where, f"field '{name}' is {ours}, in {self._first} {theirs}", fix)


def _finite(xyz: NDArray[Any]) -> NDArray[np.bool_]:
    finite: NDArray[np.bool_] = np.isfinite(xyz).all(axis=1)
    return finite


def _origin(where: str, xyz: NDArray[Any]) -> NDArray[np.float64]:
    """Where finite positions are counted from."""
    wide = xyz.astype(np.float64)
    if np.abs(wide).max(initial=0) >= LARGEST:
        raise DataError(where, "a coordinate reaches 2^53", "mend or leave out the sample")
    if xyz.dtype == np.float32 and float32_error(wide) <= TOLERANCE:
        return np.zeros(3)
    return corner(wide)


def _alike(where: str, fields: Fields) -> Fields:
    """The fields of types that can be stored, each with rows; positions are called xyz."""
    arrays: Fields = {}
    known = next((name for name in POSITIONS if name in fields and _is_cloud(fields[name])), None)
    points = 0
    if known:
        points = len(fields[known]) // (3 if fields[known].ndim == 1 else 1)
    for name, values in fields.items():
        array = storable(Path(where), name, values.reshape(1) if values.ndim == 0 else values)
        if name == known:
            array = array.reshape(-1, 3) if array.ndim == 1 else array
            more = {f"column_{i}": np.ascontiguousarray(array[:, i]) for i in range(3, array.shape[1])}
            _add(where, arrays, {"xyz": np.ascontiguousarray(array[:, :3]), **more})
        elif name == "xyz":
            cause = f"field 'xyz' has shape {values.shape} and dtype {values.dtype}"
            raise DataError(where, cause, "store numbers of shape (n, 3)")
        else:
            threes = known and array.ndim == 1 and kind_of(name, array.dtype) in _THREES
            if threes and points and len(array) == 3 * points:
                array = array.reshape(-1, 3)
            _add(where, arrays, {name: array})
    return arrays


def _is_cloud(values: NDArray[Any]) -> bool:
    """(n, 3 or more), or a flat list of such rows."""
    if values.dtype.kind not in "iuf" or values.dtype.itemsize > 8:
        return False
    if values.ndim == 1:  # a list has no shape; bytes are no positions
        return values.dtype.kind == "f" and len(values) % 3 == 0
    return values.ndim == 2 and values.shape[1] >= 3


def _is_single(values: NDArray[Any]) -> bool:
    whole = values.shape == (1,) and values.dtype.kind in "iu"
    return whole and -(2**31) <= int(values[0]) < 2**31


def _label(where: str, values: NDArray[Any]) -> NDArray[Any]:
    if values.dtype.kind not in "iu":
        return values
    if len(values) and (int(values.min()) < -(2**31) or int(values.max()) >= 2**31):
        raise DataError(where, "has numbers that int32 does not hold", "call it otherwise")
    return values.astype(np.int32)


def _of_array(name: str, values: NDArray[Any]) -> Fields:
    """A structured array as its fields, x, y and z as positions; any other as it is."""
    names = values.dtype.names
    if names is None:
        return {name: values}
    fields = {one: np.ascontiguousarray(values[one]) for one in names}
    if {"x", "y", "z"} <= fields.keys() and "xyz" not in fields:
        axes = [fields.pop(axis).astype(np.float64) for axis in "xyz"]
        fields = {"xyz": np.stack(axes, axis=-1), **fields}
    return fields


def _of_zip(data: bytes) -> Fields:
    fields: Fields = {}
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        for member in archive.namelist():
            values = npy(np.frombuffer(archive.read(member), np.uint8))
            fields |= _of_array(member.removesuffix(".npy"), values)
    return fields


def _add(where: str, fields: Fields, more: Fields) -> None:
    for name, values in more.items():
        if name in fields:
            raise DataError(where, f"gives field '{name}' a second time", "rename one")
        try:
            name.encode()
        except UnicodeEncodeError:
            raise DataError(where, f"the name {name!r} is not UTF-8", "rename it") from None
        if "/" in name or "\0" in name or not name:
            raise DataError(where, f"the name {name!r} is none of a file", "rename it")
        fields[name] = values
