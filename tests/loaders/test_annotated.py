"""Annotations beside the columns of a batch: of the same samples, whole, moved as their points are."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from tamis.errors import DataError, UsageError
from tamis.loaders import node
from tamis.loaders.checks import Verify
from tamis.loaders.device import to_device
from tamis.loaders.loader import Batch, Loader
from tamis.loaders.node import Place
from tamis.loaders.settings import Form
from tamis.metrics import STREAM, Meter, stage_rows
from tamis.pipelines.dataset import Dataset
from tamis.pipelines.manifest import Column

COLUMNS = [
    Column(name="xyz", dtype="float32", width=3, kind="point"),
    Column(name="row", dtype="int64", width=1, kind="none"),
]
ANNOTATIONS = [
    Column(name="boxes", dtype="float32", width=7, kind="box"),
    Column(name="box_instance", dtype="int64", width=1, kind="class"),
    Column(name="box_velocity", dtype="float32", width=3, kind="vector"),
    Column(name="pose", dtype="float64", width=16, kind="pose"),
    Column(name="image", dtype="uint8", width=1, kind="none"),
]
ALL = [one.name for one in ANNOTATIONS]
MOVES: list[dict[str, Any]] = [
    {"kind": "flip", "axes": ["x", "y", "z"]},
    {"kind": "rotate"},
    {"kind": "normalise"},
    {"kind": "scale", "low": 0.5, "high": 3.0},
]
Arrays = dict[str, NDArray[Any]]
Write = Callable[..., Dataset]


def sample(rng: np.random.Generator, points: int, boxes: int) -> Arrays:
    """Box j lies about point ``box_instance[j]`` and looks, and goes, to where the next point is."""
    xyz = rng.normal(0, 20, (points, 3)).astype(np.float32)
    about = rng.permutation(max(points - 1, 0))[:boxes]
    leads = xyz[about + 1] - xyz[about]
    across, up = np.hypot(leads[:, 0], leads[:, 1]), np.abs(leads[:, 2])
    size = np.stack([across, 2 * across, up], axis=1)
    yaw = np.arctan2(leads[:, 1], leads[:, 0])[:, None]
    pose = np.eye(4)
    pose[:3] += rng.normal(0, 0.3, (3, 4))
    return {
        "xyz": xyz,
        "row": np.arange(points),
        "boxes": np.concatenate([xyz[about], size, yaw], axis=1).astype(np.float32),
        "box_instance": about,
        "box_velocity": leads,
        "pose": pose.reshape(1, 16),
        "image": rng.integers(0, 256, rng.integers(0, 900), np.uint8),
    }


@pytest.fixture(params=[0, 1])
def data(tmp_path: Path, write_dataset: Write, request: pytest.FixtureRequest) -> Dataset:
    rng = np.random.default_rng(request.param)
    sizes = [(300, 4), (1, 0), (700, 60), (40, 1), (0, 0), (513, 300), (90, 7)]
    samples = [sample(rng, *size) for size in sizes]
    return write_dataset(tmp_path / "dataset", samples, [range(3), range(3, 7)], COLUMNS, ANNOTATIONS)


def row_of(data: Dataset, id: int) -> int:
    return int(np.flatnonzero(data.ids == id)[0])


def own(batch: Batch, place: int) -> Arrays:
    """The annotations of one sample of a batch."""
    return {
        name: held.values[held.offsets[place] : held.offsets[place + 1]]
        for name, held in batch.annotations.items()
    }


def cloud(batch: Batch, place: int) -> Arrays:
    """The rows of one sample of a batch that repeat none."""
    if batch.mask is not None:
        return {name: values[place][batch.mask[place]] for name, values in batch.columns.items()}
    assert batch.offsets is not None
    rows = slice(*batch.offsets[place : place + 2])
    return {name: values[rows] for name, values in batch.columns.items()}


def world(pose: NDArray[Any], xyz: NDArray[Any]) -> NDArray[np.float64]:
    whole = np.concatenate([xyz.astype(np.float64), np.ones((len(xyz), 1))], axis=1)
    found: NDArray[np.float64] = (whole @ pose.reshape(4, 4).T)[:, :3]
    return found


@pytest.mark.parametrize("verify", ["first", "always", "never"])
@pytest.mark.parametrize("replicas", [1, 2])
def test_they_come_whole_and_as_they_are(data: Dataset, replicas: int, verify: Verify) -> None:
    seen = []
    for replica in range(replicas):
        about: dict[str, Any] = {"global_batch": 3, "epochs": 2, "form": "ragged", "verify": verify}
        with Loader(data, annotations=ALL, replica=replica, replicas=replicas, **about) as loader:
            for batch in loader:
                assert list(batch.annotations) == ALL
                for name, held in batch.annotations.items():
                    assert held.offsets.shape == (len(batch.ids) + 1,)
                    assert held.offsets[-1] == len(held.values), name
                    assert held.values.dtype == data.annotations[name].dtype
                for place in range(len(batch.ids)):
                    if not batch.weight[place]:
                        assert not any(len(values) for values in own(batch, place).values())
                        continue
                    wanted = data.sample(row_of(data, int(batch.ids[place])))
                    for name, values in own(batch, place).items():
                        assert np.array_equal(values, wanted.annotations[name])
                    assert np.array_equal(cloud(batch, place)["xyz"], wanted.columns["xyz"])
                    seen.append(wanted.id)
    assert sorted(seen) == sorted(2 * data.ids.tolist())


@pytest.mark.parametrize(
    ("form", "k", "threads"), [("ragged", None, 1), ("ragged", 250, 3), ("dense", 250, 2)]
)
@pytest.mark.parametrize(
    "graph",
    [*([one] for one in MOVES), MOVES, [*MOVES, {"kind": "voxel", "size": 1e-3, "pick": "first"}]],
    ids=lambda graph: "+".join(one["kind"] for one in graph),
)
def test_what_moves_points_moves_what_is_about_them(
    data: Dataset, form: Form, k: int | None, threads: int, graph: list[dict[str, Any]]
) -> None:
    about: dict[str, Any] = {"global_batch": 4, "k": k, "epochs": 1, "graph": graph, "threads": threads}
    compared = mirrored = 0
    with Loader(data, form=form, annotations=ALL, seed=3, **about) as loader:
        for batch in loader:
            for place in np.flatnonzero(batch.weight).tolist():
                found, annotated = cloud(batch, place), own(batch, place)
                before = data.sample(row_of(data, int(batch.ids[place])))
                assert np.array_equal(annotated["image"], before.annotations["image"])
                assert np.array_equal(annotated["box_instance"], before.annotations["box_instance"])
                moved = np.full((before.rows + 1, 3), np.nan)
                moved[found["row"]] = found["xyz"]
                there = world(annotated["pose"], moved[found["row"]])
                origin = world(before.annotations["pose"], before.columns["xyz"][found["row"]])
                np.testing.assert_allclose(there, origin, atol=2e-4)
                boxes, instance = annotated["boxes"], annotated["box_instance"]
                leads = moved[instance + 1] - moved[instance]
                whole = np.isfinite(leads).all(axis=1)
                np.testing.assert_allclose(boxes[whole, :3], moved[instance][whole], atol=1e-4)
                np.testing.assert_allclose(annotated["box_velocity"][whole], leads[whole], atol=1e-4)
                across = np.hypot(leads[:, 0], leads[:, 1])[:, None]
                heading = across * np.stack([np.cos(boxes[:, 6]), np.sin(boxes[:, 6])], axis=1)
                np.testing.assert_allclose(heading[whole], leads[whole, :2], atol=2e-4)
                np.testing.assert_allclose(boxes[whole, 3], across[whole, 0], atol=1e-4)
                np.testing.assert_allclose(boxes[whole, 4], 2 * across[whole, 0], atol=2e-4)
                np.testing.assert_allclose(boxes[whole, 5], np.abs(leads[whole, 2]), atol=1e-4)
                compared += int(whole.sum())
                mirrored += bool(np.linalg.det(annotated["pose"].reshape(4, 4)) < 0)
    assert compared > 20
    assert mirrored or "flip" not in {one["kind"] for one in graph}


def test_noise_leaves_them_where_they_are(data: Dataset) -> None:
    graph: list[dict[str, Any]] = [{"kind": "jitter", "sigma": 0.1}, {"kind": "random"}]
    with Loader(data, global_batch=7, k=30, graph=graph, annotations=["boxes"], form="ragged") as loader:
        batch = next(loader)
    for place, id in enumerate(batch.ids):
        wanted = data.sample(row_of(data, int(id))).annotations["boxes"]
        assert np.array_equal(own(batch, place)["boxes"], wanted)
    assert list(batch.annotations) == ["boxes"]


def content(batch: Batch) -> dict[str, Any]:
    return {name: (str(t.dtype), tuple(t.shape), t.tolist()) for name, t in batch.torch().items()}


def test_tensors_share_their_memory(data: Dataset) -> None:
    about: dict[str, Any] = {"global_batch": 4, "form": "ragged", "annotations": ["pose", "boxes"]}
    with Loader(data, **about) as loader:
        batch = next(loader)
        tensors = batch.torch()
        assert list(tensors)[-4:] == ["boxes.offsets", "boxes", "pose.offsets", "pose"]
        assert tensors["pose"].dtype == torch.float64
        tensors["pose"][0, 0] = 77
        assert batch.annotations["pose"].values[0, 0] == 77
    with Loader(data, **about, epochs=1) as loader:
        for moved in to_device(loader, "cpu"):
            assert moved.tensors["boxes.offsets"][-1] == len(moved.tensors["boxes"])


@pytest.mark.parametrize("data", [0], indirect=True)
@pytest.mark.parametrize(("form", "graph"), [("dense", []), ("ragged", MOVES[:2])], ids=str)
def test_a_feeder_gives_what_inline_gives(
    data: Dataset, form: Form, graph: Sequence[dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    about: dict[str, Any] = {"global_batch": 3, "k": 400, "epochs": 2, "form": form, "graph": graph}
    about |= {"annotations": ["image", "boxes"], "timeout_s": 60.0}
    wanted = []
    for replica in range(2):
        with Loader(data, replica=replica, replicas=2, **about) as loader:
            wanted.append([content(batch) for batch in loader])
    run, loaders = str(time.monotonic_ns()), []
    for rank in range(2):
        monkeypatch.setattr(node, "place", lambda _, rank=rank: Place(rank, 2, run))
        loaders.append(Loader(data, replica=rank, replicas=2, feeder="node", **about))
    monkeypatch.undo()
    with ExitStack() as stack:
        threads = stack.enter_context(ThreadPoolExecutor(2))
        for one in loaders:
            stack.enter_context(one)
        found = list(threads.map(lambda one: [content(batch) for batch in one], loaders))
    assert found == wanted


def test_a_damaged_one_is_a_damaged_sample(data: Dataset) -> None:
    row = 3
    path = data.shard_path(int(data.shard[row]), "boxes")
    raw = bytearray(path.read_bytes())
    raw[int(data.positions["boxes"][row]) + 5] ^= 4
    path.write_bytes(raw)
    about: dict[str, Any] = {"global_batch": 7, "form": "ragged", "annotations": ["boxes", "image"]}
    with (
        Loader(data, **about) as loader,
        pytest.raises(DataError, match=rf"{path.name}: is damaged in the block at offset .*column boxes"),
    ):
        next(loader)
    with Loader(data, max_damaged=1, graph=MOVES, **about) as loader:
        batch = next(loader)
    (place,) = np.flatnonzero(batch.weight == 0).tolist()
    assert batch.ids[place] == data.ids[row]
    assert not any(len(values) for values in (own(batch, place) | cloud(batch, place)).values())
    assert sum(batch.weight) == 6
    with Loader(data, global_batch=7, form="ragged", annotations=["image"]) as loader:
        assert next(loader).weight.all(), "what is not asked for is not read"


def test_their_bytes_are_counted(data: Dataset) -> None:
    meter = Meter(STREAM)
    with Loader(data, global_batch=7, epochs=1, form="ragged", annotations=ALL, meter=meter) as loader:
        batches = list(loader)
    read = sum(a.nbytes for a in batches[0].columns.values())
    read += sum(held.values.nbytes for held in batches[0].annotations.values())
    (fetch,) = (row for row in stage_rows(STREAM, meter.table[None], 1.0) if row["stage"] == "stream.fetch")
    assert (fetch["items"], fetch["bytes"]) == (7, read)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"annotations": ["box"]}, r"loader.annotations: no annotation 'box' in .*; it has boxes, box_inst"),
        ({"annotations": "boxes"}, "loader.annotations: is 'boxes'; give a list of names"),
        (
            {"annotations": ["image"], "columns": ["image"]},
            "loader.annotations: 'image' is a part of the batch already",
        ),
        ({"annotations": ["boxes"], "engine": "dali"}, "loader.engine: 'dali' moves no annotations"),
        (
            {"annotations": ["boxes"], "graph": [{"kind": "rotate", "axis": "y"}]},
            "rotate about y would tilt annotation 'boxes'",
        ),
        (
            {"annotations": ["image", "pose"], "graph": [{"kind": "function", "function": "a:b"}]},
            "function may move points, which annotation 'pose' would not follow",
        ),
    ],
)
def test_what_cannot_be_is_refused(data: Dataset, arguments: dict[str, Any], said: str) -> None:
    with pytest.raises(UsageError, match=said):
        Loader(data, global_batch=2, form="ragged", **arguments)


def test_boxes_of_another_kind_stay_where_nothing_moves(tmp_path: Path, write_dataset: Write) -> None:
    flat = [Column(name="boxes", dtype="int32", width=4, kind="box")]
    values = {"xyz": np.zeros((2, 3), np.float32), "boxes": np.arange(8, dtype=np.int32).reshape(2, 4)}
    data = write_dataset(tmp_path / "dataset", [values], [range(1)], COLUMNS[:1], flat)
    with Loader(data, global_batch=1, form="ragged", annotations=["boxes"]) as loader:
        assert next(loader).annotations["boxes"].values.tolist() == values["boxes"].tolist()
    with pytest.raises(UsageError, match=r"flip cannot move annotation 'boxes' \(int32 x 4, box\)"):
        Loader(data, global_batch=1, form="ragged", annotations=["boxes"], graph=[{"kind": "flip"}])
