"""The Waymo Open Dataset as Parquet, on a tiny tree of the same structure, with numbers found by hand."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import trimesh
from pyarrow import parquet

from tamis.errors import DataError
from tamis.pipelines.build import build
from tamis.pipelines.layouts import LAYOUTS
from tamis.pipelines.layouts.poses import instance_number
from tamis.pipelines.layouts.waymo_frames import Frames
from tamis.pipelines.layouts.waymo_range import inclinations, to_points
from tamis.pipelines.settings import DataSettings

LAYOUT = LAYOUTS["waymo"]
SEGMENT = "10023947602400723454_1120_000_1140_000"
NAME = f"training/lidar/{SEGMENT}.parquet"
TOP, FRONT = 1, 2
T0, T1 = 1_552_440_195_362_591, 1_552_440_195_462_591
ONE = [1.0, 0, 0, 0, 0, 1, 0, 0, 0, 0, 1, 0, 0, 0, 0, 1]
# Looks to the left, 2 m up.
LEFT = [0.0, -1, 0, 0, 1, 0, 0, 0, 0, 0, 1, 2, 0, 0, 0, 1]
EAST = [1.0, 0, 0, 11, 0, 1, 0, 20, 0, 0, 1, 3, 0, 0, 0, 1]


def images(component: str, *returns: np.ndarray | None, kind: Any = None) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for number, one in enumerate(returns, 1):
        name = f"[{component}].range_image_return{number}"
        values = None if one is None else one.ravel().tolist()
        shape = None if one is None else list(one.shape)
        found[f"{name}.values"] = pa.array([values], pa.list_(kind or pa.float32()))
        found[f"{name}.shape"] = pa.array([shape], pa.list_(pa.int32(), 3))
    return found


def key(time: int, laser: int | None = None) -> dict[str, Any]:
    found: dict[str, Any] = {"key.segment_context_name": [SEGMENT], "key.frame_timestamp_micros": [time]}
    return found if laser is None else found | {"key.laser_name": pa.array([laser], pa.int8())}


def range_image(distance: list[list[float]]) -> np.ndarray:
    """With intensity 0.5, elongation 0.25 and no zone (-1)."""
    far = np.array(distance, np.float32)
    return np.stack([far, np.full_like(far, 0.5), np.full_like(far, 0.25), np.full_like(far, -1)], axis=-1)


def laser(number: int, mounted: list[float], least: float, most: float, beams: list[float] | None) -> Any:
    name = "[LiDARCalibrationComponent]."
    return {
        "key.segment_context_name": [SEGMENT],
        "key.laser_name": pa.array([number], pa.int8()),
        f"{name}extrinsic.transform": pa.array([mounted], pa.list_(pa.float64(), 16)),
        f"{name}beam_inclination.min": [float(least)],
        f"{name}beam_inclination.max": [float(most)],
        f"{name}beam_inclination.values": pa.array([beams], pa.list_(pa.float64())),
    }


def box(time: int, token: str, kind: int, *numbers: float) -> dict[str, Any]:
    names = [f"box.{part}.{axis}" for part in ("center", "size") for axis in "xyz"] + ["box.heading"]
    found = key(time) | {"key.laser_object_id": [token]}
    found |= {f"[LiDARBoxComponent].{n}": [float(value)] for n, value in zip(names, numbers, strict=True)}
    return found | {"[LiDARBoxComponent].type": pa.array([kind], pa.int8())}


def tree() -> dict[str, list[dict[str, Any]]]:
    """Two frames. A laser on the roof with one beam, level, and four columns; one in front with two beams."""
    root2 = math.sqrt(2)
    world = "[VehiclePoseComponent].world_from_vehicle.transform"
    # Columns look to 135, 45, -45 and -135 degrees.
    top = range_image([[0, root2, 2 * root2, -1]])
    seen_from = np.zeros((1, 4, 6), np.float32)
    seen_from[0, 1] = [0, 0, 0, 10, 20, 3]  # 1 m behind the place of the frame
    seen_from[0, 2] = [0, 0, math.pi / 2, 11, 20, 3]  # there, turned left
    labels = np.array([[[0, 0], [7, 3], [0, 18], [0, 0]]], np.int32)
    return {
        "lidar": [
            key(T0, TOP) | images("LiDARComponent", top, range_image([[0, 0, 0, root2]])),
            key(T0, FRONT) | images("LiDARComponent", range_image([[2, 0], [0, 4]]), None),
            key(T1, FRONT) | images("LiDARComponent", range_image([[0, 0], [0, 4]]), None),
            key(T1, TOP) | images("LiDARComponent", top, None),
        ],
        "lidar_pose": [key(T0, TOP) | images("LiDARPoseComponent", seen_from)],
        "lidar_calibration": [
            laser(TOP, ONE, 0, 0, [0.0]),
            laser(FRONT, LEFT, -math.pi / 3, math.pi / 3, None),
        ],
        "vehicle_pose": [key(T1) | {world: [ONE]}, key(T0) | {world: [EAST]}],
        "lidar_box": [
            box(T0, "car", 1, 10, -2, 1, 4.5, 2, 1.5, 0.25),
            box(T1, "car", 1, 9, -2, 1, 4.5, 2, 1.5, 0.5),
            box(T1, "she", 2, 5, 5, 1, 1, 1, 1.75, -3),
        ],
        "lidar_segmentation": [
            key(T0, TOP) | images("LiDARSegmentationLabelComponent", labels, labels * 0 + 22, kind=pa.int32())
        ],
    }


def write(root: Path, content: dict[str, list[dict[str, Any]]], split: str = "training") -> None:
    for component, rows in content.items():
        path = root / split / component / f"{SEGMENT}.parquet"
        path.parent.mkdir(parents=True, exist_ok=True)
        parquet.write_table(pa.concat_tables([pa.table(row) for row in rows]), path)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    write(tmp_path, tree())
    return tmp_path


def test_the_folders_are_the_splits(root: Path) -> None:
    write(root, tree(), "validation")
    hidden = tree()
    del hidden["lidar_box"], hidden["lidar_segmentation"]
    write(root, hidden, "testing")
    names = {split: NAME.replace("training", split) for split in ("training", "validation", "testing")}
    assert LAYOUT.find(root) == {
        names["training"]: "train",
        names["validation"]: "val",
        names["testing"]: "test",
    }
    frames = LAYOUT.read(root, names["testing"])
    assert [scan.annotations["boxes"].shape for scan in frames] == [(0, 7), (0, 7)]
    assert {*frames[0].fields} == {*LAYOUT.read(root, NAME)[0].fields}
    files = LAYOUT.files(root, NAME)
    assert files[0] == root / NAME
    assert {file.parent.name for file in files if isinstance(file, Path)} == {*tree()}


def test_points_are_where_their_pixels_look(root: Path) -> None:
    frames = LAYOUT.read(root, NAME)
    assert len(frames) == 2
    first = frames[0]
    # The laser on the roof sees (1, 1, 0) from 1 m behind, and (2, -2, 0), which for the car that was turned
    # left is (2, 2, 0); its second return has no place but that of an untouched pixel, (0, 0, 0) in the
    # world. That in front has its columns at 90 and -90 degrees of the car, beams 30 degrees up and down: 2 m
    # to the left and up, 4 m to the right and down, from 2 m up.
    tall = math.sqrt(3)
    expected = [[0, 1, 0], [2, 2, 0], [-12, -21, -3], [0, tall, 3], [0, -2 * tall, 0]]
    assert first.xyz == pytest.approx(np.array(expected), abs=1e-6)
    assert first.fields["laser"].tolist() == [1, 1, 1, 2, 2]
    assert first.fields["return_number"].tolist() == [1, 1, 2, 1, 1]
    assert first.fields["classification"].tolist() == [3, 18, 22, 0, 0]
    assert first.fields["instance"].tolist() == [7, 0, 22, 0, 0]
    assert first.fields["intensity"].tolist() == [0.5] * 5
    assert first.fields["elongation"].tolist() == [0.25] * 5
    assert first.fields["no_label_zone"].tolist() == [-1] * 5
    # Nothing says where the second frame's pixels were seen from, so that the car stood still.
    second = frames[1]
    assert second.xyz == pytest.approx(np.array([[1, 1, 0], [2, -2, 0], [0, -2 * tall, 0]]), abs=1e-6)
    assert second.fields["classification"].tolist() == [0, 0, 0]


def test_boxes_and_pose(root: Path) -> None:
    first, second = LAYOUT.read(root, NAME)
    assert first.annotations["boxes"].tolist() == [[10, -2, 1, 4.5, 2, 1.5, 0.25]]
    assert second.annotations["boxes"].tolist() == [
        [9, -2, 1, 4.5, 2, 1.5, 0.5],
        [5, 5, 1, 1, 1, 1.75, -3],
    ]
    assert second.annotations["box_class"].tolist() == [101, 102]
    assert second.annotations["box_class"].dtype == np.int32
    assert second.annotations["box_instance"].tolist() == [instance_number("car"), instance_number("she")]
    assert first.annotations["pose"].tolist() == [EAST]


def test_classes(root: Path) -> None:
    classes = LAYOUT.classes(root)
    assert len(classes) == 24
    assert (classes["car"], classes["pedestrian"], classes["sidewalk"]) == ([1], [7, 102], [22])
    assert (classes["vehicle"], classes["cyclist"], classes["sign"]) == ([101], [104], [8, 103])
    (root / "training/lidar_segmentation" / f"{SEGMENT}.parquet").unlink()
    (root / "training/lidar_segmentation").rmdir()
    assert LAYOUT.classes(root) == {"vehicle": [101], "pedestrian": [102], "sign": [103], "cyclist": [104]}
    assert "instance" not in LAYOUT.read(root, NAME)[0].fields


def test_frames_in_any_order_of_rows_and_of_reading(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = [scan.xyz.tolist() for scan in LAYOUT.read(root, NAME)]
    monkeypatch.setattr("tamis.pipelines.layouts.waymo_rows._ROWS", 1)
    content = tree()
    for order in ([3, 1, 0, 2], [2, 0, 3, 1]):
        content["lidar"] = [tree()["lidar"][row] for row in order]
        write(root, content)
        frames = LAYOUT.read(root, NAME)
        assert isinstance(frames, Frames)
        assert [frames[at].xyz.tolist() for at in (1, 0, 1)] == [expected[1], expected[0], expected[1]]
        assert [scan.xyz.tolist() for scan in frames[:]] == expected


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_the_way_back_from_points(seed: int) -> None:
    """Points whose pixels another library's matrices say come back to where they were."""
    rng = np.random.default_rng(seed)
    height, width = 16, 240
    mounted = trimesh.transformations.euler_matrix(
        *rng.normal(scale=0.05, size=2), rng.uniform(-3, 3), "sxyz"
    )
    mounted[:3, 3] = rng.normal(size=3)
    car = trimesh.transformations.euler_matrix(*rng.uniform(-1, 1, 3), "sxyz")
    car[:3, 3] = rng.normal(scale=50, size=3)
    beams = np.sort(rng.uniform(-0.4, 0.2, height))
    distance = np.zeros((height, width))
    pixels = rng.uniform(-1, 1, (height, width, 6))
    expected = []
    yaw = math.atan2(mounted[1, 0], mounted[0, 0])
    for row, column in sorted({*zip(rng.integers(0, height, 30), rng.integers(0, width, 30), strict=True)}):
        distance[row, column] = far = rng.uniform(1, 70)
        # From behind by the left, a whole turn in `width` equal steps, the middle of each.
        azimuth = math.pi - 2 * math.pi * (column + 0.5) / width - yaw
        pointing = trimesh.transformations.euler_matrix(0, -beams[height - 1 - row], azimuth, "sxyz")
        there = trimesh.transformations.euler_matrix(*pixels[row, column, :3], "sxyz")
        there[:3, 3] = pixels[row, column, 3:]
        expected.append((np.linalg.inv(car) @ there @ mounted @ pointing @ [far, 0, 0, 1])[:3])
    xyz, seen = to_points(distance, beams, mounted, pixels, car)
    assert xyz == pytest.approx(np.array(expected), abs=1e-9)
    assert seen.sum() == len(xyz) == len(expected)


