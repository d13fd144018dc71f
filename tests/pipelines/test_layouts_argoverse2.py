"""Argoverse 2, on a tiny tree of the same structure, with numbers worked out by hand."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import trimesh
from pyarrow import feather

from tamis.errors import DataError
from tamis.pipelines.build import build
from tamis.pipelines.layouts import LAYOUTS
from tamis.pipelines.layouts.layout import Layout
from tamis.pipelines.layouts.poses import instance_number
from tamis.pipelines.settings import DataSettings

LAYOUT = LAYOUTS["argoverse2"]
T0, T1, T2 = 315_966_265_659_927_216, 315_966_265_759_927_216, 315_966_265_860_000_000
LOG = "val/02678d04-cc9f-3148-9f95-1ba66347dff9"
H = math.sqrt(0.5)


def name(time_ns: int, log: str = LOG) -> str:
    return f"{log}/sensors/lidar/{time_ns}.feather"


def write(path: Path, columns: dict[str, Any]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    feather.write_feather(pa.table(columns), str(path), compression="lz4")


def points(path: Path, *rows: tuple[float, float, float]) -> None:
    xyz = np.array(rows, np.float16).reshape(-1, 3)
    count = np.arange(len(xyz))
    columns = {axis: xyz[:, i] for i, axis in enumerate("xyz")}
    columns |= {"intensity": count.astype(np.uint8), "laser_number": count.astype(np.uint8)}
    write(path, columns | {"offset_ns": count.astype(np.int32)})


def placed(*rows: tuple[list[float], list[float]]) -> dict[str, Any]:
    found = np.array([[*shift, *quaternion] for shift, quaternion in rows]).reshape(-1, 7)
    return {n: found[:, i] for i, n in enumerate(["tx_m", "ty_m", "tz_m", "qw", "qx", "qy", "qz"])}


def annotated(**changes: Any) -> dict[str, Any]:
    return {
        "timestamp_ns": [T1, T0, T1],
        "track_uuid": ["van", "van", "cone"],
        "category": ["BOX_TRUCK", "BOX_TRUCK", "CONSTRUCTION_CONE"],
        "length_m": [6.0, 6.0, 0.5],
        "width_m": [2.0, 2.0, 0.25],
        "height_m": [3.0, 3.0, 1.0],
        "num_interior_pts": [10, 0, 3],
        **placed(([10, 5, 1], [H, 0, 0, H]), ([12, 5, 1], [1, 0, 0, 0]), ([1, -2, 0], [0, 0, 0, 1])),
        **changes,
    }


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A car that drives 5 m to the east, and then, 2 m on, looks north."""
    poses = {"timestamp_ns": [T2, T0, T0 + 7, T1]}
    poses |= placed(
        ([107, 50, 1], [H, 0, 0, H]),
        ([100, 50, 1], [1, 0, 0, 0]),
        ([100, 50, 1], [1, 0, 0, 0]),
        ([105, 50, 1], [1, 0, 0, 0]),
    )
    for log in (LOG, LOG.replace("val", "train"), "test/0f0cdd79"):
        write(tmp_path / log / "city_SE3_egovehicle.feather", poses)
        if not log.startswith("test"):
            write(tmp_path / log / "annotations.feather", annotated())
        points(tmp_path / name(T1, log), (1, 2, 0.5), (-3, 0, 0))
    points(tmp_path / name(T0), (10, 0, 0))
    points(tmp_path / name(T2), (0.25, 0, 0))
    return tmp_path


def test_the_folders_are_the_splits(root: Path) -> None:
    assert LAYOUT.find(root) == {
        name(T0): "val",
        name(T1): "val",
        name(T2): "val",
        name(T1, LOG.replace("val", "train")): "train",
        name(T1, "test/0f0cdd79"): "test",
    }


