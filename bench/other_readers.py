"""Files read by other libraries, to compare what was built with. Each imports its library when it reads."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..pipelines.readers.formats import format_of

log = logging.getLogger(__name__)

Columns = dict[str, NDArray[Any]]

_NAMES = {f"normal_{axis}": f"n{axis}" for axis in "xyz"}
_PARTS = {"rgb": ("red", "green", "blue"), "normal": ("nx", "ny", "nz")}


@dataclass(frozen=True)
class Other:
    """What ``library`` reads: ``xyz`` float64 (n, 3), and ``columns`` (n,) under the names of `flat`."""

    library: str
    xyz: NDArray[np.float64]
    columns: Columns


def other(path: Path) -> Other | None:
    """The points of a file as another library reads them; None where none is there that can.

    Raises DataError for a file of no known format.
    """
    name, read = _READERS.get(format_of(path).module, ("", None))
    if read is None:
        return None
    try:
        columns = read(path)
        xyz = np.stack([np.asarray(columns.pop(axis), np.float64) for axis in "xyz"], axis=1)
    except ImportError:
        log.info("%s is not installed: %s is compared with nothing", name, path)
        return None
    except Exception as error:  # noqa: BLE001 (each library has its own, and says what it will)
        log.info("%s cannot read %s: %s: %s", name, path, type(error).__name__, error)
        return None
    return Other(name, xyz, {_NAMES.get(name, name): values for name, values in columns.items()})


def above_surface(path: Path, xyz: NDArray[np.float64]) -> float | None:
    """How far a few of the points are at most from the mesh as trimesh reads it, as a share of its extent.

    None where the file is no mesh, there are no points, or trimesh is not there or cannot read it.
    """
    if format_of(path).module not in _MESHES or not len(xyz):
        return None
    try:
        trimesh = import_module("trimesh")
        corners = trimesh.load(path, force="mesh", process=False).triangles
    except Exception as error:  # noqa: BLE001 (as above)
        log.info("trimesh cannot read %s: %s: %s", path, type(error).__name__, error)
        return None
    if not len(corners):
        return None
    chosen = xyz[:: -(-len(xyz) // _LOOKED_AT)]
    away = [
        np.linalg.norm(
            trimesh.triangles.closest_point(corners, np.tile(one, (len(corners), 1))) - one, axis=1
        )
        for one in chosen
    ]
    return float(max(distances.min() for distances in away) / np.ptp(corners.reshape(-1, 3), axis=0).max())


def flat(columns: Mapping[str, NDArray[Any]]) -> Columns:
    """Columns with colours and normals as three of them, under the names that PLY has for these."""
    found: Columns = {}
    for name, values in columns.items():
        if name in _PARTS and values.ndim == 2:
            found |= dict(zip(_PARTS[name], values.T, strict=True))
        else:
            found[name] = values
    return found


def _las(path: Path) -> Columns:
    import laspy

    data = laspy.read(path)
    names = [name for name in data.point_format.dimension_names if name not in ("X", "Y", "Z")]
    return {name: np.array(data[name]) for name in ("x", "y", "z", *names)}


def _ply(path: Path) -> Columns:
    from plyfile import PlyData, PlyListProperty

    vertex = PlyData.read(str(path))["vertex"]
    lists = {one.name for one in vertex.properties if isinstance(one, PlyListProperty)}
    return {one.name: np.array(vertex[one.name]) for one in vertex.properties if one.name not in lists}


def _pcd(path: Path) -> Columns:
    data = import_module("pypcd4").PointCloud.from_path(path).pc_data
    found: Columns = {}
    for name in data.dtype.names:
        values = np.array(data[name])
        if name in ("rgb", "rgba") and values.dtype.itemsize == 4:  # a byte each, the lowest is blue
            colours = values.view("<u4").astype("<u4").view(np.uint8).reshape(-1, 4)
            parts = ("blue", "green", "red", "alpha")[: 4 if name == "rgba" else 3]
            found |= {part: colours[:, place] for place, part in enumerate(parts)}
        else:
            found[name] = values
    return found


def _text(path: Path) -> Columns:
    with path.open() as file:
        first = file.readline()
    delimiter = next((mark for mark in ";\t," if mark in first), None)
    named = any(part.strip().isidentifier() for part in first.split(delimiter))
    table = np.genfromtxt(path, delimiter=delimiter, skip_header=int(named), ndmin=2)
    names = [part.strip(' "\n') for part in first.split(delimiter)] if named else ["x", "y", "z"]
    names += [f"column_{number}" for number in range(len(names), table.shape[1])]
    return dict(zip(names, table.T, strict=True))


def _npy(path: Path) -> Columns:
    array = np.load(path)
    if array.dtype.names:
        return {name: array[name] for name in array.dtype.names}
    names = ["x", "y", "z", *(f"column_{number}" for number in range(3, array.shape[1]))]
    return dict(zip(names, array.T, strict=True))


_READERS: Mapping[str, tuple[str, Callable[[Path], Columns]]] = {
    "las": ("laspy", _las),
    "ply": ("plyfile", _ply),
    "pcd": ("pypcd4", _pcd),
    "columns": ("numpy", _text),
    "npy": ("numpy", _npy),
}
"""Module of a format -> library, and how it reads."""

_MESHES = ("obj", "stl", "off", "glb")
"""Points are drawn of these, so that they have no rows to equal: `above_surface`."""

_LOOKED_AT = 50
