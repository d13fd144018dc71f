"""WebDataset: tar shards behind its own DataLoader."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from ..clouds import Clouds
from . import Delivery, Epoch, Settings, tar
from .tar import FORMAT, write
from .torch_batches import WORKERS, Tensors, arrays, collate

__all__ = ["FORMAT", "NAME", "NEEDS", "REQUIREMENTS", "opened", "settings", "write"]

NAME = "WebDataset"
NEEDS = ("torch", "webdataset")
REQUIREMENTS = ("torch>=2.11,<2.16", "webdataset>=1.0,<2", "numpy>=2.1,<3")


def settings(clouds: str) -> list[tuple[Delivery, Settings]]:  # noqa: ARG001 - the same on every set
    return [("in-process", {"workers": 0}), ("process", {"workers": 1}), ("process", {"workers": 2})]


@contextmanager
def opened(clouds: Clouds, folder: Path, settings: Settings) -> Iterator[Epoch]:
    from webdataset import WebDataset, WebLoader

    samples = WebDataset(tar.shards(folder), shardshuffle=False, empty_check=False)
    samples = samples.decode().to_tuple("xyz.npy", "rgb.npy", "cls")
    workers = settings["workers"]
    options = {"num_workers": workers, **(WORKERS if workers else {})}
    loader = WebLoader(samples.batched(clouds.batch, collation_fn=_collate), batch_size=None, **options)
    yield lambda: map(arrays, loader)


def _collate(samples: list[tuple[Any, Any, Any]]) -> Tensors:
    return collate([dict(zip(("xyz", "rgb", "label"), sample, strict=True)) for sample in samples])
