"""Files as users have reported them: made, built or refused, and compared with what they must give."""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..errors import TamisError
from ..pipelines.build import build
from ..pipelines.settings import DataSettings
from ..pipelines.tiles import TileSettings
from ..pipelines.verify import verify
from .compare import Row
from .stored import differs, stored

TESTS = {
    "R02": ("test_pcd",),
    "R03": ("test_pcd", "test_ply", "test_readers"),
    "R05": ("test_ply",),
    "R06": ("test_ply",),
    "R07": ("test_ply",),
    "R09": ("test_las",),
    "R12": ("test_sources",),
}
"""Report -> the modules in tests/pipelines that have tests of it, named test_r02_... for R02."""

Fields = dict[str, NDArray[Any]]

XYZ = np.array([[1.5, 2.5, 3.5], [-4, 5, -6], [7e5, 8e6, 9]])
_LISTS = ((1.0, 2.0), (), (3.0, 4.0, 5.0))
_AXES = "property float x\nproperty float y\nproperty float z\n"
_THREE = f"element vertex 3\n{_AXES}"
_ORDERS = {"ascii": "", "binary_little_endian": "<", "binary_big_endian": ">"}

NAMES = (
    "出典データ",
    "샘플",
    "straße ä",
    "e\u0301 nfd",
    "with space#1%20",
    "a{000..003}",
    "brack[et]*?",
    "\N{PACKAGE}",
    "x" * 200,
)


@dataclass(frozen=True)
class Case:
    """A made file of a report: ``make(folder)`` writes it and names it.

    It gives ``xyz`` (n, 3), of which rows that are not finite are dropped, and ``fields``, or is ``refused``
    for a reason with these words. ``apart``: coordinates differ in so many places along x.
    """

    report: str
    case: str
    make: Callable[[Path], str]
    xyz: NDArray[np.float64] | None = None
    fields: Fields = field(default_factory=dict)
    refused: str = ""
    apart: int = 0


def cases(folder: Path) -> Iterator[Row]:
    """A row for each case, made and built below ``folder``."""
    for number, case in enumerate(made()):
        yield result(case, folder / f"{number:02d}")


def result(case: Case, folder: Path) -> Row:
    """Make a case's file in ``folder`` and build it; ``wrong``: what is not as it has to be."""
    (folder / "raw").mkdir(parents=True)
    name = case.make(folder / "raw")
    # Coordinates as far apart as some here are have no room in one sample; no points make no tile.
    tiles = TileSettings(size=1000.0) if case.xyz is None or len(case.xyz) else None
    settings = DataSettings(root=folder / "raw", files=[name], tiles=tiles, row_order="source", workers=1)
    row: Row = {"report": case.report, "case": case.case, "points": 0, "wrong": "", "reason": ""}
    row["tests"] = f"test_{case.report.lower()}_* in {', '.join(TESTS[case.report])}"
    try:
        dataset = build(settings, folder / "out")
    except TamisError as error:
        row |= {"result": "refused", "reason": error.cause}
        if not case.refused or case.refused not in str(error):
            row["wrong"] = f"refused: {error.cause}; wanted: {case.refused or 'built'}"
        return row
    row |= {"result": "built", "points": dataset.manifest.counts.points}
    problems = verify(dataset.path)
    if case.refused:
        row["wrong"] = f"built, not refused for '{case.refused}'"
    elif problems:
        row["wrong"] = str(problems[0])
    elif case.xyz is not None and len(case.xyz):
        xyz, columns = stored(dataset)
        row["wrong"] = differs(case.xyz, case.fields, xyz, columns)
        if not row["wrong"] and case.apart and len(np.unique(xyz[:, 0])) != case.apart:
            row["wrong"] = f"{len(np.unique(xyz[:, 0]))} places along x, not {case.apart}"
    elif row["points"]:
        row["wrong"] = f"{row['points']} points, not 0"
    return row


def made() -> Iterator[Case]:
    """All cases."""
    yield from _compressed()
    yield from _fields()
    yield from _lists()
    xyz = XYZ + np.array([1e-9, np.pi, 0])
    header = "element vertex 3\nproperty double x\nproperty double y\nproperty double z\n"
    body = xyz.astype(">f8").tobytes()
    yield Case("R06", "short big-endian header", _ply(header, body, "binary_big_endian"), xyz)
    yield from _headers()
    yield from _scale()
    points = np.array([[1.0, 2, 3], [4, 5, 6]])
    for name in NAMES:
        yield Case("R12", f"in and named {name[:20]}", _named(name, points), points)
    yield Case("R12", "not there", lambda _: "missing.npy", refused="no such file")
    none = np.empty((0, 3))
    yield Case("R12", "no points", _saved("none.npy", none), none)


