"""Schedules by name: against torch's own, as they run on forked ranks."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from typing import Any, get_args

import pytest
import torch
import torch.distributed as dist
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.distributed.pipelining import PipelineStage

from tamis.trainer.parallel.schedules import (
    Action,
    ScheduleName,
    actions,
    chunks,
    from_live,
    new_schedule,
    refusal,
    stages_of,
)

NAMES: tuple[ScheduleName, ...] = get_args(ScheduleName)


class Seen(PipelineStage):
    """A stage that writes down what the schedule asks of it."""

    seen: list[Action]

    def forward_one_chunk(self, fwd_chunk_id: int, *args: Any, **options: Any) -> Any:
        self.seen.append(Action("F", self.stage_index, fwd_chunk_id))
        return super().forward_one_chunk(fwd_chunk_id, *args, **options)

    def backward_one_chunk(self, bwd_chunk_id: int, *args: Any, **options: Any) -> Any:
        whole = options.get("full_backward", True)
        self.seen.append(Action("B" if whole else "I", self.stage_index, bwd_chunk_id))
        return super().backward_one_chunk(bwd_chunk_id, *args, **options)

    def backward_weight_one_chunk(self, bwd_chunk_id: int, *args: Any, **options: Any) -> Any:
        self.seen.append(Action("W", self.stage_index, bwd_chunk_id))
        return super().backward_weight_one_chunk(bwd_chunk_id, *args, **options)


def run_live(_: Any, names: tuple[ScheduleName, ...], most: int) -> list[tuple[Any, ...]]:
    """Every schedule with 1 to ``most`` microbatches: what ran, and what the object says."""
    found, rank, world = [], dist.get_rank(), dist.get_world_size()
    for name in names:
        for microbatches in range(1, most + 1):
            if refusal(name, world, microbatches, 99, False):
                continue
            mine, count = stages_of(name, world, rank), world * chunks(name)
            stages: Any = [Seen(nn.Linear(2, 2), i, count, torch.device("cpu")) for i in mine]
            seen: list[Action] = []
            for stage in stages:
                stage.seen = seen
            schedule: Any = new_schedule(
                name, stages, microbatches, lambda output, target: (output - target).square().sum()
            )
            x = torch.randn(microbatches, 2)
            inputs = (x,) if 0 in mine else ()
            schedule.step(*inputs, **({"target": x} if count - 1 in mine else {}))
            found.append((name, microbatches, seen, from_live(schedule)))
    return found


@pytest.mark.parametrize("world", [2, 4])
def test_the_lists_are_what_runs(run_ranks: Callable[..., list[Any]], world: int) -> None:
    answers = run_ranks(world, run_live, NAMES, 8)
    assert len(answers[0]) == sum(
        refusal(name, world, m, 99, False) is None for name in NAMES for m in range(1, 9)
    )
    for rank, found in enumerate(answers):
        for name, microbatches, seen, live in found:
            wanted = actions(name, world, microbatches)
            assert live == wanted, (name, microbatches)
            assert seen == wanted[rank], (name, microbatches)


@settings(deadline=None)
@given(st.sampled_from(NAMES), st.integers(1, 5), st.integers(1, 12))
def test_every_pass_is_made_once(name: ScheduleName, pp: int, microbatches: int) -> None:
    if pp > 1 and refusal(name, pp, microbatches, 99, False):
        with pytest.raises(ValueError, match="microbatches"):  # torch agrees
            actions(name, pp, microbatches)
        return
    order = actions(name, pp, microbatches)
    assert list(order) == list(range(pp))
    for rank, todo in order.items():
        assert len(set(todo)) == len(todo)
        for stage in stages_of(name, pp, rank):
            for microbatch in range(microbatches):
                kinds = [a.kind for a in todo if (a.stage, a.microbatch) == (stage, microbatch)]
                assert kinds in (["F", "B"], ["F", "I", "W"])
        assert {a.stage for a in todo} == set(stages_of(name, pp, rank))
    stages = sorted(stage for rank in range(pp) for stage in stages_of(name, pp, rank))
    assert stages == list(range(pp * chunks(name)))


@pytest.mark.parametrize(
    ("name", "pp", "microbatches", "depth", "reshard", "why"),
    [
        ("1f1b", 4, 1, 8, False, "layout.microbatches to 4 or more"),
        ("1f1b", 4, 3, 8, True, "layout.microbatches to 4 or more"),
        ("gpipe", 4, 8, 3, False, "4 stages, but the model only 3 blocks"),
        ("interleaved", 4, 8, 7, False, "8 stages, but the model only 7 blocks"),
        ("interleaved", 2, 5, 8, False, "set layout.microbatches to 4 or 6"),
        ("zero_bubble", 4, 9, 8, False, "set layout.microbatches to 8 or 12"),
        ("zero_bubble", 2, 4, 8, True, "set layout.reshard to false"),
        ("zbv", 2, 4, 8, True, "set layout.reshard to false"),
    ],
)
def test_what_is_refused(
    name: ScheduleName, pp: int, microbatches: int, depth: int, reshard: bool, why: str
) -> None:
    message = refusal(name, pp, microbatches, depth, reshard)
    assert message is not None
    assert why in message
    assert name in message


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"recompute": "selective"}, "trainer.recompute to none"),
        ({"recompute": "full"}, "trainer.recompute to none"),
        ({"compiled": True}, "trainer.compile to false"),
    ],
)
def test_only_whole_backward_passes_are_recomputed_or_compiled(
    name: ScheduleName, options: dict[str, Any], why: str
) -> None:
    message = refusal(name, 2, 4, 8, False, **options)
    if name in ("zero_bubble", "zbv"):
        assert message is not None
        assert why in message
    else:
        assert message is None


@pytest.mark.parametrize(
    ("name", "pp", "microbatches", "depth", "reshard"),
    [
        ("1f1b", 4, 4, 4, True),
        ("1f1b", 1, 1, 1, True),
        ("gpipe", 4, 1, 4, True),
        ("interleaved", 4, 3, 8, True),
        ("interleaved", 4, 10, 8, True),
        ("zero_bubble", 4, 2, 8, False),
        ("zbv", 4, 1, 8, False),
        ("zbv", 1, 1, 1, True),
    ],
)
def test_what_is_not_refused(
    name: ScheduleName, pp: int, microbatches: int, depth: int, reshard: bool
) -> None:
    assert refusal(name, pp, microbatches, depth, reshard) is None


def test_names_need_no_torch() -> None:
    code = "import sys, tamis.trainer.parallel.schedules; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
