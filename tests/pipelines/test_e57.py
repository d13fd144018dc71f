from __future__ import annotations

import logging
import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
from crc32c import crc32c
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pye57 import E57, libe57

from tamis.errors import DataError
from tamis.pipelines.readers import read

SIGNED = np.array([[0, 0, 0], [1.5, -2.25, 3], [-4, 0.5, 7]])


class Field(NamedTuple):
    """Values and how they are stored: a node of the library, and the type of its buffer."""

    node: Any
    values: Any
    dtype: str


def single(file: Any, values: Any) -> Field:
    return Field(libe57.FloatNode(file, 0, libe57.FloatPrecision.E57_SINGLE), values, "f")


def double(file: Any, values: Any) -> Field:
    return Field(libe57.FloatNode(file, 0), values, "d")


def whole(file: Any, values: Any, low: int, high: int) -> Field:
    return Field(libe57.IntegerNode(file, low, low, high), values, "q")


def cartesian(file: Any, xyz: Any) -> dict[str, Field]:
    return {f"cartesian{axis}": double(file, xyz[:, i]) for i, axis in enumerate("XYZ")}


def add(writer: Any, fields: Mapping[str, Field], rotation: Any = None, translation: Any = None) -> None:
    """One scan, as the standard says it is written; the library's own writer knows no spherical one."""
    file = writer.image_file
    scan, prototype = libe57.StructureNode(file), libe57.StructureNode(file)
    scan.set("guid", libe57.StringNode(file, f"scan {writer.scan_count}"))
    if rotation is not None:
        pose = libe57.StructureNode(file)
        for part, names, numbers in (("rotation", "wxyz", rotation), ("translation", "xyz", translation)):
            node = libe57.StructureNode(file)
            for name, number in zip(names, numbers, strict=True):
                node.set(name, libe57.FloatNode(file, float(number)))
            pose.set(part, node)
        scan.set("pose", pose)
    rows = len(next(iter(fields.values())).values)
    buffers, kept = libe57.VectorSourceDestBuffer(), []
    for name, field in fields.items():
        prototype.set(name, field.node)
        kept.append(np.array(field.values, field.dtype))
        buffers.append(libe57.SourceDestBuffer(file, name, kept[-1], rows, True, True))
    points = libe57.CompressedVectorNode(file, prototype, libe57.VectorNode(file, True))
    scan.set("points", points)
    writer.data3d.append(scan)
    stream = points.writer(buffers)
    if rows:
        stream.write(rows)
    stream.close()


def two_scans(path: Path) -> None:
    """Two scans with poses, the second turned by 90 degrees about z."""
    half = np.sqrt(0.5)
    with E57(str(path), mode="w") as writer:
        for number, (rotation, shift) in enumerate(
            [((1, 0, 0, 0), (0, 0, 0)), ((half, 0, 0, half), (10, 20, 30))]
        ):
            fields = cartesian(writer.image_file, SIGNED + number)
            fields["intensity"] = single(writer.image_file, [0.25, 0.5, 1])
            fields["colorRed"] = whole(writer.image_file, [1, 2, 255], 0, 255)
            fields["colorGreen"] = whole(writer.image_file, [3, 4, 5], 0, 255)
            fields["colorBlue"] = whole(writer.image_file, [6, 7, 8], 0, 255)
            fields["rowIndex"] = whole(writer.image_file, [0, 1, 70_000], 0, 70_000)
            fields["columnIndex"] = whole(writer.image_file, [-3, 0, 3], -3, 3)
            add(writer, fields, rotation, shift)


def refused(path: Path) -> str:
    with pytest.raises(DataError) as caught:
        read(path)
    assert str(caught.value).startswith(f"{path}: ")
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_all_scans_are_moved_by_their_poses_and_keep_their_fields(tmp_path: Path) -> None:
    two_scans(tmp_path / "a.e57")
    scan = read(tmp_path / "a.e57")
    x, y, z = (SIGNED + 1).T
    turned = np.stack([10 - y, 20 + x, 30 + z], axis=1)
    np.testing.assert_allclose(scan.xyz, np.concatenate([SIGNED, turned]), rtol=0, atol=1e-12)
    found = {name: (values.dtype.str, values.tolist()) for name, values in scan.fields.items()}
    assert found == {
        "intensity": ("<f4", [0.25, 0.5, 1] * 2),
        "rgb": ("|u1", [[1, 3, 6], [2, 4, 7], [255, 5, 8]] * 2),
        "rowIndex": ("<u4", [0, 1, 70_000] * 2),
        "columnIndex": ("|i1", [-3, 0, 3] * 2),
        "scan": ("<i4", [0, 0, 0, 1, 1, 1]),
    }


