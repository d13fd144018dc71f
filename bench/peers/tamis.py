"""tamis: `Loader` in the process itself, or behind a feeder that hands batches on through shared memory."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from ..clouds import Arrays, Clouds
from . import Delivery, Epoch, Settings

if TYPE_CHECKING:
    from ...pipelines.dataset import Dataset

NAME = "tamis"
NEEDS = ("numba", "pyarrow", "pydantic")
REQUIREMENTS = ()
FORMAT = "tamis"

COLUMNS = ["xyz", "rgb"]

Ids = NDArray[np.uint64]


def settings(clouds: str) -> list[tuple[Delivery, Settings]]:
    swept: list[Settings] = [{"verify": verify} for verify in ("never", "first", "always")]
    swept.append({"verify": "never", "threads": 1})
    if clouds == "8mb":
        swept.append({"verify": "never", "form": "dense"})
    return [
        *(("process", {"feeder": "node", **values}) for values in swept),
        *(("in-process", {"feeder": "inline", **values}) for values in swept),
    ]


def write(clouds: Clouds, folder: Path) -> None:
    from ...pipelines.build import build
    from ...pipelines.settings import DataSettings

    if (folder / "dataset").is_dir():  # written for the bare loop, which reads it too
        return
    raw = folder / "raw"
    raw.mkdir()
    for i in range(len(clouds)):
        xyz, rgb = clouds.read(i)
        scan = np.empty(len(xyz), [("xyz", np.float32, 3), ("rgb", np.uint8, 3)])
        scan["xyz"], scan["rgb"] = xyz, rgb
        np.save(raw / f"{i:06d}.npy", scan)
    build(DataSettings(root=raw, row_order="random"), folder)
    shutil.rmtree(raw)


@contextmanager
def opened(clouds: Clouds, folder: Path, settings: Settings) -> Iterator[Epoch]:
    from ...loaders.loader import Loader
    from ...pipelines.dataset import Dataset

    dataset = Dataset(folder)
    label = label_of(dataset, clouds)
    options: dict[str, Any] = {"form": "ragged", **settings}
    if options["form"] == "dense":
        options["k"] = int(clouds.rows.max())
    with Loader(dataset, global_batch=clouds.batch, columns=COLUMNS, **options) as loader:

        def epoch() -> Iterator[Arrays]:
            for _ in range(loader.batches_per_epoch):
                batch = next(loader)
                extent = {"offsets": batch.offsets} if batch.mask is None else {"mask": batch.mask}
                yield {**batch.columns, "label": label(batch.ids), **extent}  # type: ignore[dict-item]

        yield epoch


def cloud_of(dataset: Dataset) -> NDArray[np.int64]:
    """The number of the cloud that each sample of the dataset is."""
    sources = dataset.samples.column("source").to_pylist()
    return np.array([int(source.removesuffix(".npy")) for source in sources], np.int64)


def label_of(dataset: Dataset, clouds: Clouds) -> Callable[[Ids], NDArray[np.int64]]:
    """The labels of samples: a dataset holds one a point, these clouds have one each."""
    order = np.argsort(dataset.ids)
    ids, label = dataset.ids[order], clouds.label[cloud_of(dataset)[order]]
    return lambda wanted: label[np.searchsorted(ids, wanted)]
