"""The next token of a text: language modelling."""

from __future__ import annotations

import math
import sys
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from ...errors import DataError
from ...pipelines.dataset import Dataset
from ...pipelines.records import IGNORED
from ...pipelines.text import TOKENS
from ..evaluate import TOGETHER, cross_entropy, mean_loss, own_rows, padded
from ..mesh import Mesh
from ..model_settings import TokenSettings
from ..models.layers import Embedding
from ..models.tokens import CausalSight
from ..models.trunk import Makers
from ..parallel.rows import Rows
from ..settings import TrainerSettings
from .task import Task, TaskState, Tensors, ignoring

_LARGEST = math.log(sys.float_info.max)


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
        return Embedding(self.classes, self.model.width, rows)

    @property
    def sight_columns(self) -> tuple[str, ...]:
        """See `Task`."""
        return (TOKENS,)

    def entry(self, columns: Tensors) -> Tensor:
        """Tokens int64 (b, k). Raises DataError where one is not of the vocabulary."""
        tokens = columns[TOKENS].long()
        if int(tokens.max()) >= self.classes:
            cause = f"a token is {int(tokens.max())}, the vocabulary holds {self.classes}"
            raise DataError("the batch", cause, "raise model.vocabulary")
        return tokens

    def inputs(self, columns: Tensors, _mask: Tensor, /) -> dict[str, Tensor]:
        """The number of each token's document in its row; an end token belongs to the one it ends."""
        ends = (columns[TOKENS].long() == self.model.end).long()
        return {"document": ends.cumsum(1) - ends}

    def labels(self, columns: Tensors, mask: Tensor, weight: Tensor) -> Tensor:
        """The next token of each, int64 (b, k). The last one has none, nor has one that ends its document."""
        tokens = columns[TOKENS].long()
        following = tokens.roll(-1, dims=1)
        counts = mask & mask.roll(-1, dims=1) & (weight > 0)[:, None] & (tokens != self.model.end)
        counts[:, -1] = False
        return ignoring(following, counts)

    def evaluate(
        self,
        dataset: Dataset,
        model: nn.Module,
        mesh: Mesh,
        settings: TrainerSettings,
        out: Path,  # noqa: ARG002 - there is nothing to write
        split: str = "test",
    ) -> dict[str, Any] | None:
        """Every token of the split, once, in sequences of ``trainer.points``, a sample's last one padded.

        ``loss`` in nats a token, ``perplexity`` (None where it is above all numbers), ``bits_per_byte`` where
        a token is a byte; ``accuracy`` of the most likely next token, ``majority``, the share of the most
        frequent one; ``tokens`` of the split, ``labelled``, those that have a next one, ``dropped``, tokens
        left out.
        """
        rows = own_rows(dataset, split, mesh)
        if rows is None:
            return None
        loss_sum, right, tokens = 0.0, 0, 0
        counts = np.zeros(self.classes)
        sequences = _sequences(dataset, rows, settings.points)
        while some := list(islice(sequences, TOGETHER)):
            columns, mask = padded(some, settings.points)
            scores, label = self._scores(model, columns, mask, mesh.device)
            counts += np.bincount(label, minlength=self.classes)
            loss_sum += cross_entropy(scores, label)
            right += int((scores.argmax(axis=1) == label).sum())
            tokens += int(mask.sum())
        sums = torch.tensor([loss_sum, right, tokens, *counts], dtype=torch.float64, device=mesh.device)
        loss_sum, right, tokens, *following = mesh.sum(sums).tolist()
        labelled = int(sum(following))
        if labelled == 0:
            return None
        held = dataset.manifest.counts.splits[split].annotations[TOKENS]
        loss = mean_loss(loss_sum, labelled)
        return {
            "accuracy": right / labelled,
            "majority": max(following) / labelled,
            "mean_iou": None,
            "loss": loss,
            "perplexity": math.exp(loss) if loss < _LARGEST else None,
            "bits_per_byte": loss / math.log(2),
            "labelled": labelled,
            "unit": "tokens",
            "tokens": int(tokens),
            "points": int(tokens),
            "dropped": held - int(tokens),
        }

    def _scores(
        self, model: nn.Module, columns: dict[str, Any], mask: NDArray[np.bool_], device: torch.device
    ) -> tuple[NDArray[np.float32], NDArray[np.int32]]:
        """Scores float32 (n, classes) and next tokens int32 (n,) of the tokens that have one."""
        tensors = {name: torch.from_numpy(values).to(device) for name, values in columns.items()}
        valid = torch.from_numpy(mask).to(device)
        with torch.inference_mode():
            label = self.labels(tensors, valid, torch.ones(len(mask), device=device))
            scores = model(self.entry(tensors), **self.inputs(tensors, valid))
            counts = label != IGNORED
            return scores[counts].cpu().numpy(), label[counts].cpu().numpy().astype(np.int32)


def _sequences(dataset: Dataset, rows: list[int], k: int) -> Iterator[dict[str, NDArray[Any]]]:
    """The tokens of each sample, k at a time."""
    for row in rows:
        tokens = dataset.sample(row, [TOKENS]).annotations[TOKENS]
        for start in range(0, len(tokens), k):
            yield {TOKENS: tokens[start : start + k]}
