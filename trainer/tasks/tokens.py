"""The next token of a text: language modelling."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from torch import Tensor, nn

from ...errors import DataError
from ...pipelines.dataset import Dataset
from ..mesh import Mesh
from ..model_settings import TokenSettings
from ..models.layers import Embedding
from ..models.tokens import CausalSight
from ..models.trunk import Makers
from ..parallel.rows import Rows
from ..settings import TrainerSettings
from .task import Task, TaskState, Tensors, ignoring


class NextToken(Task):
    """The token that follows each one, in the same document.

    ``has_tokens``: whether the dataset has them; ``where`` it is (for errors). Raises DataError where not.
    """

    model: TokenSettings

    def __init__(self, model: TokenSettings, has_tokens: bool, where: str) -> None:
        if not has_tokens:
            raise DataError(where, "has no tokens", "build it from text, or set model.kind")
        self.model, self.state, self.classes = model, TaskState(), model.vocabulary

    @property
    def makers(self) -> Makers:
        """See `Task`."""
        return Makers(self._embedding, lambda: CausalSight(self.model), None, self.classes)

    def _embedding(self, rows: Rows) -> nn.Module:
        # As many entries on each rank; no token looks at those that fill up.
        entries = -(-self.classes // rows.size) * rows.size
        return Embedding(self.classes, entries, self.model.width, rows)

    @property
    def sight_columns(self) -> tuple[str, ...]:
        """See `Task`."""
        return ("tokens",)

    def entry(self, columns: Tensors) -> Tensor:
        """Tokens int64 (b, k). Raises DataError where one is not of the vocabulary."""
        tokens = columns["tokens"].long()
        if int(tokens.max()) >= self.classes:
            cause = f"a token is {int(tokens.max())}, the vocabulary holds {self.classes}"
            raise DataError("the batch", cause, "raise model.vocabulary")
        return tokens

    def inputs(self, columns: Tensors, _mask: Tensor, /) -> dict[str, Tensor]:
        """The number of each token's document in its row; an end token belongs to the one it ends."""
        ends = (columns["tokens"].long() == self.model.end).long()
        return {"document": ends.cumsum(1) - ends}

    def labels(self, columns: Tensors, mask: Tensor, weight: Tensor) -> Tensor:
        """The next token of each, int64 (b, k). The last one has none, nor has one that ends its document."""
        tokens = columns["tokens"].long()
        following = tokens.roll(-1, dims=1)
        counts = mask & mask.roll(-1, dims=1) & (weight > 0)[:, None] & (tokens != self.model.end)
        counts[:, -1] = False
        return ignoring(following, counts)

    def evaluate(
        self, dataset: Dataset, model: nn.Module, mesh: Mesh, settings: TrainerSettings, out: Path
    ) -> dict[str, Any] | None:
        """Every token of the split, in sequences of ``trainer.points``."""
        raise NotImplementedError
