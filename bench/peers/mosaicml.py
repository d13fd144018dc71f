"""MosaicML Streaming: MDS shards behind a DataLoader."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from ..clouds import Clouds
from . import Delivery, Epoch, Settings
from .torch_batches import WORKERS, arrays, collate

NAME = "MosaicML Streaming"
NEEDS = ("torch", "streaming")
REQUIREMENTS = ("torch>=2.11,<2.16", "mosaicml-streaming>=0.13,<1", "numpy>=2.1,<3")
FORMAT = "mds"


def settings(clouds: str) -> list[tuple[Delivery, Settings]]:  # noqa: ARG001 - the same on every set
    return [("in-process", {"workers": 0}), ("process", {"workers": 1}), ("process", {"workers": 2})]


def write(clouds: Clouds, folder: Path) -> None:
    from streaming import MDSWriter

    columns = {"xyz": "ndarray:float32", "rgb": "ndarray:uint8", "label": "int"}
    with MDSWriter(out=str(folder), columns=columns, exist_ok=True) as writer:
        for i in range(len(clouds)):
            xyz, rgb = clouds.read(i)
            writer.write({"xyz": xyz, "rgb": rgb, "label": int(clouds.label[i])})


@contextmanager
def opened(clouds: Clouds, folder: Path, settings: Settings) -> Iterator[Epoch]:
    from streaming import StreamingDataset
    from streaming.base.util import clean_stale_shared_memory
    from torch.utils.data import DataLoader

    clean_stale_shared_memory()  # a run of it that was killed leaves its names behind, and then this fails
    dataset = StreamingDataset(local=str(folder), shuffle=False, batch_size=clouds.batch)
    workers = settings["workers"]
    options = {"num_workers": workers, **(WORKERS if workers else {})}
    loader = DataLoader(dataset, clouds.batch, collate_fn=collate, **options)
    yield lambda: map(arrays, loader)
