"""Weights as a safetensors file: out of a run, and into another."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from crc32c import crc32c
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from torch.distributed.tensor import DTensor

from tamis.cli import main
from tamis.errors import DataError, UsageError
from tamis.trainer.checkpoints import checkpoint
from tamis.trainer.checkpoints.export_weights import export
from tamis.trainer.checkpoints.increments import raw
from tamis.trainer.checkpoints.weights import SUMS, begin_with
from tamis.trainer.launch import train
from tamis.trainer.learner import Learner
from tamis.trainer.mesh import Mesh, alone
from tamis.trainer.model_settings import TokenSettings
from tamis.trainer.settings import LayoutSettings, TrainerSettings
from tamis.trainer.tasks import NextToken

Make = Callable[..., Any]


@pytest.fixture
def run(run_settings: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A finished run of 4 steps, of which the checkpoints of 3 and 4 are there."""
    monkeypatch.delenv("RANK", raising=False)
    train(run_settings(steps=4), tmp_path / "run")
    return tmp_path / "run"


def test_a_run_is_exported(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for step, args in ((4, []), (3, ["--step", "3"])):
        file = tmp_path / f"{step}.safetensors"
        monkeypatch.setattr(sys, "argv", ["tamis", "export", str(run), str(file), *args])
        with pytest.raises(SystemExit) as ended:
            main()
        assert ended.value.code == 0
        assert f"parameters after {step} steps" in capsys.readouterr().out
        wanted = checkpoint.weights(checkpoint.written(run, step))
        found = load_file(file)
        assert found.keys() == wanted.keys()
        assert file.stat().st_mode == (run / "config.toml").stat().st_mode
        assert all(torch.equal(found[name], wanted[name]) for name in found)
        assert {t.dtype for t in found.values()} == {torch.float32}
        with safe_open(file, framework="pt") as opened:
            told = opened.metadata()
        assert (told["name"], told["step"]) == ("small", str(step))
        assert json.loads(told["classes"]) == ["ground", "bush"]
        assert json.loads(told["model"])["width"] == 24
    assert not list(tmp_path.glob(".*"))


def test_what_cannot_be_exported_is_refused(run: Path, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"suffix \.safetensors"):
        export(run, tmp_path / "weights.pt")
    with pytest.raises(DataError, match="holds no run"):
        export(tmp_path, tmp_path / "weights.safetensors")
    with pytest.raises(UsageError, match="no checkpoint of step 2; there are 3, 4"):
        export(run, tmp_path / "weights.safetensors", step=2)
    (file,) = checkpoint.written(run).glob("*.distcp")
    file.write_bytes(file.read_bytes()[:-1])
    with pytest.raises(DataError, match="bytes differ"):
        export(run, tmp_path / "weights.safetensors")
    assert not (tmp_path / "weights.safetensors").exists()


def test_a_run_begins_with_them_and_goes_on_without(run: Path, run_settings: Make, tmp_path: Path) -> None:
    """Its rate is too low to move a weight by more than rounding; on resume the file may be gone."""
    file, out = tmp_path / "weights.safetensors", tmp_path / "other"
    export(run, file)
    options = {"init": str(file), "lr": 1e-12, "warmup": 0.0, "checkpoint_steps": 1}
    train(run_settings(steps=1, **options), out)
    wanted = load_file(file)
    for name, values in checkpoint.weights(checkpoint.written(out)).items():
        np.testing.assert_allclose(values, wanted[name], atol=1e-9, err_msg=name)
    file.unlink()
    report = train(run_settings(steps=2, **options), out)
    assert report is not None
    assert report["resumed_from"] == 1


def tokens(mesh: Mesh, layout: LayoutSettings) -> Learner:
    """Seven tokens, which an even number of ranks fills up."""
    model = TokenSettings(width=16, heads=2, depth=2, vocabulary=7, end=6)
    return Learner(NextToken(model, True, "here"), layout, TrainerSettings(points=32, steps=4), mesh)


def random_weights(learner: Learner, file: Path) -> dict[str, torch.Tensor]:
    rng = torch.Generator().manual_seed(1)
    tensors = {n: torch.randn(p.shape, generator=rng) for n, p in learner.model.named_parameters()}
    save_file(tensors, file)
    return tensors


@pytest.mark.parametrize(
    "layout",
    [
        LayoutSettings(),
        LayoutSettings(tp=2),
        pytest.param(LayoutSettings(dp=3, shard=3), marks=pytest.mark.slow),
        pytest.param(LayoutSettings(tp=2, pp=2), marks=pytest.mark.slow),
    ],
    ids=["one", "tp2", "shard3", "tp2-pp2"],
)
def test_any_layout_begins_with_them(layout: LayoutSettings, run_ranks: Make, tmp_path: Path) -> None:
    file = tmp_path / "weights.safetensors"
    wanted = random_weights(tokens(alone(), LayoutSettings()), file)

    def work(mesh: Mesh) -> dict[str, Any]:
        learner = tokens(mesh, layout)
        begin_with(file, learner)
        whole = {
            n: p.full_tensor() if isinstance(p, DTensor) else p for n, p in learner.model.named_parameters()
        }
        return {name: values.detach().numpy() for name, values in whole.items()}

    answers = [work(alone())] if layout.ranks == 1 else run_ranks(layout, work)
    assert set().union(*answers) == wanted.keys()
    for answer in answers:
        for name, values in answer.items():
            rows = len(wanted[name])
            np.testing.assert_array_equal(values[:rows], wanted[name], err_msg=name)
            assert not values[rows:].any(), name


@pytest.mark.parametrize(
    "wrong", ["shape", "missing", "unknown", "infinite", "integers", "cut", "bit", "gone"]
)
def test_weights_that_do_not_fit_are_refused(wrong: str, new_learner: Make, tmp_path: Path) -> None:
    """And none of them is taken."""
    file, learner = tmp_path / "weights.safetensors", new_learner()
    before = {name: p.detach().clone() for name, p in learner.model.named_parameters()}
    tensors = {name: values + 1 for name, values in before.items()}
    told = {
        "shape": r"its tensor norm.bias has the shape \(5,\), the model's \(24,\)",
        "missing": "lacks the tensor norm.bias",
        "unknown": "holds, beyond the model, the tensor other",
        "infinite": "its tensor norm.bias holds values that are no finite numbers",
        "integers": "its tensor norm.bias holds values that are no finite numbers",
        "cut": "is no safetensors file, or damaged",
        "bit": "its tensor .* is not what was written: bytes differ",
        "gone": "cannot be read",
    }[wrong]
    match wrong:
        case "shape":
            tensors["norm.bias"] = torch.zeros(5)
        case "missing":
            del tensors["norm.bias"]
        case "unknown":
            tensors["other"] = torch.zeros(5)
        case "infinite":
            tensors["norm.bias"][3] = torch.inf
        case "integers":
            tensors["norm.bias"] = tensors["norm.bias"].int()
    save_file(tensors, file, {SUMS: json.dumps({name: crc32c(raw(t)) for name, t in tensors.items()})})
    data = bytearray(file.read_bytes())
    if wrong == "cut":
        file.write_bytes(data[:-10])
    if wrong == "bit":
        data[-100] ^= 1
        file.write_bytes(data)
    if wrong == "gone":
        file.unlink()
    with pytest.raises(DataError, match=told):
        begin_with(file, learner)
    for name, parameter in learner.model.named_parameters():
        assert torch.equal(parameter, before[name])