def test_spherical_coordinates_become_cartesian(tmp_path: Path) -> None:
    """Three points on the axes of the scanner, and normals that turn with its pose."""
    half = np.sqrt(0.5)
    with E57(str(tmp_path / "a.e57"), mode="w") as writer:
        file = writer.image_file
        file.extensionsAdd("nor", "http://www.libe57.org/E57_NOR_surface_normals.txt")
        fields = {
            "sphericalRange": double(file, [2, 3, 4]),
            "sphericalAzimuth": double(file, [0, np.pi / 2, 0]),
            "sphericalElevation": double(file, [0, 0, np.pi / 2]),
            **{f"nor:normal{a}": single(file, np.eye(3)[i]) for i, a in enumerate("XYZ")},
        }
        add(writer, fields, (half, half, 0, 0), (1, 0, 0))  # y becomes z, z becomes -y
    scan = read(tmp_path / "a.e57")
    np.testing.assert_allclose(scan.xyz, [[3, 0, 0], [1, 0, 3], [1, -4, 0]], rtol=0, atol=1e-12)
    assert scan.fields["normal"].dtype == np.float32
    np.testing.assert_allclose(scan.fields["normal"], [[1, 0, 0], [0, 0, 1], [0, -1, 0]], atol=1e-7)


@pytest.mark.parametrize("system", ["cartesian", "spherical"])
def test_rows_that_are_marked_invalid_are_left_out_with_a_notice(
    tmp_path: Path, system: str, caplog: pytest.LogCaptureFixture
) -> None:
    with E57(str(tmp_path / "a.e57"), mode="w") as writer:
        file = writer.image_file
        names = ("Range", "Azimuth", "Elevation") if system == "spherical" else "XYZ"
        fields = {f"{system}{name}": double(file, [1, 2, 3, 4]) for name in names}
        fields[f"{system}InvalidState"] = whole(file, [0, 1, 0, 2], 0, 2)
        fields["intensity"] = whole(file, [10, 20, 30, 40], 0, 2000)
        add(writer, fields)
    with caplog.at_level(logging.WARNING):
        scan = read(tmp_path / "a.e57")
    assert "left out 2 rows that are marked as invalid" in caplog.text
    assert scan.fields["intensity"].tolist() == [10, 30]
    assert scan.fields["intensity"].dtype == np.uint16
    assert len(scan.xyz) == 2
    assert not any("Invalid" in name for name in scan.fields)


def test_scaled_whole_numbers_are_scaled(tmp_path: Path) -> None:
    with E57(str(tmp_path / "a.e57"), mode="w") as writer:
        file = writer.image_file
        fields = {}
        for axis in "XYZ":
            node = libe57.ScaledIntegerNode(file, 0, -(2**31), 2**31 - 1, 0.001, 6_000_000.0)
            fields[f"cartesian{axis}"] = Field(node, [6_000_000.001, 6_000_123.456], "d")
        fields["timeStamp"] = Field(libe57.ScaledIntegerNode(file, 0, 0, 1000, 0.5, 0.0), [0.5, 500], "d")
        add(writer, fields)
    scan = read(tmp_path / "a.e57")
    np.testing.assert_allclose(scan.xyz[:, 0], [6_000_000.001, 6_000_123.456], rtol=0, atol=1e-8)
    assert scan.fields["timeStamp"].tolist() == [0.5, 500]


