from __future__ import annotations

import json
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from tamis.errors import DataError, UsageError
from tamis.loaders.loader import Batch
from tamis.trainer.mesh import alone
from tamis.trainer.models.layers import Linear, SummedLinear
from tamis.trainer.parallel.norm import gradients as held_by
from tamis.trainer.precision import fp8
from tamis.trainer.precision.raising import LONG, MANY
from tamis.trainer.step import PATIENCE, Outcome, Trainer

Make = Callable[..., Any]
HIGH = {"initial": 2.0**24, "floor": 2.0**24}
"""A scale that stays where gradients overflow."""


def parameters(trainer: Trainer) -> list[Tensor]:
    return [p.detach().clone() for p in trainer.learner.model.parameters()]


def same(a: list[Tensor], b: list[Tensor]) -> bool:
    return all(torch.equal(x, y) for x, y in zip(a, b, strict=True))


def with_nan(batch: Batch, cloud: int = 3) -> Batch:
    batch.columns["xyz"][cloud, 5] = np.nan
    return batch


def gradients(trainer: Trainer, batch: Batch) -> tuple[Outcome, Tensor]:
    """The gradients of a step, flat, before they are clipped."""
    kept: list[Tensor] = []

    def keep(*_: object) -> None:
        kept.extend(gradient.flatten().clone() for _, gradient in held_by(trainer.learner.model))

    trainer.learner.optimiser.register_step_pre_hook(keep)
    outcome = trainer.step(batch)
    return outcome, torch.cat(kept)


def gap(a: Tensor, b: Tensor) -> float:
    return float((a - b).norm() / b.norm())


def dtypes(trainer: Trainer, batch: Batch) -> dict[str, torch.dtype]:
    """What each linear layer gives in a step."""
    found: dict[str, torch.dtype] = {}
    for name, module in trainer.learner.model.named_modules():
        if isinstance(module, Linear | SummedLinear):
            module.register_forward_hook(lambda _m, _x, y, name=name: found.update({name: y.dtype}))
    trainer.step(batch)
    return found


def test_each_layer_computes_in_its_own_precision_and_keeps_fp32(new_trainer: Make, new_batch: Make) -> None:
    layers = {"blocks.1": "fp32", "head": "fp16"}
    trainer = new_trainer(precision="bf16", layers=layers)
    rows: list[torch.dtype] = []
    for block in trainer.learner.model.blocks.values():
        block.register_forward_hook(lambda _m, x, y: rows.extend([x[0].dtype, y.dtype]))
    found = dtypes(trainer, new_batch(0))
    assert {d for n, d in found.items() if n.startswith(("embed", "blocks.0"))} == {torch.bfloat16}
    assert {d for n, d in found.items() if n.startswith("blocks.1")} == {torch.float32}
    assert found["head"] == torch.float16
    assert len(found) == 2 + 2 * 6 + 1
    assert set(rows) == {torch.float32}
    assert {p.dtype for p in trainer.learner.model.parameters()} == {torch.float32}
    assert trainer.learner.precisions.scaled


def test_what_is_evaluated_runs_in_fp32(new_trainer: Make, new_batch: Make) -> None:
    trainer = new_trainer(precision="bf16")
    with trainer.learner.precisions.exact():
        assert set(dtypes(trainer, new_batch(0)).values()) == {torch.float32}
    assert torch.bfloat16 in dtypes(trainer, new_batch(0)).values()


@pytest.mark.parametrize(("precision", "near"), [("bf16", 2e-2), ("fp16", 4e-3), ("fp8", 0.15)])
def test_gradients_are_near_those_of_fp32(
    precision: str, near: float, new_trainer: Make, new_batch: Make
) -> None:
    exact, wanted = gradients(new_trainer(clip=1e9), new_batch(1))
    scaling = {"initial": 1024.0}
    outcome, found = gradients(new_trainer(clip=1e9, precision=precision, scaling=scaling), new_batch(1))
    assert outcome.scale == (1024.0 if precision == "fp16" else None)
    assert outcome.loss == pytest.approx(exact.loss, rel=near)
    assert outcome.grad_norm == pytest.approx(exact.grad_norm, rel=near)
    assert 0 < gap(found, wanted) < near


def test_the_scale_changes_no_digit_of_a_gradient_that_fits(new_trainer: Make, new_batch: Make) -> None:
    """In fp32 but for the head's scale: powers of 2, undone with the clipping."""
    layers = {"head": "fp16"}
    trainers = [
        new_trainer(clip=0.1, layers=layers, scaling={"initial": scale}) for scale in (2.0**8, 2.0**10)
    ]
    outcomes = [trainer.step(new_batch(1)) for trainer in trainers]
    assert outcomes[0].grad_norm == pytest.approx(outcomes[1].grad_norm, rel=1e-3)
    assert outcomes[0].grad_norm > 0.1
    for a, b in zip(*map(parameters, trainers), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-3, atol=1e-5)


