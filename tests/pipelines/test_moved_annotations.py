"""Annotations of scans: checked, cut to samples, and moved as their points are."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from tamis.errors import DataError, UsageError
from tamis.pipelines.annotations import centres, columns, kept, moved, of_sample, stored
from tamis.pipelines.settings import DataSettings
from tamis.pipelines.tiles import TileSettings, grid

PLAIN = DataSettings()
CLASSED = DataSettings(classes={"car": [3, 4], "tree": [9]})
SCAN = Path("scan.bin")
Arrays = dict[str, NDArray[Any]]


def annotated(rng: np.random.Generator, boxes: int, *, velocity: int = 3, far: float = 100.0) -> Arrays:
    """Boxes, what has a row a box, a pose that turns and shears, and bytes, in no order."""
    pose = np.eye(4)
    pose[:3] += rng.normal(0, 0.4, (3, 4)) * [1, 1, 1, far]
    return {
        "image_left": rng.integers(0, 256, 50, np.uint8),
        "box_velocity": rng.normal(0, 5, (boxes, velocity)),
        "pose": pose.reshape(1, 16),
        "box_instance": rng.permutation(boxes).astype(np.uint32),
        "boxes": np.concatenate(
            [
                rng.uniform(-far, far, (boxes, 3)),
                rng.uniform(0, 9, (boxes, 3)),
                rng.uniform(-4, 4, (boxes, 1)),
            ],
            axis=1,
        ),
        "box_class": rng.integers(2, 11, boxes),
    }


def corners(boxes: NDArray[Any]) -> NDArray[np.float64]:
    """The eight corners of each box, (m, 8, 3), from what yaw, length, width and height mean."""
    signs = np.array([[i, j, k] for i in (-0.5, 0.5) for j in (-0.5, 0.5) for k in (-0.5, 0.5)])
    found = np.empty((len(boxes), 8, 3))
    for box, out in zip(boxes.astype(np.float64), found, strict=True):
        x, y, z, length, width, height, yaw = box
        ahead, left = np.array([np.cos(yaw), np.sin(yaw)]), np.array([-np.sin(yaw), np.cos(yaw)])
        out[:, :2] = [x, y] + signs[:, :1] * length * ahead + signs[:, 1:2] * width * left
        out[:, 2] = z + signs[:, 2] * height
    return found


def alike(a: NDArray[Any], b: NDArray[Any], atol: float) -> None:
    """Two sets of corners (m, 8, 3) are equal, whichever corner comes first."""
    for ours, theirs in zip(a, b, strict=True):
        apart = np.linalg.norm(ours[:, None] - theirs[None], axis=2)
        assert apart.min(axis=0).max(initial=0) <= atol
        assert apart.min(axis=1).max(initial=0) <= atol


def world(pose: NDArray[Any], xyz: NDArray[Any]) -> NDArray[np.float64]:
    """Where a pose (1, 16) takes points (n, 3)."""
    found: NDArray[np.float64] = (np.c_[xyz, np.ones(len(xyz))] @ pose.reshape(4, 4).T)[:, :3]
    return found


@st.composite
def upright(draw: st.DrawFn) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """A matrix that keeps boxes upright, and a shift."""
    angle = draw(st.floats(-7, 7))
    across, up = draw(st.floats(0.01, 50)), draw(st.floats(0.01, 50))
    signs = [draw(st.sampled_from([-1.0, 1.0])) for _ in range(3)]
    turn = np.array([[np.cos(angle), -np.sin(angle), 0], [np.sin(angle), np.cos(angle), 0], [0, 0, 1]])
    shift = np.array([draw(st.floats(-1e6, 1e6)) for _ in range(3)])
    return turn @ np.diag([across * signs[0], across * signs[1], up * signs[2]]), shift


@given(move=upright(), boxes=st.integers(0, 5), seed=st.integers(0, 2**32 - 1))
def test_corners_and_the_world_move_with_the_points(
    move: tuple[NDArray[np.float64], NDArray[np.float64]], boxes: int, seed: int
) -> None:
    rng = np.random.default_rng(seed)
    before = annotated(rng, boxes)
    matrix, shift = move
    after = moved(before, matrix, shift)
    reach = 1e-12 * (np.abs(shift).max() + np.abs(matrix).max() * 300 + 1)
    alike(corners(after["boxes"]), corners(before["boxes"]) @ matrix.T + shift, 10 * reach)
    # where the front looks to is a matter of the heading, which no set of corners tells
    yaw, turned = before["boxes"][:, 6], after["boxes"][:, 6]
    ahead = np.stack([np.cos(yaw), np.sin(yaw)], axis=1) @ matrix[:2, :2].T / np.hypot(*matrix[:2, 0])
    np.testing.assert_allclose(np.stack([np.cos(turned), np.sin(turned)], axis=1), ahead, atol=1e-9)
    later = before["boxes"].copy()
    later[:, :3] += before["box_velocity"]
    came = moved({"boxes": later}, matrix, shift)["boxes"][:, :3] - after["boxes"][:, :3]
    np.testing.assert_allclose(after["box_velocity"], came, atol=20 * reach)
    points = rng.uniform(-100, 100, (20, 3))
    scale = np.abs(before["pose"]).max() * 300 + np.abs(shift).max() / np.abs(np.diag(matrix[2:, 2:])).min()
    grown = np.linalg.cond(matrix) * (1 + scale)
    np.testing.assert_allclose(
        world(after["pose"], points @ matrix.T + shift), world(before["pose"], points), atol=1e-11 * grown
    )
    for name in ("image_left", "box_class", "box_instance"):
        assert after[name] is before[name]
    assert all(after[name].dtype == values.dtype for name, values in before.items())


@pytest.mark.parametrize(
    "matrix",
    [
        [[1, 0, 0], [0, 0, -1], [0, 1, 0]],  # a quarter about x
        [[1, 0.01, 0], [0, 1, 0], [0, 0, 1]],
        [[1, 0, 0], [0, 1.01, 0], [0, 0, 1]],
        [[1, 0, 0], [0, 1, 0], [0, 0.01, 1]],
        [[0, 0, 0], [0, 0, 0], [0, 0, 0]],
    ],
)
def test_boxes_stay_upright_boxes(matrix: list[list[float]]) -> None:
    held = annotated(np.random.default_rng(0), 2)
    with pytest.raises(UsageError, match=r"boxes: would be tilted or skewed"):
        moved({"boxes": held["boxes"]}, np.array(matrix), np.zeros(3))
    if np.any(matrix):
        moved({"pose": held["pose"], "image": held["image_left"]}, np.array(matrix), np.zeros(3))


def test_a_velocity_across_has_two_numbers() -> None:
    held = {"boxes": np.zeros((1, 7), np.float32), "box_velocity": np.array([[1, 2]], np.float32)}
    turned = moved(held, np.array([[0, -2, 0], [2, 0, 0], [0, 0, 2.0]]))
    assert turned["box_velocity"].tolist() == [[-4, 2]]
    assert turned["box_velocity"].dtype == turned["boxes"].dtype == np.float32
    with pytest.raises(UsageError, match=r"boxes: have the shape \(1, 4\)"):
        moved({"boxes": np.zeros((1, 4))}, np.eye(3))


@pytest.mark.parametrize("seed", range(3))
def test_what_is_stored(seed: int) -> None:
    rng = np.random.default_rng(seed)
    raw = annotated(rng, 6, far=7e6)
    found = stored(SCAN, raw, CLASSED)
    number = {3: 0, 4: 0, 9: 1}
    assert found["box_class"].tolist() == [number.get(code, -1) for code in raw["box_class"].tolist()]
    assert stored(SCAN, raw, PLAIN)["box_class"].tolist() == raw["box_class"].tolist()
    origin, inside = np.array([6e6, -5e6, 40.0]), rng.random(6) < 0.5
    own = of_sample(found, origin, inside)
    assert {column.name: (column.dtype, column.width, column.kind) for column in columns(own)} == {
        "boxes": ("float32", 7, "box"),
        "box_class": ("int32", 1, "class"),
        "box_instance": ("int64", 1, "class"),
        "box_velocity": ("float32", 3, "vector"),
        "pose": ("float64", 16, "pose"),
        "image_left": ("uint8", 1, "none"),
    }
    assert [column.name for column in columns(raw)] == [column.name for column in columns(own)] == list(own)
    assert columns(raw) == columns(own)
    for column in columns(own):
        assert own[column.name].dtype == column.dtype
        assert own[column.name].shape[1:] == ((column.width,) if column.width > 1 else ())
    assert own["boxes"].tolist() == (raw["boxes"] - [*origin, 0, 0, 0, 0])[inside].astype(np.float32).tolist()
    assert own["box_instance"].tolist() == raw["box_instance"][inside].tolist()
    assert own["image_left"].tobytes() == raw["image_left"].tobytes()
    points = origin + rng.uniform(-50, 50, (9, 3))
    np.testing.assert_allclose(world(own["pose"], points - origin), world(raw["pose"], points), rtol=1e-12)
    assert len(of_sample(found, origin)["boxes"]) == 6
    assert kept(found, np.array([4, 1]))["boxes"].tolist() == raw["boxes"][[4, 1]].tolist()


def test_boxes_outside_the_bounds_are_left_out() -> None:
    held = annotated(np.random.default_rng(0), 4)
    held["boxes"][:, :2] = [[0, 0], [10, 0], [9, 19], [5, -1]]
    found = stored(SCAN, held, DataSettings(bounds=[0, 0, 10, 20]))
    assert found["box_instance"].tolist() == held["box_instance"][[0, 2]].tolist()
    assert len(found["boxes"]) == len(found["box_class"]) == len(found["box_velocity"]) == 2
    assert found["pose"].tolist() == held["pose"].tolist()


def test_nothing_is_no_annotation() -> None:
    assert stored(SCAN, {}, CLASSED) == of_sample({}, np.zeros(3)) == moved({}, np.eye(3)) == {}
    assert columns({}) == []
    assert centres({}).shape == (0, 3)


@pytest.mark.parametrize("seed", range(3))
def test_tiles_edge_to_edge_share_no_box(seed: int) -> None:
    rng = np.random.default_rng(seed)
    xyz = rng.uniform(-40, 60, (500, 3))
    held = annotated(rng, 40, far=45.0)
    held["boxes"][:9, :2] = np.stack(np.meshgrid([-20, 0, 20], [0, 20, 40]), axis=-1).reshape(9, 2)
    tile, rows, starts = grid(SCAN, xyz, TileSettings(size=20), train=True).grouped(centres(held))
    tiles = {number: rows[starts[i] : starts[i + 1]] for i, number in enumerate(tile.tolist())}
    found = [of_sample(held, np.zeros(3), inside)["box_instance"].tolist() for inside in tiles.values()]
    assert sorted(itertools.chain(*found)) == list(range(40))
    corner = held["box_instance"][0]
    (home,) = [tile for tile, inside in tiles.items() if corner in held["box_instance"][inside]]
    assert grid(SCAN, xyz, TileSettings(size=20), train=True).centre(home) == (-10, 10), "closed below"


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"box": np.zeros((1, 7))}, r"'box' is not known; name it as one of boxes, .*image_NAME"),
        ({"image_": np.zeros(1, np.uint8)}, "'image_' is not known"),
        ({"image_a/b": np.zeros(1, np.uint8)}, "'image_a/b' is not known"),
        ({"boxes": np.zeros((2, 6))}, r"'boxes' is float64 \(2, 6\), not floats \(boxes, 7\)"),
        ({"boxes": np.zeros(7)}, r"'boxes' is float64 \(7,\), not"),
        ({"boxes": np.array([["a"] * 7])}, r"'boxes' is <U1 \(1, 7\), not"),
        ({"boxes": np.full((2, 7), np.nan)}, "'boxes' row 0 is not finite"),
        ({"boxes": np.array([[0.0] * 7, [0, 0, 0, 1, -2, 1, 0]])}, "'boxes' row 1 has a negative size"),
        ({"boxes": np.array([[0.0, 2.0**53, 0, 1, 1, 1, 0]] * 2)}, r"'boxes' row 0 reaches 2\^53"),
        ({"box_class": np.zeros(2)}, r"'box_class' is float64 \(2,\), not integers \(boxes,\)"),
        ({"box_class": np.array([1, 2**31])}, r"'box_class' row 1 is no int32 \(2.14748e\+09\)"),
        ({"box_class": np.zeros(3, np.int64)}, "'box_class' has 3 rows, 'boxes' 2"),
        ({"box_instance": np.array([2**63, 1], np.uint64)}, "'box_instance' row 0 is no int64"),
        ({"box_velocity": np.zeros((2, 4))}, r"'box_velocity' is float64 \(2, 4\), not"),
        ({"box_velocity": np.array([[0, np.nan], [np.inf, 0]])}, r"'box_velocity' row 1 is 2\^53 or faster"),
        ({"pose": np.zeros((4, 3))}, r"'pose' is float64 \(4, 3\), not floats \(1, 16\)"),
        ({"pose": np.zeros((2, 16))}, r"'pose' is float64 \(2, 16\), not"),
        ({"pose": np.ones((1, 16))}, "'pose' row 0 ends not in 0, 0, 0, 1"),
        ({"pose": np.full((1, 16), np.inf)}, "'pose' row 0 is not finite"),
        ({"label": np.zeros(2, np.int32)}, r"'label' is int32 \(2,\), not integers \(1,\)"),
        ({"image": np.zeros(2, np.int8)}, r"'image' is int8 \(2,\), not uint8 \(bytes,\)"),
        ({"image": np.zeros((2, 3), np.uint8)}, r"'image' is uint8 \(2, 3\), not uint8 \(bytes,\)"),
    ],
)
def test_what_cannot_be_is_refused(change: Arrays, said: str) -> None:
    good: Arrays = {"boxes": np.zeros((2, 7)), "box_class": np.zeros(2, np.int64)}
    with pytest.raises(DataError, match=rf"^scan\.bin: annotation {said}"):
        stored(SCAN, good | change, CLASSED)


def test_boxes_that_are_missing_have_no_classes() -> None:
    with pytest.raises(DataError, match="'box_class' has rows, but no 'boxes'"):
        stored(SCAN, {"box_class": np.zeros(2, np.int64)}, PLAIN)
    unknown = {"boxes": np.zeros((1, 7)), "box_velocity": np.full((1, 2), np.nan)}
    assert np.isnan(stored(SCAN, unknown, PLAIN)["box_velocity"]).all(), "nuScenes does not know every one"
