"""torch's DataLoader over the clouds in one file."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from ..clouds import Clouds
from . import STORED, Delivery, Epoch, Settings
from .torch_batches import WORKERS, Indexed, Tensors, arrays, collate, read_packed

NAME = "torch DataLoader"
NEEDS = ("torch",)
REQUIREMENTS = ("torch>=2.11,<2.16", "numpy>=2.1,<3")
FORMAT = STORED

DEFAULT = "default"


class Batched(Indexed):
    """As `Indexed`, but a whole batch is read at once."""

    def __getitems__(self, indices: Sequence[int]) -> Tensors:
        return read_packed(self.clouds, indices)


def settings(clouds: str) -> list[tuple[Delivery, Settings]]:
    collates = ["concatenate", "read to its place"] + ([DEFAULT] if clouds == "8mb" else [])
    swept: list[Settings] = [{"collate": how, "workers": n} for how in collates for n in (0, 1, 2)]
    best: Settings = {"collate": "read to its place", "workers": 2}
    swept += [{**best, "prefetch": 4}, {**best, "sharing": "file_system"}, {**best, "persistent": False}]
    if clouds == "8mb":
        swept += [{"collate": DEFAULT, "workers": 2, "prefetch": 4}]
        swept += [{"collate": DEFAULT, "workers": 2, "sharing": "file_system"}]
    return [("process" if values["workers"] else "in-process", values) for values in swept]


def write(clouds: Clouds, folder: Path) -> None:
    """Nothing: it reads the clouds where they are."""


@contextmanager
def opened(clouds: Clouds, folder: Path, settings: Settings) -> Iterator[Epoch]:  # noqa: ARG001
    import torch
    from torch.utils.data import DataLoader

    how, workers = settings["collate"], settings["workers"]
    if "sharing" in settings:
        torch.multiprocessing.set_sharing_strategy(settings["sharing"])
    options: dict[str, Any] = {"num_workers": workers}
    if workers:
        options |= WORKERS | {"prefetch_factor": settings.get("prefetch", 2)}
        options["persistent_workers"] = settings.get("persistent", True)
    data: Any = Indexed(clouds)
    if how == "read to its place":
        data, options["collate_fn"] = Batched(clouds), _as_it_is
    elif how == "concatenate":
        options["collate_fn"] = collate
    loader: Any = DataLoader(data, clouds.batch, **options)
    yield lambda: map(arrays, loader)


def _as_it_is(batch: Tensors) -> Tensors:
    return batch
