"""The benchmark of samplers: rows that compare, wrong peers that are told, and figures of the right rows."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from tamis import cli
from tamis.bench import sampler_floor, sampler_peers, samplers
from tamis.bench.compare import Row
from tamis.bench.sampler_check import Cells, Grid, Picks, brute, rows_differ
from tamis.bench.sampler_clouds import CLOUDS, SIZE, fields
from tamis.bench.sampler_grids import grid_peers, packed
from tamis.bench.sampler_peers import farthest_peers
from tamis.bench.sampler_table import figures, render
from tamis.bench.sampler_ways import FEW, Contest, Taken, Way, measured, rows, wrong
from tamis.bench.samplers import Sizes, run
from tamis.pipelines import open3d
from tamis.samplers import voxel

KEYS = {"op", "n", "k", "cloud", "fields", "outputs", "threads", "ours_ms", "peer", "peer_ms", "ratio"}
MORE = {"ours_cpu_ms", "peer_cpu_ms", "rounds"}
TINY = Sizes(
    farthest=((300, 20),), batch=(3, 100, 10), voxel=(400,), random=(200,), small=(200, 20), rounds=2
)


def exact(xyz: Any, k: int, **_: Any) -> Any:
    """Farthest points from the last row: a peer that ignores where it should begin."""
    return brute(xyz, k, len(xyz) - 1)[0].astype(np.uint64)


def fake(kdline: Callable[..., Any] = exact) -> Any:
    return SimpleNamespace(bucket_fps_kdline_sampling=kdline, bucket_fps_kdtree_sampling=exact)


@pytest.fixture
def with_peers(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """``with_peers(name=module, ...)``: these are installed and no others."""

    def put(**peers: Any) -> None:
        missing = {name: "not here" for name in sampler_peers.NAMES if name not in peers}
        monkeypatch.setattr(samplers, "installed", lambda: (peers, missing))
        monkeypatch.setattr(samplers, "versions", lambda _: {})

    return put


def test_rows_without_any_peer_installed(with_peers: Callable[..., None], tmp_path: Path) -> None:
    with_peers()
    report = run(tmp_path / "out.json", TINY)
    assert all(set(row) == KEYS | MORE for row in report["rows"])
    assert not report["disagreements"]
    seen = {
        (row["op"], row["cloud"], row["threads"], row["outputs"], row["fields"]) for row in report["rows"]
    }
    clouds, threads = ("cube", "torus", "rings"), (1, 2)
    grids = {
        ("voxel", c, t, *o) for c in clouds for t in threads for o in (("xyz", 0), ("full", 0), ("xyz", 4))
    }
    batches = {("farthest_batch", c, t, "index", 0) for c in clouds for t in threads}
    picks = {("farthest", c, 1, "index", 0) for c in clouds}
    assert seen == grids | batches | picks | {("random", "", 1, "index", 0)}
    alone = [row for row in report["rows"] if row["op"] == "farthest_batch" and row["threads"] == 1]
    assert [row["peer"] for row in alone] == [None] * 3, "our time is told without a peer too"
    for row in report["rows"]:
        assert row["ours_ms"] > 0
        assert row["peer"] is None or row["ratio"] == pytest.approx(row["peer_ms"] / row["ours_ms"])
    assert [row["stage"] for row in report["floor"]].count("voxel: group_chains") == 3
    assert json.loads((tmp_path / "out.json").read_text()) == report
    text = render(report)
    assert "missing: fpsample: not here" in text
    assert "all that was timed agrees" in text
    assert "no peer" in text
    assert "missed" not in text, "a small run has no verdict"


def test_a_wrong_peer_is_told_and_not_timed(with_peers: Callable[..., None]) -> None:
    def first_rows(xyz: Any, k: int, h: int, **_: Any) -> Any:
        return np.arange(k) if h == 5 else exact(xyz, k)

    with_peers(fpsample=fake(first_rows))
    report = run(None, TINY)
    peers = {row["peer"] for row in report["rows"] if row["op"] == "farthest"}
    assert peers == {"numpy", "fpsample kdtree", *(f"fpsample kdline h={h}" for h in (3, 4, 6, 7, 8, 9))}
    told = [text for text in report["disagreements"] if "h=5: covers within" in text]
    assert len(told) == 3, "one a cloud"
    assert f"disagreement: {told[0]}" in render(report)


def test_a_peer_that_fails_is_told_and_the_rest_goes_on(with_peers: Callable[..., None]) -> None:
    def broken(xyz: Any, k: int, **_: Any) -> Any:
        raise RuntimeError("it broke")

    with_peers(fpsample=fake(broken))
    report = run(None, TINY)
    assert any("raised RuntimeError: it broke" in text for text in report["disagreements"])
    assert {row["peer"] for row in report["rows"] if row["op"] == "farthest"} == {"numpy", "fpsample kdtree"}


def test_we_are_held_to_the_same(with_peers: Callable[..., None], monkeypatch: pytest.MonkeyPatch) -> None:
    with_peers()
    monkeypatch.setattr(samplers, "farthest", lambda xyz, k: brute(xyz, k, 1)[0])
    report = run(None, TINY)
    assert not [row for row in report["rows"] if row["op"] == "farthest"]
    assert sum("tamis: " in text and "not brute force's" in text for text in report["disagreements"]) == 3


@pytest.mark.parametrize("cloud", CLOUDS)
@pytest.mark.parametrize("number", [0, 2])
@pytest.mark.parametrize("outputs", ["xyz", "full"])
def test_grids_written_with_numpy_agree(cloud: str, number: int, outputs: str) -> None:
    xyz, carried = CLOUDS[cloud](700), fields(700, number)
    cells = Cells(xyz, SIZE, carried)
    ways = grid_peers(xyz, SIZE, carried, outputs, {})
    assert {way.name for way in ways} == {"numpy unique", "numpy sort"}
    for way in ways:
        grid = way.answer(way.run())
        assert cells.differs(grid) == "", way.name
        assert (grid.inverse is not None) == (outputs == "full")
    assert (np.unique(packed(xyz, SIZE), return_inverse=True)[1] == cells.inverse).all()


@pytest.mark.slow  # imports every peer
def test_the_peers_installed_agree() -> None:
    sizes = Sizes(
        farthest=((2000, 50),), batch=(2, 1000, 20), voxel=(3000,), random=(), small=(600, 60), rounds=1
    )
    report = run(None, sizes)
    if len(report["missing"]) == len(sampler_peers.NAMES):
        pytest.skip("no peer is installed: uv sync --group bench")
    assert not report["disagreements"]
    libraries = {row["peer"].split()[0] for row in report["rows"] if row["peer"]}
    assert libraries - {"tamis,", "numpy"} == set(sampler_peers.NAMES) - report["missing"].keys()


def test_a_grid_that_is_not_right_is_found_out() -> None:
    xyz, carried = CLOUDS["torus"](500), fields(500, 1)
    cells = Cells(xyz, SIZE, carried)
    order = np.random.default_rng(0).permutation(len(cells))
    back = np.argsort(order)

    def grid(**changed: Any) -> Grid:
        right = {
            "means": cells.means[order],
            "count": cells.count[order],
            "index": cells.index[order],
            "inverse": back[cells.inverse],
        }
        return Grid(**{**right, **changed})

    assert cells.differs(grid()) == ""
    assert "means, not" in cells.differs(grid(means=cells.means[order][:-1]))
    moved = cells.means[order].copy()
    moved[3, 0] += SIZE
    assert "not in the cells" in cells.differs(grid(means=moved))
    nudged = cells.means[order].copy()
    nudged[:, 3] += 0.01
    assert "fields by up to 0.01" in cells.differs(grid(means=nudged))
    assert "count differs in 1 of" in cells.differs(
        grid(count=cells.count[order] + (np.arange(len(order)) == 2))
    )
    last = len(xyz) - 1 - np.unique(cells.inverse[::-1], return_index=True)[1]
    assert "index differs" in cells.differs(grid(index=last[order]))
    assert "inverse leads" in cells.differs(grid(inverse=np.roll(back[cells.inverse], 1)))


def test_picks_are_told_from_others() -> None:
    xyz = CLOUDS["cube"](300)
    picks = Picks(xyz, 12)
    right, _ = brute(xyz, 12)
    assert picks.differs(right) == ""
    assert "2 of 12 rows" in picks.differs(right[[1, 0, *range(2, 12)]])
    other, _ = brute(xyz, 12, 7)
    assert picks.differs((7, xyz[other])) == ""
    assert "covers within" in picks.differs((0, xyz[:12]))
    assert "11 different points of 12" in picks.differs((7, xyz[[*other[:11], other[0]]]))
    assert rows_differ(np.array([2, 0, 1]), 3, 3) == ""
    for bad in ([0, 0, 1], [0, 1], [0, 1, 3], [-1, 0, 1]):
        assert rows_differ(np.array(bad), 3, 3)


def test_brute_force_on_a_line() -> None:
    xyz = np.array([[0, 0, 0], [1, 0, 0], [4, 0, 0], [9, 0, 0]], np.float32)
    rows, radius = brute(xyz, 3)
    assert rows.tolist() == [0, 3, 2]
    assert radius == 1


def test_ways_take_turns_and_slow_peers_few() -> None:
    calls: list[str] = []

    def way(name: str, seconds: float) -> Way:
        def work() -> None:
            calls.append(name)
            end = time.perf_counter() + seconds
            while time.perf_counter() < end:
                pass

        return Way(name, work)

    contest = Contest("op", 1, 1, "", {1: way("ours", 0.004)}, [way("a", 0.004), way("b", 0.04)], None)
    (taken,) = measured([contest], 5)
    assert {name: len(of.wall) for name, of in taken.items()} == {"ours": 5, "a": 5, "b": FEW}
    assert taken["b"].wall_ms >= 40
    assert taken["ours"].wall_ms < 40
    assert calls[:3] == ["ours", "a", "b"]
    assert wrong(contest) == {}


def test_a_row_is_a_ratio_of_medians() -> None:
    contest = Contest(
        "voxel", 9, 3, "cube", {1: Way("one", dict), 2: Way("two", dict)}, [Way("p", dict)], None
    )
    taken = {
        "one": Taken([1.0, 2.0, 9.0], [1.0] * 3),
        "two": Taken([1.0, 1.0, 1.0], [2.0] * 3),
        "p": Taken([8.0, 4.0, 6.0], [6.0] * 3),
    }
    first, second, third = rows(contest, taken)
    assert (first["threads"], first["ours_ms"], first["peer_ms"], first["ratio"]) == (1, 2.0, 6.0, 3.0)
    assert (second["threads"], second["peer"], second["ratio"]) == (2, "one", 2.0)
    assert (third["threads"], third["ours_cpu_ms"], third["ratio"]) == (2, 2.0, 6.0)


def row(op: str, n: int, cloud: str, ratio: float, peer: str, **more: Any) -> Row:
    base = {
        "k": 1,
        "fields": 0,
        "outputs": "index",
        "threads": 1,
        "ours_ms": 1.0,
        "ours_cpu_ms": 1.0,
        "rounds": 7,
    }
    return {
        "op": op,
        "n": n,
        "cloud": cloud,
        "peer": peer,
        "peer_ms": ratio,
        "peer_cpu_ms": ratio,
        "ratio": ratio,
        **base,
        **more,
    }


def test_figures_are_of_the_best_peer_on_the_worst_cloud() -> None:
    million = 1_000_000
    found = figures(
        [
            row("farthest", 10_000, "cube", 4.0, "a", k=1024),
            row("farthest", 10_000, "cube", 9.0, "b", k=1024),
            row("farthest", 10_000, "rings", 3.5, "b", k=1024),
            row("farthest", 10_000, "torus", 1.0, "b", k=10_000),  # another case
            row("voxel", million, "cube", 2.6, "a", outputs="xyz"),
            row("voxel", million, "cube", 2.2, "pandas factorize", outputs="xyz"),
            row("voxel", million, "cube", 3.1, "a", outputs="xyz", threads=2),
            row("voxel", million, "cube", 2.0, "tamis, one thread", outputs="xyz", threads=2),
            row("voxel", million, "cube", 0.5, "a", outputs="xyz", fields=4, ours_ms=1.5),
            row("voxel", million, "rings", 3.0, "a", outputs="xyz"),
            row("voxel", million, "rings", 3.0, "a", outputs="xyz", fields=4, ours_ms=2.5),
            row("voxel", million, "cube", 2.9, "pandas groupby", outputs="full"),
            row("voxel", million, "cube", 5.0, "numpy unique", outputs="full"),
            row("farthest_batch", 240_000, "cube", 1.8, "tamis, one thread", threads=2),
            row("farthest_batch", 240_000, "rings", 1.6, "tamis, one thread", threads=2),
        ]
    )
    got = {figure.what: (figure.got, figure.holds, figure.beside) for figure in found}
    assert list(got.values()) == [
        (3.5, True, "rings, b"),
        *[(None, False, "")] * 7,
        (2.6, True, "cube, a"),
        (2.2, False, "cube, pandas factorize"),
        (3.1, True, "cube, a"),
        (5.0, True, "cube, numpy unique"),
        (2.9, False, "cube, pandas groupby"),
        (None, False, ""),
        (2.5, False, "rings"),
        (2.0, True, "cube, tamis, one thread"),
        (1.6, False, "rings, tamis, one thread"),
    ]


@pytest.mark.parametrize("name", CLOUDS)
def test_clouds_are_the_same_again_and_fill_cells(name: str) -> None:
    xyz = CLOUDS[name](5000)
    assert xyz.dtype == np.float32
    np.testing.assert_array_equal(xyz, CLOUDS[name](5000))
    assert 1.5 < 5000 / len(np.unique(packed(xyz, SIZE))) < 7
    assert (xyz.min(axis=0) < 0).all(), "negative coordinates too"
    assert (xyz / np.float32(SIZE) * SIZE == xyz).all(), "exact, so that all who divide have the same cells"


def test_peers_far_behind_are_left_out_of_large_work() -> None:
    peers = {"fpsample": fake()}
    xyz = np.zeros((30_000, 3), np.float32)
    small, large = ({way.name for way in farthest_peers(xyz, k, peers)} for k in (10, 10_000))
    assert small - large == {"numpy", "fpsample kdtree"}


def test_the_floor_is_more_for_more_bytes() -> None:
    assert sampler_floor.floor_ms(0) == 0
    one, both = sampler_floor.floor_ms(1 << 22), sampler_floor.floor_ms(1 << 22, 1 << 22)
    assert 0 < one < both
    stages = sampler_floor.voxel_stages(1000, 100, 4, 5.0, {"scatter": 2.0, "group_chains": 3.0})
    whole, *kernels = sampler_floor.stage_rows(stages, 1000, "cube")
    assert (whole["read"], whole["written"]) == (28_000, 2800)
    assert [row["read"] for row in kernels] == [28_000, 32_000]
    assert whole["of_floor"] == pytest.approx(5.0 / whole["floor_ms"])


@pytest.mark.parametrize("n", [500, 150_000])
def test_kernels_are_timed_where_they_are_called(n: int) -> None:
    xyz = np.random.default_rng(0).random((n, 3), np.float32)
    taken = sampler_floor.kernels_ms(lambda: voxel(xyz, 0.2, threads=1), 2)
    assert set(taken) == {"bounds", "scatter", "group_chains"}
    assert all(ms > 0 for ms in taken.values())


def test_peers_that_are_missing_are_said(monkeypatch: pytest.MonkeyPatch) -> None:
    def absent(name: str) -> Any:
        raise ImportError(f"No module named {name!r}")

    monkeypatch.setattr(sampler_peers, "import_module", absent)
    monkeypatch.setattr(open3d, "library", lambda: absent("open3d"))
    found, missing = sampler_peers.installed()
    assert not found
    assert set(missing) == set(sampler_peers.NAMES)


def test_the_command(
    with_peers: Callable[..., None],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    with_peers()
    monkeypatch.setattr(samplers, "QUICK", TINY)
    out = tmp_path / "out.json"
    monkeypatch.setattr(sys, "argv", ["tamis", "bench", "samplers", "--quick", "--json", str(out)])
    with pytest.raises(SystemExit) as exit:
        cli.main()
    assert exit.value.code == 0
    assert "voxel 400, full" in capsys.readouterr().out
    assert json.loads(out.read_text())["rounds"] == 2
