"""Scans that are read in pieces give the bytes that they give when they are read whole."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import hypothesis
import laspy
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tamis.errors import DataError
from tamis.pipelines import parts, pieces
from tamis.pipelines.build import DataSettings, build
from tamis.pipelines.cut import Points
from tamis.pipelines.dataset import Dataset
from tamis.pipelines.prepare.settings import AxesSettings, CropSettings, OutliersSettings
from tamis.pipelines.splits import BlocksSplit, FilesSplit
from tamis.pipelines.streamed import clouds
from tamis.pipelines.tiles import TileSettings
from tamis.pipelines.verify import verify

Digests = Callable[[Path], dict[str, str]]


@pytest.fixture
def raw(tmp_path: Path) -> Path:
    """A LAZ file whose rows lie in no order, and an NPY file with rows that are no points."""
    folder = tmp_path / "raw"
    folder.mkdir()
    rng = np.random.default_rng(5)
    las = laspy.create(point_format=7, file_version="1.4")
    las.header.scales, las.header.offsets = [0.01] * 3, [5e5, 6e6, 0]
    las.xyz = rng.uniform(0, 90, (4000, 3)) + np.array([5e5, 6e6, 100])
    las.classification = rng.integers(0, 7, 4000)
    las.red = las.green = las.blue = rng.integers(0, 65536, 4000)
    las.write(folder / "a.laz")
    return folder


SETTINGS: dict[str, dict[str, Any]] = {
    "tiles": {"tiles": TileSettings(size=20.0)},
    "overlap": {"tiles": TileSettings(size=20.0, stride=10.0, min_points=140)},
    "blocks": {
        "tiles": TileSettings(size=15.0, min_points=30),
        "split": BlocksSplit(kind="blocks", size=[30, 0], of=3, test=[1], val=[2]),
    },
    "bounds": {"tiles": TileSettings(size=20.0), "bounds": [500_010.0, 6_000_010.0, 500_050.0, 6_000_070.0]},
    "nothing inside": {"tiles": TileSettings(size=20.0), "bounds": [0.0, 0.0, 1.0, 1.0]},
    "steps": {
        "tiles": TileSettings(size=20.0),
        "prepare": [
            CropSettings(low=[500_000, 6_000_000, 110], high=[500_080, 6_000_080, 190]),
            AxesSettings(order="-yxz"),
        ],
    },
    "where": {"tiles": TileSettings(size=20.0), "where": "points > 200 and label_share(2) > 0.1"},
    "source order": {"tiles": TileSettings(size=20.0), "row_order": "source"},
    "files": {"tiles": TileSettings(size=20.0), "split": FilesSplit(kind="files", test=["a.laz"])},
}


@pytest.mark.parametrize("keys", SETTINGS.values(), ids=SETTINGS.keys())
@pytest.mark.parametrize("group", [1 << 20, 500])
def test_pieces_give_the_bytes_of_the_whole(
    raw: Path,
    tmp_path: Path,
    digests: Digests,
    keys: dict[str, Any],
    group: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(pieces, "GROUP_ROWS", group)
    settings = DataSettings(root=raw, classes={"a": [1, 2], "b": [3, 4]}, **{"row_order": "random"} | keys)
    nothing = "bounds" in keys and keys["bounds"][0] == 0
    for out in ("whole", "pieces"):
        if out == "pieces":
            monkeypatch.setattr(parts, "_STREAMED_ROWS", 100)
            monkeypatch.setattr(parts, "_CHUNK_ROWS", 333)
        if nothing:
            with pytest.raises(DataError, match="no sample came out"):
                build(settings, tmp_path / out)
        else:
            build(settings, tmp_path / out)
            assert verify(tmp_path / out) == []
    if not nothing:
        assert digests(tmp_path / "pieces") == digests(tmp_path / "whole")
        assert Dataset(tmp_path / "whole").manifest.counts.points > 300


def test_what_looks_at_neighbours_is_read_whole(
    raw: Path, tmp_path: Path, digests: Digests, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = DataSettings(
        root=raw,
        tiles=TileSettings(size=20.0),
        prepare=[OutliersSettings(neighbours=8, deviations=1.0)],
        row_order="random",
    )
    build(settings, tmp_path / "whole")
    monkeypatch.setattr(parts, "_STREAMED_ROWS", 100)
    monkeypatch.setattr(parts, "_CHUNK_ROWS", 333)
    build(settings, tmp_path / "again")
    assert digests(tmp_path / "again") == digests(tmp_path / "whole")


def test_rows_that_are_no_points_are_told_once(
    tmp_path: Path, digests: Digests, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    cloud = np.random.default_rng(0).uniform(0, 30, (1000, 4))
    cloud[::7, 1] = np.nan
    (tmp_path / "raw").mkdir()
    np.save(tmp_path / "raw" / "a.npy", cloud)
    settings = DataSettings(root=tmp_path / "raw", tiles=TileSettings(size=10.0), row_order="random")
    build(settings, tmp_path / "whole")
    monkeypatch.setattr(parts, "_STREAMED_ROWS", 100)
    monkeypatch.setattr(parts, "_CHUNK_ROWS", 90)
    caplog.clear()
    build(settings, tmp_path / "pieces")
    assert digests(tmp_path / "pieces") == digests(tmp_path / "whole")
    assert [record.getMessage().split(": ")[1] for record in caplog.records if record.levelno >= 30] == [
        "dropped 143 rows whose coordinates are not finite"
    ]


def test_damage_in_a_late_piece_is_told_and_leaves_nothing(
    raw: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(parts, "_STREAMED_ROWS", 100)
    monkeypatch.setattr(parts, "_CHUNK_ROWS", 333)
    scan = np.random.default_rng(0).uniform(0, 30, (1000, 3))
    scan[997, 0] = 1e300
    np.save(raw / "b.npy", scan)
    with pytest.raises(DataError, match=r"b\.npy: row 997: x is 1e\+300") as caught:
        build(DataSettings(root=raw, files=["b.npy"], tiles=TileSettings(size=10.0)), tmp_path / "run")
    assert "\n" not in str(caught.value)
    assert not [*tmp_path.glob("run/dataset.building/*")]


@st.composite
def scans(draw: st.DrawFn) -> tuple[Any, dict[str, Any]]:
    """Points on and off the edges of tiles, far ones, doubles and no points, and how to cut them."""
    size = draw(st.sampled_from([0.1, 3.0, 10.0]))
    coordinate = st.one_of(
        st.integers(-8, 24).map(lambda steps: steps * size / 2),
        st.floats(-3, 9).map(lambda tiles: tiles * size),
        st.sampled_from([np.nan, np.inf, -np.inf, 1e4 * size]),
    )
    rows = draw(st.lists(st.tuples(coordinate, coordinate, st.floats(0, 3)), min_size=1, max_size=60))
    blocks = st.sampled_from([[size, 0], [1.5 * size, 2 * size]])
    bounds = st.just([-2 * size, -size, 4 * size, 6 * size])
    split = st.one_of(
        st.none(),
        st.just(FilesSplit(kind="files", test=["a.npy"])),
        blocks.map(lambda block: BlocksSplit(kind="blocks", size=block, of=3, test=[1], val=[0])),
    )
    stride, least = draw(st.sampled_from([None, size / 2, 0.7 * size])), draw(st.integers(1, 4))
    return np.array(rows), {
        "tiles": TileSettings(size=size, stride=stride, min_points=least),
        "split": draw(split),
        "bounds": draw(st.one_of(st.none(), bounds)),
        "where": draw(st.sampled_from([None, "points > 2"])),
        "row_order": draw(st.sampled_from(["source", "random", "farthest"])),
    }


@given(scan=scans(), chunk=st.integers(1, 30), group=st.sampled_from([1, 7, 1 << 20]))
@hypothesis.settings(max_examples=25, deadline=None)
def test_pieces_of_any_size_give_the_bytes_of_the_whole(
    scan: tuple[Any, dict[str, Any]], chunk: int, group: int
) -> None:
    """A piece may be without a point, or without one of a split."""

    def built(root: Path, out: Path) -> dict[str, bytes] | str:
        try:
            folder = build(DataSettings(root=root, **scan[1]), out).path
        except DataError as error:
            return str(error).replace(str(out), "")
        return {path.name: path.read_bytes() for path in folder.iterdir()}

    with TemporaryDirectory() as name, pytest.MonkeyPatch.context() as patch:
        folder = Path(name)
        (folder / "raw").mkdir()
        np.save(folder / "raw" / "a.npy", scan[0])
        whole = built(folder / "raw", folder / "whole")
        patch.setattr(parts, "_STREAMED_ROWS", 0)
        patch.setattr(parts, "_CHUNK_ROWS", chunk)
        patch.setattr(pieces, "GROUP_ROWS", group)
        assert built(folder / "raw", folder / "pieces") == whole


def test_tiles_with_too_few_points_take_no_memory_together(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A scan of 500 tiles of 4 points, but for the first and the last, which have 10: these are samples."""
    tile = np.repeat(np.arange(500), [10, *[4] * 498, 10])
    xyz = np.stack([tile + 0.5, np.zeros(len(tile)), np.zeros(len(tile))], axis=1)
    settings = DataSettings(tiles=TileSettings(size=1.0, min_points=5))
    monkeypatch.setattr(pieces, "GROUP_ROWS", 100)
    found = [*clouds(tmp_path, "a", lambda: [Points(xyz, {}, 0, 0)], settings, {}, tmp_path / "spill")][1:]
    assert [cut.tile.tolist() for _, cuts in found for cut in cuts] == [[0], [499]]
    assert all(len(points.xyz) <= 100 for points, _ in found)