def test_an_overflow_lowers_the_scale_and_skips(new_trainer: Make, new_batch: Make) -> None:
    trainer = new_trainer(precision="fp16", scaling={"initial": 2.0**24, "floor": 1.0})
    before, outcomes = parameters(trainer), list[Outcome]()
    while not outcomes or outcomes[-1].skipped:
        assert same(before, parameters(trainer))
        outcomes.append(trainer.step(new_batch(len(outcomes))))
    *skipped, last = outcomes
    assert skipped
    assert [o.skipped for o in skipped] == ["overflow"] * len(skipped)
    assert [o.scale for o in outcomes] == [2.0 ** (24 - i) for i in range(len(outcomes))]
    assert not any(o.recomputed for o in outcomes)
    assert all(o.loss is not None and o.grad_norm is None for o in skipped)
    assert last.lr == outcomes[0].lr  # the rate follows updates
    assert trainer.learner.updates == 1
    assert trainer.learner.skipped == 0
    assert not same(before, parameters(trainer))


def test_at_the_floor_a_step_is_computed_anew_in_fp32(new_trainer: Make, new_batch: Make) -> None:
    """Never stuck: what is learned is, to the bit, what a run in fp32 learns."""
    low, exact = new_trainer(precision="fp16", scaling=HIGH), new_trainer()
    outcome, wanted = low.step(new_batch(0)), exact.step(new_batch(0))
    assert outcome.recomputed
    assert outcome.skipped is None
    assert (outcome.loss, outcome.grad_norm) == (wanted.loss, wanted.grad_norm)
    assert same(parameters(low), parameters(exact))
    assert low.learner.updates == 1


@pytest.mark.parametrize("precision", ["fp32", "bf16", "fp16"])
def test_a_sample_that_is_not_finite_is_skipped_with_its_batch(
    precision: str, new_trainer: Make, new_batch: Make, caplog: pytest.LogCaptureFixture
) -> None:
    trainer, other = (new_trainer(precision=precision, scaling={"initial": 512.0}) for _ in range(2))
    with caplog.at_level(logging.WARNING):
        outcome = trainer.step(with_nan(new_batch(0)))
    assert (outcome.skipped, outcome.recomputed) == ("not finite", precision != "fp32")
    assert (outcome.loss, outcome.grad_norm, trainer.learner.updates) == (None, None, 0)
    (message,) = (record.getMessage() for record in caplog.records)
    assert message.startswith("step 0: the loss is nan")
    assert all(f"{i:016x}" in message for i in (10, 11, 12, 13))
    for step in (1, 2):
        assert trainer.step(new_batch(step)) == other.step(new_batch(step))
    assert same(parameters(trainer), parameters(other))


def test_only_steps_that_fp32_does_not_help_wear_out_patience(new_trainer: Make, new_batch: Make) -> None:
    trainer = new_trainer(precision="fp16", scaling={"initial": 512.0})
    for step in range(PATIENCE - 1):
        trainer.step(with_nan(new_batch(step)))
    assert trainer.learner.skipped == PATIENCE - 1
    trainer.learner.scaler.state = trainer.learner.scaler.state.model_copy(update={"scale": 2.0**24})
    assert trainer.step(new_batch(30)).skipped == "overflow"
    assert trainer.learner.skipped == PATIENCE - 1
    with pytest.raises(DataError, match=r"step 31: the loss is nan .* 20 steps in a row; lower trainer"):
        trainer.step(with_nan(new_batch(31)))


def test_layers_that_overflow_at_the_floor_are_raised_for_good(
    new_trainer: Make, new_batch: Make, caplog: pytest.LogCaptureFixture
) -> None:
    trainer = new_trainer(precision="fp16", scaling=HIGH)
    learner, recomputed = trainer.learner, []
    with caplog.at_level(logging.WARNING):
        for step in range(8 * MANY):
            recomputed.append(trainer.step(new_batch(step)).recomputed)
    raised = learner.raising.state.raised
    assert raised
    assert recomputed[:MANY] == [True] * MANY
    assert not any(recomputed[-MANY:])
    assert all(learner.precisions.of(layer) == "fp32" for layer in raised)
    assert any(f"{raised[0]} in fp32 from now on: gradients overflow" in m for m in caplog.messages)

    other = new_trainer(precision="fp16", scaling=HIGH)
    other.learner.restore(type(learner.state).model_validate_json(learner.state.model_dump_json()))
    assert other.learner.state == learner.state
    layers = learner.precisions.layers
    assert [other.learner.precisions.of(n) for n in layers] == [learner.precisions.of(n) for n in layers]


