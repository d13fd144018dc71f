from __future__ import annotations

import struct
from pathlib import Path
from typing import Any

import laspy
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tamis.errors import DataError
from tamis.pipelines.readers import ReadSettings, opened, read

# The fields of each point format (LAS 1.4 R15, tables 7 to 17), x, y and z left out; colours are joined.
TIME, COLOUR, NIR = ["gps_time"], ["rgb"], ["nir"]
BOTH = [
    *["intensity", "return_number", "number_of_returns", "scan_direction_flag", "edge_of_flight_line"],
    *["classification", "synthetic", "key_point", "withheld", "user_data", "point_source_id"],
]
OLD = [*BOTH, "scan_angle_rank"]
NEW = [*BOTH, "scan_angle", "overlap", "scanner_channel", *TIME]
WAVE = [
    *["wavepacket_index", "wavepacket_offset", "wavepacket_size", "return_point_wave_location"],
    *["x_t", "y_t", "z_t"],
]
FIELDS = [
    OLD,
    OLD + TIME,
    OLD + COLOUR,
    OLD + TIME + COLOUR,
    OLD + TIME + WAVE,
    OLD + TIME + COLOUR + WAVE,
    NEW,
    NEW + COLOUR,
    NEW + COLOUR + NIR,
    NEW + WAVE,
    NEW + COLOUR + NIR + WAVE,
]

every = pytest.mark.parametrize("point_format", range(11))
either = pytest.mark.parametrize("suffix", [".las", ".laz"])


def cloud(point_format: int, rows: int) -> laspy.LasData:
    header = laspy.LasHeader(point_format=point_format, version="1.4")
    header.scales, header.offsets = [0.001, 0.01, 0.1], [1000, 6_000_000, -50]
    data = laspy.LasData(header)
    rng = np.random.default_rng(point_format)
    for name in "XYZ":
        data[name] = rng.integers(-(2**20), 2**20, rows)
    for dimension in data.point_format.dimensions:
        if dimension.name in "XYZ":
            continue
        if dimension.kind == laspy.point.dims.DimensionKind.FloatingPoint:
            data[dimension.name] = rng.normal(size=rows)
        else:
            data[dimension.name] = rng.integers(dimension.min, min(int(dimension.max), 2**31), rows)
    if point_format > 8:
        data["scanner_channel"][:] = (
            0  # lazrs writes wave packets of several channels wrong, and reads them right
        )
    return data


@every
@either
@pytest.mark.parametrize("rows", [0, 1, 500])
def test_every_point_format_keeps_every_field(
    tmp_path: Path, point_format: int, suffix: str, rows: int
) -> None:
    data = cloud(point_format, rows)
    data.write(str(tmp_path / f"a{suffix}"))
    scan = read(tmp_path / f"a{suffix}")
    whole = np.stack([np.asarray(data[name], np.float64) for name in "XYZ"], axis=1)
    assert scan.xyz.shape == (rows, 3)
    np.testing.assert_allclose(scan.xyz, whole * [0.001, 0.01, 0.1] + [1000, 6_000_000, -50], rtol=1e-15)
    assert set(scan.fields) == set(FIELDS[point_format])
    for name, values in scan.fields.items():
        if name == "rgb":
            wanted = np.stack([np.asarray(data[part]) for part in ("red", "green", "blue")], axis=1)
            assert values.shape == (rows, 3)
        else:
            wanted = np.asarray(data[name])
        assert values.dtype == wanted.dtype
        np.testing.assert_array_equal(values, wanted, err_msg=name)


@every
def test_a_point_format_by_its_bytes(tmp_path: Path, point_format: int) -> None:
    """A point that is written by hand: X, Y, Z, intensity, ..., as the standard's tables place them."""
    cloud(point_format, 3).write(str(tmp_path / "a.las"))
    data = bytearray((tmp_path / "a.las").read_bytes())
    start, size = struct.unpack_from("<I", data, 96)[0], struct.unpack_from("<H", data, 105)[0]
    second = start + size
    struct.pack_into("<3iH", data, second, 1500, -200, 30, 777)
    if point_format < 6:
        data[second + 14] = 0b10_010_011  # return 3 of 2
        data[second + 15] = 0b101_00101  # class 5, synthetic, withheld
    else:
        data[second + 14] = 0b0010_0011
        data[second + 15] = 0b00_10_0101  # channel 2, synthetic, withheld
        data[second + 16] = 64
        struct.pack_into("<h", data, second + 18, -5000)
        struct.pack_into("<d", data, second + 22, 3e8)
    (tmp_path / "a.las").write_bytes(data)
    scan = read(tmp_path / "a.las")
    np.testing.assert_allclose(scan.xyz[1], [1001.5, 5_999_998, -47], rtol=1e-15)
    found = {name: scan.fields[name][1] for name in scan.fields}
    assert found["intensity"] == 777
    assert (found["return_number"], found["number_of_returns"]) == (3, 2)
    assert (found["synthetic"], found["key_point"], found["withheld"]) == (1, 0, 1)
    assert found["classification"] == (5 if point_format < 6 else 64)
    if point_format >= 6:
        assert (found["scanner_channel"], found["scan_angle"], found["gps_time"]) == (2, -5000, 3e8)