def test_beams_that_are_evenly_spread() -> None:
    assert inclinations(-1, 1, 4) == pytest.approx([-0.75, -0.25, 0.25, 0.75])


WORLD = "[VehiclePoseComponent].world_from_vehicle.transform"
WRONG: dict[str, tuple[str, list[dict[str, Any]], str]] = {
    "no pose": ("vehicle_pose", [key(T1) | {WORLD: [ONE]}], rf"has no pose of the frame {T0}"),
    "short pose": (
        "vehicle_pose",
        [key(T0) | {WORLD: [ONE[:15]]}],
        r"no rigid motion of 16 numbers in row 0",
    ),
    "skew": (
        "vehicle_pose",
        [key(T0) | {WORLD: [[2.0, *ONE[1:]]]}],
        r"no rigid motion of 16 numbers in row 0",
    ),
    "column": ("vehicle_pose", [key(T0)], r"has no column '\[VehiclePoseComponent\]"),
    "laser": ("lidar_calibration", [laser(TOP, ONE, 0, 0, [0.0])], r"has no laser 2"),
    "beams": (
        "lidar_calibration",
        [laser(TOP, ONE, 0, 0, [0.0, 0.1]), laser(FRONT, ONE, 0, 0, None)],
        rf"laser 1 at {T0}: has values for 2 pixels, the range image 1",
    ),
    "beam": ("lidar_calibration", [laser(TOP, ONE, 0, 0, [math.nan])], r"beam.*is not finite in row 0"),
    "pixels": (
        "lidar_pose",
        [key(T0, TOP) | images("LiDARPoseComponent", np.zeros((1, 3, 6), np.float32))],
        rf"laser 1 at {T0}: has values for 1x3 pixels, the range image 1x4",
    ),
    "twice": (
        "lidar",
        [tree()["lidar"][0], tree()["lidar"][0]],
        rf"rows 0 and 1 are both of laser 1 at {T0}",
    ),
    "shape": (
        "lidar",
        [key(T0, TOP) | images("LiDARComponent", np.zeros((1, 4, 3), np.float32), None)],
        rf"laser 1 at {T0}: '.*return1' has 12 values of float32 and the shape \[1, 4, 3\]",
    ),
    "empty": (
        "lidar",
        [key(T0, TOP) | images("LiDARComponent", None, None)],
        rf"laser 1 at {T0} has no image",
    ),
    "labels": (
        "lidar_segmentation",
        [key(T0, TOP) | images("LiDARSegmentationLabelComponent", np.zeros((1, 4, 2)), None)],
        r"has 8 values of float32",
    ),
    "box": ("lidar_box", [box(T0, "a", 1, 1, 2, math.nan, 1, 1, 1, 0)], r"box\.center\.z' is nan in row 0"),
}


