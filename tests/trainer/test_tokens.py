"""The next token: what is judged, and that a small model learns text."""

from __future__ import annotations

import email
import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tamis.config import load
from tamis.errors import DataError
from tamis.pipelines.build import build
from tamis.pipelines.dataset import Dataset
from tamis.pipelines.settings import DataSettings
from tamis.trainer import loop
from tamis.trainer.launch import train
from tamis.trainer.learner import whole_model
from tamis.trainer.mesh import Mesh, alone
from tamis.trainer.model_settings import TokenSettings
from tamis.trainer.settings import LayoutSettings, Settings, TrainerSettings
from tamis.trainer.tasks import NextToken, task_of
from tamis.trainer.tasks import tokens as tokens_task

Make = Callable[..., Any]
END = 256
SHORT = TrainerSettings(points=32)


@pytest.fixture
def data(tmp_path: Path) -> Dataset:
    """Texts of random bytes, short ones too, in samples of 70 tokens."""
    rng = np.random.default_rng(0)
    for i, size in enumerate([500, 0, 3, 80, 200, 1, 40]):
        (tmp_path / f"{i}.txt").write_bytes(rng.integers(97, 105, size, np.uint8).tobytes())
    split = {"kind": "files", "test": ["[2-6].txt"]}
    settings = DataSettings.model_validate({"root": tmp_path, "text": {"length": 70}, "split": split})
    return build(settings, tmp_path / "run")


@pytest.fixture
def task(data: Dataset) -> NextToken:
    found = task_of(TokenSettings(width=24, heads=2, depth=2), data)
    assert isinstance(found, NextToken)
    return found


def test_every_token_of_the_split_is_judged_once(task: NextToken, data: Dataset, tmp_path: Path) -> None:
    """Against the sequences one by one, token by token."""
    torch.manual_seed(0)
    model = whole_model(task)
    losses, right, following, tokens = [], 0, [], 0
    for part in data.splits["test"]:
        for row in range(*part.rows):
            sample = torch.from_numpy(data.sample(row).annotations["tokens"].astype(np.int64))
            tokens += len(sample)
            for start in range(0, len(sample), 32):
                sequence = sample[start : start + 32]
                columns, mask = {"tokens": sequence[None]}, torch.ones(1, len(sequence), dtype=torch.bool)
                with torch.no_grad():
                    scores = model(task.entry(columns), **task.inputs(columns, mask))[0].double()
                for i in range(len(sequence) - 1):
                    if sequence[i] != END:
                        losses.append(-float(scores[i].log_softmax(-1)[sequence[i + 1]]))
                        right += int(scores[i].argmax() == sequence[i + 1])
                        following.append(int(sequence[i + 1]))
    found = task.evaluate(data, model, alone(), SHORT, tmp_path)
    assert found == {
        "accuracy": pytest.approx(right / len(losses)),
        "majority": pytest.approx(np.bincount(following).max() / len(losses)),
        "mean_iou": None,
        "loss": pytest.approx(np.mean(losses), rel=1e-5),
        "perplexity": pytest.approx(math.exp(np.mean(losses)), rel=1e-4),
        "bits_per_byte": pytest.approx(np.mean(losses) / math.log(2), rel=1e-5),
        "labelled": len(losses),
        "unit": "tokens",
        "tokens": tokens,
        "points": tokens,
        "dropped": 0,
    }
    assert tokens == 3 + 80 + 200 + 1 + 40 + 5