@pytest.mark.parametrize("point_format", [3, 7])
@either
def test_scaled_extra_bytes_are_scaled(tmp_path: Path, point_format: int, suffix: str) -> None:
    data = cloud(point_format, 4)
    data.add_extra_dim(laspy.ExtraBytesParams("plain", "u2"))
    data.add_extra_dim(
        laspy.ExtraBytesParams("height", "i2", scales=np.array([0.25]), offsets=np.array([100.0]))
    )
    steps = np.array([0.5, 0.25, 0.125])
    data.add_extra_dim(laspy.ExtraBytesParams("normal", "3i2", scales=steps, offsets=np.zeros(3)))
    data["plain"] = [1, 2, 3, 65535]
    data["height"] = [100, 100.25, 99.75, 8291.75]
    data["normal"] = np.arange(12).reshape(4, 3) * steps
    data.write(str(tmp_path / f"a{suffix}"))
    fields = read(tmp_path / f"a{suffix}").fields
    assert fields["plain"].dtype == np.uint16
    assert fields["plain"].tolist() == [1, 2, 3, 65535]
    assert fields["height"].dtype == np.float64
    assert fields["height"].tolist() == [100, 100.25, 99.75, 8291.75]
    assert fields["normal"].tolist() == (np.arange(12).reshape(4, 3) * steps).tolist()


@pytest.mark.parametrize(
    ("bits", "wanted"), [(0, [7, -8]), (8, [1.75, -2]), (16, [107, 92]), (24, [101.75, 98])]
)
def test_extra_bytes_with_a_scale_or_an_offset_or_neither(
    tmp_path: Path, bits: int, wanted: list[float]
) -> None:
    """Bits 3 and 4 of a field's options say which of the two it has (LAS 1.4 R15, table 25)."""
    data = cloud(6, 2)
    data.add_extra_dim(
        laspy.ExtraBytesParams("height", "i2", scales=np.array([0.25]), offsets=np.array([100.0]))
    )
    data["height"] = [101.75, 98]
    data.write(str(tmp_path / "a.las"))
    changed = bytearray((tmp_path / "a.las").read_bytes())
    at = changed.index(b"height") - 1
    changed[at] = changed[at] & ~24 | bits
    (tmp_path / "a.las").write_bytes(changed)
    assert read(tmp_path / "a.las").fields["height"].tolist() == wanted


def test_r09_steps_of_a_tenth_of_a_millimetre(tmp_path: Path) -> None:
    """R09: scale and offset of the file hold; 500 points stay 500 places."""
    header = laspy.LasHeader(point_format=3, version="1.2")
    header.scales, header.offsets = [0.0001] * 3, [500_000, 4_500_000, 0]
    data = laspy.LasData(header)
    x = 500_000 + np.arange(500) * 0.0001
    data.x, data.y, data.z = x, np.full(500, 4_500_000.0), np.zeros(500)
    data.write(str(tmp_path / "a.laz"))
    found = read(tmp_path / "a.laz").xyz
    assert np.abs(found[:, 0] - x).max() < 5e-5
    assert len(np.unique(found[:, 0])) == 500


def test_v02_far_coordinates(tmp_path: Path) -> None:
    """V02: coordinates are float64: a step of 5 cm at a northing of 4,000 km is whole."""
    lattice = np.stack(np.meshgrid(*[np.arange(20) * 0.05] * 3), axis=-1).reshape(-1, 3)
    header = laspy.LasHeader(point_format=0, version="1.2")
    header.scales, header.offsets = [0.001] * 3, [388_096, 3_948_996, 40]
    data = laspy.LasData(header)
    far = lattice + np.array([388_096, 3_948_996, 40])
    data.x, data.y, data.z = far.T
    data.write(str(tmp_path / "a.las"))
    assert np.abs(read(tmp_path / "a.las").xyz - far).max() < 1e-6


