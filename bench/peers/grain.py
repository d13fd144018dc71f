"""Grain: ArrayRecord files, or the clouds in one file, through its threads or its processes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from ..clouds import Arrays, Clouds, pack
from . import Delivery, Epoch, Settings

NAME = "Grain"
NEEDS = ("grain", "array_record")
REQUIREMENTS = ("grain>=0.2.15,<0.3", "array-record>=0.8,<0.9", "numpy>=2.1,<3")
FORMAT = "array_record"

_SHARD_CLOUDS = 400
_HEADER = 16  # rows and label


class Samples:
    """The clouds in one file."""

    def __init__(self, clouds: Clouds) -> None:
        self.clouds = clouds

    def __len__(self) -> int:
        return len(self.clouds)

    def __getitem__(self, i: int) -> Arrays:
        xyz, rgb = self.clouds.read(i)
        return {"xyz": xyz, "rgb": rgb, "label": self.clouds.label[i]}


class Batches(Samples):
    """The same, a whole batch an item."""

    def __len__(self) -> int:
        return len(self.clouds.batches)

    def __getitem__(self, i: int) -> Arrays:
        return self.clouds.batch_of(self.clouds.batches[i])


def settings(clouds: str) -> list[tuple[Delivery, Settings]]:
    swept: list[tuple[Delivery, Settings]] = []
    equal = ["one file, its own batch"] if clouds == "8mb" else []  # it stacks clouds of equal shape
    for source in ("array_record", "one file", *equal):
        swept.append(("in-process", {"source": source, "threads": 2}))
        swept.append(("process", {"source": source, "workers": 2}))
    return [
        *swept,
        ("in-process", {"source": "one file", "threads": 1}),
        ("process", {"source": "one file", "workers": 1}),
    ]


def write(clouds: Clouds, folder: Path) -> None:
    from array_record.python.array_record_module import ArrayRecordWriter

    for start in range(0, len(clouds), _SHARD_CLOUDS):
        writer = ArrayRecordWriter(str(folder / f"{start:06d}.array_record"), "group_size:1,uncompressed")
        for i in range(start, min(start + _SHARD_CLOUDS, len(clouds))):
            xyz, rgb = clouds.read(i)
            head = np.array([len(xyz), clouds.label[i]], np.int64)
            writer.write(head.tobytes() + xyz.tobytes() + rgb.tobytes())
        writer.close()


@contextmanager
def opened(clouds: Clouds, folder: Path, settings: Settings) -> Iterator[Epoch]:
    import grain
    from absl import flags

    flags.FLAGS(["bench"], known_only=True)  # its workers read them
    if settings["source"] == "one file":
        data = grain.MapDataset.source(Batches(clouds))
    elif settings["source"] == "one file, its own batch":
        data = grain.MapDataset.source(Samples(clouds)).batch(clouds.batch)
    else:
        files = sorted(map(str, folder.glob("*.array_record")))
        data = grain.MapDataset.source(grain.sources.ArrayRecordDataSource(files)).map(_decode)
        data = data.batch(clouds.batch, batch_fn=_pack)
    options = grain.ReadOptions(num_threads=settings.get("threads", 1), prefetch_buffer_size=4)

    def epoch() -> Iterator[Arrays]:
        batches = data.to_iter_dataset(options)
        if "workers" in settings:
            workers = grain.multiprocessing.MultiprocessingOptions(
                settings["workers"], per_worker_buffer_size=2
            )
            batches = batches.mp_prefetch(workers)
        yield from batches

    yield epoch


def _decode(record: bytes) -> tuple[Any, Any, int]:
    n, label = np.frombuffer(record, np.int64, 2).tolist()
    xyz = np.frombuffer(record, np.float32, 3 * n, _HEADER).reshape(n, 3)
    rgb = np.frombuffer(record, np.uint8, 3 * n, _HEADER + 12 * n).reshape(n, 3)
    return xyz, rgb, label


def _pack(samples: Sequence[tuple[Any, Any, int]]) -> Arrays:
    return pack(samples)
