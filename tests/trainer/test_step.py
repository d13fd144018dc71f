from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from tamis.errors import DataError, UsageError
from tamis.loaders.loader import Batch
from tamis.trainer.mesh import Mesh
from tamis.trainer.step import PATIENCE, Trainer

Make = Callable[..., Any]


def gradients(trainer: Trainer, batch: Batch) -> tuple[dict[str, Tensor], float | None]:
    """The gradients of a step, before clipping, and its loss."""
    learner, kept = trainer.learner, dict[str, Tensor]()

    def keep(*_: object) -> None:
        kept.update({n: p.grad.clone() for n, p in learner.model.named_parameters() if p.grad is not None})

    learner.optimiser.register_step_pre_hook(keep)
    return kept, trainer.step(batch).loss


def with_labelled(batch: Batch, counts: list[int], labelled: np.ndarray) -> Batch:
    """The batch with this many labelled points in each cloud."""
    label = np.full_like(batch.columns["label"], -1)
    for cloud, count in enumerate(counts):
        label[cloud, :count] = labelled[cloud, :count]
    return replace(batch, columns={**batch.columns, "label": label})


def assert_same_gradients(found: dict[str, Tensor], wanted: dict[str, Tensor]) -> None:
    whole = torch.stack([g.norm() for g in wanted.values()]).norm()
    assert found.keys() == wanted.keys()
    for name, gradient in wanted.items():
        gap = (found[name] - gradient).norm()
        assert gap <= 1e-5 * gradient.norm() + 1e-7 * whole, f"{name}: {gap} of {gradient.norm()}"


SHARES = {2: [[0, 1], [2, 3]], 3: [[0], [1, 2], [3]], 4: [[0], [1], [2], [3]]}


@pytest.mark.parametrize(
    ("world", "counts"), [(2, [32, 32, 32, 32]), (3, [32, 5, 17, 0]), (4, [1, 7, 32, 0])]
)
def test_t11_gradients_of_any_number_of_ranks_are_those_of_one(
    world: int, counts: list[int], run_ranks: Make, new_trainer: Make, new_batch: Make, part_of: Make
) -> None:
    """T11, T02: clouds with 1, 7, 32 and 0 labelled points, each with its own rank, count by points."""
    batch = with_labelled(new_batch(5), counts, np.random.default_rng(0).integers(0, 3, (4, 32)))
    wanted, loss = gradients(new_trainer(clip=1e9), batch)

    def work(mesh: Mesh) -> Any:
        found, its_loss = gradients(new_trainer(mesh, clip=1e9), part_of(batch, SHARES[world][mesh.rank]))
        return {name: g.numpy() for name, g in found.items()}, its_loss

    for found, its_loss in run_ranks(world, work):
        assert its_loss == pytest.approx(loss, rel=1e-6)
        assert_same_gradients({name: torch.from_numpy(g) for name, g in found.items()}, wanted)


def test_t11_points_weigh_the_same_whatever_cloud_they_are_in(
    new_trainer: Make, new_batch: Make, part_of: Make
) -> None:
    """T11: the loss is the mean over points, not a mean of the clouds' means."""
    batch = with_labelled(new_batch(6), [1, 7, 32, 0], np.random.default_rng(1).integers(0, 3, (4, 32)))
    parts = [batch, *(part_of(batch, [i]) for i in range(3))]
    whole, *each = (new_trainer().step(part).loss or 0.0 for part in parts)
    assert whole == pytest.approx((each[0] + 7 * each[1] + 32 * each[2]) / 40, rel=1e-5)
    assert whole != pytest.approx(np.mean(each), rel=1e-3)


def test_what_must_not_count_does_not(new_trainer: Make, new_batch: Make, part_of: Make) -> None:
    """A place without a sample and a padding row have no part in loss and gradient."""
    batch = new_batch(7)
    assert batch.mask is not None
    columns = {**batch.columns, "label": batch.columns["label"].copy()}
    columns["label"][2] = 1
    padded = replace(batch, columns=columns, weight=np.array([1, 1, 0, 1], np.float32))
    wanted, loss = gradients(new_trainer(clip=1e9), part_of(batch, [0, 1, 3]))
    found, its_loss = gradients(new_trainer(clip=1e9), padded)
    assert its_loss == pytest.approx(loss, rel=1e-6)
    assert_same_gradients(found, wanted)

    mask = batch.mask.copy()
    mask[0, 3:9] = False
    points = new_trainer().step(replace(batch, mask=mask)).points
    assert points == ((batch.columns["label"] >= 0) & mask).sum()


def test_t11_a_batch_without_labels_is_skipped_by_all_ranks(
    run_ranks: Make, new_trainer: Make, new_batch: Make
) -> None:
    """T11, T09: no update, no movement of the learning rate, and the next step is as if nothing had been."""
    empty = with_labelled(new_batch(0), [0, 0, 0, 0], np.zeros((4, 32)))

    def work(mesh: Mesh) -> Any:
        trainer = new_trainer(mesh)
        before = [p.detach().clone() for p in trainer.learner.model.parameters()]
        skipped = trainer.step(empty)
        same = all(torch.equal(a, b) for a, b in zip(before, trainer.learner.model.parameters(), strict=True))
        return (
            skipped.loss,
            trainer.learner.updates,
            same,
            trainer.step(new_batch(1)).lr,
            trainer.learner.updates,
        )

    rate = new_trainer().step(new_batch(1)).lr
    assert run_ranks(2, work) == [(None, 0, True, rate, 1)] * 2


def test_ranks_stay_equal_to_the_bit(
    run_ranks: Make, new_trainer: Make, new_batch: Make, part_of: Make
) -> None:
    def work(mesh: Mesh) -> Any:
        trainer = new_trainer(mesh)
        for step in range(4):
            trainer.step(part_of(new_batch(step), SHARES[2][mesh.rank]))
        return [p.detach().numpy() for p in trainer.learner.model.parameters()]

    first, second = run_ranks(2, work)
    assert all(np.array_equal(a, b) for a, b in zip(first, second, strict=True))


def test_a_loss_that_stays_not_finite_stops_all_ranks_with_the_ids(
    run_ranks: Make, new_trainer: Make, new_batch: Make, part_of: Make
) -> None:
    batch = new_batch(8)
    batch.columns["xyz"][3, 5] = np.nan

    def work(mesh: Mesh) -> Any:
        trainer = new_trainer(mesh)
        own = part_of(batch, SHARES[2][mesh.rank])
        for _ in range(PATIENCE - 1):
            assert trainer.step(own).skipped == "not finite"
        try:
            trainer.step(own)
        except DataError as error:
            return str(error)

    for message in run_ranks(2, work):
        assert message.startswith("step 8: the loss is nan")
        assert "20 steps in a row" in message
        assert all(f"{i:016x}" in message for i in (10, 11, 12, 13))


def test_the_tally_is_added_up_over_ranks(run_ranks: Make, new_trainer: Make, new_batch: Make) -> None:
    def work(mesh: Mesh) -> Any:
        return new_trainer(mesh).step(new_batch(0), tally=(2**32 - 1, mesh.rank)).tally

    assert run_ranks(2, work) == [(2**33 - 2, 1)] * 2


def test_what_the_first_rank_refuses_all_refuse(run_ranks: Make) -> None:
    def work(mesh: Mesh) -> Any:
        def fail() -> None:
            raise UsageError("here", "cannot be", "do not")

        with pytest.raises(UsageError) as caught:
            mesh.first(fail)
        return str(caught.value), mesh.first(lambda: mesh.rank)

    assert run_ranks(2, work) == [("here: cannot be; do not", 0)] * 2
