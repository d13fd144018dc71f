"""DALI's webdataset reader over tar shards."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..clouds import Arrays, Clouds, pack
from . import Delivery, Epoch, Settings, tar
from .dali_numpy import NEEDS, REQUIREMENTS
from .tar import FORMAT, write

__all__ = ["FORMAT", "NAME", "NEEDS", "REQUIREMENTS", "opened", "settings", "write"]

NAME = "DALI webdataset reader"


def settings(clouds: str) -> list[tuple[Delivery, Settings]]:  # noqa: ARG001 - the same on every set
    swept: list[Settings] = [{"threads": n} for n in (1, 2)]
    swept.append({"threads": 2, "prefetch": 4})
    return [("in-process", values) for values in swept]


@contextmanager
def opened(clouds: Clouds, folder: Path, settings: Settings) -> Iterator[Epoch]:
    from nvidia.dali import fn
    from nvidia.dali.pipeline import Pipeline

    pipeline: Any = Pipeline(
        batch_size=clouds.batch,
        num_threads=settings["threads"],
        device_id=None,
        prefetch_queue_depth=settings.get("prefetch", 2),
    )
    with pipeline:
        outputs: Any = fn.readers.webdataset(paths=tar.shards(folder), ext=["xyz.npy", "rgb.npy", "cls"])
        pipeline.set_outputs(*outputs)
    pipeline.build()

    def epoch() -> Iterator[Arrays]:
        for batch in clouds.batches:
            xyz, rgb, label = ([np.asarray(part.at(j)) for j in range(len(batch))] for part in pipeline.run())
            samples = [
                (
                    _body(xyz[j]).view(np.float32).reshape(-1, 3),
                    _body(rgb[j]).reshape(-1, 3),
                    int(bytes(label[j])),
                )
                for j in range(len(batch))
            ]
            yield pack(samples)

    yield epoch


def _body(file: NDArray[np.uint8]) -> NDArray[Any]:
    """The values of a .npy file of version 1: what follows its header."""
    return file[10 + int(file[8]) + 256 * int(file[9]) :]
