from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from tamis.errors import DataError
from tamis.pipelines.build import build
from tamis.pipelines.dataset import Dataset
from tamis.trainer import loop
from tamis.trainer.checkpoints import checkpoint
from tamis.trainer.learner import whole_model
from tamis.trainer.mesh import Mesh, alone
from tamis.trainer.settings import LayoutSettings, Settings
from tamis.trainer.tasks import Segmentation, task_of

Make = Callable[..., Any]
NAME = "predictions.arrow"
EPOCH = 3  # batches: 12 training tiles, 5 a batch


class Cut(Exception):
    """The run is killed here."""


@pytest.fixture
def go(killed_in: Make) -> Make:
    """``go(settings, dataset, out)``: run to the end, having been killed in the step of each cut."""

    def run_it(
        settings: Settings,
        dataset: Dataset,
        out: Path,
        mesh: Mesh | None = None,
        cuts: tuple[int, ...] = (),
    ) -> None:
        out.mkdir(exist_ok=True)
        for cut in (*cuts, None):
            with killed_in(cut):
                loop.run(settings, dataset, out, mesh or alone(), 0.0)

    return run_it


def lines(out: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (out / "steps.jsonl").read_text().splitlines()]


def weights(settings: Settings, dataset: Dataset, out: Path) -> list[np.ndarray]:
    model = whole_model(task_of(settings.model, dataset))
    checkpoint.load_model(checkpoint.complete(out / "checkpoints")[-1], model)
    return [p.detach().numpy() for p in model.parameters()]


def assert_same_run(settings: Settings, dataset: Dataset, a: Path, b: Path) -> None:
    assert (a / "steps.jsonl").read_bytes() == (b / "steps.jsonl").read_bytes()
    for x, y in zip(weights(settings, dataset, a), weights(settings, dataset, b), strict=True):
        np.testing.assert_array_equal(x, y)
    assert (a / NAME).read_bytes() == (b / NAME).read_bytes()


def test_a_cut_run_ends_as_an_uncut_one(
    run_settings: Make, dataset: Dataset, tmp_path: Path, go: Make
) -> None:
    """S10, S11, T16: killed before the first step, in the middle, before the last step, at the epoch's end,
    and twice in one epoch: the same ids, bytes, losses, weights and predictions, to the bit."""
    settings = run_settings()
    go(settings, dataset, tmp_path / "whole")
    for cuts in [(0,), (4,), (7,), (EPOCH,), (2 * EPOCH,), (4, 5)]:
        out = tmp_path / "-".join(map(str, cuts))
        go(settings, dataset, out, cuts=cuts)
        assert_same_run(settings, dataset, tmp_path / "whole", out)
        assert json.loads((out / "report.json").read_text())["resumed_from"] == (cuts[-1] or None)
    assert [line["step"] for line in lines(tmp_path / "whole")] == list(range(8))
    assert [line["samples"] for line in lines(tmp_path / "whole")[: EPOCH + 1]] == [5, 5, 2, 5]
    assert len({line["crc"] for line in lines(tmp_path / "whole")}) == 8


def test_steps_after_the_last_checkpoint_are_taken_again(
    run_settings: Make, dataset: Dataset, tmp_path: Path, go: Make
) -> None:
    settings = run_settings(checkpoint_steps=3)
    go(settings, dataset, tmp_path / "whole")
    go(settings, dataset, tmp_path / "cut", cuts=(5,))
    assert_same_run(settings, dataset, tmp_path / "whole", tmp_path / "cut")
    assert json.loads((tmp_path / "cut" / "report.json").read_text())["resumed_from"] == 3


@pytest.mark.slow
def test_two_ranks_see_the_batches_of_one_and_learn_the_same(
    run_settings: Make, dataset: Dataset, tmp_path: Path, run_ranks: Make, go: Make
) -> None:
    """S14, T02: and a run of two ranks that is cut, at each kind of place, ends as one that is not."""
    settings = run_settings()
    go(settings, dataset, tmp_path / "one")

    def work(mesh: Mesh, name: str, cuts: tuple[int, ...]) -> None:
        go(settings, dataset, tmp_path / name, mesh, cuts)

    run_ranks(2, work, "two", ())
    for cuts in [(0,), (7,), (EPOCH,), (4, 5)]:
        name = "two-" + "-".join(map(str, cuts))
        run_ranks(2, work, name, cuts)
        assert_same_run(settings, dataset, tmp_path / "two", tmp_path / name)
    for one, two in zip(lines(tmp_path / "one"), lines(tmp_path / "two"), strict=True):
        for key in ("step", "epoch", "k", "samples", "points", "crc", "lr"):
            assert one[key] == two[key], key
        assert one["loss"] == pytest.approx(two["loss"], rel=1e-4)
    report = json.loads((tmp_path / "two" / "report.json").read_text())
    assert report["world_size"] == 2
    assert report["levels"][0]["steps"] == 8


