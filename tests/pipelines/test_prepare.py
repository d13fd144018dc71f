"""Steps on whole scans before they are cut."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from pydantic import TypeAdapter, ValidationError

from tamis.errors import DataError, UsageError
from tamis.pipelines.cut import Points
from tamis.pipelines.prepare.settings import StepSettings
from tamis.pipelines.prepare.steps import prepare

FAR = np.array([698_000.0, 6_259_000.0, 40.0])
STEP: TypeAdapter[Any] = TypeAdapter(StepSettings)


def scan(n: int, seed: int = 0) -> Points:
    """A gently sloping square, 20 units wide, far from zero."""
    rng = np.random.default_rng(seed)
    xyz = rng.uniform(0, 20, (n, 3))
    xyz[:, 2] = 0.1 * xyz[:, 0] + rng.normal(0, 0.01, n)
    columns: dict[str, NDArray[Any]] = {
        "label": rng.integers(-1, 3, n).astype(np.int32),
        "row": np.arange(n),
        "intensity": rng.integers(0, 500, n).astype(np.uint16),
        "height": rng.random(n),
    }
    return Points(xyz + FAR, columns, 1, 2)


def after(points: Points, *steps: dict[str, Any]) -> Points:
    found = prepare(Path("scan.laz"), points, [STEP.validate_python(step) for step in steps])
    assert (found.dropped, found.outside) == (points.dropped, points.outside)
    assert {len(values) for values in found.columns.values()} == {len(found.xyz)}
    assert found.xyz.dtype == np.float64
    return found


def same_rows(found: Points, points: Points) -> NDArray[np.int64]:
    """The rows that were kept, of which nothing has changed."""
    rows: NDArray[np.int64] = found.columns["row"]
    assert (np.diff(rows) > 0).all()
    np.testing.assert_array_equal(found.xyz, points.xyz[rows])
    for name, values in points.columns.items():
        np.testing.assert_array_equal(found.columns[name], values[rows])
    return rows


def test_a_crop_is_half_open() -> None:
    points = scan(500)
    points.xyz[:2] = FAR + np.array([[5, 5, 0], [10, 5, 0]])
    kept = same_rows(
        after(points, {"kind": "crop", "low": [*(FAR + 5)[:2], -1e9], "high": [*(FAR + 10)[:2], 1e9]}), points
    )
    xy = points.xyz[:, :2] - FAR[:2]
    assert kept.tolist() == np.flatnonzero(((xy >= 5) & (xy < 10)).all(axis=1)).tolist()
    assert 0 in kept
    assert 1 not in kept


@pytest.mark.parametrize(
    ("order", "right"), [("x-zy", (1, -3, 2)), ("xyz", (1, 2, 3)), ("zxy", (3, 1, 2)), ("-x-yz", (-1, -2, 3))]
)
def test_axes_turn_points_and_vectors_alike(order: str, right: tuple[int, int, int]) -> None:
    normal = np.array([[1, 2, 3]], np.float32)
    one = Points(np.array([[1.0, 2, 3]]), {"row": np.arange(1), "normal": normal, "rgb": normal}, 0, 0)
    found = after(one, {"kind": "axes", "order": order})
    assert found.xyz.tolist() == found.columns["normal"].tolist() == [list(right)]
    assert found.columns["normal"].dtype == np.float32
    assert found.columns["rgb"].tolist() == [[1, 2, 3]]
    with pytest.raises(DataError, match=r"scan\.laz: field 'box' does not turn"):
        after(
            Points(one.xyz, {"row": np.arange(1), "box": np.zeros((1, 7))}, 0, 0),
            {"kind": "axes", "order": order},
        )


@pytest.mark.parametrize(
    ("step", "point", "vector"),
    [
        ({"kind": "rotate", "degrees": 90}, [-2, 1, 3], [-2, 1, 3]),
        ({"kind": "rotate", "degrees": -90}, [2, -1, 3], [2, -1, 3]),
        ({"kind": "rotate", "degrees": 180}, [-1, -2, 3], [-1, -2, 3]),
        ({"kind": "rotate", "degrees": 360}, [1, 2, 3], [1, 2, 3]),
        ({"kind": "flip", "axis": "y"}, [1, -2, 3], [1, -2, 3]),
        ({"kind": "flip", "axis": "z"}, [1, 2, -3], [1, 2, -3]),
        ({"kind": "scale", "factor": 0.5}, [0.5, 1, 1.5], [1, 2, 3]),
    ],
)
def test_a_scan_is_moved_about_zero(step: dict[str, Any], point: list[float], vector: list[float]) -> None:
    normal = np.array([[1, 2, 3]], np.float32)
    one = Points(np.array([[1.0, 2, 3]]), {"row": np.arange(1), "normal": normal, "rgb": normal}, 0, 0)
    found = after(one, step)
    assert found.xyz.tolist() == [point]
    assert found.columns["normal"].tolist() == [vector]
    assert found.columns["normal"].dtype == np.float32
    assert found.columns["rgb"].tolist() == [[1, 2, 3]]
    assert one.xyz.tolist() == normal.tolist() == [[1, 2, 3]], "what came is as it was"


@pytest.mark.parametrize("degrees", [30, -123.4, 1e-3])
def test_a_turn_is_a_turn(degrees: float) -> None:
    points = scan(200)
    points.columns["normal"] = np.random.default_rng(1).normal(size=(200, 3))
    found = after(points, {"kind": "rotate", "degrees": degrees})
    spin = np.exp(1j * np.deg2rad(degrees))
    for ours, theirs in ((found.xyz, points.xyz), (found.columns["normal"], points.columns["normal"])):
        np.testing.assert_allclose(ours[:, 0] + 1j * ours[:, 1], spin * (theirs[:, 0] + 1j * theirs[:, 1]))
        np.testing.assert_array_equal(ours[:, 2], theirs[:, 2])


@pytest.mark.parametrize(
    ("values", "step"),
    [
        (np.ones((1, 3), np.uint8), {"kind": "flip", "axis": "x"}),
        (np.ones((1, 3), np.int8), {"kind": "rotate", "degrees": 10}),
    ],
)
def test_vectors_of_whole_numbers_turn_where_they_can(values: NDArray[Any], step: dict[str, Any]) -> None:
    one = Points(np.ones((1, 3)), {"row": np.arange(1), "normal": values}, 0, 0)
    with pytest.raises(DataError, match=rf"field 'normal' is {values.dtype}, which cannot turn"):
        after(one, step)
    whole = Points(one.xyz, {"row": np.arange(1), "normal": np.array([[1, 2, 3]], np.int16)}, 0, 0)
    assert after(whole, {"kind": "rotate", "degrees": 90}).columns["normal"].tolist() == [[-2, 1, 3]]


def annotated(n: int, seed: int = 0) -> Points:
    """A scan with a box about each of its first ``n`` points, and a pose."""
    points, rng = scan(100, seed), np.random.default_rng(seed)
    boxes = np.concatenate([points.xyz[:n], rng.uniform(1, 3, (n, 3)), rng.uniform(-3, 3, (n, 1))], axis=1)
    pose = np.eye(4)
    pose[:3] += rng.normal(0, 0.3, (3, 4))
    held = {
        "boxes": boxes,
        "box_instance": np.arange(n),
        "box_velocity": rng.normal(size=(n, 3)),
        "pose": pose.reshape(1, 16),
        "image": rng.integers(0, 256, 9, np.uint8),
    }
    return replace(points, annotations=held)


@pytest.mark.parametrize("seed", range(2))
def test_boxes_stay_with_their_points(seed: int) -> None:
    points = annotated(100, seed)
    kept = after(points, {"kind": "crop", "low": [*(FAR + 5)[:2], -1e9], "high": [*(FAR + 10)[:2], 1e9]})
    here = kept.columns["row"]
    assert 0 < len(here) < 100
    assert kept.annotations["box_instance"].tolist() == here.tolist()
    steps: list[dict[str, Any]] = [
        {"kind": "axes", "order": "y-xz"},
        {"kind": "rotate", "degrees": 33.3},
        {"kind": "scale", "factor": 0.3048},
        {"kind": "flip", "axis": "x"},
        {"kind": "flip", "axis": "z"},
    ]
    found = after(kept, *steps)
    np.testing.assert_allclose(found.annotations["boxes"][:, :3], found.xyz, rtol=1e-15)
    np.testing.assert_allclose(
        found.annotations["boxes"][:, 3:6], 0.3048 * points.annotations["boxes"][here, 3:6]
    )
    # a point ahead of the middle, moved as a point, is where the moved heading leads
    ahead = annotated(100, seed)
    yaw = ahead.annotations["boxes"][:, 6]
    ahead.xyz[:, :2] += np.stack([np.cos(yaw), np.sin(yaw)], axis=1)
    led = after(ahead, *steps).xyz[here] - found.xyz
    turned = found.annotations["boxes"][:, 6]
    heading = np.stack([np.cos(turned), np.sin(turned)], axis=1)
    np.testing.assert_allclose(led[:, :2], 0.3048 * heading, atol=1e-8)
    went = annotated(100, seed)
    went.xyz[:] += went.annotations["box_velocity"]
    np.testing.assert_allclose(
        after(went, *steps).xyz[here] - found.xyz, found.annotations["box_velocity"], atol=1e-8
    )

    def world(moved: Points) -> NDArray[Any]:
        whole: NDArray[Any] = np.c_[moved.xyz, np.ones(len(moved.xyz))]
        return whole @ moved.annotations["pose"].reshape(4, 4).T

    np.testing.assert_allclose(world(found), world(kept), rtol=1e-12)


def test_what_moves_no_point_moves_no_annotation() -> None:
    points = annotated(5)
    steps: list[dict[str, Any]] = [
        {"kind": "deduplicate"},
        {"kind": "outliers"},
        {"kind": "voxel", "size": 1.0},
        {"kind": "farthest", "points": 7},
        {"kind": "normals", "neighbours": 5},
    ]
    assert after(points, *steps).annotations is points.annotations


def test_boxes_without_points_move_too() -> None:
    points = annotated(4)
    none = replace(points, xyz=np.empty((0, 3)), columns={"row": np.arange(0)})
    step = {"kind": "rotate", "degrees": 40}
    np.testing.assert_array_equal(
        after(none, step).annotations["boxes"], after(points, step).annotations["boxes"]
    )
    crop = {"kind": "crop", "low": [0, 0, 0], "high": [1, 1, 1]}
    assert after(none, crop).annotations["box_velocity"].shape == (0, 3)
    with pytest.raises(UsageError, match="boxes: would be tilted or skewed"):
        after(points, {"kind": "axes", "order": "x-zy"})


@pytest.mark.parametrize("order", ["xzy", "-xyz", "xxy", "x--zy", "yxz", "xy"])
def test_mirrors_and_other_words_are_refused(order: str) -> None:
    with pytest.raises(ValidationError, match=r"mirrors the scan|each once|should match pattern"):
        STEP.validate_python({"kind": "axes", "order": order})


def test_of_points_at_one_place_the_first_stays() -> None:
    points = scan(400)
    points.xyz[200:300] = points.xyz[:100]
    points.xyz[300:310] = FAR * [0, 1, 1]
    points.xyz[305:310, 0] = -0.0
    found = same_rows(after(points, {"kind": "deduplicate"}), points)
    assert found.tolist() == [*range(200), 300, *range(310, 400)]


def test_far_points_are_outliers() -> None:
    points = scan(2000)
    points.xyz[[3, 700]] += [0, 0, 30]
    kept = same_rows(after(points, {"kind": "outliers"}), points)
    assert not {3, 700} & {*kept.tolist()}
    assert len(kept) > 1900
    few = scan(10)
    assert len(after(few, {"kind": "outliers", "neighbours": 10}).xyz) == 10, "too few to tell"


def test_voxels_are_of_one_grid_for_all_scans() -> None:
    points = scan(3000)
    thin = after(points, {"kind": "voxel", "size": 0.5})
    cells = np.floor((points.xyz + 0.5 / 1024) / 0.5).astype(np.int64)
    right, first, of, count = np.unique(
        cells, axis=0, return_index=True, return_inverse=True, return_counts=True
    )
    assert (np.floor((thin.xyz + 0.5 / 1024) / 0.5).astype(np.int64) == right).all()
    assert thin.columns["row"].tolist() == first.tolist()
    sums = np.zeros((len(right), 3))
    np.add.at(sums, of.ravel(), points.xyz - FAR)
    np.testing.assert_allclose(thin.xyz - FAR, sums / count[:, None], atol=1e-5)
    heights = np.bincount(of.ravel(), points.columns["height"]) / count
    np.testing.assert_allclose(thin.columns["height"], heights)
    label = points.columns["label"]
    for cell in range(0, len(right), 50):
        votes = label[of.ravel() == cell]
        known = votes[votes >= 0]
        assert thin.columns["label"][cell] == (np.bincount(known).argmax() if len(known) else -1)
    west, east = (points.xyz[:, 0] < FAR[0] + 10.25), (points.xyz[:, 0] >= FAR[0] + 10.25)
    halves = [
        after(
            Points(points.xyz[half], {k: v[half] for k, v in points.columns.items()}, 1, 2),
            {"kind": "voxel", "size": 0.5, "pick": "first"},
        )
        for half in (west, east)
    ]
    whole = after(points, {"kind": "voxel", "size": 0.5, "pick": "first"})
    rows = {*halves[0].columns["row"].tolist(), *halves[1].columns["row"].tolist()}
    assert {*whole.columns["row"].tolist()} <= rows


def test_farthest_points_are_those_of_the_sampler() -> None:
    from tamis import farthest

    points = scan(700)
    kept = same_rows(after(points, {"kind": "farthest", "points": 50}), points)
    assert kept.tolist() == sorted(farthest(points.xyz, 50).tolist())
    assert len(after(points, {"kind": "farthest", "points": 10_000}).xyz) == 700


def test_normals_of_a_slope_point_up() -> None:
    points = scan(2000)
    found = after(points, {"kind": "normals"})
    normal = found.columns["normal"]
    assert normal.dtype == np.float32
    np.testing.assert_allclose(np.linalg.norm(normal, axis=1), 1, atol=1e-5)
    slope = np.array([-0.1, 0, 1]) / np.hypot(0.1, 1)
    assert np.median(normal @ slope) > 0.999
    assert (normal[:, 2] > 0).all()
    with pytest.raises(DataError, match="has a field 'normal' already"):
        after(found, {"kind": "normals"})


def test_steps_follow_each_other_and_no_points_stay_none() -> None:
    points = scan(1000)
    steps: list[dict[str, Any]] = [
        {"kind": "deduplicate"},
        {"kind": "outliers"},
        {"kind": "voxel", "size": 1.0},
        {"kind": "farthest", "points": 100},
        {"kind": "axes", "order": "zxy"},
        {"kind": "normals"},
    ]
    found = after(points, *steps)
    assert len(found.xyz) == 100
    turned = after(after(points, *steps[:4]), steps[4])
    np.testing.assert_array_equal(found.xyz, turned.xyz)
    gone = {"kind": "crop", "low": [0, 0, 0], "high": [1, 1, 1]}
    assert len(after(points, gone, *steps[:5]).xyz) == 0
