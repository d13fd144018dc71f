"""The formats of raw files: told by how a file begins, and only where that says nothing by its name."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from ...errors import DataError

HEAD = 512
"""Bytes that are looked at: the magic of a tar archive is at 257."""


class Format(NamedTuple):
    """A format: its ``name``, the ``module`` of this folder that reads it, and how it is told.

    ``starts``: (offset, bytes) that a file has; any of them will do. ``suffixes``: in lower case. ``named``:
    a file whose suffix is one of them may lack all that: the format has no magic of its own. ``chooses``:
    its reader takes the names of the wanted fields, and leaves out others.
    """

    name: str
    module: str
    suffixes: tuple[str, ...]
    starts: tuple[tuple[int, bytes], ...] = ()
    named: bool = False
    chooses: bool = False


FORMATS = (
    Format("LAS", "las", (".las", ".laz"), ((0, b"LASF"),), chooses=True),
    Format("NPY", "npy", (".npy",), ((0, b"\x93NUMPY"),)),
    Format("NPZ", "npz", (".npz",), ((0, b"PK\x03\x04"), (0, b"PK\x05\x06"))),
    Format("E57", "e57", (".e57",), ((0, b"ASTM-E57"),)),
    Format("Parquet", "tables", (".parquet",), ((0, b"PAR1"),)),
    # Not by .arrow: so are datasets named, and those below a folder of raw files are none of them.
    Format("Feather", "tables", (".feather", ".ipc"), ((0, b"ARROW1"),)),
    Format("PLY", "ply", (".ply",), ((0, b"ply\n"), (0, b"ply\r"), (0, b"ply "))),
    Format("GLB", "glb", (".glb",), ((0, b"glTF"),)),
    Format("OFF", "off", (".off",), ((0, b"OFF"), (0, b"COFF"), (0, b"NOFF"), (0, b"STOFF")), named=True),
    # A binary STL file may begin with anything.
    Format("STL", "stl", (".stl",), ((0, b"solid "), (0, b"solid\n"), (0, b"solid\r")), named=True),
    Format("OBJ", "obj", (".obj",), named=True),
    Format("PCD", "pcd", (".pcd",), ((0, b"# .PCD v"),), named=True),
    Format("KITTI or nuScenes", "raw", (".bin",), named=True),
    Format("text", "columns", (".csv", ".txt", ".xyz", ".pts", ".asc"), named=True),
    Format("IDX", "idx", (), ((0, b"\0\0\x08"), (0, b"\x1f\x8b"))),
)

SUFFIXES = tuple(suffix for format in FORMATS for suffix in format.suffixes if suffix != ".txt")
"""Of files that are built from where none are named: not those that notes and licences have too."""


def format_of(path: Path) -> Format:
    """The format of a file. Raises DataError for no file, an empty one, and one of no known format."""
    head = _head(path)
    suffix = path.suffix.lower()
    # Numbers may look like a short magic: a .bin file whose first x is 8.5 begins as IDX does.
    least = 4 if any(format.named and suffix in format.suffixes for format in FORMATS) else 0
    for format in FORMATS:
        starts = (start for start in format.starts if len(start[1]) >= least)
        if any(head[at : at + len(magic)] == magic for at, magic in starts):
            return format
    for format in FORMATS:
        if suffix in format.suffixes:
            if format.named:
                return format
            cause = f"is no {format.name} file, whatever its name says: it starts with {head[:8]!r}"
            raise DataError(path, cause, "copy it again, or name it after what it is")
    known = ", ".join(format.name for format in FORMATS)
    cause = f"is of no format that is read ({known}): it starts with {head[:8]!r}"
    raise DataError(path, cause, "convert it")


def _head(path: Path) -> bytes:
    """The first bytes. Raises DataError where there are none."""
    if path.exists() and not path.is_file():
        raise DataError(path, "is no file", "name a file of points")
    try:
        with path.open("rb") as file:
            head = file.read(HEAD)
    except OSError as error:
        raise DataError(path, f"cannot be read ({error.strerror})", "check the path") from None
    if not head:
        raise DataError(path, "is empty", "copy it again")
    return head
