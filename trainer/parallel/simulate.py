"""How long a pipeline schedule takes, from its own list of actions and the time of each pass."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from .schedules import Action, Actions, Kind

Times = Callable[[Kind, int], float]
"""Seconds of a pass of one microbatch through a stage."""


@dataclass(frozen=True)
class Timeline:
    """A simulated step: seconds from the first action to the last, and how long each pipeline rank worked."""

    makespan_s: float
    busy_s: dict[int, float]

    @property
    def bubble(self) -> float:
        """The share of the ranks' time in which they wait for one another, 0 to 1."""
        if not self.makespan_s:
            return 0.0
        return 1 - sum(self.busy_s.values()) / (len(self.busy_s) * self.makespan_s)


def simulate(actions: Actions, times: Times) -> Timeline:
    """Run a schedule as if sending took no time.

    Each rank works down its list, and waits where the next pass needs what is not there yet: F the F of the
    stage before; I and B their own F and the I or B of the stage after; W its own I. B delivers the input's
    gradient only at its end, as autograd does. ``times`` says what the first stage's I costs, which has no
    input to compute a gradient for: torch leaves all of its backward work to W. Raises ValueError where
    ranks wait for one another without end.
    """
    last = max((action.stage for order in actions.values() for action in order), default=-1)
    done: dict[Action, float] = {}
    clock = dict.fromkeys(actions, 0.0)
    busy = dict.fromkeys(actions, 0.0)
    ahead = {rank: list(reversed(order)) for rank, order in actions.items()}  # the next action is at the end
    while any(ahead.values()):
        moved = False
        for rank, order in ahead.items():
            while order and all(need in done for need in _needs(order[-1], last)):
                action = order.pop()
                took = times(action.kind, action.stage)
                clock[rank] = max([clock[rank], *(done[need] for need in _needs(action, last))]) + took
                busy[rank] += took
                # Others wait for the input's gradient, whichever pass computes it.
                done[action._replace(kind="I") if action.kind == "B" else action] = clock[rank]
                moved = True
        if not moved:
            waiting = {rank: order[-1] for rank, order in ahead.items() if order}
            raise ValueError(f"the schedule never ends: {waiting}")
    return Timeline(max(clock.values(), default=0.0), busy)


def _needs(action: Action, last: int) -> list[Action]:
    """The actions that must be over before this one; B counts as I."""
    if action.kind == "F":
        return [action._replace(stage=action.stage - 1)] if action.stage else []
    if action.kind == "W":
        return [action._replace(kind="I")]
    after = [action._replace(kind="I", stage=action.stage + 1)] if action.stage < last else []
    return [action._replace(kind="F"), *after]