def test_s19_evaluation_is_the_same_for_any_number_of_ranks_and_counts_each_point_once(
    run_settings: Make, dataset: Dataset, tmp_path: Path, run_ranks: Make
) -> None:
    """S19, S01: four test tiles on one, two and three ranks."""
    settings = run_settings()

    task = task_of(settings.model, dataset)
    model = whole_model(task)

    def work(mesh: Mesh, name: str) -> Any:
        (tmp_path / name).mkdir(exist_ok=True)
        return task.evaluate(dataset, model, mesh, settings.trainer, tmp_path / name)

    wanted = work(alone(), "1")
    for world in (2, 3):
        for found in run_ranks(world, work, str(world)):
            assert found == wanted | {"loss": pytest.approx(wanted["loss"])}
        assert (tmp_path / "1" / NAME).read_bytes() == (tmp_path / str(world) / NAME).read_bytes()
        assert [p.name for p in (tmp_path / str(world)).iterdir()] == [NAME]

    table = pa.ipc.open_file(tmp_path / "1" / NAME).read_all()
    assert table.schema.names == ["source", "row", "label", "predicted"]
    rows = table["row"].to_numpy()
    assert (np.diff(rows) > 0).all()  # sorted, each once
    split = dataset.manifest.counts.splits["test"]
    assert wanted["points"] == len(rows) == split.points
    assert wanted["labelled"] == (table["label"].to_numpy() >= 0).sum() == split.points - split.ignored
    assert wanted["dropped"] == 0
    right = (table["label"].to_numpy() == table["predicted"].to_numpy()).sum()
    assert wanted["accuracy"] == pytest.approx(right / wanted["labelled"])


def test_predictions_are_of_the_right_rows(
    run_settings: Make, dataset: Dataset, tmp_path: Path, scan: Path, go: Make
) -> None:
    import laspy

    go(run_settings(steps=60, checkpoint_steps=0), dataset, tmp_path / "run")
    table = pa.ipc.open_file(tmp_path / "run" / NAME).read_all()
    las = laspy.read(scan)
    codes = np.asarray(las.classification)[table["row"].to_numpy()]
    assert (table["label"].to_numpy() == np.select([codes == 2, codes == 3], [0, 1], -1)).all()
    bush = np.asarray(las.z)[table["row"].to_numpy()] > 0.5
    assert (table["predicted"].to_numpy() == bush).mean() > 0.9
    assert set(table["source"].to_pylist()) == {"field.las"}


def test_the_report_says_how_the_run_went(
    run_settings: Make, dataset: Dataset, tmp_path: Path, go: Make
) -> None:
    settings = run_settings(steps=30, checkpoint_steps=0)
    go(settings, dataset, tmp_path / "run")
    report = json.loads((tmp_path / "run" / "report.json").read_text())
    assert report["steps"] == report["updates"] == 30
    assert report["layout"] == LayoutSettings().model_dump()
    assert report["levels"] == [report["levels"][0] | {"k": 32, "steps": 30}]
    stages = {row["stage"]: row for row in report["stages"]}
    assert stages["train.forward"]["items"] == 30
    assert stages["train.save"]["items"] == 1
    assert {"stream.fetch", "stream.graph", "stream.pack"} <= stages.keys()
    assert report["limiting_stage"] in stages
    assert report["loss_last"] < report["loss_first"] == lines(tmp_path / "run")[0]["loss"]
    assert report["samples_per_s"] > 0
    assert report["points_per_s"] == pytest.approx(32 * report["samples_per_s"])
    assert 0 <= report["data_wait_fraction"] <= 1
    assert report["config"]["trainer"]["steps"] == 30
    assert len(report["parameters_per_rank"]) == 1


def test_a_field_the_dataset_lacks_is_named(
    run_settings: Make, settings_of: Make, dataset: Dataset, tmp_path: Path, go: Make
) -> None:
    settings = run_settings()
    model = settings.model.model_copy(update={"features": ("xy", "rgb")})
    with pytest.raises(DataError, match="has no field 'rgb'"):
        go(settings.model_copy(update={"model": model}), dataset, tmp_path / "run")


def test_the_ratio_moves_k_in_whole_windows(
    run_settings: Make, dataset: Dataset, tmp_path: Path, go: Make
) -> None:
    from tamis.samplers.ratio import RatioSettings

    settings = run_settings()
    loader = settings.loader.model_copy(
        update={"ratio": RatioSettings(kind="linear", start=1.0, end=0.5, steps=7)}
    )
    go(settings.model_copy(update={"loader": loader}), dataset, tmp_path / "run")
    ks = [line["k"] for line in lines(tmp_path / "run")]
    assert ks[0] == 32
    assert ks[-1] == 16
    assert ks == sorted(ks, reverse=True)
    assert all(k % 8 == 0 for k in ks)
    report = json.loads((tmp_path / "run" / "report.json").read_text())
    assert [level["k"] for level in report["levels"]] == sorted(set(ks))


def test_what_training_measured_survives_a_kill_during_evaluation(
    run_settings: Make, dataset: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def killed(*_: Any) -> None:
        raise Cut

    with monkeypatch.context() as patch:
        patch.setattr(Segmentation, "evaluate", killed)
        with pytest.raises(Cut):
            loop.run(run_settings(), dataset, tmp_path, alone(), 0.0)
    assert not (tmp_path / "report.json").exists()
    loop.run(run_settings(), dataset, tmp_path, alone(), 0.0)
    report = json.loads((tmp_path / "report.json").read_text())
    assert "train.step" in {row["stage"] for row in report["stages"]}
    assert report["train_wall_s"] > 0
    assert report["limiting_stage"]


def test_nothing_to_learn_from_is_refused(settings_of: Make, run_settings: Make, tmp_path: Path) -> None:
    data = run_settings().data.model_copy(update={"classes": {"water": [9]}})
    settings = run_settings().model_copy(update={"data": data})
    with pytest.raises(DataError, match="no training point has a class"):
        loop.run(settings, build(data, tmp_path), tmp_path, alone(), 0.0)


def test_weights_that_broke_are_never_kept(run_settings: Make, dataset: Dataset, tmp_path: Path) -> None:
    """The loss was finite still; the update that followed was not."""
    with pytest.raises(DataError, match=r"step 0: .*not finite"):
        loop.run(run_settings(steps=1, lr=1e38, warmup=0.0), dataset, tmp_path, alone(), 0.0)
    assert checkpoint.complete(tmp_path / "checkpoints") == []