def test_scans_boxes_and_pose(root: Path) -> None:
    scan = LAYOUT.read(root, name(T1))
    assert scan.xyz.tolist() == [[1, 2, 0.5], [-3, 0, 0]]
    assert {field: values.dtype.name for field, values in scan.fields.items()} == {
        "intensity": "uint8",
        "laser_number": "uint8",
        "offset_ns": "int32",
        "classification": "uint8",
    }
    order = np.argsort(scan.annotations["box_class"])
    boxes = scan.annotations["boxes"][order]
    assert boxes[0] == pytest.approx([10, 5, 1, 6, 2, 3, math.pi / 2])
    assert boxes[1, :6].tolist() == [1, -2, 0, 0.5, 0.25, 1]
    assert abs(boxes[1, 6]) == pytest.approx(math.pi)
    classes = LAYOUT.classes(root)
    assert len(classes) == 30
    named = [
        next(k for k, v in classes.items() if code in v) for code in scan.annotations["box_class"][order]
    ]
    assert named == ["BOX_TRUCK", "CONSTRUCTION_CONE"]
    assert 0 not in {code for of in classes.values() for code in of}
    assert scan.annotations["box_instance"][order].tolist() == [
        instance_number("van"),
        instance_number("cone"),
    ]
    assert scan.annotations["pose"].tolist() == [[1, 0, 0, 105, 0, 1, 0, 50, 0, 0, 1, 1, 0, 0, 0, 1]]
    hidden = LAYOUT.read(root, name(T1, "test/0f0cdd79")).annotations
    assert {n: a.shape for n, a in hidden.items()} == {
        "boxes": (0, 7),
        "box_class": (0,),
        "box_instance": (0,),
        "pose": (1, 16),
    }
    assert LAYOUT.read(root, name(T2)).annotations["boxes"].shape == (0, 7)


def test_earlier_scans_come_to_the_last(root: Path) -> None:
    scan = LAYOUT.read(root, name(T2), sweeps=3)
    # In the city the points of T1 are (106, 52, 1.5) and (102, 50, 1), that of T0 (110, 50, 1); the car is at
    # (107, 50, 1) and its x points north.
    expected = [[0.25, 0, 0], [2, 1, 0.5], [0, 5, 0], [0, -3, 0]]
    assert scan.xyz == pytest.approx(np.array(expected), abs=1e-12)
    lags = scan.fields["time_lag"]
    assert lags == pytest.approx([0, 0.100072784, 0.100072784, 0.200072784])
    assert lags.dtype == np.float32
    assert scan.fields["laser_number"].tolist() == [0, 0, 1, 0]
    assert len(LAYOUT.read(root, name(T2), sweeps=2).xyz) == 3
    assert len(LAYOUT.read(root, name(T0), sweeps=5).xyz) == 1


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_motions_are_those_of_another_library(root: Path, seed: int) -> None:
    rng = np.random.default_rng(seed)
    quaternions = rng.normal(size=(3, 4))
    quaternions /= np.linalg.norm(quaternions, axis=1)[:, None]
    shifts = rng.normal(scale=1000, size=(3, 3))
    matrices = [trimesh.transformations.quaternion_matrix(one) for one in quaternions]
    for matrix, shift in zip(matrices, shifts, strict=True):
        matrix[:3, 3] = shift
    poses = {"timestamp_ns": [T0, T1, T2], **placed(*zip(shifts.tolist(), quaternions.tolist(), strict=True))}
    write(root / LOG / "city_SE3_egovehicle.feather", poses)
    write(
        root / LOG / "annotations.feather",
        annotated(timestamp_ns=[T2] * 3, **placed(*(([0.0, 0, 0], one.tolist()) for one in quaternions))),
    )
    scan = LAYOUT.read(root, name(T2), sweeps=3)
    for row, point, matrix in ((2, (-3, 0, 0), matrices[1]), (3, (10, 0, 0), matrices[0])):
        expected = np.linalg.inv(matrices[2]) @ matrix @ [*point, 1]
        assert scan.xyz[row] == pytest.approx(expected[:3], abs=1e-9)
    yaws = sorted(math.atan2(matrix[1, 0], matrix[0, 0]) for matrix in matrices)
    assert sorted(scan.annotations["boxes"][:, 6]) == pytest.approx(yaws)


def test_a_source_is_its_files_and_its_rows(root: Path) -> None:
    files = LAYOUT.files(root, name(T2), sweeps=2)
    assert files[:2] == (root / name(T2), root / name(T1))
    write(root / LOG / "annotations.feather", annotated(length_m=[7.0, 7.0, 7.0]))
    assert LAYOUT.files(root, name(T2), sweeps=2) == files  # they are of other scans
    write(root / LOG / "annotations.feather", annotated(timestamp_ns=[T2, T0, T1]))
    assert LAYOUT.files(root, name(T2), sweeps=2) != files