def test_a_perplexity_above_all_numbers_is_none(
    task: NextToken, data: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a run whose rate was too high; a report holds no infinity."""
    monkeypatch.setattr(tokens_task, "cross_entropy", lambda _, label: 1000.0 * len(label))
    found = task.evaluate(data, whole_model(task), alone(), SHORT, tmp_path)
    assert found is not None
    assert (found["loss"], found["perplexity"]) == (pytest.approx(1000), None)


def test_any_number_of_ranks_finds_the_same(
    task: NextToken, data: Dataset, tmp_path: Path, run_ranks: Make
) -> None:
    model = whole_model(task)

    def work(mesh: Mesh) -> Any:
        return task.evaluate(data, model, mesh, SHORT, tmp_path)

    wanted = work(alone())
    rounded = {name: pytest.approx(wanted[name]) for name in ("loss", "perplexity", "bits_per_byte")}
    for world in (2, 3):
        assert run_ranks(world, work) == [wanted | rounded] * world


def test_nothing_to_judge_by_is_no_figure(task: NextToken, tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    for name in ("a.txt", "b.txt"):
        (tmp_path / "a" / name).write_bytes(b"" if name == "a.txt" else b"words")
    split = {"kind": "files", "test": ["a.txt"]}
    values = {"root": tmp_path / "a", "text": {"length": 8}}
    empty = build(DataSettings.model_validate(values | {"split": split}), tmp_path / "empty")
    assert task.evaluate(empty, whole_model(task), alone(), SHORT, tmp_path) is None
    without = build(DataSettings.model_validate(values), tmp_path / "without")
    assert task.evaluate(without, whole_model(task), alone(), SHORT, tmp_path) is None


def test_a_token_beyond_the_vocabulary_stops_the_judging_too(data: Dataset, tmp_path: Path) -> None:
    task = task_of(TokenSettings(width=24, heads=2, depth=1, vocabulary=100, end=99), data)
    with pytest.raises(DataError, match=r"a token is 256, the vocabulary holds 100; raise model\.vocabulary"):
        task.evaluate(data, whole_model(task), alone(), SHORT, tmp_path)


def test_a_run_on_a_mesh_ends_as_that_of_one_process(
    data: Dataset, settings_of: Make, tmp_path: Path, run_ranks: Make
) -> None:
    """Through pipeline and tensor ranks, which share out a vocabulary that they do not divide."""

    def work(mesh: Mesh, layout: LayoutSettings) -> dict[str, Any]:
        settings = settings_of(
            data={"path": str(data.path)},
            layout=layout.model_dump(exclude_none=True),
            model={"kind": "tokens", "width": 24, "heads": 2, "depth": 2},
            trainer={"points": 32, "steps": 3, "checkpoint_steps": 0},
        )
        out = tmp_path / str(mesh.world)
        out.mkdir(exist_ok=True)
        loop.run(settings, data, out, mesh, 0.0)
        found: dict[str, Any] = json.loads((out / "report.json").read_text()) if mesh.rank == 0 else {}
        return found

    wanted = work(alone(), LayoutSettings())
    layout = LayoutSettings(tp=2, pp=2)
    report = run_ranks(layout, work, layout)[0]
    assert report["world_size"] == 4
    assert report["loss_last"] == pytest.approx(wanted["loss_last"], rel=1e-4)
    assert report["eval"]["loss"] == pytest.approx(wanted["eval"]["loss"], rel=1e-4)
    for key in ("tokens", "labelled", "majority"):
        assert report["eval"][key] == wanted["eval"][key]


def entropy(data: Dataset) -> float:
    """Of the tokens of the test split one by one, in nats: what their frequencies alone give."""
    rows = [row for part in data.splits["test"] for row in range(*part.rows)]
    tokens = np.concatenate([data.sample(row).annotations["tokens"] for row in rows])
    share = np.bincount(tokens) / len(tokens)
    return float(-(share[share > 0] * np.log(share[share > 0])).sum())


def test_a_small_model_learns_text(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The shipped configuration, smaller, on the sources of a package: better than letters' frequencies."""
    monkeypatch.delenv("RANK", raising=False)
    changes = [
        f"data.root={Path(email.__file__).parent}",
        'data.files=["*.py"]',
        "data.split.test=0.2",
        "layout.dp=1",
        "loader.batch=8",
        "loader.ratio.steps=90",
        "loader.ratio.milestones=[30,60]",
        "model.width=48",
        "model.heads=2",
        "model.depth=2",
        "trainer.points=128",
        "trainer.steps=160",
        "trainer.lr=0.01",
    ]
    report = train(load("lm_small", changes, Settings), tmp_path / "run")
    assert report is not None
    ks = [json.loads(line)["k"] for line in (tmp_path / "run" / "steps.jsonl").read_text().splitlines()]
    assert ks == sorted(ks)
    assert set(ks) == {32, 64, 128}
    alone = entropy(Dataset(tmp_path / "run"))
    assert 2.5 < alone < 4
    assert report["eval"]["loss"] < alone - 0.7
    assert report["eval"]["accuracy"] > report["eval"]["majority"] + 0.1
    assert report["points_per_s"] is None
    assert report["tokens_per_s"] > 0
    printed = capsys.readouterr().out
    assert "thousand tokens/s" in printed
    assert f"perplexity {report['eval']['perplexity']:.3f}" in printed
    assert f"labelled of {report['eval']['tokens']:,} tokens, 0 dropped" in printed
    assert not (tmp_path / "run" / "predictions.arrow").exists()
