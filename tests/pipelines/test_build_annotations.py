"""Annotations through a whole build: a box is where the point that it lies about is, in the same samples."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tamis.config import check
from tamis.loaders.loader import Loader
from tamis.pipelines.build import build
from tamis.pipelines.settings import DataSettings
from tamis.pipelines.verify import verify

FAR = np.array([698_000.0, 6_259_000.0, 40.0])
READER = """
import numpy as np

def {name}(path):
    held = dict(np.load(path))
    annotations = {{name: held.pop(name) for name in list(held) if name.startswith(("box", "pose", "image"))}}
    return {{**held, "annotations": annotations}}
"""
STEPS: list[dict[str, Any]] = [
    {"kind": "crop", "low": [*(FAR - 60)[:2], -1e9], "high": [*(FAR + 40)[:2], 1e9]},
    {"kind": "rotate", "degrees": 30},
    {"kind": "flip", "axis": "x"},
    {"kind": "scale", "factor": 0.5},
]


def write_scan(path: Path, seed: int, boxes: int) -> dict[str, Any]:
    """Points, and boxes about some of them, in the file ``path``; box_instance says which point."""
    rng = np.random.default_rng(seed)
    n = 1500
    xyz = FAR + rng.uniform(-80, 80, (n, 3)) * [1, 1, 0.1]
    about = rng.permutation(n)[:boxes]
    pose = np.eye(4)
    pose[:3] += rng.normal(0, 0.2, (3, 4))
    made: dict[str, Any] = {
        "xyz": xyz,
        "classification": rng.integers(0, 3, n),
        "boxes": np.concatenate([xyz[about], rng.uniform(1, 4, (boxes, 4))], axis=1),
        "box_instance": about,
        "box_class": rng.integers(0, 4, boxes),
        "box_velocity": rng.normal(size=(boxes, 2)),
        "pose": pose.reshape(1, 16),
        "image": rng.integers(0, 256, 100 + seed, np.uint8),
    }
    with path.open("wb") as file:
        np.savez(file, **made)
    return made


@pytest.mark.parametrize(
    "cut",
    [
        {},
        {"tiles": {"size": 10}},
        {"tiles": {"size": 10, "stride": 5, "min_points": 9}},
        {"split": {"kind": "blocks", "size": [8, 8], "of": 3}, "tiles": {"size": 16}},
        {"bounds": [697_970, 6_258_970, 698_030, 6_259_030]},
    ],
    ids=str,
)
@pytest.mark.parametrize("row_order", ["farthest", "source"])
def test_boxes_lie_where_their_points_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cut: dict[str, Any], row_order: str
) -> None:
    raw, name = tmp_path / "raw", f"read_{abs(hash(str(tmp_path)))}"
    raw.mkdir()
    (tmp_path / f"{name}.py").write_text(READER.format(name=name))
    monkeypatch.syspath_prepend(str(tmp_path))
    scans = {f"{i}.own": write_scan(raw / f"{i}.own", i, boxes) for i, boxes in enumerate((90, 0))}
    values = {
        "root": str(raw),
        "files": ["*.own"],
        "classes": {"low": [0, 1], "high": [2]},
        "row_order": row_order,
        "prepare": STEPS,
        "workers": 1,
        "read": {"function": f"{name}:{name}"},
        **cut,
    }
    dataset = build(check(values, DataSettings, where="data"), tmp_path)
    assert verify(dataset.path) == []
    seen = []
    for row in range(len(dataset)):
        sample = dataset.sample(row)
        scan, own = scans[sample.source], sample.annotations
        here = {int(number): i for i, number in enumerate(sample.columns["row"])}
        wanted = sorted(set(scan["box_instance"].tolist()) & here.keys())
        assert sorted(own["box_instance"].tolist()) == wanted
        seen += [(sample.source, one) for one in wanted]
        at = [here[one] for one in own["box_instance"].tolist()]
        np.testing.assert_array_equal(own["boxes"][:, :3], sample.columns["xyz"][at])
        box = [np.flatnonzero(scan["box_instance"] == one)[0] for one in own["box_instance"]]
        number = {0: 0, 1: 0, 2: 1}
        assert own["box_class"].tolist() == [number.get(code, -1) for code in scan["box_class"][box].tolist()]
        np.testing.assert_allclose(own["boxes"][:, 3:6], 0.5 * scan["boxes"][box, 3:6], rtol=1e-6)
        speed = np.linalg.norm(scan["box_velocity"][box], axis=1)
        np.testing.assert_allclose(np.linalg.norm(own["box_velocity"], axis=1), 0.5 * speed, rtol=1e-5)
        assert own["image"].tobytes() == scan["image"].tobytes()
        xyz = sample.columns["xyz"].astype(np.float64)
        there = (np.c_[xyz, np.ones(len(xyz))] @ own["pose"].reshape(4, 4).T)[:, :3]
        source = scan["xyz"][sample.columns["row"]]
        right = (np.c_[source, np.ones(len(source))] @ scan["pose"].reshape(4, 4).T)[:, :3]
        np.testing.assert_allclose(there, right, atol=0.01)
    if "stride" not in cut.get("tiles", {}):
        assert len(set(seen)) == len(seen) > 10
    counts = {split: one.annotations["boxes"] for split, one in dataset.manifest.counts.splits.items()}
    assert sum(counts.values()) == len(seen)
    with Loader(dataset, global_batch=len(dataset), form="ragged", annotations=["boxes"]) as loader:
        assert len(next(loader).annotations["boxes"].values) == counts["train"]
