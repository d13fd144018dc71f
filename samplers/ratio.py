"""The dynamic ratio: which share of its points a step takes, as a pure function of the step."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Iterable
from dataclasses import KW_ONLY, dataclass
from fractions import Fraction
from numbers import Real
from typing import Any, Literal, Self, get_args

from pydantic import model_validator

from ..config import Model
from ..errors import UsageError
from .gate import whole

RatioKind = Literal["constant", "exponential", "cosine", "linear", "steps"]


@dataclass(frozen=True)
class RatioSchedule:
    """The ratio at each step, from ``start`` to ``end``, falling or rising.

    Up to step ``warmup`` it is ``start``; from step ``steps`` on it has arrived. Between, with
    t = step - warmup and x = t / (steps - warmup):

    - constant: start
    - linear: start + (end - start) x
    - cosine: end + (start - end) (1 + cos(pi x)) / 2
    - exponential: start (end / start)^x or, where ``decay`` is given, start decay^t, never beyond end
    - steps: with j of the m ``milestones`` reached (step >= milestone), start (end / start)^(j / m) or, where
      ``decay`` is given, start decay^j, never beyond end

    The value is then rounded to the nearest of ``levels`` evenly spaced ratios, ``start`` and ``end`` among
    them, so that buffers and compiled graphs exist once a level. With one level it stays ``start``. Raises
    UsageError for arguments out of range.
    """

    kind: RatioKind
    _: KW_ONLY
    start: float
    end: float
    steps: int
    warmup: int = 0
    decay: float | None = None
    milestones: tuple[int, ...] = ()
    levels: int = 16

    def __post_init__(self) -> None:
        if not isinstance(self.milestones, Iterable):
            raise UsageError("ratio.milestones", f"is {self.milestones!r}", "give a sequence of steps")
        object.__setattr__(self, "milestones", tuple(whole(m, "ratio.milestones") for m in self.milestones))
        for name in ("start", "end", *(["decay"] if self.decay is not None else [])):
            # 1 and 1.0 are one schedule, and a plan tells schedules by their text
            object.__setattr__(self, name, _real(getattr(self, name), f"ratio.{name}"))
        for name in ("steps", "warmup", "levels"):
            object.__setattr__(self, name, whole(getattr(self, name), f"ratio.{name}"))
        falls, marks = self.end < self.start, self.milestones
        rules = [
            ("kind", self.kind in get_args(RatioKind), f"choose one of {', '.join(get_args(RatioKind))}"),
            ("start", 0 < self.start <= 1, "choose above 0, at most 1"),
            ("end", 0 < self.end <= 1, "choose above 0, at most 1"),
            ("end", self.kind != "constant" or self.end == self.start, "a constant ratio ends as it starts"),
            ("steps", self.steps >= 1, "choose 1 or more"),
            ("warmup", 0 <= self.warmup < self.steps, "choose 0 or more, below steps"),
            ("levels", self.levels >= 1, "choose 1 or more"),
            ("decay", self.decay is None or self.kind in ("exponential", "steps"), f"{self.kind} takes none"),
            (
                "decay",
                self.decay is None or (0 < self.decay < math.inf and (self.decay < 1) == falls),
                "choose below 1 for a falling ratio, 1 or above for a rising one",
            ),
            ("milestones", bool(marks) == (self.kind == "steps"), "give them for kind steps, and only there"),
            (
                "milestones",
                all(a < b for a, b in zip((self.warmup, *marks), (*marks, self.steps + 1), strict=True)),
                "give rising steps above warmup, at most steps",
            ),
        ]
        for name, right, fix in rules:
            if not right:
                raise UsageError(f"ratio.{name}", f"is {getattr(self, name)!r}", fix)

    def __call__(self, step: int) -> float:
        """The ratio of the batch with number ``step`` (0 or more), rounded to a level."""
        return float(self._ratio(step))

    def count(self, step: int, n: int, multiple_of: int = 1) -> int:
        """How many of ``n`` points ``step`` takes: the multiple of ``multiple_of`` nearest to ratio times n.

        A half rounds up. At least ``multiple_of`` and at most its largest multiple within n; n where n is
        smaller. Exact: the ratio counts as the decimal it was written as, and no float is involved.
        """
        n, multiple_of = whole(n, "n"), whole(multiple_of, "multiple_of")
        if n < 0 or multiple_of < 1:
            raise UsageError(
                "ratio.count", f"n is {n}, multiple_of is {multiple_of}", "give 0 or more, 1 or more"
            )
        if n < multiple_of:
            return n
        multiples = math.floor(self._ratio(step) * n / multiple_of + Fraction(1, 2))
        return min(max(multiples, 1), n // multiple_of) * multiple_of

    def _ratio(self, step: int) -> Fraction:
        step = whole(step, "step")
        if step < 0:
            raise UsageError("ratio", f"step is {step}", "count steps from 0")
        start, end = Fraction(str(float(self.start))), Fraction(str(float(self.end)))
        if start == end or self.levels == 1:
            return start
        # The tiny addition makes a half, which cos and pow may miss by an ulp, round up on every machine.
        level = math.floor(self._progress(step) * (self.levels - 1) + 0.5 + 1e-9)
        return start + (end - start) * Fraction(level, self.levels - 1)

    def _progress(self, step: int) -> float:
        """How far on the way from start to end, in [0, 1]."""
        t, span = min(max(step - self.warmup, 0), self.steps - self.warmup), self.steps - self.warmup
        if self.kind == "linear":
            return t / span
        if self.kind == "cosine":
            return (1 - math.cos(math.pi * t / span)) / 2
        if self.kind == "steps":
            t, span = bisect_right(self.milestones, step), len(self.milestones)
        way = t / span if self.decay is None else t * math.log(self.decay) / math.log(self.end / self.start)
        ratio = self.start * (self.end / self.start) ** min(way, 1.0)
        return float((ratio - self.start) / (self.end - self.start))


def _real(value: Any, name: str) -> float:
    if isinstance(value, bool) or not isinstance(value, Real):
        raise UsageError(name, f"is {value!r}", "give a number")
    return float(value)


class RatioSettings(Model):
    """Settings of a `RatioSchedule`; ``end`` is ``start`` where it is left out.

    ``steps`` has no default, other than for a constant ratio: were it the length of the run, a run that is
    made longer would see other batches than before.
    """

    kind: RatioKind = "constant"
    start: float = 1.0
    end: float | None = None
    steps: int | None = None
    warmup: int = 0
    decay: float | None = None
    milestones: tuple[int, ...] = ()
    levels: int = 16

    @model_validator(mode="after")
    def _in_range(self) -> Self:
        self.schedule()
        return self

    def schedule(self) -> RatioSchedule:
        """The schedule. Raises UsageError for arguments that are missing or out of range."""
        if self.steps is None and self.kind != "constant":
            raise UsageError(
                "ratio.steps", "is missing", f"say at which step a {self.kind} ratio has arrived"
            )
        return RatioSchedule(
            self.kind,
            start=self.start,
            end=self.start if self.end is None else self.end,
            steps=1 if self.steps is None else self.steps,
            warmup=self.warmup,
            decay=self.decay,
            milestones=self.milestones,
            levels=self.levels,
        )
