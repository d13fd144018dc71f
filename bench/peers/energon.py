"""Megatron Energon: tar shards and its index, behind its own DataLoader."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from ..clouds import Clouds
from . import Delivery, Epoch, Settings, tar
from .tar import FORMAT
from .torch_batches import Tensors, arrays, collate

__all__ = ["FORMAT", "NAME", "NEEDS", "REQUIREMENTS", "opened", "settings", "write"]

NAME = "Energon"
NEEDS = ("torch", "megatron.energon")
REQUIREMENTS = ("torch>=2.11,<2.16", "megatron-energon>=7,<8", "numpy>=2.1,<3")


def settings(clouds: str) -> list[tuple[Delivery, Settings]]:  # noqa: ARG001 - the same on every set
    return [("in-process", {"workers": 0}), ("process", {"workers": 1}), ("process", {"workers": 2})]


def write(clouds: Clouds, folder: Path) -> None:
    from megatron.energon.epathlib import EPath
    from megatron.energon.flavors.webdataset.prepare import WebdatasetPreparator

    tar.write(clouds, folder)
    names = [Path(path).name for path in tar.shards(folder)]
    WebdatasetPreparator.prepare_dataset(
        EPath(str(folder)), names, split_parts_ratio=[("train", 1.0)], workers=1, tar_index_only=False
    )
    about = "__module__: megatron.energon\n__class__: CrudeWebdataset\n"
    (folder / ".nv-meta" / "dataset.yaml").write_text(about)


@contextmanager
def opened(clouds: Clouds, folder: Path, settings: Settings) -> Iterator[Epoch]:
    from megatron.energon import (
        Cooker,
        DefaultTaskEncoder,
        SampleDecoder,
        WorkerConfig,
        basic_sample_keys,
        get_loader,
        get_train_dataset,
        stateless,
    )

    @stateless
    def cook(sample: dict[str, Any]) -> dict[str, Any]:
        return {
            **basic_sample_keys(sample),
            "xyz": sample["xyz.npy"],
            "rgb": sample["rgb.npy"],
            "label": sample["cls"],
        }

    class Encoder(DefaultTaskEncoder):
        decoder = SampleDecoder()
        cookers = [Cooker(cook)]  # noqa: RUF012 - as its documentation has it

        def batch(self, samples: list[dict[str, Any]]) -> Tensors:
            return collate(samples)

    dataset = get_train_dataset(
        str(folder),
        batch_size=clouds.batch,
        shuffle_buffer_size=None,
        max_samples_per_sequence=None,
        worker_config=WorkerConfig(rank=0, world_size=1, num_workers=settings["workers"]),
        task_encoder=Encoder(),
        repeat=False,
    )
    loader = get_loader(dataset)
    yield lambda: map(arrays, loader)
