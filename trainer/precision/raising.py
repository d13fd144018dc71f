"""When a layer is raised to fp32 for the rest of a run: a rule on what its gradients did. Free of torch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set

from pydantic import Field

from ...config import Model

MANY, RECENT = 3, 10
"""A layer is raised that was to blame for gradients that are not finite in 3 of the last 10 steps,"""
VANISHED, LONG = 0.5, 10
"""or of whose gradients more than half were zero in 10 steps in a row."""


class RaisingState(Model):
    """What a checkpoint keeps: the layers that are ``raised``, and what the others did.

    ``blamed``: the last steps at which a layer broke gradients; ``vanished``: for how many steps in a row
    most of a layer's gradients have been zero.
    """

    raised: tuple[str, ...] = ()
    blamed: dict[str, tuple[int, ...]] = Field(default_factory=dict)
    vanished: dict[str, int] = Field(default_factory=dict)


class Raising:
    """Decides by sums over all ranks, in plain numbers, so that all ranks decide alike.

    ``layers``: from the model's input to its scores.
    """

    def __init__(self, layers: Sequence[str]) -> None:
        self._layers = tuple(layers)
        self.state = RaisingState()

    def broke(self, step: int, broken: Set[str], lowered: Set[str]) -> list[str]:
        """Gradients of the layers ``broken`` were not finite, and a smaller scale was no help.

        ``lowered``: the layers that run in less than fp32. Returns those to be raised now.
        """
        culprit = self._culprit(broken, lowered)
        if culprit is None:
            return []
        steps = (*self.state.blamed.get(culprit, ()), step)
        recent = tuple(one for one in steps if one > step - RECENT)
        blamed = self.state.blamed | {culprit: recent}
        self.state = self.state.model_copy(update={"blamed": blamed})
        return self._raise([culprit] if len(recent) >= MANY else [])

    def _culprit(self, broken: Set[str], lowered: Set[str]) -> str | None:
        """The last layer that is broken: backward, it hands what is not finite to all before it.

        If it runs in fp32, what it was handed was too large already: the next one is to blame.
        """
        last = max((self._layers.index(layer) for layer in broken), default=len(self._layers))
        return next((layer for layer in self._layers[last:] if layer in lowered), None)

    def finite(self, zeros: Mapping[str, float], may_vanish: Set[str]) -> list[str]:
        """All gradients were finite; ``zeros``: of each layer's, the share that was zero.

        ``may_vanish``: the layers in a format that rounds small numbers to zero. Returns those to be raised.
        """
        before = self.state.vanished
        vanished = {
            layer: before.get(layer, 0) + 1
            for layer, share in zeros.items()
            if share > VANISHED and layer in may_vanish
        }
        self.state = self.state.model_copy(update={"vanished": vanished})
        return self._raise([layer for layer, steps in vanished.items() if steps >= LONG])

    def _raise(self, layers: list[str]) -> list[str]:
        if layers:
            state = self.state
            self.state = RaisingState(
                raised=(*state.raised, *layers),
                blamed={k: v for k, v in state.blamed.items() if k not in layers},
                vanished={k: v for k, v in state.vanished.items() if k not in layers},
            )
        return layers