def test_layers_whose_gradients_vanish_are_raised(
    new_trainer: Make, new_batch: Make, caplog: pytest.LogCaptureFixture
) -> None:
    trainer = new_trainer(
        precision="fp16",
        layers={"head": "fp32"},
        scaling={"initial": 2.0**-20, "floor": 2.0**-20},
        monitor=True,
    )
    with caplog.at_level(logging.WARNING):
        outcomes = [trainer.step(new_batch(step)) for step in range(LONG + 1)]
    zeros = {layer: found.zeros for layer, found in outcomes[0].layers.items()}
    assert max(zeros[name] for name in ("blocks.0", "blocks.1")) > 0.5
    assert trainer.learner.raising.state.raised
    assert "head" not in trainer.learner.raising.state.raised
    assert any("gradients vanish" in message for message in caplog.messages)
    for layer in trainer.learner.raising.state.raised:
        assert outcomes[-1].layers[layer].zeros < 0.1


def test_the_monitor_splits_the_norm_by_layers(new_trainer: Make, new_batch: Make) -> None:
    assert new_trainer().step(new_batch(0)).layers is None
    outcome = new_trainer(monitor=True).step(new_batch(0))
    assert list(outcome.layers) == ["embed", "blocks.0", "blocks.1", "head"]
    squares = [found.norm**2 for found in outcome.layers.values()]
    assert all(square > 0 for square in squares)
    assert sum(squares) ** 0.5 == pytest.approx(outcome.grad_norm, rel=1e-6)
    assert all(found.broken == 0 and found.zeros < 0.1 for found in outcome.layers.values())


@pytest.mark.parametrize("recompute", ["selective", "full"])
@pytest.mark.parametrize("precision", ["bf16", "fp8"])
def test_what_is_computed_anew_for_memory_is_the_same(
    precision: str, recompute: str, new_trainer: Make, new_batch: Make
) -> None:
    trainers = [new_trainer(precision=precision, recompute=how) for how in ("none", recompute)]
    assert trainers[0].step(new_batch(0)) == trainers[1].step(new_batch(0))
    assert same(*map(parameters, trainers))


def test_tf32_is_a_switch(new_learner: Make) -> None:
    for on in (True, False):
        new_learner(tf32=on)
        assert torch.backends.cuda.matmul.allow_tf32 is on


def by_hand(x: Tensor, dtype: torch.dtype) -> Tensor:
    """Rounded to the 8-bit numbers that lie nearest, with the largest element at the largest of them."""
    numbers = torch.arange(256, dtype=torch.uint8).view(dtype).double()
    numbers = numbers[numbers.isfinite()].sort().values
    scale = x.abs().max().double() / numbers.max()
    places = (x.double() / scale).flatten()
    nearest = (places[:, None] - numbers[None]).abs().argmin(1)
    rounded: Tensor = numbers[nearest] * scale
    return rounded.view(x.shape)


@pytest.mark.parametrize("dtype", [fp8.FORWARD, fp8.BACKWARD])
def test_numbers_are_rounded_to_8_bits(dtype: torch.dtype) -> None:
    x = torch.randn(48, 32, generator=torch.Generator().manual_seed(1)) * 1e-3
    rounded, scale = fp8.quantised(x, dtype)
    assert rounded.dtype == dtype
    torch.testing.assert_close(rounded.double() * scale.double(), by_hand(x, dtype), rtol=1e-5, atol=0)
    zero, scale = fp8.quantised(torch.zeros(16, 16), dtype)
    assert scale > 0
    assert not zero.float().any()
    broken, _ = fp8.quantised(torch.tensor([1.0, torch.inf]), dtype)
    assert broken.float().isnan().any()


def test_fp8_products_are_those_of_rounded_factors() -> None:
    generator = torch.Generator().manual_seed(2)
    x, weight, gradient = (
        torch.randn(shape, generator=generator) for shape in ((2, 16, 32), (48, 32), (2, 16, 48))
    )
    bias = torch.randn(48, generator=generator)
    leaves = [t.requires_grad_() for t in (x, weight, bias)]
    y = fp8.linear(x, weight, bias)
    assert y.dtype == torch.bfloat16
    by_x, by_weight, by_bias = torch.autograd.grad(y, leaves, gradient.bfloat16())

    rows, w = by_hand(x.detach().flatten(0, 1), fp8.FORWARD), by_hand(weight.detach(), fp8.FORWARD)
    g = by_hand(gradient.bfloat16().float().flatten(0, 1), fp8.BACKWARD)
    for found, wanted in (
        (y.detach().flatten(0, 1), rows @ w.t() + bias.detach().double()),
        (by_x.flatten(0, 1), g @ w),
        (by_weight, g.t() @ rows),
        (by_bias, gradient.double().sum((0, 1))),
    ):  # results are bfloat16
        torch.testing.assert_close(found.double(), wanted, rtol=2e-2, atol=5e-2)
    assert {t.dtype for t in (by_x, by_weight, by_bias)} == {torch.float32}


