"""DALI's parallel external source: worker processes hand whole batches on through its shared memory."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from ..clouds import Arrays, Clouds
from . import STORED, Delivery, Epoch, Settings
from .dali_numpy import NEEDS, REQUIREMENTS

__all__ = ["FORMAT", "NAME", "NEEDS", "REQUIREMENTS", "opened", "settings", "write"]

NAME = "DALI external source"
FORMAT = STORED

_NAMES = ("xyz", "rgb", "label", "offsets")


class Source:
    """The batch that comes next, as one sample of DALI's."""

    def __init__(self, clouds: Clouds) -> None:
        self.clouds = clouds

    def __call__(self, about: Any) -> tuple[Any, ...]:
        batches = self.clouds.batches
        batch = self.clouds.batch_of(batches[about.idx_in_epoch % len(batches)])
        return tuple(batch[name] for name in _NAMES)


def settings(clouds: str) -> list[tuple[Delivery, Settings]]:  # noqa: ARG001 - the same on every set
    swept: list[Settings] = [{"workers": n} for n in (1, 2)]
    swept.append({"workers": 2, "prefetch": 4})
    return [("process", values) for values in swept]


def write(clouds: Clouds, folder: Path) -> None:
    """Nothing: it reads the clouds where they are."""


@contextmanager
def opened(clouds: Clouds, folder: Path, settings: Settings) -> Iterator[Epoch]:  # noqa: ARG001
    from nvidia.dali import fn
    from nvidia.dali.pipeline import Pipeline

    depth = settings.get("prefetch", 2)
    pipeline: Any = Pipeline(
        batch_size=1,
        num_threads=1,
        device_id=None,
        prefetch_queue_depth=depth,
        py_num_workers=settings["workers"],
        py_start_method="fork",
    )
    with pipeline:
        outputs: Any = fn.external_source(
            Source(clouds), num_outputs=len(_NAMES), batch=False, parallel=True, prefetch_queue_depth=depth
        )
        pipeline.set_outputs(*outputs)
    pipeline.build()

    def epoch() -> Iterator[Arrays]:
        for _ in clouds.batches:
            yield {name: np.asarray(part.at(0)) for name, part in zip(_NAMES, pipeline.run(), strict=True)}

    yield epoch
