"""LanceDB's StreamingDataset, made to start anew: alone it reads one epoch, also in workers that stay."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from torch.utils.data import IterableDataset


class Epochs(IterableDataset[dict[str, Any]]):
    """Reads all of ``dataset`` each time."""

    def __init__(self, dataset: Any) -> None:
        self.dataset, self.start = dataset, dataset.state_dict()

    def __iter__(self) -> Iterator[dict[str, Any]]:
        self.dataset.load_state_dict(self.start)
        yield from self.dataset
