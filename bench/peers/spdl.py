"""SPDL: a pipeline of threads, in the process itself or in another that hands batches on."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from ..clouds import POINT_BYTES, Arrays, Clouds
from . import STORED, Delivery, Epoch, Settings

NAME = "SPDL"
NEEDS = ("spdl.pipeline",)
REQUIREMENTS = ("spdl>=0.7,<1", "numpy>=2.1,<3")
FORMAT = STORED

_SLOTS = 6


def settings(clouds: str) -> list[tuple[Delivery, Settings]]:  # noqa: ARG001 - the same on every set
    swept: list[tuple[Delivery, Settings]] = [("in-process", {"threads": n}) for n in (1, 2)]
    swept += [("process", {"threads": 1, "arena": arena}) for arena in ("none", "ring")]
    swept += [("process", {"threads": n, "arena": "pool"}) for n in (1, 2)]
    swept += [("process", {"threads": n, "arena": "pool", "continuous": True}) for n in (1, 2)]
    return swept


def write(clouds: Clouds, folder: Path) -> None:
    """Nothing: it reads the clouds where they are."""


@contextmanager
def opened(clouds: Clouds, folder: Path, settings: Settings) -> Iterator[Epoch]:  # noqa: ARG001
    from spdl.pipeline import PipelineBuilder, run_pipeline_in_subprocess

    threads = settings["threads"]

    def builder() -> Any:
        source = PipelineBuilder().add_source(clouds.batches, continuous=settings.get("continuous", False))
        return source.pipe(clouds.batch_of, concurrency=threads).add_sink(2)

    def in_process() -> Iterator[Arrays]:
        pipeline = builder().build(num_threads=threads)
        with pipeline.auto_stop():
            yield from pipeline

    if "arena" not in settings:
        yield in_process
        return
    config = builder().get_config()
    batches = run_pipeline_in_subprocess(
        config, num_threads=threads, mp_context="fork", arena=_arena(clouds, settings["arena"])
    )
    yield lambda: batches


def _arena(clouds: Clouds, kind: str) -> Any:
    from spdl.pipeline import SharedMemoryRingBuffer, SharedMemorySegmentPool

    largest = max(int(clouds.rows[batch.start : batch.stop].sum()) for batch in clouds.batches) * POINT_BYTES
    room = largest + (1 << 16)  # labels, offsets and what is between
    if kind == "ring":
        return SharedMemoryRingBuffer(_SLOTS * room)
    return SharedMemorySegmentPool(room, _SLOTS) if kind == "pool" else None
