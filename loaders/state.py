"""What a checkpoint keeps of a loader: global counts, so that any number of replicas can go on from it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Literal

from ..config import Model, check
from ..errors import UsageError
from .plan import ASSIGNMENT, VERSION, Cursor, Plan

_WHERE = "loader state"


class Part(Model):
    """How far one dataset is consumed in the current epoch. ``fingerprint`` is of content, not of paths."""

    fingerprint: str
    unit: Literal["samples"]
    consumed: int


class State(Model):
    """The place of the last batch that was yielded (not of those read ahead), the same for all replicas.

    ``step`` counts the batches yielded. At the end of an epoch ``consumed`` is its length. ``skipped``: the
    damaged samples this replica has left out so far.
    """

    version: int
    assignment: int
    plan: str
    step: int
    epoch: int
    datasets: tuple[Part, ...]
    skipped: tuple[int, ...]


def save(plan: Plan, cursor: Cursor, skipped: Iterable[int] = ()) -> dict[str, Any]:
    """The state at ``cursor`` as plain values that JSON can hold."""
    part = Part(fingerprint=plan.dataset, unit="samples", consumed=cursor.consumed)
    state = State(
        version=VERSION,
        assignment=ASSIGNMENT,
        plan=plan.fingerprint,
        step=cursor.step,
        epoch=cursor.epoch,
        datasets=(part,),
        skipped=tuple(skipped),
    )
    return state.model_dump(mode="json")


def load(plan: Plan, values: dict[str, Any]) -> tuple[Cursor, tuple[int, ...]]:
    """The cursor and the skipped samples that ``values`` describe.

    Raises UsageError naming what differs where ``plan`` cannot go on.
    """
    state = check(values, State, where=_WHERE)
    _same("version", state.version, VERSION, "resume with the release that wrote it")
    _same("assignment", state.assignment, ASSIGNMENT, "resume with the release that wrote it")
    _same("number of datasets", len(state.datasets), 1, "resume on the dataset it was saved on")
    _same("dataset", state.datasets[0].fingerprint, plan.dataset, "resume on the dataset it was saved on")
    _same("plan", state.plan, plan.fingerprint, "keep split, seed, batch, ratio, k and graph, or start anew")
    cursor = Cursor(state.step, state.epoch, state.datasets[0].consumed)
    if not plan.reaches(cursor):
        raise UsageError(
            _WHERE,
            f"step {cursor.step}, epoch {cursor.epoch}, consumed {cursor.consumed} do not belong together in "
            f"epochs of {plan.samples} samples",
            "the state is damaged: resume from another checkpoint",
        )
    return cursor, state.skipped


def _same(name: str, found: object, wanted: object, fix: str) -> None:
    if found != wanted:
        raise UsageError(_WHERE, f"its {name} is {found}, this loader's is {wanted}", fix)
