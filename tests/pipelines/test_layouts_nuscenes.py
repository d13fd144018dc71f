"""nuScenes, on a tiny tree of the same structure, with numbers worked out by hand."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import trimesh

from tamis.errors import DataError
from tamis.pipelines.build import build
from tamis.pipelines.layouts import LAYOUTS, nuscenes_tables
from tamis.pipelines.layouts.layout import Layout
from tamis.pipelines.layouts.nuscenes_splits import MINI_VAL, VAL
from tamis.pipelines.layouts.poses import instance_number
from tamis.pipelines.settings import DataSettings

LAYOUT = LAYOUTS["nuscenes"]
H = math.sqrt(0.5)
KEY1, BETWEEN, KEY2 = (
    "samples/LIDAR_TOP/a__LIDAR_TOP__1.pcd.bin",
    "sweeps/LIDAR_TOP/a__LIDAR_TOP__2.pcd.bin",
    "samples/LIDAR_TOP/a__LIDAR_TOP__3.pcd.bin",
)
SECOND = 1_000_000


def turn(degrees: float) -> list[float]:
    """A quaternion about +z."""
    half = math.radians(degrees) / 2
    return [math.cos(half), 0, 0, math.sin(half)]


def points(*rows: tuple[float, ...]) -> bytes:
    return np.array([[*row, 7, 3] for row in rows], "<f4").tobytes()


def tables() -> dict[str, list[dict[str, Any]]]:
    """A scene of two key frames half a second apart, a scan between them, and two objects.

    The car drives north from (100, 50): 5 m to the scan between, where it still looks north, then 5 m to the
    second key frame, where it looks west. The lidar sits 1 m ahead of its middle, 2 m up, turned right by 90
    degrees: it looks east (x right, y ahead) in the first two, and its x points north in the last.
    """
    data = []
    for number, (file, key) in enumerate([(KEY1, True), (BETWEEN, False), (KEY2, True)]):
        data.append(
            {
                "token": f"sd{number}",
                "sample_token": "s1" if number else "s0",
                "ego_pose_token": f"ego{number}",
                "calibrated_sensor_token": "cal-lidar",
                "timestamp": 5 * SECOND + number * SECOND // 4,
                "is_key_frame": key,
                "filename": file,
                "prev": f"sd{number - 1}" if number else "",
                "next": f"sd{number + 1}" if number < 2 else "",
            }
        )
    for number in (0, 2):
        image = f"samples/CAM_FRONT/{number}.jpg"
        data.append({**data[number], "token": f"cam{number}", "prev": "", "filename": image})
        data[-1] |= {"calibrated_sensor_token": "cal-camera"}
    objects = [("s0", "car", [110, 61, 3]), ("s1", "car", [110, 66, 3]), ("s1", "cone", [99, 62, 1])]
    return {
        "sensor": [
            {"token": "lidar", "channel": "LIDAR_TOP", "modality": "lidar"},
            {"token": "camera", "channel": "CAM_FRONT", "modality": "camera"},
            {"token": "camera2", "channel": "CAM_BACK", "modality": "camera"},
        ],
        "calibrated_sensor": [
            {
                "token": "cal-lidar",
                "sensor_token": "lidar",
                "translation": [1, 0, 2],
                "rotation": turn(-90),
            },
            {
                "token": "cal-camera",
                "sensor_token": "camera",
                "translation": [0, 0, 1],
                "rotation": [1, 0, 0, 0],
            },
        ],
        "scene": [{"token": "scene", "name": "scene-0061"}],
        "sample": [
            {"token": "s0", "timestamp": 5 * SECOND, "scene_token": "scene"},
            {"token": "s1", "timestamp": 5 * SECOND + SECOND // 2, "scene_token": "scene"},
        ],
        "sample_data": data,
        "ego_pose": [
            {"token": "ego0", "translation": [100, 50, 0], "rotation": turn(90)},
            {"token": "ego1", "translation": [100, 55, 0], "rotation": turn(90)},
            {"token": "ego2", "translation": [100, 60, 0], "rotation": turn(180)},
        ],
        "category": [
            {"token": "c-cone", "name": "movable_object.trafficcone"},
            {"token": "c-car", "name": "vehicle.car"},
        ],
        "instance": [
            {"token": "i-car", "category_token": "c-car"},
            {"token": "i-cone", "category_token": "c-cone"},
        ],
        "sample_annotation": [
            {
                "token": f"ann{number}",
                "sample_token": sample,
                "instance_token": f"i-{kind}",
                "translation": centre,
                "size": [2, 4, 1.5],
                "rotation": turn(90),
            }
            for number, (sample, kind, centre) in enumerate(objects)
        ],
        "lidarseg": [
            {"token": f"seg{n}", "sample_data_token": f"sd{n}", "filename": f"lidarseg/v1.0-mini/sd{n}.bin"}
            for n in (0, 2)
        ],
    }


def write_tables(root: Path, content: dict[str, list[dict[str, Any]]], version: str = "v1.0-mini") -> Path:
    folder = root / version
    folder.mkdir(parents=True, exist_ok=True)
    for name, rows in content.items():
        (folder / f"{name}.json").write_text(json.dumps(rows, indent=0))
    return folder


@pytest.fixture
def root(tmp_path: Path) -> Path:
    write_tables(tmp_path, tables())
    for name, content in {
        KEY1: points((1, 2, 3), (0, 0, 0)),
        BETWEEN: points((5, 4, 0)),
        KEY2: points((6, -11, 1)),
        "lidarseg/v1.0-mini/sd0.bin": bytes([17, 0]),
        "lidarseg/v1.0-mini/sd2.bin": bytes([24]),
        "samples/CAM_FRONT/0.jpg": b"\xff\xd8first",
        "samples/CAM_FRONT/2.jpg": b"\xff\xd8second",
    }.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes(content)
    return tmp_path


def test_splits_of_the_authors(root: Path) -> None:
    assert LAYOUT.find(root) == {KEY1: "train", KEY2: "train"}
    assert (len(VAL), len(MINI_VAL)) == (150, 2)
    assert {"scene-0003", "scene-0103", "scene-1073"} <= VAL
    assert not VAL & {"scene-0001", "scene-0061", "scene-1110", "scene-0077"}
    for version, scene, split in (
        ("v1.0-mini", "scene-0916", "val"),
        ("v1.0-mini", "scene-0553", "train"),
        ("v1.0-trainval", "scene-0553", "val"),
        ("v1.0-test", "scene-0077", "test"),
    ):
        content = tables()
        content["scene"][0]["name"] = scene
        write_tables(root / version / scene, content, version)
        assert {*LAYOUT.find(root / version / scene).values()} == {split}


def test_mini_is_part_of_trainval(root: Path) -> None:
    content = tables()
    content["sample_data"] = content["sample_data"][:1]
    write_tables(root, content, "v1.0-trainval")
    assert [*LAYOUT.find(root)] == [KEY1]


def test_boxes_come_to_the_lidar(root: Path) -> None:
    first, second = (LAYOUT.read(root, name).annotations for name in (KEY1, KEY2))
    # The lidar of the first key frame is at (100, 51, 2), its axes those of the world.
    assert first["pose"].reshape(4, 4) == pytest.approx(
        np.array([[1, 0, 0, 100], [0, 1, 0, 51], [0, 0, 1, 2], [0, 0, 0, 1]]), abs=1e-12
    )
    assert first["boxes"] == pytest.approx(np.array([[10, 10, 1, 4, 2, 1.5, math.pi / 2]]))
    assert first["box_velocity"] == pytest.approx(np.array([[0, 10, 0]]))
    # That of the second is at (99, 60, 2), its x to the north, its y to the west.
    order = np.argsort(second["box_class"])  # cone 12, car 17
    assert second["box_class"][order].tolist() == [12, 17]
    expected = [[2, 0, -1, 4, 2, 1.5, 0], [6, -11, 1, 4, 2, 1.5, 0]]
    assert second["boxes"][order] == pytest.approx(np.array(expected), abs=1e-12)
    assert second["box_velocity"][order[1]] == pytest.approx([10, 0, 0], abs=1e-12)
    assert np.isnan(second["box_velocity"][order[0]]).all()
    assert first["box_instance"][0] == second["box_instance"][order[1]] == instance_number("i-car")
    assert {second[name].dtype.name for name in ("boxes", "box_velocity", "pose")} == {"float64"}
    assert (second["box_class"].dtype, second["box_instance"].dtype) == (np.int32, np.int64)


def test_earlier_scans_come_to_the_key_frame(root: Path) -> None:
    key = LAYOUT.read(root, KEY2)
    assert key.xyz.tolist() == [[6, -11, 1]]
    assert [*key.fields] == ["intensity", "ring", "classification"]
    two, three = (LAYOUT.read(root, KEY2, sweeps=count) for count in (2, 3))
    # (5, 4, 0) of the scan between is (105, 60, 2) in the world, 6 m to the east of the last lidar.
    assert two.xyz == pytest.approx(np.array([[6, -11, 1], [0, -6, 0]]), abs=1e-12)
    # (1, 2, 3) and (0, 0, 0) of the first key frame are (101, 53, 5) and (100, 51, 2).
    assert three.xyz[2:] == pytest.approx(np.array([[-7, -2, 3], [-9, -1, 0]]), abs=1e-12)
    assert three.fields["time_lag"].tolist() == [0, 0.25, 0.5, 0.5]
    assert three.fields["time_lag"].dtype == np.float32
    assert three.fields["classification"].tolist() == [24, 0, 17, 0]  # the scan between has no labels
    assert three.fields["ring"].tolist() == [3, 3, 3, 3]
    assert three.annotations["boxes"].tolist() == key.annotations["boxes"].tolist()
    assert LAYOUT.read(root, KEY2, sweeps=9).xyz.tolist() == three.xyz.tolist()
    assert LAYOUT.read(root, KEY1, sweeps=2).fields["time_lag"].tolist() == [0, 0]


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_motions_are_those_of_another_library(root: Path, seed: int) -> None:
    rng = np.random.default_rng(seed)

    def place(scale: float) -> tuple[dict[str, list[float]], Any]:
        quaternion = rng.normal(size=4)
        quaternion /= np.linalg.norm(quaternion)
        shift = rng.normal(scale=scale, size=3)
        matrix = trimesh.transformations.quaternion_matrix(quaternion)
        matrix[:3, 3] = shift
        return {"translation": shift.tolist(), "rotation": quaternion.tolist()}, matrix

    content = tables()
    mounted, mount = place(2)
    content["calibrated_sensor"][0] |= mounted
    egos = []
    for record in content["ego_pose"]:
        told, matrix = place(500)
        record |= told
        egos.append(matrix @ mount)
    told, box = place(500)
    content["sample_annotation"][1] |= told
    write_tables(root, content)
    scan = LAYOUT.read(root, KEY2, sweeps=3)
    for row, point, ego in ((1, (5, 4, 0), egos[1]), (2, (1, 2, 3), egos[0])):
        assert scan.xyz[row] == pytest.approx((np.linalg.inv(egos[2]) @ ego @ [*point, 1])[:3], abs=1e-9)
    inside = np.linalg.inv(egos[2]) @ box
    row = scan.annotations["box_class"].tolist().index(17)
    assert scan.annotations["boxes"][row, :3] == pytest.approx(inside[:3, 3], abs=1e-9)
    assert scan.annotations["boxes"][row, 6] == pytest.approx(math.atan2(inside[1, 0], inside[0, 0]))
    assert scan.annotations["pose"].reshape(4, 4) == pytest.approx(egos[2], abs=1e-9)


def test_velocity_is_known_for_a_while(root: Path) -> None:
    """Between two samples up to 1.5 s apart, and over three up to 3 s, from the first to the last."""
    content = tables()
    content["sample"] += [
        {"token": f"t{n}", "timestamp": 8 * SECOND + n * SECOND, "scene_token": "scene"} for n in range(3)
    ]
    car = content["sample_annotation"][0]
    for number in range(3):
        where = {"sample_token": f"t{number}", "translation": [number**2, 0, 0]}
        content["sample_annotation"].append({**car, "token": f"more{number}", **where})
    boxes = nuscenes_tables.tables(write_tables(root, content)).boxes
    car_rows = np.flatnonzero(boxes.codes == 17)
    speeds = boxes.velocity[car_rows]
    assert speeds[0] == pytest.approx([0, 10, 0])  # 5 s, 5.5 s: half a second
    assert speeds[1] == pytest.approx(np.array([-110, -61, -3]) / 3)  # from 5 s to 8 s, over three samples
    assert np.isnan(speeds[2]).all()  # from 5.5 s to 9 s
    assert speeds[3] == pytest.approx([2, 0, 0])  # from 0 m to 4 m in 2 s
    assert speeds[4] == pytest.approx([3, 0, 0])  # from 1 m to 4 m in 1 s


def test_classes_of_the_challenge(root: Path) -> None:
    content = tables()
    content["category"] = [
        {"token": f"c{code}", "name": name, "index": code}
        for code, name in enumerate(nuscenes_tables.CATEGORIES)
    ]
    content["instance"] = [{"token": f"i-{kind}", "category_token": "c17"} for kind in ("car", "cone")]
    write_tables(root, content)
    classes = LAYOUT.classes(root)
    assert len(classes) == 16
    assert classes["pedestrian"] == [2, 3, 4, 6]
    assert (classes["bus"], classes["car"], classes["vegetation"]) == ([15, 16], [17], [30])
    ignored = {*range(32)} - {code for of in classes.values() for code in of}
    assert ignored == {0, 1, 5, 7, 8, 10, 11, 13, 19, 20, 29, 31}
    assert LAYOUT.read(root, KEY1).fields["classification"].tolist() == [17, 0]


def test_without_lidarseg_nothing_is_labelled(root: Path) -> None:
    (root / "v1.0-mini/lidarseg.json").unlink()
    assert LAYOUT.read(root, KEY1).fields["classification"].tolist() == [0, 0]
    assert LAYOUT.classes(root) == {"car": [17], "traffic_cone": [12]}


def test_images_are_kept_as_they_are(root: Path) -> None:
    plain, shown = LAYOUT.read(root, KEY2), LAYOUT.read(root, KEY2, images=True)
    assert {*shown.annotations} - {*plain.annotations} == {"image_CAM_FRONT", "image_CAM_BACK"}
    assert shown.annotations["image_CAM_FRONT"].tobytes() == b"\xff\xd8second"
    assert shown.annotations["image_CAM_BACK"].shape == (0,)
    assert root / "samples/CAM_FRONT/2.jpg" in LAYOUT.files(root, KEY2, images=True)


def test_a_source_is_its_files_and_its_part_of_the_tables(root: Path) -> None:
    files = LAYOUT.files(root, KEY2, sweeps=2)
    assert files[:3] == (root / KEY2, root / BETWEEN, root / "lidarseg/v1.0-mini/sd2.bin")
    content = tables()
    content["sample_annotation"][0]["size"] = [2, 5, 1.5]  # of the other key frame
    write_tables(root, content)
    assert LAYOUT.files(root, KEY2, sweeps=2) == files
    assert LAYOUT.read(root, KEY1).annotations["boxes"][0, 3] == 5  # tables that change are read again
    for table, row, change in (
        ("sample_annotation", 1, {"size": [2, 5, 1.5]}),
        ("ego_pose", 1, {"translation": [100, 55, 0.5]}),
        ("calibrated_sensor", 0, {"translation": [1, 0, 2.5]}),
    ):
        content = tables()
        content[table][row] |= change
        write_tables(root, content)
        assert LAYOUT.files(root, KEY2, sweeps=2) != files, table


Change = Callable[[dict[str, list[dict[str, Any]]]], object]

WRONG: dict[str, tuple[Change, str]] = {
    "pose": (
        lambda t: t["ego_pose"].pop(1),
        r"sample_data\.json: record 'sd1': its ego_pose_token 'ego1' is not in ego_pose",
    ),
    "sample": (
        lambda t: t["sample"].pop(1),
        r"sample_data\.json: record 'sd1': its sample_token 's1' is not in sample\.json",
    ),
    "scene": (
        lambda t: t["scene"].clear(),
        r"sample\.json: record 's0': its scene_token 'scene' is not in scene\.json",
    ),
    "prev": (
        lambda t: t["sample_data"][1].update(prev="gone"),
        r"sample_data\.json: record 'sd1': its prev 'gone' is no scan of LIDAR_TOP",
    ),
    "category": (
        lambda t: t["category"].pop(1),
        r"instance\.json: record 'i-car': its category_token 'c-car' is not in category\.json",
    ),
    "name": (
        lambda t: t["category"][0].update(name="boat"),
        r"category\.json: record 'c-cone': 'boat' is no",
    ),
    "index": (
        lambda t: t["category"][0].update(index=256),
        r"category\.json: record 'c-cone': its index is 256, lidarseg's labels end at 255",
    ),
    "size": (
        lambda t: t["sample_annotation"][0].update(size=[1, 2]),
        r"sample_annotation\.json: record 'ann0': 'size' is \[1, 2\], no 3 numbers",
    ),
    "nan": (
        lambda t: t["ego_pose"][0].update(translation=[1, 2, float("nan")]),
        r"ego_pose\.json: record 'ego0': 'translation' is .*no 3 numbers",
    ),
    "huge": (
        lambda t: t["ego_pose"][0].update(translation=[1, 2, 10**400]),
        r"ego_pose\.json: record 'ego0': 'translation' is .*no 3 numbers",
    ),
    "rotation": (
        lambda t: t["ego_pose"][0].update(rotation=[0, 0, 0, 0]),
        r"ego_pose\.json: record 'ego0': 'rotation' is .*no quaternion of length 1",
    ),
    "time": (
        lambda t: t["sample_data"][0].update(timestamp="noon"),
        r"sample_data\.json: record 'sd0': 'timestamp' is 'noon', no whole number",
    ),
    "outside": (
        lambda t: t["sample_data"][0].update(filename="../secret.bin"),
        r"sample_data\.json: record 'sd0': 'filename' is '\.\./secret\.bin', no file below",
    ),
    "labels": (
        lambda t: t["lidarseg"].pop(1),
        r"lidarseg\.json: has no labels of sample_data 'sd2'",
    ),
}


@pytest.mark.parametrize("wrong", WRONG)
def test_records_that_do_not_fit_are_named(root: Path, wrong: str) -> None:
    content = tables()
    change, message = WRONG[wrong]
    change(content)
    write_tables(root, content)
    with pytest.raises(DataError, match=message):
        LAYOUT.read(root, KEY2)


def test_files_that_are_missing_or_cut(root: Path) -> None:
    labels = root / "lidarseg/v1.0-mini/sd0.bin"
    labels.write_bytes(bytes(3))
    with pytest.raises(DataError, match=r"sd0\.bin: has 3 labels, .* 2 points"):
        LAYOUT.read(root, KEY1)
    labels.write_bytes(bytes([17, 32]))
    with pytest.raises(DataError, match=r"sd0\.bin: point 1 has the label 32, the last is 31"):
        LAYOUT.read(root, KEY1)
    (root / BETWEEN).write_bytes(points((5, 4, 0))[:-1])
    with pytest.raises(DataError, match=r"__2\.pcd\.bin: has 19 bytes, no multiple of 20"):
        LAYOUT.read(root, KEY2, sweeps=2)
    (root / BETWEEN).unlink()
    with pytest.raises(DataError, match=r"__2\.pcd\.bin: is missing: sample_data\.json lists it"):
        LAYOUT.files(root, KEY2, sweeps=2)
    with pytest.raises(DataError, match="is no key frame of LIDAR_TOP"):
        LAYOUT.read(root, BETWEEN)
    (root / "v1.0-mini/ego_pose.json").unlink()
    with pytest.raises(DataError, match=r"ego_pose\.json: is missing: a table"):
        LAYOUT.find(root)
    with pytest.raises(DataError, match="has no folder of tables"):
        LAYOUT.find(root / "samples")


def test_every_cut_of_a_table_is_told(root: Path) -> None:
    path = root / "v1.0-mini/scene.json"
    whole = path.read_bytes()
    for size in range(len(whole)):
        path.write_bytes(whole[:size])
        with pytest.raises(DataError, match=r"scene\.json: is cut or damaged at character"):
            LAYOUT.find(root)


def test_a_build_has_it_all(root: Path, tmp_path: Path) -> None:
    data = {
        "root": root,
        "layout": "nuscenes",
        "sweeps": 3,
        "images": True,
        "row_order": "source",
        "workers": 1,
    }
    settings = DataSettings.model_validate(data)
    dataset = build(settings, tmp_path / "run")
    first, second = (dataset.sample(row) for row in range(2))
    assert first.source == KEY1
    assert second.columns["label"].tolist() == [
        -1,
        -1,
        0,
        -1,
    ]  # 24 and 0 are no class without lidarseg's table
    assert second.columns["time_lag"].tolist() == [0, 0.25, 0.5, 0.5]
    assert second.kinds["time_lag"] == "time"
    kinds = [*dataset.manifest.classes]
    assert [kinds[number] for number in sorted(second.annotations["box_class"])] == ["car", "traffic_cone"]
    assert second.annotations["image_CAM_FRONT"].tobytes() == b"\xff\xd8second"
    # The pose takes a stored point to the world.
    at = second.columns["xyz"][0].astype(float)
    world = second.annotations["pose"].reshape(4, 4) @ [*at, 1]
    assert world[:3] == pytest.approx([110, 66, 3], abs=1e-4)
    car = second.annotations["box_class"].tolist().index(kinds.index("car"))
    assert second.annotations["boxes"][car, :3] == pytest.approx(at, abs=1e-4)
    # A table that changes for one key frame alone has that one built again.
    content = tables()
    content["sample_annotation"][0]["size"] = [2, 5, 1.5]
    write_tables(root, content)
    again = build(settings, tmp_path / "run", update=True)
    assert again.manifest.sources[KEY2] == dataset.manifest.sources[KEY2]
    assert again.manifest.sources[KEY1] != dataset.manifest.sources[KEY1]
    assert again.sample(0).annotations["boxes"][0, 3] == 5


@pytest.mark.parametrize("seed", [1, 2])
def test_any_damage_is_told_or_does_no_harm(
    root: Path, seed: int, told_of_damage: Callable[[Path, Layout, str, int], int]
) -> None:
    assert told_of_damage(root, LAYOUT, KEY2, seed)
    LAYOUT.read(root, KEY2, sweeps=3)
