"""Weights as a safetensors file: out of a run, and into another."""

from __future__ import annotations

import json
import resource
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


def test_a_full_disk_is_one_line_and_leaves_nothing(run: Path, tmp_path: Path) -> None:
    """The library tells of it by an error of its own."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, hard))
    try:
        with pytest.raises(OSError, match="File too large") as refused:
            export(run, tmp_path / "weights.safetensors")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert refused.value.filename == str(tmp_path / "weights.safetensors")
    assert not list(tmp_path.glob("*weights*"))


def test_a_run_that_goes_on_is_exported_too(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may remove a checkpoint between any two of its files that are read."""
    last = checkpoint.written(run)
    read = checkpoint.read

    def slowly(path: Path) -> Any:
        found = read(path)
        if path == last:
            path.rename(path.with_name("step-00000005"))
        return found

    monkeypatch.setattr("tamis.trainer.checkpoints.export_weights.read", slowly)
    file = tmp_path / "weights.safetensors"
    assert f"{file}: 40 tensors" in export(run, file)
    assert load_file(file).keys() == checkpoint.weights(checkpoint.written(run)).keys()


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


@pytest.mark.parametrize("classes", [("ground", "plants", "roof"), ("plants", "ground", "roof")])
def test_other_classes_are_told(
    classes: tuple[str, ...], new_learner: Make, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Weights of as many classes fit, whatever their order is."""
    file, learner = tmp_path / "weights.safetensors", new_learner()
    tensors = {name: p.detach().clone() for name, p in learner.model.named_parameters()}
    save_file(tensors, file, {"classes": json.dumps(classes)})
    begin_with(file, learner)
    same = classes == learner.task.state.classes
    assert ('trained for the classes ["plants", "ground", "roof"], this run' in caplog.text) != same


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
    "wrong",
    [
        "shape",
        "missing",
        "unknown",
        "infinite",
        "double",
        "integers",
        "cut",
        "bit",
        "gone",
        "folder",
        "sums",
        "no table of sums",
    ],
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
        "double": "its tensor norm.bias holds values that are no finite numbers",  # as float32
        "integers": "its tensor norm.bias is of int32; store it as floating-point numbers",
        "cut": "is no safetensors file, or damaged",
        "bit": "its tensor .* is not what was written: bytes differ",
        "gone": "cannot be read",
        "folder": "is no file; check trainer.init",
        "sums": "the entry crc32c of its metadata is damaged",
        "no table of sums": "the entry crc32c of its metadata is damaged",
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
        case "double":
            tensors["norm.bias"] = torch.full((24,), 1e300, dtype=torch.float64)
    sums = json.dumps({name: crc32c(raw(t)) for name, t in tensors.items()})
    save_file(tensors, file, {SUMS: {"sums": sums[:-1], "no table of sums": "[1]"}.get(wrong, sums)})
    data = bytearray(file.read_bytes())
    if wrong == "cut":
        file.write_bytes(data[:-10])
    if wrong == "bit":
        data[-100] ^= 1
        file.write_bytes(data)
    if wrong in ("gone", "folder"):
        file.unlink()
    if wrong == "folder":
        file.mkdir()
    with pytest.raises(DataError, match=told):
        begin_with(file, learner)
    for name, parameter in learner.model.named_parameters():
        assert torch.equal(parameter, before[name])
