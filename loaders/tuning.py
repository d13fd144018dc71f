"""Chooses how many threads work on a batch by what the first batches took."""

from __future__ import annotations

from collections.abc import Sequence

_WARM, _EACH = 4, 3
_WORTH = 0.7  # more threads must bring the time down to this: they take CPUs from whoever trains


class Tuner:
    """Tries ``choices`` in turn on the first batches, but for those whose memory is new; keeps the best.

    What is chosen changes how fast a batch is made, never what is in it.
    """

    def __init__(self, choices: Sequence[int]) -> None:
        self._choices = list(choices)
        self._turns = [choices[0]] * _WARM + [*choices] * _EACH
        self._best_s = {one: float("inf") for one in choices}
        self._seen = 0
        self.choice = choices[0]

    def took(self, seconds: float, size: int) -> None:
        """The batch made with `choice` took ``seconds`` for ``size`` bytes; moves `choice` on."""
        if len(self._choices) == 1 or self._seen >= len(self._turns):
            return
        if self._seen >= _WARM:
            self._best_s[self.choice] = min(self._best_s[self.choice], seconds / max(size, 1))
        self._seen += 1
        self.choice = self._turns[self._seen] if self._seen < len(self._turns) else self._best()

    def _best(self) -> int:
        best = self._choices[0]
        for one in self._choices[1:]:
            if self._best_s[one] < _WORTH * self._best_s[best]:
                best = one
        return best


def choices(threads: int | None, most: int) -> list[int]:
    """Numbers of threads to try: the given one, or 1, 2, 4, ... up to ``most``."""
    if threads is not None:
        return [threads]
    powers = [1]
    while powers[-1] * 2 <= most:
        powers.append(powers[-1] * 2)
    return powers