def test_a_field_that_one_scan_lacks_is_left_out_with_a_notice(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with E57(str(tmp_path / "a.e57"), mode="w") as writer:
        first = cartesian(writer.image_file, SIGNED)
        add(writer, {**first, "intensity": single(writer.image_file, [1, 2, 3])})
        add(writer, cartesian(writer.image_file, SIGNED))
    with caplog.at_level(logging.WARNING):
        scan = read(tmp_path / "a.e57")
    assert "left out intensity, which not all scans have" in caplog.text
    assert list(scan.fields) == ["scan"]
    assert scan.fields["scan"].tolist() == [0] * 3 + [1] * 3


def test_whole_numbers_of_every_range_are_right(tmp_path: Path) -> None:
    ranges = {
        "a": (0, 255),
        "b": (0, 2**32 - 1),
        "c": (-(2**31), 2**31 - 1),
        "d": (-(2**63), 2**63 - 1),
        "e": (7, 7),
    }
    with E57(str(tmp_path / "a.e57"), mode="w") as writer:
        fields = cartesian(writer.image_file, np.zeros((2, 3)))
        fields |= {name: whole(writer.image_file, pair, *pair) for name, pair in ranges.items()}
        add(writer, fields)
    scan = read(tmp_path / "a.e57")
    assert {name: tuple(scan.fields[name].tolist()) for name in ranges} == ranges
    assert [scan.fields[name].dtype.str for name in ranges] == ["|u1", "<u4", "<i4", "<i8", "|u1"]


def test_a_scan_of_no_points_is_legal(tmp_path: Path) -> None:
    with E57(str(tmp_path / "a.e57"), mode="w") as writer:
        add(writer, cartesian(writer.image_file, np.empty((0, 3))))
    scan = read(tmp_path / "a.e57")
    assert scan.xyz.shape == (0, 3)
    assert scan.fields["scan"].shape == (0,)


def test_what_holds_no_points_is_refused(tmp_path: Path) -> None:
    with E57(str(tmp_path / "none.e57"), mode="w"):
        pass
    assert "holds no scan of points" in refused(tmp_path / "none.e57")
    with E57(str(tmp_path / "flat.e57"), mode="w") as writer:
        fields = cartesian(writer.image_file, SIGNED)
        del fields["cartesianZ"]
        add(writer, fields)
    assert "scan 0 has no field" in refused(tmp_path / "flat.e57")
    with E57(str(tmp_path / "pose.e57"), mode="w") as writer:
        add(writer, cartesian(writer.image_file, SIGNED), (0, 0, 0, 0), (1, 2, 3))
    assert "scan 0 has no pose" in refused(tmp_path / "pose.e57")


@pytest.mark.parametrize("share", [0.001, 0.1, 0.2, 0.5, 0.8, 0.999])
def test_a_cut_file_names_both_lengths(tmp_path: Path, share: float) -> None:
    path = tmp_path / "a.e57"
    two_scans(path)
    data = path.read_bytes()
    path.write_bytes(data[: max(int(len(data) * share), 8)])
    message = refused(path)
    assert "is cut" in message
    assert share < 0.1 or f"says that it has {len(data)} bytes" in message
    assert path.exists()


@pytest.mark.parametrize(
    ("at", "value", "named"), [(16, 2**40, 16), (24, 2**40, 24), (24, 0, 24), (32, 2**40, 24), (40, 512, 40)]
)
def test_absurd_lengths_in_the_header_are_refused(tmp_path: Path, at: int, value: int, named: int) -> None:
    path = tmp_path / "a.e57"
    two_scans(path)
    data = bytearray(path.read_bytes())
    struct.pack_into("<Q", data, at, value)
    path.write_bytes(data)
    assert f"offset {named}" in refused(path)


@pytest.mark.parametrize(
    ("count", "cause"), [(999, "promises 999 points of 192 bits"), (101, "it holds 100"), (0, "")]
)
def test_a_wrong_count_below_right_checksums(tmp_path: Path, count: int, cause: str) -> None:
    """The XML is changed, and the checksum of each page of 1020 bytes made anew."""
    path = tmp_path / "a.e57"
    with E57(str(path), mode="w") as writer:
        add(writer, cartesian(writer.image_file, np.random.default_rng(count).normal(size=(100, 3))))
    data = path.read_bytes()
    pages = b"".join(data[at : at + 1020] for at in range(0, len(data), 1024))
    assert b'recordCount="100"' in pages
    changed = pages.replace(b'recordCount="100"', b'recordCount="%03d"' % count)
    parts = [changed[at : at + 1020] for at in range(0, len(changed), 1020)]
    path.write_bytes(b"".join(part + struct.pack(">I", crc32c(part)) for part in parts))
    if cause:
        assert cause in refused(path)
    else:
        assert len(read(path).xyz) == 0


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(changes=st.lists(st.tuples(st.integers(8, 10**6), st.integers(1, 255)), min_size=1, max_size=4))
def test_changed_bytes_are_noticed(tmp_path: Path, changes: list[tuple[int, int]]) -> None:
    whole_file = tmp_path / "whole.e57"
    if not whole_file.exists():
        two_scans(whole_file)
    data = bytearray(whole_file.read_bytes())
    for at, flip in changes:
        data[8 + at % (len(data) - 8)] ^= flip
    path = tmp_path / "changed.e57"
    path.write_bytes(data)
    try:
        found = read(path)
    except DataError as error:
        assert str(error).startswith(str(path))  # noqa: PT017
    else:
        assert np.array_equal(found.xyz, read(whole_file).xyz)
