"""Published datasets, on tiny trees of the same structure."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from tamis.errors import DataError
from tamis.pipelines.layouts import LAYOUTS, Name


def write(path: Path, content: str | bytes) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return path


def ply(path: Path, rows: str, properties: str, count: int) -> Path:
    head = f"ply\nformat ascii 1.0\nelement vertex {count}\n{properties}end_header\n"
    return write(path, head + rows)


def kitti(root: Path) -> None:
    rng = np.random.default_rng(0)
    for sequence, scan, n in (
        ("00", "000000", 5),
        ("08", "000007", 3),
        ("10", "000000", 1),
        ("11", "000000", 4),
    ):
        folder = root / "sequences" / sequence
        write(folder / "velodyne" / f"{scan}.bin", rng.random((n, 4), np.float32).tobytes())
        if sequence != "11":
            codes = (np.arange(n, dtype=np.uint32) << 16) | np.array([10, 252, 40, 0, 81], np.uint32)[:n]
            write(folder / "labels" / f"{scan}.label", codes.tobytes())


def s3dis(root: Path) -> None:
    for area, room in (("Area_1", "office_1"), ("Area_5", "hallway_2")):
        folder = root / area / room
        write(folder / f"{room}.txt", "1 2 3 4 5 6\n0 0 1 255 0 9\n-1 2.5 3 1 1 1\n")
        write(folder / "Annotations" / "wall_1.txt", "1 2 3 4 5 6\n")
        write(folder / "Annotations" / "chair_1.txt", "0 0 1 255 0 9\n")
        write(folder / "Annotations" / "stairs_1.txt", "-1 2.5 3 1 1 1\n")
    write(root / "Area_1" / "office_1" / "notes.txt", "not a room")


def scannet(root: Path) -> None:
    xyz = "property float x\nproperty float y\nproperty float z\n"
    colours = "".join(f"property uchar {name}\n" for name in ("red", "green", "blue", "alpha"))
    for scene in ("scene0000_00", "scene0001_00", "scene0707_00"):
        folder = root / ("scans_test" if scene == "scene0707_00" else "scans") / scene
        ply(folder / f"{scene}_vh_clean_2.ply", "0 0 0 1 2 3 255\n1 0 2 4 5 6 255\n", xyz + colours, 2)
        if scene != "scene0707_00":
            rows = "0 0 0 1 2 3 255 39\n1 0 2 4 5 6 255 0\n"
            properties = xyz + colours + "property ushort label\n"
            ply(folder / f"{scene}_vh_clean_2.labels.ply", rows, properties, 2)
    for split, scene in (("train", "scene0000_00"), ("val", "scene0001_00"), ("test", "scene0707_00")):
        write(root / f"scannetv2_{split}.txt", f"{scene}\n\n")


def modelnet(root: Path) -> None:
    mesh = "OFF\n4 2 0\n0 0 0\n1 0 0\n1 1 0\n0 1 0\n3 0 1 2\n3 0 2 3\n"
    for kind, split, number in (("sofa", "train", 1), ("chair", "train", 1), ("chair", "test", 2)):
        write(root / kind / split / f"{kind}_{number:04}.off", mesh)


def shapenet_part(root: Path) -> None:
    write(root / "synsetoffset2category.txt", "Airplane\t02691156\nMug\t03797390\n")
    objects = {"train": "02691156/1a04", "val": "03797390/ff00", "test": "02691156/2b15"}
    for split, one in objects.items():
        write(root / f"{one}.txt", "0 0 1 0 0 1 36.000000\n1 2 3 0 1 0 37.000000\n")
        listed = [f"shape_data/{one}"]
        write(root / "train_test_split" / f"shuffled_{split}_file_list.json", json.dumps(listed))


TREES: dict[Name, Callable[[Path], None]] = {
    "semantickitti": kitti,
    "s3dis": s3dis,
    "scannet": scannet,
    "modelnet": modelnet,
    "shapenet_part": shapenet_part,
}

SPLITS: dict[Name, dict[str, str]] = {
    "semantickitti": {
        "sequences/00/velodyne/000000.bin": "train",
        "sequences/08/velodyne/000007.bin": "val",
        "sequences/10/velodyne/000000.bin": "train",
        "sequences/11/velodyne/000000.bin": "test",
    },
    "s3dis": {"Area_1/office_1/office_1.txt": "train", "Area_5/hallway_2/hallway_2.txt": "test"},
    "scannet": {
        "scans/scene0000_00/scene0000_00_vh_clean_2.ply": "train",
        "scans/scene0001_00/scene0001_00_vh_clean_2.ply": "val",
        "scans_test/scene0707_00/scene0707_00_vh_clean_2.ply": "test",
    },
    "modelnet": {
        "chair/train/chair_0001.off": "train",
        "sofa/train/sofa_0001.off": "train",
        "chair/test/chair_0002.off": "test",
    },
    "shapenet_part": {"02691156/1a04.txt": "train", "03797390/ff00.txt": "val", "02691156/2b15.txt": "test"},
}


@pytest.fixture(params=TREES)
def tree(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[Name, Path]:
    TREES[request.param](tmp_path)
    return request.param, tmp_path


def test_every_scan_is_found_with_its_official_split(tree: tuple[Name, Path]) -> None:
    name, root = tree
    assert LAYOUTS[name].find(root) == SPLITS[name]


def test_every_scan_reads_with_labels_that_are_known_or_ignored(tree: tuple[Name, Path]) -> None:
    name, root = tree
    layout = LAYOUTS[name]
    codes = {code for of in layout.classes(root).values() for code in of}
    assert len(codes) == sum(map(len, layout.classes(root).values())), "a code has one class"
    for scan_name in layout.find(root):
        scan = layout.read(root, scan_name)
        label = scan.fields[layout.label]
        assert label.shape == (len(scan.xyz),)
        assert {*label.tolist()} <= codes | {0}
        files = layout.files(root, scan_name)
        assert files[0] == root / scan_name
        assert all(isinstance(file, Path) and file.is_file() for file in files)


def test_labels_of_kitti_are_halves_of_a_word(tmp_path: Path) -> None:
    kitti(tmp_path)
    layout = LAYOUTS["semantickitti"]
    scan = layout.read(tmp_path, "sequences/00/velodyne/000000.bin")
    assert scan.fields["classification"].tolist() == [10, 252, 40, 0, 81]
    assert scan.fields["instance"].tolist() == [0, 1, 2, 3, 4]
    classes = layout.classes(tmp_path)
    assert len(classes) == 19
    assert classes["car"] == [10, 252]
    labels = tmp_path / "sequences/00/labels/000000.label"
    labels.write_bytes(labels.read_bytes()[:-4])
    with pytest.raises(DataError, match=r"000000\.label: has 4 labels, .* 5 points"):
        layout.read(tmp_path, "sequences/00/velodyne/000000.bin")
    labels.write_bytes(b"odd")
    with pytest.raises(DataError, match="no multiple of 4"):
        layout.read(tmp_path, "sequences/00/velodyne/000000.bin")
    labels.unlink()
    with pytest.raises(DataError, match=r"000000\.label: is missing"):
        layout.files(tmp_path, "sequences/00/velodyne/000000.bin")


def test_rooms_are_made_of_their_parts(tmp_path: Path) -> None:
    s3dis(tmp_path)
    layout, name = LAYOUTS["s3dis"], "Area_1/office_1/office_1.txt"
    scan = layout.read(tmp_path, name)
    assert scan.xyz.tolist() == [[0, 0, 1], [-1, 2.5, 3], [1, 2, 3]]
    kinds = list(layout.classes(tmp_path))
    assert [kinds[code] for code in scan.fields["classification"]] == ["chair", "clutter", "wall"]
    assert scan.fields["instance"].tolist() == [0, 1, 2]
    assert scan.fields["rgb"].tolist() == [[255, 0, 9], [1, 1, 1], [4, 5, 6]]
    assert scan.fields["rgb"].dtype == np.uint8
    part = tmp_path / "Area_1/office_1/Annotations/wall_1.txt"
    part.write_text("1 2 3 4 5 600\n")
    with pytest.raises(DataError, match=r"wall_1\.txt: has a colour of .*600"):
        layout.read(tmp_path, name)
    part.write_text("1 2 3 18\x1087 5 6\n")  # as Area_5/hallway_6 has it in the original download
    with pytest.raises(DataError, match=r"wall_1\.txt: .*line 1"):
        layout.read(tmp_path, name)


def test_scenes_without_labels_are_those_of_the_test_list(tmp_path: Path) -> None:
    scannet(tmp_path)
    layout = LAYOUTS["scannet"]
    scan = layout.read(tmp_path, "scans/scene0000_00/scene0000_00_vh_clean_2.ply")
    assert scan.fields["classification"].tolist() == [39, 0]
    assert scan.fields["rgb"].tolist() == [[1, 2, 3], [4, 5, 6]]
    hidden = layout.read(tmp_path, "scans_test/scene0707_00/scene0707_00_vh_clean_2.ply")
    assert hidden.fields["classification"].tolist() == [0, 0]
    (tmp_path / "scans/scene0001_00/scene0001_00_vh_clean_2.labels.ply").unlink()
    with pytest.raises(DataError, match=r"labels\.ply: is missing"):
        layout.files(tmp_path, "scans/scene0001_00/scene0001_00_vh_clean_2.ply")
    (tmp_path / "scannetv2_val.txt").unlink()
    with pytest.raises(DataError, match=r"scannetv2_val\.txt: is missing"):
        layout.find(tmp_path)


def test_objects_have_one_class_and_points_on_their_surface(tmp_path: Path) -> None:
    modelnet(tmp_path)
    layout = LAYOUTS["modelnet"]
    assert dict(layout.classes(tmp_path)) == {"chair": [0], "sofa": [1]}
    scan = layout.read(tmp_path, "sofa/train/sofa_0001.off")
    assert scan.xyz.shape == (10_000, 3)
    assert {*scan.fields["classification"].tolist()} == {1}
    assert (scan.xyz[:, 2] == 0).all()
    assert layout.objects
    with pytest.raises(DataError, match="no folder CLASS/train"):
        layout.classes(tmp_path / "sofa" / "train")


def test_parts_are_numbered_over_all_categories(tmp_path: Path) -> None:
    shapenet_part(tmp_path)
    layout, name = LAYOUTS["shapenet_part"], "03797390/ff00.txt"
    scan = layout.read(tmp_path, name)
    assert scan.fields["part"].tolist() == [36, 37]
    assert {*scan.fields["category"].tolist()} == {11}
    assert scan.fields["normal"].tolist() == [[0, 0, 1], [0, 1, 0]]
    classes = layout.classes(tmp_path)
    assert len(classes) == 50
    assert classes["Mug 1"] == [37]
    write(tmp_path / name, "0 0 1 0 0 1 36.5\n")
    with pytest.raises(DataError, match=r"ff00\.txt: row 0: part 36\.5"):
        layout.read(tmp_path, name)
    listed = tmp_path / "train_test_split/shuffled_val_file_list.json"
    listed.write_text('["shape_data/03797390/gone"]')
    with pytest.raises(DataError, match=r"gone\.txt: is missing: shuffled_val_file_list\.json lists it"):
        layout.find(tmp_path)
    listed.write_text("[1")
    with pytest.raises(DataError, match="is no list in JSON"):
        layout.find(tmp_path)
    write(tmp_path / "synsetoffset2category.txt", "Boat 02691156\n")
    with pytest.raises(DataError, match="line 1 has 'Boat 02691156'"):
        layout.read(tmp_path, "02691156/1a04.txt")


@pytest.mark.parametrize(
    ("name", "gone", "says"),
    [
        (
            "s3dis",
            "Area_1/office_1/office_1.txt",
            r"Area_1/office_1/office_1\.txt: is missing: office_1 has Anno",
        ),
        ("modelnet", "sofa/train/sofa_0001.off", r"sofa: holds no mesh \*\.off in train or test"),
        ("scannet", "scans/scene0001_00/scene0001_00_vh_clean_2.ply", "scannetv2_val.txt lists it"),
        ("shapenet_part", "03797390/ff00.txt", "shuffled_val_file_list.json lists it"),
    ],
)
def test_no_scan_is_missed_in_silence(tmp_path: Path, name: Name, gone: str, says: str) -> None:
    TREES[name](tmp_path)
    LAYOUTS[name].find(tmp_path)
    (tmp_path / gone).unlink()
    with pytest.raises(DataError, match=says):
        LAYOUTS[name].find(tmp_path)


def test_labels_without_their_scan_are_told(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    kitti(tmp_path)
    (tmp_path / "sequences/10/velodyne/000000.bin").unlink()
    with caplog.at_level(logging.WARNING):
        assert len(LAYOUTS["semantickitti"].find(tmp_path)) == 3
    assert caplog.messages == [f"{tmp_path}: left out sequences 10: no scan in velodyne"]
    write(tmp_path / "sequences/00/labels/000001.label", b"")
    with pytest.raises(DataError, match=r"00/velodyne/000001\.bin: is missing: the scan of .*000001\.label"):
        LAYOUTS["semantickitti"].find(tmp_path)


def test_scans_in_no_list_are_told(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    scannet(tmp_path / "a")
    shapenet_part(tmp_path / "b")
    (tmp_path / "a/scannetv2_test.txt").unlink()
    for number in range(2):
        write(tmp_path / f"b/02691156/more{number}.txt", "0 0 1 0 0 1 1\n")
    with caplog.at_level(logging.WARNING):
        assert len(LAYOUTS["scannet"].find(tmp_path / "a")) == 2
        assert len(LAYOUTS["shapenet_part"].find(tmp_path / "b")) == 3
    scene, part = caplog.messages
    assert scene.endswith("scene0707_00_vh_clean_2.ply, which no list scannetv2_*.txt names")
    assert part.endswith("02691156/more0.txt and 1 more, which no list of train_test_split names")
