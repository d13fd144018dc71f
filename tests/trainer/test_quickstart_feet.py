"""The shipped scan in feet, learned in metres."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import laspy
import numpy as np
import pyarrow as pa
import pytest

from tamis.pipelines.dataset import Dataset
from tamis.trainer.predict import predict

ROOT = Path(__file__).resolve().parents[2]
SCAN = ROOT / "configs" / "data" / "laspy_file_with_both_wkt_and_geotiff_vlrs.laz"
FOOT = 1200 / 3937


def test_the_shipped_scan_is_the_one_of_laspy(data_folder: Path) -> None:
    shipped, own = laspy.read(SCAN), laspy.read(data_folder / "reader" / f"{SCAN.stem}.las")
    assert list(shipped.point_format.dimension_names) == list(own.point_format.dimension_names)
    for name in own.point_format.dimension_names:
        np.testing.assert_array_equal(np.asarray(shipped[name]), np.asarray(own[name]), err_msg=name)
    assert np.array_equal(shipped.header.scales, own.header.scales)
    records = [[(v.record_id, v.record_data_bytes()) for v in scan.header.vlrs] for scan in (shipped, own)]
    assert records[0] == records[1]


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_a_scan_in_feet_is_learned_and_predicted_in_metres(tmp_path: Path) -> None:
    out = tmp_path / "run"
    done = subprocess.run(
        [sys.executable, "-m", "tamis", "train", "quickstart_feet", "--out", str(out)],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT / ".links")},
        capture_output=True,
        text=True,
        check=False,
        timeout=380,
    )
    assert done.returncode == 0, done.stderr
    found = json.loads((out / "report.json").read_text())["eval"]
    assert found["accuracy"] >= 0.93
    assert found["mean_iou"] >= 0.80
    assert found["majority"] < 0.65

    las = laspy.read(SCAN)
    feet = np.asarray(las.xyz)
    dataset = Dataset(out)
    sample = dataset.sample(0)
    np.testing.assert_allclose(
        sample.columns["xyz"].astype(np.float64) + sample.origin,
        feet[sample.columns["row"]] * FOOT,
        rtol=0,
        atol=1e-3,
    )

    predict(out, SCAN, tmp_path / "labelled.laz")
    labelled = laspy.read(tmp_path / "labelled.laz")
    np.testing.assert_array_equal(labelled.xyz, feet)  # written as they came, in feet
    group = np.zeros(256, np.uint8)
    group[[2, 3, 4, 5, 6]] = [1, 2, 2, 2, 3]
    truth, guess = group[np.asarray(las.classification)], group[np.asarray(labelled.classification)]
    assert set(np.unique(guess)) == {1, 2, 3}
    assert (truth == guess)[truth > 0].mean() >= 0.93
    # Both cut the ground into the same tiles; only those on the edge of the test strip have more points here.
    table = pa.ipc.open_file(out / "predictions.arrow").read_all()
    evaluated = table["predicted"].to_numpy()
    same = guess[table["row"].to_numpy()] == evaluated + 1
    assert same.mean() > 0.95