@pytest.mark.parametrize(
    ("table", "columns", "message"),
    [
        ("annotations", annotated(category=["A", "BUS", "BUS"]), r"row 0: 'A' is no category of Argoverse 2"),
        ("annotations", annotated(category=[1, 2, 3]), r"column 'category' holds int64, no texts"),
        ("annotations", annotated(track_uuid=["a", None, "b"]), r"column 'track_uuid' has no value in row 1"),
        ("annotations", annotated(tx_m=[1.0, 2.0, math.nan]), r"column 'tx_m' is nan in row 2"),
        ("annotations", annotated(qw=[1.0, 2.0, 1.0]), r"row 0: .* is no place and quaternion of length 1"),
        (
            "annotations",
            annotated(timestamp_ns=[1.5, 2.5, 3.5]),
            r"column 'timestamp_ns' holds double, no num",
        ),
        ("annotations", {"timestamp_ns": [T0]}, r"has no column 'track_uuid'"),
        ("city_SE3_egovehicle", {"timestamp_ns": [T0, T1, T2]}, r"has no column 'tx_m'"),
        (
            "city_SE3_egovehicle",
            {"timestamp_ns": [T0], **placed(([0, 0, 0], [1, 0, 0, 0]))},
            rf"has no pose at timestamp_ns {T1}",
        ),
    ],
)
def test_tables_that_do_not_fit(root: Path, table: str, columns: dict[str, Any], message: str) -> None:
    write(root / LOG / f"{table}.feather", columns)
    with pytest.raises(DataError, match=rf"{table}\.feather: {message}"):
        LAYOUT.read(root, name(T1))


@pytest.mark.parametrize("table", ["annotations", "city_SE3_egovehicle"])
def test_cut_tables(root: Path, table: str) -> None:
    path = root / LOG / f"{table}.feather"
    whole = path.read_bytes()
    for size in range(0, len(whole), 7):
        path.write_bytes(whole[:size])
        with pytest.raises(DataError, match=rf"{table}\.feather: is a damaged or cut table"):
            LAYOUT.files(root, name(T1))
    path.unlink()
    with pytest.raises(DataError, match=rf"{table}\.feather: is missing"):
        LAYOUT.files(root, name(T1))


def test_scans_that_do_not_fit(root: Path) -> None:
    path = root / name(T1)
    path.rename(path.with_name("first.feather"))
    with pytest.raises(DataError, match=r"first\.feather: is not named after its time"):
        LAYOUT.read(root, name(T2), sweeps=2)
    path.with_name("first.feather").unlink()
    write(path, {axis: np.zeros(2) for axis in "xyz"})
    with pytest.raises(DataError, match=r"has the fields classification, .* others"):
        LAYOUT.read(root, name(T2), sweeps=2)


def test_a_build_has_it_all(root: Path, tmp_path: Path) -> None:
    data = {"root": root, "layout": "argoverse2", "sweeps": 2, "row_order": "source", "workers": 1}
    dataset = build(DataSettings.model_validate(data), tmp_path / "run")
    assert {name: count.samples for name, count in dataset.manifest.counts.splits.items()} == {
        "train": 1,
        "val": 3,
        "test": 1,
    }
    samples = {(s := dataset.sample(row)).source: s for row in range(5)}
    sample = samples[name(T1)]
    assert sample.positions() == pytest.approx(np.array([[1, 2, 0.5], [-3, 0, 0], [5, 0, 0]]), abs=1e-4)
    assert sample.columns["time_lag"] == pytest.approx([0, 0, 0.1])
    kinds = [*dataset.manifest.classes]
    found = {kinds[number] for number in sample.annotations["box_class"]}
    assert found == {"BOX_TRUCK", "CONSTRUCTION_CONE"}
    assert samples[name(T2)].annotations["boxes"].shape == (0, 7)


@pytest.mark.parametrize("seed", [1, 2])
def test_any_damage_is_told_or_does_no_harm(
    root: Path, seed: int, told_of_damage: Callable[[Path, Layout, str, int], int]
) -> None:
    assert told_of_damage(root, LAYOUT, name(T2), seed)
    LAYOUT.read(root, name(T2), sweeps=3)