@pytest.mark.slow  # writes 2 GB, and builds 2.5 GB of it
@pytest.mark.timeout(900)
def test_a_file_of_2_gb_is_built_within_1_gb(tmp_path: Path, data_folder: Path) -> None:
    if shutil.disk_usage(tmp_path).free < 12 << 30:
        pytest.skip("needs 12 GB of disk")
    (tmp_path / "raw").mkdir()
    tiles = [laspy.read(path) for path in sorted((data_folder / "ign_dense").glob("*.laz"))]
    header = tiles[0].header
    side, written = 0, 0
    with laspy.open(tmp_path / "raw" / "large.las", mode="w", header=header) as writer:
        while written * header.point_format.size < 2 << 30:
            for tile in tiles:
                points = laspy.ScaleAwarePointRecord(
                    tile.points.array.copy(), header.point_format, header.scales, header.offsets
                )
                points["X"] += side % 16 * 20_000
                points["Y"] += side // 16 * 20_000
                writer.write_points(points)
                written += len(points)
            side += 1
    program = f"""
import sys
from pathlib import Path
from tamis.pipelines.build import DataSettings, build
from tamis.pipelines.tiles import TileSettings
from tamis.processes import peak_bytes
folder = Path({str(tmp_path)!r})
dataset = build(DataSettings(root=folder / "raw", tiles=TileSettings(size=20.0), row_order="random"), folder)
print(dataset.manifest.counts.points, peak_bytes())
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    points, peak = map(int, done.stdout.split())
    assert points == written
    assert peak < 1 << 30, f"{peak >> 20} MB"
