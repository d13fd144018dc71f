"""DALI's numpy reader over a .npy file for coordinates and one for colours."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from ..clouds import Arrays, Clouds, pack
from . import Delivery, Epoch, Settings

NAME = "DALI numpy reader"
NEEDS = ("nvidia.dali",)
REQUIREMENTS = ("nvidia-dali-cuda130>=2.1,<3", "numpy>=2.1,<3")
FORMAT = "npy"


def settings(clouds: str) -> list[tuple[Delivery, Settings]]:  # noqa: ARG001 - the same on every set
    swept: list[Settings] = [{"threads": n} for n in (1, 2)]
    swept.append({"threads": 2, "prefetch": 4})
    swept.append({"threads": 2, "mmap": False})
    return [("in-process", values) for values in swept]


def write(clouds: Clouds, folder: Path) -> None:
    for i in range(len(clouds)):
        xyz, rgb = clouds.read(i)
        np.save(folder / f"{i:06d}.xyz.npy", xyz)
        np.save(folder / f"{i:06d}.rgb.npy", rgb)


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
        outputs = [
            fn.readers.numpy(
                file_root=str(folder),
                files=[f"{i:06d}.{name}.npy" for i in range(len(clouds))],
                dont_use_mmap=not settings.get("mmap", True),
                name=name,
            )
            for name in ("xyz", "rgb")
        ]
        pipeline.set_outputs(*outputs)
    pipeline.build()

    def epoch() -> Iterator[Arrays]:
        for batch in clouds.batches:
            xyz, rgb = pipeline.run()
            samples = [
                (np.asarray(xyz.at(j)), np.asarray(rgb.at(j)), int(clouds.label[i]))
                for j, i in enumerate(batch)
            ]
            yield pack(samples)

    yield epoch