@pytest.mark.parametrize("wrong", WRONG)
def test_components_that_do_not_fit(root: Path, wrong: str) -> None:
    component, rows, message = WRONG[wrong]
    write(root, {component: rows})
    with pytest.raises(DataError, match=rf"{component}/{SEGMENT}\.parquet: .*{message}"):
        [*LAYOUT.read(root, NAME)]


@pytest.mark.parametrize("component", [*tree()])
def test_cut_and_missing_components(root: Path, component: str) -> None:
    path = root / "training" / component / f"{SEGMENT}.parquet"
    whole = path.read_bytes()
    for size in (0, 3, len(whole) // 2, len(whole) - 1):
        path.write_bytes(whole[:size])
        with pytest.raises(DataError, match=rf"{component}/.*: is a damaged or cut table"):
            [*LAYOUT.read(root, NAME)]
    path.unlink()
    if component == "lidar_segmentation":
        assert [scan.fields["classification"].any() for scan in LAYOUT.read(root, NAME)] == [False, False]
        return
    with pytest.raises(DataError, match=rf"{component}/.*: is missing"):
        LAYOUT.read(root, NAME)


def test_each_frame_becomes_a_sample(root: Path, tmp_path: Path) -> None:
    data = {"root": root, "layout": "waymo", "row_order": "source", "workers": 1}
    dataset = build(DataSettings.model_validate(data), tmp_path / "run")
    first, second = (dataset.sample(row) for row in range(2))
    assert (first.source, second.tile) == (NAME, 1)
    frames = LAYOUT.read(root, NAME)
    for sample, frame in zip((first, second), frames, strict=True):
        assert sample.positions() == pytest.approx(frame.xyz, abs=1e-4)
    kinds = [*dataset.manifest.classes]
    assert [kinds[number] for number in first.columns["label"][:3]] == ["bus", "road", "sidewalk"]
    assert [kinds[number] for number in second.annotations["box_class"]] == ["vehicle", "pedestrian"]