def _compressed() -> Iterator[Case]:
    """R02: binary_compressed PCD, a field after the other."""
    x = np.tile(np.arange(64, dtype="<f4"), 16)
    y = np.repeat(np.arange(16, dtype="<f4"), 64)
    z = np.zeros(1024, "<f4")
    z[::7] = np.nan
    fields = {"x": x, "y": y, "z": z, "intensity": (np.arange(1024) % 251).astype("<u2")}
    fields["ring"] = y.astype("u1")
    xyz = np.stack([x, y, z], axis=1).astype(np.float64)
    kept = {name: fields[name] for name in ("intensity", "ring")}
    packed = _sized(_lzf(_raw(fields)), len(_raw(fields)))
    yield Case("R02", "organised, 64 x 16", _pcd(fields, packed, (64, 16)), xyz, kept)
    rng = np.random.default_rng(2)
    noise = {axis: rng.normal(scale=50, size=50).astype("<f4") for axis in "xyz"}
    raw, xyz = _raw(noise), np.stack([*noise.values()], axis=1).astype(np.float64)
    yield Case("R02", "stored raw", _pcd(noise, _sized(raw, len(raw)), (50, 1)), xyz)
    short = _pcd(noise, _sized(_lzf(raw[:-3]), len(raw)), (50, 1))
    yield Case("R02", "three bytes off", short, refused="its LZF stream is damaged at byte")


def _fields() -> Iterator[Case]:
    """R03: fields that other readers leave out without a word."""
    rng = np.random.default_rng(3)
    xyz = rng.uniform(0, 50, (40, 3)).astype("<f4")
    fields: Fields = {
        "intensity": rng.integers(0, 65536, 40).astype("<u2"),
        "reflectivity": rng.normal(size=40).astype("<f4"),
        "ring": rng.integers(0, 64, 40).astype("u1"),
        "t": rng.uniform(0, 4e9, 40),
    }
    types = {"intensity": "ushort", "reflectivity": "float", "ring": "uchar", "t": "double"}
    header = f"element vertex 40\n{_AXES}" + "".join(f"property {types[n]} {n}\n" for n in fields)
    rows = np.rec.fromarrays([*xyz.T, *fields.values()]).tobytes()
    wide = xyz.astype(np.float64)
    yield Case("R03", "PLY, four fields", _ply(header, rows, "binary_little_endian"), wide, fields)
    all_fields = {**dict(zip("xyz", xyz.T, strict=True)), **fields}
    rows = np.rec.fromarrays([*all_fields.values()]).tobytes()
    yield Case("R03", "PCD, four fields", _pcd(all_fields, rows, (40, 1), "binary"), wide, fields)
    own = {"intensity": fields["intensity"], "gps_time": fields["t"], "reflectivity": fields["reflectivity"]}
    yield Case("R03", "LAS, an extra dimension", _las(wide.round(3), own, 0.001), wide.round(3), own)


def _lists() -> Iterator[Case]:
    """R05: a list among the properties of the vertices."""
    header = (
        "element vertex 3\nproperty float x\nproperty float y\nproperty list uchar float desc\n"
        "property float z\nproperty ushort intensity\n"
    )
    grey = {"intensity": np.array([10, 20, 30], np.uint16)}
    for form, order in _ORDERS.items():
        body = b""
        for (x, y, z), own, shade in zip(XYZ, _LISTS, (10, 20, 30), strict=True):
            if form == "ascii":
                body += f"{x} {y} {len(own)} {' '.join(map(str, own))} {z} {shade}\n".encode()
            else:
                body += struct.pack(f"{order}ffB{len(own)}ffH", x, y, len(own), *own, z, shade)
        yield Case("R05", f"list of vertices, {form}", _ply(header, body, form), XYZ, grey)


def _headers() -> Iterator[Case]:
    """R07: ends of lines, blank lines, comments, a payload that looks like them, a decimal comma."""
    little = XYZ.astype("<f4").tobytes()
    lines = "".join(f"{x} {y} {z}\n" for x, y, z in XYZ.tolist()).encode()
    for end in ("\r\n", "\r"):
        make = _ply(_THREE, little, "binary_little_endian", end)
        yield Case("R07", f"lines that end in {end!r}", make, XYZ)
    payload = b"\n\r\n?" * 9
    wanted = np.frombuffer(payload, "<f4").reshape(3, 3).astype(np.float64)
    yield Case("R07", "payload of line ends", _ply(_THREE, payload, "binary_little_endian"), wanted)
    header = (
        "\ncomment scan of \u5317\u4eac, not the end_header yet\ncomment end_header\nobj_info num_cols 3\n"
        f"element face 1\nproperty list uchar int vertex_indices\n\n{_THREE}comment element vertex 9\n \n"
    )
    yield Case("R07", "blank lines and comments", _ply(header, b"3 0 1 2\n" + lines), XYZ)
    said = "line 9: b'1,5' is no number, write decimals with a point"
    comma = _ply(_THREE, b"0 0 0\n1,5 2,5 3,5\n1 1 1\n")
    yield Case("R07", "decimal comma", comma, refused=said)


