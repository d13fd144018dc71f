"""The benchmark of what sampling loses: distances, shares and angles against values worked out by hand."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tamis import cli
from tamis.bench import nearest, quality
from tamis.bench.nearest import balance, likeness
from tamis.bench.quality import Cloud, samplers, scans
from tamis.bench.quality_table import claims, render
from tamis.bench.registration import apart
from tamis.errors import DataError, UsageError
from tamis.pipelines import open3d


def _open3d_or_skip() -> None:
    try:
        open3d.library()
    except (ImportError, OSError) as error:
        pytest.skip(f"no Open3D ({error}): uv sync --group bench")


def points(*rows: tuple[float, float, float]) -> Any:
    return np.array(rows, np.float32)


def test_distances_of_a_few_points() -> None:
    cloud = points((0, 0, 0), (3, 0, 0), (3, 4, 0), (0, 0, 12))
    found, rows = likeness(cloud, cloud[:1])
    assert found == pytest.approx({"coverage": 12, "chamfer": (0 + 3 + 5 + 12) / 4, "hausdorff": 12})
    assert rows.tolist() == [0, 0, 0, 0]
    # A point that is no row: back to the cloud it is 1 and 2 away, and chamfer has their mean too.
    found, rows = likeness(points((0, 0, 0), (2, 0, 0)), points((0, 1, 0), (2, 0, 2)))
    assert found == pytest.approx({"coverage": 2, "chamfer": 1.5 + 1.5, "hausdorff": 2})
    assert rows.tolist() == [0, 1]


def test_hausdorff_is_of_both_ways() -> None:
    found, _ = likeness(points((0, 0, 0)), points((0, 0, 0), (7, 0, 0)))
    assert found == pytest.approx({"coverage": 0, "chamfer": 3.5, "hausdorff": 7})


@pytest.mark.slow  # imports Open3D
def test_the_tree_gives_what_all_pairs_give(monkeypatch: pytest.MonkeyPatch) -> None:
    _open3d_or_skip()
    rng = np.random.default_rng(3)
    cloud, kept = rng.random((500, 3)).astype(np.float32), rng.random((40, 3)).astype(np.float32)
    plain = nearest.nearest(cloud, kept)
    monkeypatch.setattr(nearest, "_FEW", 0)
    tree = nearest.nearest(cloud, kept)
    np.testing.assert_allclose(tree[0], plain[0], rtol=1e-12)
    np.testing.assert_array_equal(tree[1], plain[1])


def test_shares_of_classes() -> None:
    found = balance(np.array([2, 2, 2, 2, 2, 2, 6, 6, 6, 1]), np.array([2, 2, 6, 1]))
    assert found == pytest.approx({"rarest_before": 0.1, "rarest_after": 0.25, "moved": 0.15})
    assert balance(np.array([4, 4]), np.array([4]))["moved"] == 0
    assert balance(np.array([4, 4, 5]), np.array([4]))["rarest_after"] == 0


def turned(degrees: float, shift: tuple[float, float, float]) -> Any:
    angle = np.radians(degrees)
    transform = np.eye(4)
    transform[:2, :2] = [[np.cos(angle), -np.sin(angle)], [np.sin(angle), np.cos(angle)]]
    transform[:3, 3] = shift
    return transform


@pytest.mark.parametrize("degrees", [0, 1e-5, 0.3, 90, 179])
def test_between_transforms(degrees: float) -> None:
    found = apart(np.eye(4), turned(degrees, (3, 4, 0)))
    assert found == pytest.approx({"rotation_deg": degrees, "translation_m": 5}, abs=1e-9)
    same = turned(degrees, (1, 2, 3))
    assert apart(same, same) == pytest.approx({"rotation_deg": 0, "translation_m": 0}, abs=1e-6)


def surface(n: int, seed: int) -> Any:
    """Points of three planes that meet in a corner: nothing slides along them."""
    xyz = np.random.default_rng(seed).random((n, 3)) * 4
    xyz[np.arange(n), np.arange(n) % 3] = 0
    return xyz.astype(np.float32)


@pytest.fixture
def room() -> Cloud:
    xyz = surface(1500, 5)
    return Cloud(xyz, (xyz[:, 2] == 0).astype(np.int32) + 1)


@pytest.mark.parametrize("name", ["random", "voxel", "farthest", "adaptive"])
@pytest.mark.parametrize("k", [15, 300])
def test_samplers_keep_what_was_asked_with_its_labels(room: Cloud, name: str, k: int) -> None:
    kept = samplers()[name](room, k, 1)
    assert abs(len(kept.xyz) - k) <= (k // 20 if name == "voxel" else 0)
    assert kept.label is not None
    assert kept.ms > 0
    if name != "voxel":
        assert room.label is not None
        rows = [np.flatnonzero((room.xyz == point).all(axis=1))[0] for point in kept.xyz]
        assert len(set(rows)) == k
        np.testing.assert_array_equal(room.label[rows], kept.label)
    assert (kept.method != "") == (name == "adaptive")
    assert samplers()[name](Cloud(room.xyz), k, 1).label is None


def test_seeds_change_the_grid(room: Cloud) -> None:
    one, other = (samplers()["voxel"](room, 100, seed).xyz for seed in (0, 1))
    assert not np.array_equal(one, other)


def fakes(seeds: int = 3) -> Iterator[dict[str, Any]]:
    for name in ("random", "voxel", "farthest"):
        for share in (0.1, 0.22) if name == "voxel" else (0.1,):
            worse = 2.0 if name == "farthest" else 1.0
            at = turned(0, (0.003 * worse, 0.004 * worse, 0)).tolist()
            common = {"sampler": name, "share": share, "kept": [10] * seeds, "methods": []}
            distances = dict.fromkeys(("coverage", "chamfer", "hausdorff"), [0.5, 0.6, 0.7][:seeds])
            turn = {
                "rotation_deg": [0.1 * worse] * seeds,
                "translation_m": [0.01] * seeds,
                "icp_s": [1.0] * seeds,
                "transform": [at] * seeds,
            }
            classes = dict.fromkeys(("rarest_before", "rarest_after", "moved", "labels"), [0.25] * seeds)
            yield {"cloud": "scan", **common, **distances, **turn, "ms": [4.0 * worse, 8.0, 9.0][:seeds]}
            yield {"cloud": "tiles", **common, **distances, **classes, "ms": [1.0] * seeds}


def report() -> dict[str, Any]:
    others = [{"rotation_deg": 0.1, "translation_m": 0.007}] * 2
    scan = {
        "source": 100,
        "target": 90,
        "icp_s": 1.0,
        "rotation_deg": 1.0,
        "translation_m": 0.5,
        "others": others,
    }
    return {"scan": scan, "tiles": {"files": 6, "points": 1000}, "rows": list(fakes())}


def test_tables_have_means_and_spreads() -> None:
    lines = render(report()).splitlines()
    distances = "0.600 ± 0.100 | 600.0 ± 100.0 | 0.600 ± 0.100"
    assert f"| 10 % | random | 10 | {distances} | 0.100 | 10.0 | 1.000 | 4.0 |" in lines
    assert sum(line.startswith("| 22 % | voxel") for line in lines) == 2
    assert any("with partners within 0.5 m it is 7 mm and 0.10 deg away" in line for line in lines)
    assert {line.count("|") for line in lines if line.startswith("| 1")} == {11}


def test_claims_are_put_beside_what_was_seen() -> None:
    said = dict(claims(list(fakes())))
    assert len(said) == 4
    registration, voxel, features, speed = said.values()
    assert "at 10 %: +100 % and +0 %. From each other" in registration
    assert registration.endswith("answers are 5 mm at 10 %")
    assert "25.0 % of all rows find their class" in voxel
    assert "0.100 deg and 10 mm off" in voxel
    assert features.startswith("not to be tested")
    assert speed.endswith("at 10 %: voxel 1, farthest 2")
    without = [row for row in fakes() if row["share"] != 0.22]
    assert dict(claims(without))["voxel: -78 % of the points at 92 % accuracy"] == "not measured"


def test_what_is_missing_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UsageError, match=r"--data is not given and TAMIS_DATA is not set"):
        quality.run(None)
    with pytest.raises(DataError, match=r"has no source\.ply; name a folder that has"):
        scans(tmp_path)

    def absent() -> Any:
        raise ImportError("No module named 'open3d'")

    monkeypatch.setattr(open3d, "library", absent)
    with pytest.raises(UsageError, match=r"needs Open3D .*uv sync --group bench"):
        quality.run(tmp_path)


@pytest.mark.slow  # imports Open3D
def test_the_whole_on_small_clouds(
    tmp_path: Path,
    room: Cloud,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    _open3d_or_skip()
    turn = turned(2, (0.05, 0.02, 0))
    target = surface(1500, 6) @ turn[:3, :3].T.astype(np.float32) + turn[:3, 3].astype(np.float32)
    monkeypatch.setattr(quality, "scans", lambda _: (Cloud(room.xyz), Cloud(target), [room, room]))
    monkeypatch.setattr(quality, "SEEDS", 2)
    monkeypatch.setattr(quality, "SHARES", (0.3,))
    out = tmp_path / "out.json"
    arguments = ["tamis", "bench", "quality", "--data", str(tmp_path), "--json", str(out)]
    monkeypatch.setattr(sys, "argv", arguments)
    with pytest.raises(SystemExit) as exit:
        cli.main()
    assert exit.value.code == 0
    text = capsys.readouterr().out
    assert "On the scan adaptive chose farthest." in text
    found = json.loads(out.read_text())
    assert found["scan"]["rotation_deg"] == pytest.approx(2, abs=0.02)
    assert found["scan"]["translation_m"] == pytest.approx(np.hypot(0.05, 0.02), abs=0.005)
    shares = [(row["cloud"], row["sampler"], row["share"]) for row in found["rows"]]
    kinds = [(name, 0.3) for name in ("random", "voxel", "farthest", "adaptive")]
    kinds.insert(2, ("voxel", 0.22))
    assert shares == [(cloud, *kind) for kind in kinds for cloud in ("scan", "tiles")]
    for row in found["rows"]:
        if row["cloud"] == "scan":
            assert max(row["rotation_deg"]) < 0.3
            assert max(row["translation_m"]) < 0.05
        else:
            assert min(row["labels"]) > 0.9
