"""The loaders that are measured, one a file.

A file says what has to be installed, which settings are swept, how the clouds are written for the loader and
how it is opened. It imports what it measures only inside functions, so that settings can be listed anywhere.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from importlib import import_module
from pathlib import Path
from typing import Any, Literal, Protocol, cast

from ..clouds import Arrays, Clouds

Settings = dict[str, Any]
Delivery = Literal["process", "in-process"]
Epoch = Callable[[], Iterable[Arrays]]
"""Starts reading all clouds once, in batches."""

STORED = "set"
"""The `FORMAT` of loaders that read the clouds where they are: nothing is written for them."""

FILES = (
    "tamis",
    "bare",
    "torch_dataloader",
    "torchdata_nodes",
    "mosaicml",
    "litdata",
    "webdataset",
    "grain",
    "spdl",
    "dali_numpy",
    "dali_webdataset",
    "dali_external",
    "energon",
    "lancedb",
)


class Peer(Protocol):
    """What a file of this folder offers.

    ``NAME``: what rows call it. ``NEEDS``: the modules it imports; ``REQUIREMENTS``: what brings them.
    ``FORMAT``: the folder of its files, which loaders with files of the same kind share.
    """

    NAME: str
    NEEDS: tuple[str, ...]
    REQUIREMENTS: tuple[str, ...]
    FORMAT: str

    def settings(self, clouds: str) -> list[tuple[Delivery, Settings]]:
        """What is swept over on the set ``clouds``: "process" where another process makes the batches."""

    def write(self, clouds: Clouds, folder: Path) -> None:
        """Write the clouds as the loader reads them, once."""

    def opened(self, clouds: Clouds, folder: Path, settings: Settings) -> AbstractContextManager[Epoch]:
        """The loader, ready for the first epoch; what it started ends with the context."""


def load(file: str) -> Peer:
    """The peer in ``file``."""
    return cast(Peer, import_module(f".{file}", __name__))
