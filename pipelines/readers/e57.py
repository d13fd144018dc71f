"""E57 (ASTM E2807), through libe57: all scans of a file as one cloud, each moved by its pose, in metres."""

from __future__ import annotations

import logging
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ...errors import DataError
from . import ReadSettings, Scan

log = logging.getLogger(__name__)

Columns = dict[str, NDArray[Any]]

CARTESIAN = ("cartesianX", "cartesianY", "cartesianZ")
SPHERICAL = ("sphericalRange", "sphericalAzimuth", "sphericalElevation")
NORMAL = ("nor:normalX", "nor:normalY", "nor:normalZ")
NAMES = {"colorRed": "red", "colorGreen": "green", "colorBlue": "blue"}

# The file's header: its own length, where its XML section starts and how long that is (ASTM E2807, table 2).
_HEADER = struct.Struct("<8s2I4Q")


def read(path: Path, settings: ReadSettings) -> Scan:  # noqa: ARG001 (its unit is the metre)
    """Read the points of all scans, int32 ``scan`` being the number of each one's scan.

    Spherical coordinates (radians, metres) become x, y and z. Rows that are marked as invalid are left out,
    with a notice. All else keeps its name and values; ``colorRed`` and its kin become ``red``, ..., and the
    normals' extension ``normal``. A field that not all scans have is left out, with a notice.
    Raises DataError where the file is cut or damaged, or holds no points in one of the two systems.
    """
    _check_header(path)
    import pye57.libe57 as e57

    try:
        file = e57.ImageFile(str(path), "r")
        try:
            root = file.root()
            parts = list(_scans(path, e57, file, root)) if root.isDefined("data3D") else []
        finally:
            file.close()
    except DataError:
        raise
    # libe57 raises its own kind, its bindings Python's, on what is damaged; none of them is a bug of ours.
    except (Exception, MemoryError) as error:  # noqa: BLE001
        cause = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
        raise DataError(path, f"is a damaged or cut E57 file ({cause})", "copy it again") from None
    if not parts:
        raise DataError(path, "holds no scan of points", "name a file that has some")
    return _joined(path, parts)


def _check_header(path: Path) -> None:
    """Refuse a file that is not as long as it says, or says that its XML lies outside of it."""
    size = path.stat().st_size
    with path.open("rb") as file:
        head = file.read(_HEADER.size)
    if len(head) < _HEADER.size:
        raise DataError(path, f"is cut: {size} bytes are no E57 header", "copy it again")
    _, _, _, length, at, xml, page = _HEADER.unpack(head)
    if length != size:
        cause = f"is cut or damaged: offset 16 says that it has {length} bytes, it has {size}"
        raise DataError(path, cause, "copy it again")
    if not _HEADER.size <= at < size or xml > size - at:
        cause = f"is damaged: offset 24 puts {xml} bytes of XML at byte {at} of {size}"
        raise DataError(path, cause, "copy it again")
    if page != 1024:
        cause = f"is damaged: offset 40 says that a page has {page} bytes, not 1024"
        raise DataError(path, cause, "copy it again")


def _scans(path: Path, e57: Any, file: Any, root: Any) -> Iterator[Columns]:
    """The columns of each scan, its coordinates float64 (n, 3) in the file's own system under ``xyz``."""
    data = e57.VectorNode(root.get("data3D"))
    left_out = 0
    for number in range(data.childCount()):
        scan = e57.StructureNode(data.get(number))
        if not scan.isDefined("points"):
            continue
        columns = _columns(path, e57, file, e57.CompressedVectorNode(scan.get("points")), number)
        system = CARTESIAN if all(name in columns for name in CARTESIAN) else SPHERICAL
        missing = [name for name in system if name not in columns]
        if missing:
            cause = f"scan {number} has no field '{missing[0]}' (it has {', '.join(columns)})"
            raise DataError(path, cause, "write it with cartesian or spherical coordinates")
        state = columns.pop("cartesianInvalidState" if system is CARTESIAN else "sphericalInvalidState", None)
        if state is not None and state.any():
            left_out += int(np.count_nonzero(state))
            columns = {name: values[state == 0] for name, values in columns.items()}
        rotation, shift = _pose(path, e57, scan, number)
        axes = [columns.pop(name).astype(np.float64) for name in system]
        xyz = np.stack(axes if system is CARTESIAN else _cartesian(*axes), axis=1)
        named = {NAMES.get(name, name): values for name, values in columns.items() if name not in NORMAL}
        if all(name in columns for name in NORMAL):
            normal = np.stack([columns[name] for name in NORMAL], axis=1)
            named["normal"] = (normal @ rotation.T).astype(normal.dtype)
        else:
            named |= {name: columns[name] for name in NORMAL if name in columns}
        own = np.full(len(xyz), number, np.int32)
        yield {"xyz": xyz @ rotation.T + shift, **_unmistaken(named), "scan": own}
    if left_out:
        log.warning("%s: left out %d rows that are marked as invalid", path, left_out)


def _unmistaken(columns: Columns) -> Columns:
    """Fields that have a name of ours keep it behind the word ``e57``."""
    return {f"e57_{name}" if name in ("xyz", "scan") else name: column for name, column in columns.items()}


