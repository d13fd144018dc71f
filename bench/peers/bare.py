"""The least a loader can do: the reads of tamis' inline loader, in its order, in one loop on one thread."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np

from ..clouds import Arrays, Clouds
from . import Delivery, Epoch, Settings
from .tamis import COLUMNS, FORMAT, NEEDS, REQUIREMENTS, cloud_of, write

__all__ = ["FORMAT", "NAME", "NEEDS", "REQUIREMENTS", "opened", "settings", "write"]

NAME = "bare preadv"


def settings(clouds: str) -> list[tuple[Delivery, Settings]]:  # noqa: ARG001 - the same on every set
    return [("in-process", {})]


@contextmanager
def opened(clouds: Clouds, folder: Path, settings: Settings) -> Iterator[Epoch]:  # noqa: ARG001 - there are none
    from ...loaders.loader import Loader
    from ...pipelines.dataset import Dataset

    dataset = Dataset(folder)
    row = {int(id): i for i, id in enumerate(dataset.ids)}
    with Loader(dataset, global_batch=clouds.batch, form="ragged", columns=[], epochs=1) as loader:
        order = [np.array([row[int(id)] for id in batch.ids]) for batch in loader]
    files = [os.open(dataset.shard_path(s), os.O_RDONLY) for s in range(int(dataset.shard.max()) + 1)]
    cloud = cloud_of(dataset)

    def epoch() -> Iterator[Arrays]:
        for rows in order:
            about = clouds.about(cloud[rows])
            first, batch = about["offsets"].tolist(), {}
            for name in COLUMNS:
                packed = dataset.schema[name].empty(first[-1])
                position = dataset.positions[name][rows].tolist()
                for i, shard in enumerate(dataset.shard[rows].tolist()):
                    os.preadv(files[shard], [packed[first[i] : first[i + 1]].data], position[i])
                batch[name] = packed
            yield {**batch, **about}

    try:
        yield epoch
    finally:
        for file in files:
            os.close(file)
