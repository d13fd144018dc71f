"""A class for each cloud: what is judged, and that a small model learns shapes."""

from __future__ import annotations

import json
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import torch
from numpy.typing import NDArray

from tamis.config import load
from tamis.pipelines.build import build
from tamis.pipelines.dataset import Dataset
from tamis.samplers.curve import serialise
from tamis.trainer import loop
from tamis.trainer.launch import train
from tamis.trainer.learner import whole_model
from tamis.trainer.mesh import Mesh, alone
from tamis.trainer.settings import LayoutSettings, Settings
from tamis.trainer.tasks import task_of

Make = Callable[..., Any]
FASHION = Path("/usr/share/datasets/fashion-mnist")
NAME = "predictions.arrow"


def write_images(folder: Path, name: str, pixels: NDArray[np.uint8], label: NDArray[np.uint8]) -> None:
    head = struct.pack(">4I", 0x0803, *pixels.shape)
    (folder / f"{name}-images-idx3-ubyte").write_bytes(head + pixels.tobytes())
    (folder / f"{name}-labels-idx1-ubyte").write_bytes(
        struct.pack(">2I", 0x0801, len(label)) + label.tobytes()
    )


def bars(rng: np.random.Generator, n: int) -> tuple[NDArray[np.uint8], NDArray[np.uint8]]:
    """Images of 12 x 12 with a lying (0) or a standing bar (1) somewhere."""
    pixels, label = np.zeros((n, 12, 12), np.uint8), rng.integers(0, 2, n).astype(np.uint8)
    for image, stands in zip(pixels, label, strict=True):
        long, thick = rng.integers(6, 11), rng.integers(1, 4)
        height, width = (long, thick) if stands else (thick, long)
        y, x = rng.integers(0, 13 - height), rng.integers(0, 13 - width)
        image[y : y + height, x : x + width] = rng.integers(1, 256, (height, width))
    return pixels, label


@pytest.fixture
def settings(settings_of: Make, tmp_path: Path) -> Settings:
    """Bars to learn from, and others to be judged on, an empty image and one of no class among them."""
    rng, folder = np.random.default_rng(0), tmp_path / "images"
    folder.mkdir()
    write_images(folder, "train", *bars(rng, 200))
    pixels, label = bars(rng, 61)
    pixels[7], label[11] = 0, 9
    write_images(folder, "t10k", pixels, label)
    made: Settings = settings_of(
        data={
            "root": str(folder),
            "files": ["*images*"],
            "classes": {"lying": [0], "standing": [1]},
            "split": {"kind": "files", "test": ["t10k*"]},
            "row_order": "random",
        },
        loader={"batch": 16},
        model={
            "kind": "clouds",
            "width": 24,
            "depth": 2,
            "window": 8,
            "cell": 1.0,
            "features": ["xy"],
            "xy_scale": 3.0,
        },
        trainer={"points": 16, "steps": 60, "lr": 0.005, "checkpoint_steps": 0},
    )
    return made


