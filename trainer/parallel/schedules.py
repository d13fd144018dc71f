"""Pipeline schedules by name: which stages a rank holds, what each rank does in which order, what is refused.

A model that is cut into pipeline stages sends microbatches through them. A schedule is the order in which a
pipeline rank works on its stages and microbatches. The module needs torch only where it says so.

- ``gpipe``: all forward passes, then all backward passes (Huang et al. 2019, arXiv:1811.06965).
- ``1f1b``: forward and backward in turns, so that a rank keeps few microbatches alive (Narayanan et al. 2019,
  arXiv:1806.03377).
- ``interleaved``: 1F1B over two stages a rank, which halves the bubble (Narayanan et al. 2021,
  arXiv:2104.04473).
- ``zero_bubble``: the same, with the weight gradients moved to where a rank would wait, and ``zbv``: its
  variant whose stages run down the ranks and up again (Qi et al. 2023, arXiv:2401.10241).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

if TYPE_CHECKING:
    from torch import Tensor
    from torch.distributed.pipelining.schedules import PipelineScheduleMulti, PipelineScheduleSingle

    Schedule = PipelineScheduleSingle | PipelineScheduleMulti

ScheduleName = Literal["gpipe", "1f1b", "interleaved", "zero_bubble", "zbv"]
Kind = Literal["F", "I", "W", "B"]
"""Forward, backward to the input, backward to the weights, and both backward passes at once."""
_KINDS: dict[str, Kind] = {"F": "F", "I": "I", "W": "W", "B": "B"}  # torch's lists name others too

SPLIT: tuple[ScheduleName, ...] = ("zero_bubble", "zbv")
"""The schedules that part a backward pass into that of the input and that of the weights."""


class Action(NamedTuple):
    """A pass of one microbatch through one stage (both counted from 0, over all ranks)."""

    kind: Kind
    stage: int
    microbatch: int


Actions = dict[int, list[Action]]
"""What each pipeline rank does, in order."""


def chunks(name: ScheduleName) -> int:
    """Stages that each pipeline rank holds."""
    return 1 if name in ("gpipe", "1f1b") else 2


def stages_of(name: ScheduleName, pp: int, rank: int) -> tuple[int, ...]:
    """The stages of pipeline rank ``rank`` of ``pp``, ascending."""
    if chunks(name) == 1:
        return (rank,)
    return (rank, 2 * pp - 1 - rank) if name == "zbv" else (rank, pp + rank)


def refusal(
    name: ScheduleName,
    pp: int,
    microbatches: int,
    depth: int,
    reshard: bool,
    recompute: str = "none",
    compiled: bool = False,
) -> str | None:
    """Why a schedule would fail, hang or compute wrong gradients, and what to change; None if it would not.

    ``depth`` is the number of the model's blocks; ``reshard`` says that parameters sharded over data-parallel
    ranks are let go after each forward pass (FSDP's ``reshard_after_forward``); ``recompute`` what a backward
    pass computes anew, ``compiled`` whether torch.compile runs the blocks.
    """
    stages = pp * chunks(name)
    if pp == 1:
        return None
    if depth < stages:
        return (
            f"{name} with {pp} pipeline ranks has {stages} stages, but the model only {depth} blocks: "
            "raise model.depth or lower layout.pp"
        )
    if name == "1f1b" and microbatches < pp:
        return (
            f"1f1b needs a microbatch for each of {pp} pipeline ranks, and has {microbatches}: "
            f"set layout.microbatches to {pp} or more, or layout.schedule to gpipe"
        )
    if name in ("interleaved", "zero_bubble") and microbatches % max(1, microbatches // pp):
        below = microbatches // pp * pp
        return (
            f"{name} cannot part {microbatches} microbatches into {microbatches // pp} equal rounds "
            f"over {pp} pipeline ranks: set layout.microbatches to {below} or {below + pp}"
        )
    if name in SPLIT and reshard:
        return (
            f"{name} computes wrong gradients where parameters are sharded again after the forward pass: "
            "set layout.reshard to false"
        )
    if name in SPLIT and recompute != "none":  # selective recomputation fails, full starts over each time
        return (
            f"{name} goes back through a block in many steps, each of which would recompute all of it: "
            "set trainer.recompute to none, or layout.schedule to interleaved"
        )
    if name in SPLIT and compiled:  # a compiled backward pass is one piece
        return f"{name} parts backward passes, which compiled blocks cannot: set trainer.compile to false"
    return None


def schedule_class(name: ScheduleName) -> type[Schedule]:
    """torch's class of a schedule (imports torch)."""
    from torch.distributed.pipelining import schedules as classes

    by_name: dict[ScheduleName, type[Schedule]] = {
        "gpipe": classes.ScheduleGPipe,
        "1f1b": classes.Schedule1F1B,
        "interleaved": classes.ScheduleInterleaved1F1B,
        "zero_bubble": classes.ScheduleInterleavedZeroBubble,
        "zbv": classes.ScheduleZBVZeroBubble,
    }
    return by_name[name]


def new_schedule(
    name: ScheduleName, stages: Sequence[Any], microbatches: int, loss: Callable[..., Tensor] | None = None
) -> Schedule:
    """A schedule object of torch over a rank's stages, whose gradients are summed over microbatches.

    ``loss``: of scores and target. Raises ValueError where torch's class refuses the numbers.
    """
    made: Any = schedule_class(name)
    own = stages if chunks(name) > 1 else stages[0]
    return made(own, n_microbatches=microbatches, loss_fn=loss, scale_grads=False)  # type: ignore[no-any-return]


def actions(name: ScheduleName, pp: int, microbatches: int) -> Actions:
    """What every pipeline rank does, without ranks, process groups or a model (imports torch).

    Raises ValueError where torch's class refuses the numbers; `refusal` says so beforehand.
    """
    count = chunks(name)
    # All that a schedule asks of a stage before its first step.
    stage: Any = SimpleNamespace(num_stages=pp * count, group_size=pp, group_rank=0, submod=None)
    return from_live(new_schedule(name, [stage] * count, microbatches))


def from_live(schedule: Schedule) -> Actions:
    """The same from a schedule object of torch."""
    from torch.distributed.pipelining.schedules import Schedule1F1B

    if isinstance(schedule, Schedule1F1B):
        return _one_forward_one_backward(schedule._num_stages, schedule._n_microbatches)
    return {
        rank: [
            Action(kind, action.stage_index, microbatch)
            for action in order
            if action is not None
            and (kind := _KINDS.get(action.computation_type.value))
            and (microbatch := action.microbatch_index) is not None
        ]
        for rank, order in (schedule.pipeline_order or {}).items()
    }


def _one_forward_one_backward(pp: int, microbatches: int) -> Actions:
    """What `Schedule1F1B` runs. Its own list, which it does not follow, names wrong microbatches on the
    last rank (seen in torch 2.15).
    """
    order: Actions = {}
    for rank in range(pp):
        ahead = min(microbatches, pp - rank)  # forward passes before the first backward pass
        order[rank] = [Action("F", rank, microbatch) for microbatch in range(ahead)]
        for microbatch in range(microbatches):
            order[rank].append(Action("B", rank, microbatch))
            if ahead + microbatch < microbatches:
                order[rank].append(Action("F", rank, ahead + microbatch))
    return order
