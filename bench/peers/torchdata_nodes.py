"""torchdata's nodes: batches made by threads, or by processes that hand tensors on."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from ..clouds import Clouds
from . import STORED, Delivery, Epoch, Settings
from .torch_batches import arrays, read_packed

NAME = "torchdata nodes"
NEEDS = ("torch", "torchdata")
REQUIREMENTS = ("torch>=2.11,<2.16", "torchdata>=0.11,<1", "numpy>=2.1,<3")
FORMAT = STORED

_PREFETCH = 4


def settings(clouds: str) -> list[tuple[Delivery, Settings]]:  # noqa: ARG001 - the same on every set
    return [
        ("in-process", {"method": "thread", "workers": 1}),
        ("in-process", {"method": "thread", "workers": 2}),
        ("process", {"method": "process", "workers": 1}),
        ("process", {"method": "process", "workers": 2}),
    ]


def write(clouds: Clouds, folder: Path) -> None:
    """Nothing: it reads the clouds where they are."""


@contextmanager
def opened(clouds: Clouds, folder: Path, settings: Settings) -> Iterator[Epoch]:  # noqa: ARG001
    from torchdata.nodes import IterableWrapper, Loader, ParallelMapper, Prefetcher

    node = ParallelMapper(
        IterableWrapper(clouds.batches),
        partial(read_packed, clouds),
        num_workers=settings["workers"],
        method=settings["method"],
        multiprocessing_context="fork" if settings["method"] == "process" else None,
    )
    loader = Loader(Prefetcher(node, _PREFETCH))
    yield lambda: map(arrays, loader)