def _scale() -> Iterator[Case]:
    """R09: steps of a tenth of a millimetre, far from zero."""
    xyz = np.array([558_000.1234, 4_500_000.9876, 0]) + np.arange(500)[:, None] * np.array([1e-4, 0, 0])
    yield Case("R09", "500 points 0.1 mm apart", _las(xyz, {}, 1e-4), xyz, apart=500)


def _saved(name: str, array: NDArray[Any]) -> Callable[[Path], str]:
    def make(folder: Path) -> str:
        np.save(folder / name, array)
        return name

    return make


def _named(name: str, array: NDArray[Any]) -> Callable[[Path], str]:
    def make(folder: Path) -> str:
        (folder / name).mkdir()
        with (folder / name / name).open("wb") as file:  # by its path numpy would give it a suffix
            np.save(file, array)
        return f"{name}/{name}"

    return make


def _ply(header: str, body: bytes, form: str = "ascii", end: str = "\n") -> Callable[[Path], str]:
    def make(folder: Path) -> str:
        head = f"ply\nformat {form} 1.0\n{header}end_header\n".replace("\n", end)
        (folder / "a.ply").write_bytes(head.encode() + body)
        return "a.ply"

    return make


def _las(xyz: NDArray[np.float64], fields: Fields, scale: float) -> Callable[[Path], str]:
    def make(folder: Path) -> str:
        import laspy

        header = laspy.LasHeader(point_format=3, version="1.2")
        header.scales, header.offsets = [scale] * 3, np.floor(xyz.min(axis=0))
        for name in fields.keys() - {*header.point_format.dimension_names}:
            header.add_extra_dim(laspy.ExtraBytesParams(name, fields[name].dtype))
        data = laspy.LasData(header)
        data.x, data.y, data.z = xyz.T
        for name, values in fields.items():
            data[name] = values
        data.write(str(folder / "a.laz"))
        return "a.laz"

    return make


def _pcd(
    fields: Fields, payload: bytes, size: tuple[int, int], data: str = "binary_compressed"
) -> Callable[[Path], str]:
    def make(folder: Path) -> str:
        lines = {
            "VERSION": "0.7",
            "FIELDS": " ".join(fields),
            "SIZE": " ".join(str(values.dtype.itemsize) for values in fields.values()),
            "TYPE": " ".join(values.dtype.kind.upper() for values in fields.values()),
            "COUNT": " ".join("1" for _ in fields),
            "WIDTH": size[0],
            "HEIGHT": size[1],
            "VIEWPOINT": "0 0 0 1 0 0 0",
            "POINTS": size[0] * size[1],
            "DATA": data,
        }
        text = "# .PCD v0.7 - Point Cloud Data file format\n"
        text += "".join(f"{key} {value}\n" for key, value in lines.items())
        (folder / "a.pcd").write_bytes(text.encode() + payload)
        return "a.pcd"

    return make


def _raw(fields: Fields) -> bytes:
    return b"".join(values.tobytes() for values in fields.values())


def _sized(packed: bytes, size: int) -> bytes:
    return struct.pack("<II", len(packed), size) + packed


def _lzf(data: bytes) -> bytes:
    """LZF: what was seen less than 8 KiB before, of 3 to 264 bytes, becomes a reference to it."""
    out, literal, seen, at = bytearray(), bytearray(), dict[bytes, int](), 0
    while at < len(data):
        key = data[at : at + 3]
        before, seen[key] = seen.get(key), at
        if len(key) == 3 and before is not None and at - before <= 8192:
            length = 3
            while length < min(264, len(data) - at) and data[before + length] == data[at + length]:
                length += 1
            out += _literals(literal)
            literal.clear()
            back, more = at - before - 1, length - 2
            out.append(min(more, 7) << 5 | back >> 8)
            out += bytes([more - 7] if more >= 7 else []) + bytes([back & 255])
            at += length
        else:
            literal.append(data[at])
            at += 1
    return bytes(out + _literals(literal))


def _literals(data: bytearray) -> bytes:
    runs = (data[start : start + 32] for start in range(0, len(data), 32))
    return b"".join(bytes([len(run) - 1]) + run for run in runs)
