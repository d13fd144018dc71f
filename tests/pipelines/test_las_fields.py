"""LAS and LAZ read with some of their fields: what is there is what a whole read gives."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import laspy
import lazrs
import numpy as np
import pytest
from hypothesis import given
from hypothesis import settings as with_settings
from hypothesis import strategies as st

from tamis.errors import DataError
from tamis.pipelines import parts
from tamis.pipelines.build import DataSettings, build
from tamis.pipelines.cut import select, wanted
from tamis.pipelines.readers import ReadSettings, Scan, chunked, las_points, opened, read
from tamis.pipelines.tiles import TileSettings

Digests = Callable[[Path], dict[str, str]]

COLOURS = {"red", "green", "blue", "rgb"}
FLOATS = ("gps_time", "x_t", "y_t", "z_t", "return_point_wave_location")
ROWS = 700
PLAIN = ReadSettings()

every = pytest.mark.parametrize("point_format", range(11))
either = pytest.mark.parametrize("suffix", [".las", ".laz"])
folders = pytest.mark.parametrize("folder", ["big", "ign_dense"])


def cloud(point_format: int, rows: int = ROWS, extra: tuple[laspy.ExtraBytesParams, ...] = ()) -> Any:
    """Every bit of every field drawn, within a square of 100 units; three fields of extra bytes at least."""
    rng = np.random.default_rng(point_format)
    header = laspy.LasHeader(point_format=point_format, version="1.4")
    header.scales, header.offsets = [0.001, 0.01, 0.1], [1000, 6_000_000, -50]
    steps = np.array([0.5, 0.25, 0.1])
    header.add_extra_dims(
        [
            laspy.ExtraBytesParams("plain", "u2"),
            laspy.ExtraBytesParams("height", "i2", scales=steps[2:], offsets=np.array([100.0])),
            laspy.ExtraBytesParams("turn", "3i4", scales=steps, offsets=np.arange(3.0)),
            *extra,
        ]
    )
    points = laspy.ScaleAwarePointRecord.zeros(rows, header=header)
    octets = points.array.view(np.uint8).reshape(rows, -1)
    octets[:] = rng.integers(0, 256, octets.shape)
    for name, reach in (("X", 100_000), ("Y", 10_000), ("Z", 500)):
        points[name] = rng.integers(0, reach, rows)
    for name in FLOATS:
        if name in points.array.dtype.names:
            points[name] = rng.normal(size=rows)
    if point_format > 8:
        points["scanner_channel"][:] = 0  # lazrs writes wave packets of several channels wrong
    return laspy.LasData(header, points)


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> dict[tuple[int, str], Path]:
    """A file of each point format, compressed and not."""
    folder, found = tmp_path_factory.mktemp("las"), {}
    for point_format in range(11):
        for suffix in (".las", ".laz"):
            found[point_format, suffix] = folder / f"{point_format}{suffix}"
            cloud(point_format).write(str(found[point_format, suffix]))
    return found


def only(path: Path, *names: str) -> Scan:
    return opened(path, PLAIN, frozenset(names)).scans[0]


def values_of(data: Any, name: str) -> Any:
    """A field as laspy has it."""
    if name == "rgb":
        return np.stack([np.asarray(data[colour]) for colour in ("red", "green", "blue")], axis=1)
    return np.asarray(data[name])


def check_same(scan: Scan, whole: Scan) -> None:
    """What was read of a file is what a whole read gives, bit by bit."""
    assert scan.names == whole.names == tuple(whole.fields)
    assert scan.xyz.tobytes() == whole.xyz.tobytes()
    for name, found in scan.fields.items():
        assert (found.dtype, found.shape) == (whole.fields[name].dtype, whole.fields[name].shape)
        assert found.tobytes() == whole.fields[name].tobytes(), name


@every
@either
def test_each_field_alone(written: dict[tuple[int, str], Path], point_format: int, suffix: str) -> None:
    """Whichever layers are left out, the wanted one is as laspy reads it, and no other field is there."""
    path, data = written[point_format, suffix], cloud(point_format)
    whole, said = read(path), laspy.read(path)
    assert {"plain", "height", "turn"} < {*whole.fields}
    np.testing.assert_array_equal(whole.xyz, said.xyz)
    for name in whole.fields:
        scan = only(path, name)
        assert list(scan.fields) == [name]
        check_same(scan, whole)
        np.testing.assert_array_equal(scan.fields[name], values_of(said, name), err_msg=name)
        np.testing.assert_array_equal(scan.fields[name], values_of(data, name), err_msg=name)
    assert only(path).fields == {}
    check_same(only(path), whole)


@with_settings(max_examples=60, deadline=None)
@given(data=st.data(), point_format=st.integers(0, 10), suffix=st.sampled_from([".las", ".laz"]))
def test_some_fields_whole_and_in_pieces(
    written: dict[tuple[int, str], Path], data: st.DataObject, point_format: int, suffix: str
) -> None:
    path = written[point_format, suffix]
    whole = read(path)
    names = data.draw(st.lists(st.sampled_from(list(whole.fields)), unique=True))
    rows = data.draw(st.integers(1, ROWS + 1))
    scan = only(path, *names)
    assert {*scan.fields} == {*names}
    check_same(scan, whole)
    pieces = chunked(path, PLAIN, rows, frozenset(names))
    assert pieces is not None
    for piece in pieces:
        part = slice(piece.first, piece.first + len(piece.xyz))
        fields = {name: values[part] for name, values in whole.fields.items()}
        assert {*piece.fields} == {*names}
        check_same(piece, Scan(whole.xyz[part], fields, names=whole.names))


@pytest.mark.parametrize("point_format", [3, 8])
def test_many_chunks(tmp_path: Path, point_format: int) -> None:
    """Files are compressed 50,000 points at a time: layers are left out in every chunk."""
    cloud(point_format, 110_000).write(str(tmp_path / "a.laz"))
    whole = read(tmp_path / "a.laz")
    for names in (["intensity"], ["classification", "gps_time"], ["synthetic", "turn"]):
        scan = only(tmp_path / "a.laz", *names)
        assert {*scan.fields} == {*names}
        check_same(scan, whole)


@pytest.mark.parametrize(
    ("extra", "joined"),
    [
        ({"nir": "u2"}, True),  # the name that a layer of other formats holds
        ({"nir": "u2", "red": "u2", "green": "u2", "blue": "u2"}, True),
        ({"red": "u2", "green": "u2", "blue": "u1"}, False),
        ({"red": "u2", "green": "u2", "blue": "u2", "rgb": "u4"}, False),
    ],
    ids=["infrared", "colours", "colours of two types", "colours and a field of their name"],
)
def test_extra_bytes_with_names_of_other_formats(tmp_path: Path, extra: dict[str, str], joined: bool) -> None:
    added = tuple(laspy.ExtraBytesParams(name, kind) for name, kind in extra.items())
    cloud(6, extra=added).write(str(tmp_path / "a.laz"))
    whole = read(tmp_path / "a.laz")
    assert ("red" in whole.fields) == (not joined)
    for name in whole.fields:
        scan = only(tmp_path / "a.laz", name)
        assert {*scan.fields} - {name} <= COLOURS  # which are one field or three depends on all of them
        assert name in scan.fields
        check_same(scan, whole)


@every
@either
@pytest.mark.parametrize("key", ["label", "fields"])
def test_a_field_that_is_not_there(
    written: dict[tuple[int, str], Path], point_format: int, suffix: str, key: str
) -> None:
    """The same line as of a whole read: it names all fields of the file, those too that were not read."""
    path, told = written[point_format, suffix], []
    given: dict[str, Any] = {"label": "ring"} if key == "label" else {"fields": ["intensity", "ring"]}
    settings = DataSettings(**{"fields": ["intensity"], "classes": {"a": [1]}} | given)
    for names in (None, wanted(settings)):
        with pytest.raises(
            DataError, match=f"no field 'ring' .it has intensity, .*turn.; correct data.{key}"
        ) as e:
            select(path, opened(path, PLAIN, names).scans[0], settings)
        told.append(str(e.value))
    assert told[0] == told[1]


def test_a_joined_colour_is_no_field_of_its_own(written: dict[tuple[int, str], Path]) -> None:
    settings = DataSettings(fields=["red"])
    path = written[7, ".laz"]
    with pytest.raises(DataError, match=r"has no field 'red' \(it has .*, rgb, "):
        select(path, opened(path, PLAIN, wanted(settings)).scans[0], settings)


@pytest.mark.parametrize(
    ("keys", "names"),
    [
        ({}, None),
        ({"classes": {"a": [1]}}, None),
        ({"fields": []}, set()),
        ({"fields": ["rgb", "nir"]}, {"rgb", "nir"}),
        ({"fields": ["rgb"], "classes": {"a": [1]}}, {"rgb", "classification"}),
        ({"fields": ["rgb"], "classes": {"a": [1]}, "label": "user_data"}, {"rgb", "user_data"}),
        ({"fields": ["rgb"], "label": "user_data"}, {"rgb"}),
    ],
)
def test_the_fields_that_a_build_looks_for(keys: dict[str, Any], names: set[str] | None) -> None:
    assert wanted(DataSettings(**keys)) == names


def test_a_build_leaves_layers_out(
    written: dict[tuple[int, str], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked, layers = list[int](), las_points._layers

    def noted(*given: Any) -> int:
        asked.append(layers(*given))
        return asked[-1]

    monkeypatch.setattr(las_points, "_layers", noted)
    path = written[8, ".laz"]
    keys: dict[str, Any] = {"root": path.parent, "files": [path.name], "row_order": "source", "workers": 1}
    build(DataSettings(**keys, classes={"a": [1]}, fields=["intensity"]), tmp_path / "few")
    build(DataSettings(**keys), tmp_path / "all")
    few, every = asked
    assert few == (
        lazrs.SELECTIVE_DECOMPRESS_Z
        | lazrs.SELECTIVE_DECOMPRESS_INTENSITY
        | lazrs.SELECTIVE_DECOMPRESS_CLASSIFICATION
    )
    bits = {value for name, value in vars(lazrs).items() if name.startswith("SELECTIVE_DECOMPRESS_")}
    assert every == sum(bits - {lazrs.SELECTIVE_DECOMPRESS_ALL, lazrs.SELECTIVE_DECOMPRESS_WAVEPACKET})


def check_build(
    settings: DataSettings, tmp_path: Path, digests: Digests, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The dataset has the bytes of one for which everything was decoded."""
    build(settings, tmp_path / "few")
    with monkeypatch.context() as patched:
        patched.setattr(parts, "wanted", lambda _: None)
        build(settings, tmp_path / "all")
    assert digests(tmp_path / "few") == digests(tmp_path / "all")