@pytest.mark.parametrize("shape", [(15, 32, 48), (16, 24, 48), (16, 32, 40)])
def test_sizes_that_are_no_multiples_of_16_are_multiplied_in_bf16(shape: tuple[int, int, int]) -> None:
    rows, wide, out = shape
    generator = torch.Generator().manual_seed(3)
    x, weight = torch.randn(rows, wide, generator=generator), torch.randn(out, wide, generator=generator)
    wanted = nn.functional.linear(x.bfloat16(), weight.bfloat16())
    assert torch.equal(fp8.linear(x, weight, None), wanted)


def test_fp8_is_for_the_blocks_alone_and_is_off_where_fp32_is_asked_for(new_learner: Make) -> None:
    learner = new_learner(precision="fp8", layers={"blocks.1": "bf16"})

    def eight() -> set[str]:
        return {name.split("attention")[0].split("mlp")[0] for name, m in named if m.fp8}

    named = [(n, m) for n, m in learner.model.named_modules() if isinstance(m, Linear | SummedLinear)]
    assert eight() == {"blocks.0."}
    with learner.precisions.exact():
        assert eight() == set()
    assert eight() == {"blocks.0."}
    learner.precisions.raise_to_fp32(["blocks.0"])
    assert eight() == set()


def test_fp8_is_refused_on_a_gpu_without_it(monkeypatch: pytest.MonkeyPatch) -> None:
    for capability, fits in [((8, 0), False), ((8, 9), True), ((9, 0), True)]:
        monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _device, c=capability: c)
        if fits:
            fp8.check(torch.device("cuda", 0))
            continue
        with pytest.raises(UsageError, match=r"trainer\.precision: fp8 needs .* 8\.9 or more, this .* 8\.0"):
            fp8.check(torch.device("cuda", 0))
    fp8.check(torch.device("cpu"))
    assert alone().device.type == "cpu"


def test_a_cut_run_of_overflows_ends_as_an_uncut_one(
    run_settings: Make, dataset: Any, tmp_path: Path, killed_in: Make
) -> None:
    """T08: the scale goes down and up all along; after every cut all lines and weights are the same."""
    from tamis.trainer import loop
    from tamis.trainer.checkpoints import checkpoint
    from tamis.trainer.learner import whole_model
    from tamis.trainer.log import read_lines, setbacks
    from tamis.trainer.tasks import task_of

    scaling = {"initial": 2.0**24, "interval": 1, "backoff": 0.25}
    settings = run_settings(precision="fp16", scaling=scaling, steps=12)

    def go(name: str, cuts: tuple[int, ...] = ()) -> tuple[bytes, list[np.ndarray]]:
        out = tmp_path / name
        out.mkdir()
        for cut in (*cuts, None):
            with killed_in(cut):
                loop.run(settings, dataset, out, alone(), 0.0)
        model = whole_model(task_of(settings.model, dataset))
        checkpoint.load_model(checkpoint.complete(out / "checkpoints")[-1], model)
        return (out / "steps.jsonl").read_bytes(), [p.detach().numpy() for p in model.parameters()]

    lines, weights = go("whole")
    assert 3 <= setbacks(read_lines(tmp_path / "whole" / "steps.jsonl"))["overflow"] < 12
    row = json.loads((tmp_path / "whole" / "metrics.jsonl").read_text().splitlines()[-1])
    assert (
        list(row["grad_norms"])
        == list(row["grad_zeros_fraction"])
        == ["embed", "blocks.0", "blocks.1", "head"]
    )
    assert row["scale"] >= 8
    assert (row["skipped"], row["recomputed"]) in [(0, 0), (1, 0), (0, 1)]
    told = (tmp_path / "whole" / "metrics.prom").read_text()
    assert 'tamis_train_layer_gradient_zeros_ratio{layer="head"}' in told
    for cuts in [(3,), (5, 9)]:
        found, learned = go("-".join(map(str, cuts)), cuts)
        assert found == lines
        assert all(np.array_equal(a, b) for a, b in zip(learned, weights, strict=True))