def test_a_cloud_optimised_file_holds_the_same_points(data_folder: Path) -> None:
    """Its chunks are a tree's, so its rows are in another order."""
    optimised = read(data_folder / "reader" / "laspy_simple.copc.laz")
    plain = read(data_folder / "reader" / "laspy_extrabytes.las")

    def rows(scan: Any) -> Any:
        table = np.column_stack([scan.xyz, scan.fields["intensity"], scan.fields["classification"]])
        return table[np.lexsort(table.T)]

    assert len(optimised.xyz) == 1065
    np.testing.assert_allclose(rows(optimised), rows(plain), rtol=0, atol=1e-6)


@pytest.mark.parametrize(
    "name", ["laspy_simple.copc.laz", "laspy_extrabytes.las", "laspy_vegetation_1_3.las", "ahn3.laz"]
)
def test_real_files_against_laspy(data_folder: Path, name: str) -> None:
    path = data_folder / "reader" / name
    scan, data = read(path), laspy.read(path)
    assert len(scan.xyz) == data.header.point_count
    assert np.array_equal(scan.xyz, data.xyz)
    for dimension in data.point_format.dimension_names:
        if dimension not in ("X", "Y", "Z", "red", "green", "blue"):
            assert np.array_equal(scan.fields[dimension], np.asarray(data[dimension])), dimension


@pytest.mark.parametrize("point_format", [3, 8])
@pytest.mark.parametrize(
    ("at", "form", "value", "cause"),
    [
        (12, "<I", 2**31, "it has chunks of 2147483648 points for 60 in all"),
        (32, "<H", 0, "its LASzip record has points of 0 bytes"),
        (36, "<H", 65535, "its LASzip record has points of"),
    ],
)
def test_a_laszip_record_that_cannot_be(
    tmp_path: Path, point_format: int, at: int, form: str, value: int, cause: str
) -> None:
    """The library would end the process, or print its panic, where memory is taken for what these promise."""
    cloud(point_format, 60).write(str(tmp_path / "a.laz"))
    data = bytearray((tmp_path / "a.laz").read_bytes())
    struct.pack_into(form, data, data.index(b"laszip encoded") - 2 + 54 + at, value)
    (tmp_path / "a.laz").write_bytes(data)
    with pytest.raises(DataError) as caught:
        read(tmp_path / "a.laz")
    assert cause in str(caught.value)


def test_a_chunk_table_that_promises_more_bytes_than_there_are(tmp_path: Path) -> None:
    """The points of another file's table: it has one chunk too, but of 50,000 points."""
    header = laspy.LasHeader(point_format=3, version="1.4")
    large, small = laspy.LasData(header), cloud(3, 60)
    rng = np.random.default_rng(8)
    for name in "XYZ":
        large[name] = rng.integers(-(2**30), 2**30, 50_000)
    tables = []
    for data, name in ((large, "large.laz"), (small, "small.laz")):
        data.write(str(tmp_path / name))
        whole = (tmp_path / name).read_bytes()
        (at,) = struct.unpack_from("<q", whole, struct.unpack_from("<I", whole, 96)[0])
        tables.append((whole[:at], whole[at:]))
    (tmp_path / "a.laz").write_bytes(tables[1][0] + tables[0][1])
    with pytest.raises(DataError, match="its table has chunks of"):
        read(tmp_path / "a.laz")


@every
@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    compressed=st.booleans(),
    changes=st.lists(st.tuples(st.integers(0, 10**6), st.integers(1, 255)), min_size=1, max_size=3),
    share=st.one_of(st.just(1.0), st.floats(0, 1)),
    wanted=st.sampled_from([None, ("intensity",)]),
)
def test_damage_of_every_point_format(
    tmp_path: Path,
    point_format: int,
    compressed: bool,
    changes: list[tuple[int, int]],
    share: float,
    wanted: tuple[str] | None,
) -> None:
    suffix = ".laz" if compressed else ".las"
    whole = tmp_path / f"whole{suffix}"
    if not whole.exists():
        cloud(point_format, 60).write(str(whole))
    data = bytearray(whole.read_bytes())
    for at, flip in changes:
        data[4 + at % (len(data) - 4)] ^= flip
    path = tmp_path / f"changed{suffix}"
    path.write_bytes(data[: max(4, int(share * len(data)))])
    try:
        scan = opened(path, ReadSettings(), wanted).scans[0]
    except DataError as error:
        assert str(error).startswith(str(path))  # noqa: PT017
    else:
        assert all(len(values) == len(scan.xyz) for values in scan.fields.values())
