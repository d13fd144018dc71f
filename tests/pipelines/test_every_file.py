"""Every real file that is at hand becomes a dataset that verifies, with all of its points and fields."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tamis.bench import every_file
from tamis.bench.every_file import checked, names
from tamis.bench.other_readers import above_surface, other
from tamis.bench.stored import stored
from tamis.pipelines.build import DataSettings, build

FILES = [
    "big/ldm_test_semis_2023_0299_6802_LA93_IGN69.laz",
    "big/pdaltools_test_semis_2023_0292_6833_LA93_IGN69.laz",
    "ign_dense/pdaltools_test_data_77050_627755_LA93_IGN69.laz",
    "reader/ahn3.laz",
    "reader/laspy_append-bug.laz",
    "reader/laspy_autzen_trim.laz",
    "reader/laspy_extrabytes.las",
    "reader/laspy_file_with_both_wkt_and_geotiff_vlrs.las",
    "reader/laspy_simple.copc.laz",
    "reader/laspy_vegetation_1_3.las",
    "reader/lpm_car_cloud400.csv",
    "reader/pcl_car6.pcd",
    "reader/pcl_five_people.pcd",
    "reader/source.ply",
    "reader/target.ply",
    "reader/trimesh_bunny.ply",
]


def test_no_file_is_forgotten(data_folder: Path) -> None:
    there = set(names(data_folder))
    tiles = {name for name in there if name.startswith("ign_dense/")}
    assert there - tiles - {"README.md"} == {name for name in FILES if not name.startswith("ign_dense/")}
    assert set(FILES) <= there


@pytest.mark.slow
@pytest.mark.parametrize("name", FILES)
def test_a_file_becomes_a_dataset(name: str, data_folder: Path, tmp_path: Path) -> None:
    for library in ("plyfile", "pypcd4"):
        pytest.importorskip(library)
    row = checked(data_folder, name, tmp_path)
    assert (row["result"], row["wrong"]) == ("built", "")
    assert row["points"] > 0
    assert row["as_read_by"] in ("laspy", "plyfile", "pypcd4", "numpy")


@pytest.fixture
def cloud(tmp_path: Path) -> Path:
    """A folder with a file of 60 rows, two of which are not finite, with a field `row` of its own."""
    rng = np.random.default_rng()
    rows = np.zeros(60, [("x", "f8"), ("y", "f8"), ("z", "f4"), ("row", "i2"), ("t", "f8")])
    for name in rows.dtype.names or ():
        rows[name] = rng.uniform(-100, 100, 60)
    rows["t"][7] = rows["x"][[3, 40]] = np.nan
    (tmp_path / "raw").mkdir()
    np.save(tmp_path / "raw" / "a.npy", rows)
    return tmp_path / "raw"


def test_a_small_file_is_as_numpy_reads_it(cloud: Path, tmp_path: Path) -> None:
    row = checked(cloud, "a.npy", tmp_path / "out")
    assert row == {
        "file": "a.npy",
        "format": "NPY",
        "result": "built",
        "points": 58,
        "dropped": 2,
        "fields": 2,
        "as_read_by": "numpy",
        "reason": "",
        "wrong": "",
    }


def test_a_file_that_is_none_has_to_be_refused(
    cloud: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (cloud / "notes.md").write_text("words")
    row = checked(cloud, "notes.md", tmp_path / "a")
    assert (row["result"], row["format"], row["wrong"]) == ("refused", "", "")
    assert "of no format that is read" in row["reason"]
    built = build(DataSettings(root=cloud, files=["a.npy"], row_order="source"), tmp_path / "b")
    monkeypatch.setattr(every_file, "build", lambda *_: built)
    assert checked(cloud, "notes.md", tmp_path / "c")["wrong"] == "is of no known format"


@pytest.mark.parametrize("field", ["z", "source_row", "t", "row"])
def test_a_value_that_changed_is_found(
    cloud: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, field: str
) -> None:
    """Whatever column it is in."""

    def changed(dataset: Any) -> Any:
        xyz, columns = stored(dataset)
        if field == "z":
            xyz[11, 2] += 0.001
        else:
            columns[field] = columns[field].copy()
            columns[field][11] += 1
        return xyz, columns

    monkeypatch.setattr(every_file, "stored", changed)
    row = checked(cloud, "a.npy", tmp_path / "out")
    assert row["wrong"]
    assert not row["as_read_by"]


CUBE = "".join(f"v {i >> 2} {i >> 1 & 1} {i & 1}\n" for i in range(8)) + (
    "f 1 2 4 3\nf 5 6 8 7\nf 1 2 6 5\nf 3 4 8 7\nf 1 3 7 5\nf 2 4 8 6\n"
)


def test_points_of_a_mesh_lie_on_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("trimesh")
    (tmp_path / "cube.obj").write_text(CUBE)
    row = checked(tmp_path, "cube.obj", tmp_path / "a")
    assert (row["result"], row["points"], row["as_read_by"], row["wrong"]) == ("built", 10_000, "trimesh", "")
    (tmp_path / "other.obj").write_text(CUBE.replace("v 0 0 0", "v 0 0 0.01"))
    monkeypatch.setattr(
        every_file, "above_surface", lambda _, xyz: above_surface(tmp_path / "other.obj", xyz)
    )
    row = checked(tmp_path, "cube.obj", tmp_path / "b")
    assert not row["as_read_by"]
    assert "of its extent off the mesh" in row["wrong"]


def test_what_another_library_reads_has_to_be_built(
    cloud: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (cloud / "b.npy").write_bytes((cloud / "a.npy").read_bytes()[:-1])
    assert checked(cloud, "b.npy", tmp_path / "b")["wrong"] == ""
    monkeypatch.setattr(every_file, "other", lambda _: other(cloud / "a.npy"))
    assert checked(cloud, "b.npy", tmp_path / "c")["wrong"] == "numpy reads it"
