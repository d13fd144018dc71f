"""Poses of SemanticKITTI and its scans merged, with numbers found by hand; what a layout is asked for."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import trimesh

from tamis.errors import DataError, UsageError
from tamis.pipelines import sources
from tamis.pipelines.layouts import LAYOUTS
from tamis.pipelines.layouts.layout import Layout
from tamis.pipelines.raw import Raw, completed
from tamis.pipelines.settings import DataSettings

LAYOUT = LAYOUTS["semantickitti"]
# The camera looks ahead (its z), its x points right: the scanner's x ahead, y left and z up become z, -x, -y.
TR = "Tr: 0 -1 0 0  0 0 -1 -0.5  1 0 0 -0.25\n"
CALIB = "P0: 1 0 0 0 0 1 0 0 0 0 1 0\n" + TR
# Ahead by 2 m, then by 3 m more and turned left by 90 degrees (about the camera's -y).
POSES = "1 0 0 0 0 1 0 0 0 0 1 0\n1 0 0 0 0 1 0 0 0 0 1 2\n0 0 -1 0 0 1 0 0 1 0 0 5\n"
TIMES = "0.000000e+00\n1.036e-01\n2.5e-01\n"


def name(number: int, sequence: str = "00") -> str:
    return f"sequences/{sequence}/velodyne/{number:06}.bin"


@pytest.fixture
def root(tmp_path: Path) -> Path:
    folder = tmp_path / "sequences/00"
    (folder / "velodyne").mkdir(parents=True)
    (folder / "labels").mkdir()
    for number, point in enumerate([(10, 1, 0.5), (4, 2, 0), (1, 1, 1)]):
        (folder / f"velodyne/{number:06}.bin").write_bytes(np.array([*point, 0.5], "<f4").tobytes())
        (folder / f"labels/{number:06}.label").write_bytes(np.uint32(40 + number).tobytes())
    (folder / "calib.txt").write_text(CALIB)
    (folder / "poses.txt").write_text(POSES)
    (folder / "times.txt").write_text(TIMES)
    return tmp_path


def test_poses_are_those_of_the_scanner(root: Path) -> None:
    poses = [LAYOUT.read(root, name(number)).annotations["pose"].reshape(4, 4) for number in range(3)]
    assert poses[0] == pytest.approx(np.eye(4), abs=1e-12)
    # The camera sits 0.25 m ahead of the scanner and 0.5 m below it, in the world of the first scan.
    assert poses[1][:3, 3] == pytest.approx([2, 0, 0], abs=1e-12)
    # Camera at (5.25, 0, -0.5), looking left: the scanner lies 0.25 m behind it, to the right.
    assert poses[2][:3, 3] == pytest.approx([5.25, -0.25, 0], abs=1e-12)
    assert poses[2][:3, :3] == pytest.approx(np.array([[0, -1, 0], [1, 0, 0], [0, 0, 1]]), abs=1e-12)


def test_earlier_scans_come_to_the_last(root: Path) -> None:
    scan = LAYOUT.read(root, name(2), sweeps=3)
    # In the world (4, 2, 0) of the second scan is (6, 2, 0), (10, 1, 0.5) of the first itself.
    expected = [[1, 1, 1], [2.25, -0.75, 0], [1.25, -4.75, 0.5]]
    assert scan.xyz == pytest.approx(np.array(expected), abs=1e-12)
    assert scan.fields["time_lag"] == pytest.approx([0, 0.1464, 0.25])
    assert scan.fields["time_lag"].dtype == np.float32
    assert scan.fields["classification"].tolist() == [42, 41, 40]
    assert len(LAYOUT.read(root, name(1), sweeps=3).xyz) == 2
    files = LAYOUT.files(root, name(2), sweeps=2)
    assert [Path(str(file)).name for file in files[:4]] == [
        "000002.bin",
        "000002.label",
        "000001.bin",
        "000001.label",
    ]
    (root / name(1)).unlink()  # what is before a gap is not taken for the scan before
    assert len(LAYOUT.read(root, name(2), sweeps=3).xyz) == 1


@pytest.mark.parametrize("seed", [1, 2])
def test_motions_are_those_of_another_library(root: Path, seed: int) -> None:
    rng = np.random.default_rng(seed)
    motions = [trimesh.transformations.quaternion_matrix(rng.normal(size=4)) for _ in range(4)]
    for motion in motions:
        motion[:3, 3] = rng.normal(scale=100, size=3)
    told = [" ".join(map(repr, motion[:3].ravel().tolist())) for motion in motions]
    (root / "sequences/00/poses.txt").write_text("\n".join(told[:3]))
    (root / "sequences/00/calib.txt").write_text(f"Tr: {told[3]}")
    scan = LAYOUT.read(root, name(2), sweeps=3)
    lidar = [np.linalg.inv(motions[3]) @ motion @ motions[3] for motion in motions[:3]]
    for row, point, pose in ((1, (4, 2, 0), lidar[1]), (2, (10, 1, 0.5), lidar[0])):
        assert scan.xyz[row] == pytest.approx((np.linalg.inv(lidar[2]) @ pose @ [*point, 1])[:3], abs=1e-9)
    assert scan.annotations["pose"].reshape(4, 4) == pytest.approx(lidar[2], abs=1e-9)


def test_poses_are_told_where_all_sequences_have_them(root: Path) -> None:
    other = root / "sequences/01"
    (other / "velodyne").mkdir(parents=True)
    assert "pose" not in LAYOUT.read(root, name(1)).annotations
    assert LAYOUT.files(root, name(1)) == (root / name(1), root / "sequences/00/labels/000001.label")
    (other / "poses.txt").write_text(POSES)
    (other / "calib.txt").write_text(CALIB)
    assert "pose" in LAYOUT.read(root, name(1)).annotations


@pytest.mark.parametrize(
    ("file", "text", "message"),
    [
        ("poses.txt", POSES[: POSES.index("0 0 -1")], r"has 2 lines, none for scan 2"),
        ("poses.txt", POSES[:-4], r"line 3 has not 12 numbers: '0 0 -1"),
        ("poses.txt", POSES.replace("0 0 5", "0 0 nan"), r"line 3 has not 12 numbers"),
        ("poses.txt", POSES.replace("1 0 0 5", "1 0 1 5"), r"line 3 is no rigid motion"),
        ("poses.txt", "", r"has 0 lines, none for scan 2"),
        ("calib.txt", CALIB[: CALIB.index("Tr")], r"has no line 'Tr:'"),
        ("calib.txt", CALIB[:-8], r"line 2 has not 12 numbers"),
        ("times.txt", "0\n0.1\n", r"has 2 lines, none for scan 2"),
        ("times.txt", "0\nnoon\n1\n", r"line 2 has not 1 numbers: 'noon'"),
        ("times.txt", None, r"is missing: when each scan was taken"),
        ("poses.txt", None, r"is missing: where each scan was taken"),
        ("calib.txt", None, r"is missing: where the scanner is mounted"),
    ],
)
def test_tables_that_do_not_fit(root: Path, file: str, text: str | None, message: str) -> None:
    path = root / "sequences/00" / file
    path.unlink() if text is None else path.write_text(text)
    for call in (LAYOUT.read, LAYOUT.files):
        with pytest.raises(DataError, match=rf"{re.escape(file)}: {message}"):
            call(root, name(2), sweeps=3)


def raw(root: Path, **data: object) -> Raw:
    return Raw(root, completed(DataSettings.model_validate({"layout": "semantickitti", **data}), root))


def test_sweeps_are_asked_for_in_the_settings(root: Path) -> None:
    one, two = raw(root), raw(root, sweeps=2)
    assert len(one.opened(name(2)).scans[0].xyz) == 1
    source = two.opened(name(2))
    assert len(source.scans[0].xyz) == 2
    # What the build records of a source is what it later compares it with.
    assert sources.digest(*source.files) == two.digest(name(2)) != one.digest(name(2))
    assert two.digest(name(2)).bytes == 2 * (16 + 4)


def test_a_digest_tells_of_the_poses_that_a_source_uses(root: Path) -> None:
    two = raw(root, sweeps=2)
    before = two.digest(name(2)), two.digest(name(1))
    changed = POSES.replace("1 0 0 5", "1 0 0 6")  # of the last scan
    (root / "sequences/00/poses.txt").write_text(changed)
    assert two.digest(name(2)) != before[0]
    assert two.digest(name(1)) == before[1]


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ({"layout": "s3dis", "sweeps": 2}, r"data\.sweeps: the scans of 's3dis' do not say where"),
        (
            {"sweeps": 2},
            r"data\.sweeps: files without a layout do not say where each was taken; .*'nuscenes'",
        ),
        ({"layout": "semantickitti", "images": True}, r"data\.images: .*'semantickitti' do not have images"),
        ({"images": True}, r"data\.images: files without a layout .*set data\.layout to one of 'nuscenes'"),
    ],
)
def test_what_a_layout_does_not_know_is_refused(
    tmp_path: Path, data: dict[str, object], message: str
) -> None:
    with pytest.raises(UsageError, match=message):
        completed(DataSettings.model_validate(data), tmp_path)


@pytest.mark.parametrize("seed", [1, 2])
def test_any_damage_is_told_or_does_no_harm(
    root: Path, seed: int, told_of_damage: Callable[[Path, Layout, str, int], int]
) -> None:
    assert told_of_damage(root, LAYOUT, name(2), seed)
    LAYOUT.read(root, name(2), sweeps=3)
