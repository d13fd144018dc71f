"""LitData: chunks behind its own DataLoader."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from ..clouds import Clouds
from . import Delivery, Epoch, Settings
from .torch_batches import WORKERS, arrays, collate

NAME = "LitData"
NEEDS = ("torch", "litdata")
REQUIREMENTS = ("torch>=2.11,<2.16", "litdata>=0.2.60,<0.3", "numpy>=2.1,<3")
FORMAT = "litdata"


def settings(clouds: str) -> list[tuple[Delivery, Settings]]:  # noqa: ARG001 - the same on every set
    return [("in-process", {"workers": 0}), ("process", {"workers": 1}), ("process", {"workers": 2})]


def write(clouds: Clouds, folder: Path) -> None:
    import torch
    from litdata.streaming.cache import Cache

    cache = Cache(str(folder), chunk_bytes="64MB")
    for i in range(len(clouds)):
        xyz, rgb = map(torch.from_numpy, clouds.read(i))
        cache[i] = {"xyz": xyz, "rgb": rgb, "label": int(clouds.label[i])}
    cache.done()
    cache.merge()


@contextmanager
def opened(clouds: Clouds, folder: Path, settings: Settings) -> Iterator[Epoch]:
    from litdata import StreamingDataLoader, StreamingDataset

    workers = settings["workers"]
    options = {"num_workers": workers, **(WORKERS if workers else {})}
    dataset = StreamingDataset(str(folder), shuffle=False, drop_last=False)
    loader = StreamingDataLoader(dataset, batch_size=clouds.batch, collate_fn=collate, **options)
    yield lambda: map(arrays, loader)