@every
@either
@pytest.mark.parametrize("streamed", [False, True], ids=["whole", "streamed"])
def test_a_build_with_few_fields(
    written: dict[tuple[int, str], Path],
    tmp_path: Path,
    digests: Digests,
    monkeypatch: pytest.MonkeyPatch,
    point_format: int,
    suffix: str,
    streamed: bool,
) -> None:
    if streamed:
        monkeypatch.setattr(parts, "_STREAMED_ROWS", 100)
        monkeypatch.setattr(parts, "_CHUNK_ROWS", 333)
    path = written[point_format, suffix]
    settings = DataSettings(
        root=path.parent,
        files=[path.name],
        label="number_of_returns",
        classes={"a": [1, 2], "b": [3]},
        fields=["withheld", "turn", *(["rgb"] if "rgb" in read(path).fields else ["intensity"])],
        tiles=TileSettings(size=40.0),
        row_order="source",
        workers=1,
    )
    check_build(settings, tmp_path, digests, monkeypatch)


@folders
@pytest.mark.parametrize("fields", [[], ["intensity"], ["gps_time", "return_number", "overlap"]])
def test_real_files_with_few_fields(data_folder: Path, folder: str, fields: list[str]) -> None:
    for path in sorted((data_folder / folder).glob("*.laz"))[:2]:
        scan = only(path, *fields)
        assert {*scan.fields} == {*fields}
        check_same(scan, read(path))


@folders
def test_a_build_of_real_files_with_few_fields(
    data_folder: Path, folder: str, tmp_path: Path, digests: Digests, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = data_folder / folder
    settings = DataSettings(
        root=root,
        files=[sorted(root.glob("*.laz"))[0].name],
        classes={"ground": [2], "vegetation": [3, 4, 5]},
        fields=["intensity"],
        tiles=TileSettings(size=50.0, min_points=100),
        row_order="random",
        workers=1,
    )
    check_build(settings, tmp_path, digests, monkeypatch)
