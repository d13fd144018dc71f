"""The precision that each layer of a model runs in: as configured, or fp32 where it was raised."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext

import torch

from ..models.layers import Linear, SummedLinear
from ..models.trunk import Trunk
from ..settings import Precision, TrainerSettings, layers_of
from . import fp8

TYPES: dict[Precision, torch.dtype] = {
    "bf16": torch.bfloat16,
    "fp16": torch.float16,
    "fp8": torch.bfloat16,  # of all but the products of blocks
}
"""What autocast makes of a layer's matrix products and attention."""

MAY_VANISH: frozenset[Precision] = frozenset({"fp16", "fp8"})
"""Formats whose range is smaller than that of fp32."""


class Precisions:
    """Says, layer by layer, what a model computes in; it is entered by the trunk itself (`Trunk.within`).

    Parameters, the rows that go from layer to layer, norms, rotations, losses and all sums over ranks are
    fp32 whatever the layers are, so what is sent does not depend on them. Raises UsageError where the device
    has no fp8.
    """

    def __init__(self, model: Trunk, depth: int, settings: TrainerSettings, device: torch.device) -> None:
        self.layers = layers_of(depth)
        self._settings, self._device = settings, device
        self._raised: frozenset[str] = frozenset()
        self._exact = False
        self._linears = {
            f"blocks.{name}": [m for m in block.modules() if isinstance(m, Linear | SummedLinear)]
            for name, block in model.blocks.items()
        }
        if self._any({"fp8"}):
            fp8.check(device)
        torch.backends.cuda.matmul.allow_tf32 = settings.tf32
        self._apply()

    def of(self, layer: str) -> Precision:
        """What ``layer`` runs in now."""
        if self._exact or layer in self._raised:
            return "fp32"
        return self._settings.layers.get(layer, self._settings.precision)

    @property
    def lowered(self) -> bool:
        """Whether any layer of the whole model runs in less than fp32."""
        return self._any(TYPES.keys())

    @property
    def scaled(self) -> bool:
        """Whether the loss needs a scale, see `scaling`."""
        return self._any({"fp16"})

    @property
    def watched(self) -> bool:
        """Whether every step's gradients are to be looked at, see `monitor`."""
        return self._settings.monitor or self._any(MAY_VANISH)

    def running(self, layer: str) -> AbstractContextManager[object]:
        """What to run a layer in."""
        dtype = TYPES.get(self.of(layer))
        return nullcontext() if dtype is None else torch.autocast(self._device.type, dtype)

    def raise_to_fp32(self, layers: Iterable[str]) -> None:
        """These layers, and no others, run in fp32 instead of what is configured."""
        self._raised = frozenset(layers)
        self._apply()

    @contextmanager
    def exact(self) -> Iterator[None]:
        """All layers in fp32, for a while."""
        self._exact = True
        self._apply()
        try:
            yield
        finally:
            self._exact = False
            self._apply()

    def _any(self, kinds: Iterable[Precision]) -> bool:
        return any(self.of(layer) in kinds for layer in self.layers)

    def _apply(self) -> None:
        # Attributes, not a context: a backward pass that computes a block anew is outside of all contexts.
        for layer, linears in self._linears.items():
            for linear in linears:
                linear.fp8 = self.of(layer) == "fp8"