class _Field(NamedTuple):
    """A field of a scan: read as one type, kept as another, None where it is no number. ``bits``: a row."""

    name: str
    read: Any
    kept: Any
    bits: int


def _columns(path: Path, e57: Any, file: Any, points: Any, number: int) -> Columns:
    """All numbers of a scan by field, each in the smallest type that holds what the file says it may be."""
    prototype = e57.StructureNode(points.prototype())
    fields = [_field(e57, prototype.get(at)) for at in range(prototype.childCount())]
    rows, size = points.childCount(), path.stat().st_size
    # A field with one possible value takes no bits: of nothing but those there may be a row a byte.
    bits = sum(field.bits for field in fields) or 8
    if rows * bits > size * 8:
        cause = f"is damaged: scan {number} promises {rows} points of {bits} bits, the file has {size} bytes"
        raise DataError(path, cause, "copy it again")
    columns: Columns = {}
    buffers = e57.VectorSourceDestBuffer()
    for field in fields:
        if field.read is None:
            log.warning("%s: left out %s of scan %d, which is no number", path, field.name, number)
            continue
        columns[field.name] = np.zeros(rows, field.read)
        buffers.append(e57.SourceDestBuffer(file, field.name, columns[field.name], rows, True, True))
    if rows and columns:
        reader = points.reader(buffers)
        found = reader.read()
        reader.close()
        if found != rows:
            cause = f"is damaged: scan {number} promises {rows} points, it holds {found}"
            raise DataError(path, cause, "copy it again")
    return {field.name: columns[field.name].astype(field.kept, copy=False) for field in fields if field.read}


def _field(e57: Any, node: Any) -> _Field:
    name, kind = node.elementName(), node.type()
    if kind == e57.NodeType.E57_FLOAT:
        single = e57.FloatNode(node).precision() == e57.FloatPrecision.E57_SINGLE
        return (
            _Field(name, np.float32, np.float32, 32) if single else _Field(name, np.float64, np.float64, 64)
        )
    if kind == e57.NodeType.E57_SCALED_INTEGER:
        scaled = e57.ScaledIntegerNode(node)
        return _Field(name, np.float64, np.float64, (scaled.maximum() - scaled.minimum()).bit_length())
    if kind == e57.NodeType.E57_INTEGER:
        low, high = e57.IntegerNode(node).minimum(), e57.IntegerNode(node).maximum()
        # The library fills no 32 bits and takes no other name of 64.
        return _Field(name, np.longlong, _smallest(low, high), (high - low).bit_length())
    return _Field(name, None, None, 0)


def _smallest(low: int, high: int) -> Any:
    sign = "i" if low < 0 else "u"
    for kind in map(np.dtype, (f"{sign}1", f"{sign}2", f"{sign}4")):
        if np.iinfo(kind).min <= low and high <= np.iinfo(kind).max:
            return kind
    return np.dtype(np.int64)


def _cartesian(distance: Any, azimuth: Any, elevation: Any) -> list[NDArray[np.float64]]:
    """ASTM E2807, 8.4.4: the azimuth counts from x towards y, the elevation from the x-y plane."""
    flat = distance * np.cos(elevation)
    return [flat * np.cos(azimuth), flat * np.sin(azimuth), distance * np.sin(elevation)]


def _pose(path: Path, e57: Any, scan: Any, number: int) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Rotation (3, 3) and translation (3,) from the scan's system into the file's; none if not given."""
    quaternion, shift = np.array([1.0, 0, 0, 0]), np.zeros(3)
    if scan.isDefined("pose"):
        pose = e57.StructureNode(scan.get("pose"))
        if pose.isDefined("rotation"):
            quaternion = _numbers(e57, pose.get("rotation"), "wxyz")
        if pose.isDefined("translation"):
            shift = _numbers(e57, pose.get("translation"), "xyz")
    length = float(np.linalg.norm(quaternion))
    if not (0 < length < np.inf and np.isfinite(shift).all()):
        cause = f"scan {number} has no pose: rotation {quaternion.tolist()}, translation {shift.tolist()}"
        raise DataError(path, cause, "write it again")
    w, x, y, z = quaternion / length
    rotation = [
        [1 - 2 * (y * y + z * z), 2 * (x * y - z * w), 2 * (x * z + y * w)],
        [2 * (x * y + z * w), 1 - 2 * (x * x + z * z), 2 * (y * z - x * w)],
        [2 * (x * z - y * w), 2 * (y * z + x * w), 1 - 2 * (x * x + y * y)],
    ]
    return np.array(rotation), shift


def _numbers(e57: Any, node: Any, names: str) -> NDArray[np.float64]:
    """The numbers of a structure, floats or integers."""
    structure = e57.StructureNode(node)
    return np.array([float(structure[name].value()) for name in names])


def _joined(path: Path, parts: list[Columns]) -> Scan:
    """One cloud of all scans, with the fields that every one of them has."""
    names = [name for name in parts[0] if all(name in part for part in parts)]
    some = {name for part in parts for name in part} - set(names)
    if some:
        log.warning("%s: left out %s, which not all scans have", path, ", ".join(sorted(some)))
    joined = {name: np.concatenate([part[name] for part in parts]) for name in names}
    return Scan(joined.pop("xyz"), joined)
