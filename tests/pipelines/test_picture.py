from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from tamis.errors import DataError, UsageError
from tamis.pipelines import picture as module
from tamis.pipelines.build import DataSettings, build
from tamis.pipelines.picture import View, dots, picture
from tamis.pipelines.shown import Shown, shown, thin
from tamis.pipelines.tiles import TileSettings

TOP, SIDE = View("top", 0, 1, 2, 1), View("side", 0, 2, 1, -1)


def write(path: Path, xyz: Any, **fields: Any) -> Path:
    """A structured NPY scan."""
    xyz = np.asarray(xyz, np.float64)
    given = {name: np.asarray(values) for name, values in fields.items()}
    kinds = [(name, values.dtype, values.shape[1:]) for name, values in given.items()]
    scan = np.zeros(len(xyz), [("xyz", "f8", 3), *kinds])
    scan["xyz"] = xyz
    for name, values in given.items():
        scan[name] = values
    np.save(path, scan)
    return path


def corners(path: Path) -> Path:
    """Black about zero, red far along x, green along y, blue along z; black without a gap."""
    rng = np.random.default_rng(0)
    ends = np.array([[0, 0, 0], [10, 0, 0], [0, 10, 0], [0, 0, 10]])
    colours = np.array([[0, 0, 0], [255, 0, 0], [0, 255, 0], [0, 0, 255]], np.uint8)
    which = np.repeat(np.arange(4), [4000, 200, 200, 200])
    wide = np.where(which == 0, 1.0, 0.5)[:, None]
    return write(path, ends[which] + rng.uniform(-wide, wide, (4600, 3)), rgb=colours[which])


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("view", [TOP, SIDE])
def test_a_pixel_has_the_colour_of_the_point_in_front(view: View, seed: int) -> None:
    rng = np.random.default_rng(seed)
    n, dot, pixels = int(rng.integers(1, 60)), int(rng.integers(1, 4)), rng.integers(8, 30, 2).tolist()
    xyz = rng.uniform(0.1, 9.9, (n, 3)).astype(np.float32)
    paint = rng.integers(0, 255, (n, 3)).astype(np.uint8)
    low, high = np.zeros(2), np.full(2, 10.0)
    wanted = np.full((pixels[1], pixels[0], 3), 255, np.uint8)
    for i in sorted(range(n), key=lambda i: float(view.sign * xyz[i, view.towards])):
        column = int(float(xyz[i, view.across]) / (10 / pixels[0]))
        row = int(float(xyz[i, view.up]) / (10 / pixels[1]))
        for down in range(row - dot // 2, row - dot // 2 + dot):
            for right in range(column - dot // 2, column - dot // 2 + dot):
                wanted[min(max(down, 0), pixels[1] - 1), min(max(right, 0), pixels[0] - 1)] = paint[i]
    assert np.array_equal(dots(xyz, paint, dot, view, low, high, pixels), wanted)


def test_right_way_up(tmp_path: Path) -> None:
    """In the file itself: x to the right, y and z upwards, and what is nearer hides what is behind."""
    from matplotlib.image import imread

    said = picture(corners(tmp_path / "a.npy"), tmp_path / "a.png")
    assert said.endswith("a.png: 4,600 points and 4,600 (all points), coloured by rgb")
    image = (imread(tmp_path / "a.png")[:, :, :3] * 255).round()
    # Each colour is in both views of both columns, but green is behind black in those from the side.
    middle = image.shape[1] / 2

    def places(colour: list[int]) -> NDArray[Any]:
        rows, columns = np.nonzero((image == colour).all(axis=2))
        found: NDArray[Any] = np.stack([rows, columns], axis=1)[columns < middle]
        return found

    green, red, blue = places([0, 255, 0]), places([255, 0, 0]), places([0, 0, 255])
    between = (image.shape[0] + green[:, 0].max()) / 2
    top_red, side_red = red[red[:, 0] < between], red[red[:, 0] > between]
    top_blue, side_blue = blue[blue[:, 0] < between], blue[blue[:, 0] > between]
    assert all(map(len, (top_red, side_red, top_blue, side_blue)))
    assert green[:, 0].max() < top_red[:, 0].min()  # y: green above red
    assert green[:, 1].max() < top_red[:, 1].min()  # x: red right of green
    assert top_blue[:, 0].mean() == pytest.approx(top_red[:, 0].mean(), abs=20)
    assert side_blue[:, 0].max() < side_red[:, 0].min()  # z: blue above red
    assert side_blue[:, 1].max() < side_red[:, 1].min()
    # One scale in all directions.
    across = top_red[:, 1].mean() - green[:, 1].mean()
    assert top_red[:, 0].mean() - green[:, 0].mean() == pytest.approx(across, rel=0.02)
    assert side_red[:, 0].mean() - side_blue[:, 0].mean() == pytest.approx(across, rel=0.02)


def texts(cloud: Shown, by: Any) -> list[str]:
    from matplotlib.text import Text

    figure = module._figure(cloud, *thin(cloud, None), by)
    return [text.get_text() for text in figure.findobj(Text) if isinstance(text, Text) and text.get_text()]


def test_axes_and_classes_are_named(shipped_laz: Path) -> None:
    found = texts(shown(shipped_laz), "class")
    assert {"laspy_append-bug.laz", "x − 698,000 (m)", "y − 6,259,200 (m)", "z (m)"} <= set(found)
    assert {"ground  60.5%", "high vegetation  26.4%", "class 65  1.4%", "classes"} <= set(found)
    assert any(text.startswith("before: 37,805 points") for text in found)
    assert any(text.startswith("after: 5,000 points, farthest point") for text in found)
    assert not any("class" in text for text in texts(shown(shipped_laz), "height"))


def test_feet_and_unknown_units(data_folder: Path) -> None:
    found = texts(shown(data_folder / "reader" / "laspy_autzen_trim.laz"), "rgb")
    assert {"x − 636,000 (ft)", "z (ft)"} <= set(found)
    assert "x − 131,700 (units)" in texts(shown(data_folder / "reader" / "ahn3.laz"), "height")


def test_what_it_is_coloured_by(tmp_path: Path) -> None:
    xyz = np.random.default_rng(0).uniform(0, 9, (50, 3))
    rgb = np.random.default_rng(1).integers(0, 255, (50, 3)).astype(np.uint8)
    label = np.arange(50) % 3
    for fields, best in (
        ({}, "height"),
        ({"rgb": rgb}, "rgb"),
        ({"rgb": rgb, "label": label}, "class"),
        ({"label": np.zeros(50, int), "rgb": rgb * 0}, "height"),  # which say nothing
        ({"category": label.astype(np.float32)}, "class"),
        ({"category": label + 0.5}, "height"),
    ):
        assert shown(write(tmp_path / "a.npy", xyz, **fields)).colour(None) == best
    with pytest.raises(UsageError, match=r"--color: is 'rgb', a\.npy has height; give one of them"):
        picture(tmp_path / "a.npy", tmp_path / "a.png", color="rgb")
    assert not (tmp_path / "a.png").exists()


@pytest.mark.parametrize(
    ("given", "wanted"),
    [
        (np.array([[0, 128, 255], [1, 2, 3]], np.uint8), [[0, 128, 255], [1, 2, 3]]),
        (np.array([[0, 128, 255], [1, 2, 3]], np.uint16), [[0, 128, 255], [1, 2, 3]]),
        (np.array([[0, 128 * 257, 65535], [0, 0, 0]], np.uint16), [[0, 128, 255], [0, 0, 0]]),
        (np.array([[0, 0.2, 1], [np.nan, 0, 0]], np.float32), [[0, 51, 255], [0, 0, 0]]),
        (np.array([[0, 100.0, 255], [0, 0, 0]]), [[0, 100, 255], [0, 0, 0]]),
    ],
)
def test_colours_of_any_type(tmp_path: Path, given: Any, wanted: list[list[int]]) -> None:
    path = write(tmp_path / "a.npy", [[0, 0, 0], [1, 1, 1]], rgb=given)
    found = shown(path).rgb
    assert found is not None
    assert found.tolist() == wanted


def test_what_is_far_or_not_finite_is_left_out_and_told(tmp_path: Path) -> None:
    xyz = np.random.default_rng(0).uniform(0, 9, (2000, 3)) + np.array([5e5, 5e6, 0])
    xyz[5], xyz[6, 2], xyz[7, 0] = np.nan, 1e5, -1e300
    cloud = shown(write(tmp_path / "a.npy", xyz))
    assert len(cloud.xyz) == 1997
    assert cloud.note == "2 of 2,000 points, far from all others, are not shown; 1 rows are not finite"
    kept = np.delete(xyz, [5, 6, 7], axis=0)
    assert np.abs(cloud.xyz + cloud.origin - kept).max() < 1e-5
    picture(tmp_path / "a.npy", tmp_path / "a.png")


@pytest.mark.parametrize(
    "xyz", [[[1, 2, 3]], [[0, 0, 0], [0, 0, 0]], [[0, 0, 0], [0, 0, 900]], [[0, 7, 7], [1, 7, 7]]]
)
def test_clouds_without_extent(tmp_path: Path, xyz: Any) -> None:
    picture(write(tmp_path / "a.npy", xyz), tmp_path / "a.png")
    assert (tmp_path / "a.png").stat().st_size > 1000


def test_nothing_to_draw(tmp_path: Path) -> None:
    for xyz in (np.empty((0, 3)), np.full((4, 3), np.nan)):
        with pytest.raises(DataError, match="has no row with a finite position to draw"):
            picture(write(tmp_path / "a.npy", xyz), tmp_path / "a.png")
    with pytest.raises(UsageError, match="--voxel: is -1; give a length above 0"):
        picture(corners(tmp_path / "a.npy"), tmp_path / "a.png", voxel=-1)
    with pytest.raises(DataError, match="cannot be read"):
        picture(tmp_path / "none.npy", tmp_path / "a.png")
    assert [path.name for path in tmp_path.iterdir()] == ["a.npy"]


def test_names_that_are_no_formulas(tmp_path: Path) -> None:
    path = corners(tmp_path / "$x_{ 点群 & <b>.npy")
    picture(path, tmp_path / "a.png")
    assert (tmp_path / "a.png").exists()


@pytest.mark.parametrize("seed", range(3))
def test_thinned_by_voxels(tmp_path: Path, seed: int) -> None:
    rng = np.random.default_rng(seed)
    xyz, size = rng.uniform(0, 9, (500, 3)), rng.uniform(0.5, 3)
    xyz += rng.uniform(-1e6, 1e6, 3).round()
    cloud = shown(write(tmp_path / "a.npy", xyz, label=rng.integers(0, 4, 500)))
    after, how = thin(cloud, size)
    cells = np.floor((after.xyz + cloud.origin + size / 1024) / size)
    wanted = np.floor((cloud.xyz + cloud.origin + size / 1024) / size)
    assert len(np.unique(cells, axis=0)) == len(cells) == len(np.unique(wanted, axis=0))
    assert how == f"voxels of {size:g}"
    rows = {tuple(row): label for row, label in zip(cloud.xyz.tolist(), cloud.label, strict=True)}  # type: ignore[arg-type]
    assert [rows[tuple(row)] for row in after.xyz.tolist()] == after.label.tolist()  # type: ignore[union-attr]


def test_a_dataset_is_shown_where_it_lies(settings: DataSettings, raw: Path, tmp_path: Path) -> None:
    tiled = settings.model_copy(update={"tiles": TileSettings(size=10.0, min_points=1)})
    dataset = build(tiled, tmp_path / "run")
    cloud = shown(tmp_path / "run")
    assert cloud.title == "run"
    source = [np.load(path) for path in sorted(raw.iterdir())]
    wanted = np.concatenate([np.stack([one[axis] for axis in "xyz"], axis=1) for one in source])
    found = cloud.xyz.astype(np.float64) + cloud.origin
    assert np.abs(np.sort(found, axis=0) - np.sort(wanted, axis=0)).max() < 1e-3
    assert cloud.names == {-1: "ignored", 0: "ground", 1: "vegetation"}
    assert cloud.note == ""
    assert picture(dataset.path, tmp_path / "a.png").endswith("coloured by class")


def test_clouds_that_lie_upon_each_other(tmp_path: Path) -> None:
    for number in range(3):
        rng = np.random.default_rng(number)
        write(tmp_path / f"{number}.npy", rng.uniform(0, 9, (100, 3)))
    dataset = build(DataSettings(root=tmp_path, row_order="source"), tmp_path / "run")
    cloud = shown(dataset.path)
    assert len(cloud.xyz) == 100
    assert cloud.note == "the first of 3 samples, which lie upon each other"


def test_a_large_dataset_is_shown_in_part(
    settings: DataSettings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tamis.pipelines.shown._MOST", 1000)
    dataset = build(settings, tmp_path / "run")
    cloud = shown(dataset.path)
    assert cloud.note.endswith(f" of {len(dataset)} samples")
    assert 0 < len(cloud.xyz) < 1500


def test_drawing_is_not_loaded_before_it_is_needed() -> None:
    code = "import sys, tamis.pipelines.inspect, tamis.pipelines.picture; print('matplotlib' in sys.modules)"
    assert subprocess.check_output([sys.executable, "-c", code], text=True).strip() == "False"
