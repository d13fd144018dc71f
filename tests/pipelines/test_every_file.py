"""Every real file that is at hand becomes a dataset that verifies, with all of its points and fields."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tamis.pipelines.build import DataSettings, build
from tamis.pipelines.readers import read
from tamis.pipelines.tiles import TileSettings
from tamis.pipelines.verify import verify

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
    there = {p.relative_to(data_folder).as_posix() for p in data_folder.rglob("*") if p.is_file()}
    tiles = {name for name in there if name.startswith("ign_dense/")}
    assert there - tiles - {"README.md"} == {name for name in FILES if not name.startswith("ign_dense/")}
    assert set(FILES) <= there


@pytest.mark.slow
@pytest.mark.parametrize("name", FILES)
def test_a_file_becomes_a_dataset(name: str, data_folder: Path, tmp_path: Path) -> None:
    scan = read(data_folder / name)
    finite = np.isfinite(scan.xyz).all(axis=1)
    low, high = scan.xyz[finite].min(axis=0), scan.xyz[finite].max(axis=0)
    tiles = TileSettings(size=float((high - low)[:2].max() / 3) or 1.0, min_points=1)
    settings = DataSettings(root=data_folder, files=[name], tiles=tiles, row_order="random", workers=1)
    dataset = build(settings, tmp_path)
    verify(dataset.path)
    assert dataset.manifest.counts.dropped == np.count_nonzero(~finite)
    assert dataset.manifest.counts.points == np.count_nonzero(finite), "tiles do not overlap here"
    kept = {*dataset.schema} - {"xyz", "row"}
    assert kept == {n if n not in ("row", "label") else f"source_{n}" for n in scan.fields} | (
        kept & {"label"}
    )
    rows, places = [], []
    for sample in map(dataset.sample, range(len(dataset))):
        rows.append(sample.columns["row"])
        places.append(sample.positions())
        for field, values in scan.fields.items():
            stored = sample.columns[field if field in sample.columns else f"source_{field}"]
            np.testing.assert_array_equal(stored, values[sample.columns["row"]].reshape(stored.shape))
    row = np.concatenate(rows)
    assert sorted(row.tolist()) == np.flatnonzero(finite).tolist()
    assert np.abs(np.concatenate(places) - scan.xyz[row]).max() <= 0.5e-3