def test_every_cloud_is_judged_once_by_its_first_rows(
    settings: Settings, tmp_path: Path, run_ranks: Make
) -> None:
    """Against the clouds one by one; on any number of ranks."""
    data = build(settings.data, tmp_path)
    task = task_of(settings.model, data)
    torch.manual_seed(0)
    model = whole_model(task)

    def work(mesh: Mesh) -> Any:
        out = tmp_path / f"{mesh.world} ranks"
        out.mkdir(exist_ok=True)
        return task.evaluate(data, model, mesh, settings.trainer, out)

    found = work(alone())
    answers, losses, seen = {}, [], 0
    for part in data.splits["test"]:
        for row in range(*part.rows):
            sample = data.sample(row)
            n = min(sample.rows, 16)
            xyz = np.zeros((16, 3), np.float32)
            if n:
                xyz = np.tile(sample.columns["xyz"][:n], (16, 1))[:16]
            order, transposed = serialise(xyz, 1.0)
            columns = {
                "xyz": torch.from_numpy(xyz[order][None]),
                "transposed": torch.from_numpy(transposed[None]),
            }
            mask = torch.from_numpy((np.arange(16) < n)[order][None])
            with torch.no_grad():
                scores = model(task.entry(columns), **task.inputs(columns, mask))[0].double()
            label = int(sample.columns["label"][0]) if n else -1
            answers[sample.tile] = (label, int(scores.argmax()))
            losses += [-float(scores.log_softmax(-1)[label])] if label >= 0 else []
            seen += n
    assert answers[7][0] == answers[11][0] == -1
    right = np.mean([label == answer for label, answer in answers.values() if label >= 0])
    assert found is not None
    assert {key: found[key] for key in ("samples", "points", "labelled", "dropped", "unit")} == {
        "samples": 61,
        "points": seen,
        "labelled": 59,
        "dropped": 0,
        "unit": "clouds",
    }
    assert found["accuracy"] == pytest.approx(right)
    assert found["loss"] == pytest.approx(np.mean(losses), rel=1e-5)
    table = pa.ipc.open_file(tmp_path / "1 ranks" / NAME).read_all().to_pydict()
    assert table["row"] == list(range(61))
    assert set(table["source"]) == {"t10k-images-idx3-ubyte"}
    assert list(zip(table["label"], table["predicted"], strict=True)) == [answers[i] for i in range(61)]

    for world in (2, 3):
        for told in run_ranks(world, work):
            assert told == found | {"loss": pytest.approx(found["loss"])}
        assert (tmp_path / f"{world} ranks" / NAME).read_bytes() == (tmp_path / "1 ranks" / NAME).read_bytes()


def test_a_run_on_a_mesh_ends_as_that_of_one_process(
    settings: Settings, tmp_path: Path, run_ranks: Make
) -> None:
    """Through pipeline and tensor ranks; the last of the pipeline pools what it never read."""
    data = build(settings.data, tmp_path)
    few = settings.model_copy(update={"trainer": settings.trainer.model_copy(update={"steps": 3})})

    def work(mesh: Mesh, layout: LayoutSettings) -> dict[str, Any]:
        out = tmp_path / f"{mesh.world} ranks"
        out.mkdir(exist_ok=True)
        loop.run(few.model_copy(update={"layout": layout}), data, out, mesh, 0.0)
        found: dict[str, Any] = json.loads((out / "report.json").read_text()) if mesh.rank == 0 else {}
        return found

    wanted = work(alone(), LayoutSettings())
    layout = LayoutSettings(tp=2, pp=2)
    report = run_ranks(layout, work, layout)[0]
    assert report["world_size"] == 4
    assert report["loss_last"] == pytest.approx(wanted["loss_last"], rel=1e-4)
    assert report["eval"]["loss"] == pytest.approx(wanted["eval"]["loss"], rel=1e-4)
    assert report["eval"]["labelled"] == wanted["eval"]["labelled"] == 59


def test_a_small_model_learns_which_way_bars_lie(
    settings: Settings, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("RANK", raising=False)
    report = train(settings, tmp_path / "run")
    assert report is not None
    assert report["eval"]["majority"] < 0.7
    assert report["eval"]["accuracy"] > 0.9
    assert report["eval"]["mean_iou"] > 0.8
    assert report["points_per_s"] > 0
    printed = capsys.readouterr().out
    assert "test: 59 labelled of 61 clouds, 0 dropped" in printed


@pytest.mark.skipif(not FASHION.is_dir(), reason=f"no {FASHION}: install Debian's dataset-fashion-mnist")
def test_clothes_are_learned(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The shipped configuration, fewer steps, on the smaller half of the images, split by name."""
    monkeypatch.delenv("RANK", raising=False)
    changes = [
        'data.files=["t10k-images-idx3-ubyte.gz"]',
        'data.split={kind="hash", test=0.1}',
        "layout.dp=1",
        "trainer.points=64",
        "trainer.steps=100",
    ]
    report = train(load("fashion_points", changes, Settings), tmp_path / "run")
    assert report is not None
    assert report["eval"]["majority"] < 0.2
    assert report["eval"]["accuracy"] > 0.3
    assert Dataset(tmp_path / "run").classes[9] == "boot"
