"""LanceDB: its StreamingDataset behind a DataLoader, and a plain scan of the Lance table."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ..clouds import Arrays, Clouds, pack
from . import Delivery, Epoch, Settings
from .torch_batches import arrays, collate

if TYPE_CHECKING:
    import pyarrow as pa

NAME = "LanceDB"
NEEDS = ("torch", "lance", "lancedb")
REQUIREMENTS = ("torch>=2.11,<2.16", "lancedb>=0.38,<1", "pylance>=14,<15", "numpy>=2.1,<3")
FORMAT = "lance"

_TABLE = "clouds"


def settings(clouds: str) -> list[tuple[Delivery, Settings]]:  # noqa: ARG001 - the same on every set
    streaming: Settings = {"api": "StreamingDataset"}
    return [
        ("in-process", {"api": "to_batches"}),
        ("in-process", {**streaming, "workers": 0}),
        ("process", {**streaming, "workers": 1}),
        ("process", {**streaming, "workers": 2}),
    ]


def write(clouds: Clouds, folder: Path) -> None:
    import lancedb
    import pyarrow as pa

    schema = pa.schema(
        [("xyz", pa.list_(pa.float32())), ("rgb", pa.list_(pa.uint8())), ("label", pa.int64())]
    )

    def batches() -> Iterator[pa.RecordBatch]:
        for batch in clouds.batches:
            packed = clouds.batch_of(batch)
            offsets = pa.array((3 * packed["offsets"]).astype(np.int32))
            lists = [
                pa.ListArray.from_arrays(offsets, pa.array(packed[name].ravel())) for name in ("xyz", "rgb")
            ]
            yield pa.record_batch([*lists, pa.array(packed["label"])], schema=schema)

    reader = pa.RecordBatchReader.from_batches(schema, batches())
    lancedb.connect(str(folder)).create_table(_TABLE, reader)


@contextmanager
def opened(clouds: Clouds, folder: Path, settings: Settings) -> Iterator[Epoch]:
    if settings["api"] == "to_batches":
        import lance

        table = lance.dataset(str(folder / f"{_TABLE}.lance"))

        def epoch() -> Iterator[Arrays]:
            for batch in table.to_batches(batch_size=clouds.batch):
                yield pack([(s["xyz"], s["rgb"], s["label"]) for s in _samples(batch)])

        yield epoch
        return
    import lancedb
    from lancedb.streaming import StreamingDataset
    from torch.utils.data import DataLoader

    from .lancedb_epochs import Epochs

    workers = settings["workers"]
    dataset = StreamingDataset(
        lancedb.connect(str(folder)).open_table(_TABLE),
        num_splits=max(1, workers),
        shuffle=False,
        read_batch_size=clouds.batch,
        transform=_samples,
        transform_parallelism=1 if workers else 2,
    )
    options: dict[str, Any] = {"num_workers": workers}
    if workers:  # its threads do not cross a fork
        options |= {"multiprocessing_context": "spawn", "persistent_workers": True}
    loader = DataLoader(Epochs(dataset), clouds.batch, collate_fn=collate, **options)
    yield lambda: map(arrays, loader)


def _samples(batch: pa.RecordBatch) -> Sequence[dict[str, Any]]:
    """The clouds of a record batch, views of its memory."""
    columns = {name: batch.column(name) for name in ("xyz", "rgb")}
    offsets = {name: column.offsets.to_numpy() for name, column in columns.items()}
    values = {name: column.values.to_numpy() for name, column in columns.items()}
    label = batch.column("label").to_numpy()
    return [
        {
            "label": int(label[i]),
            **{
                name: values[name][offsets[name][i] : offsets[name][i + 1]].reshape(-1, 3) for name in columns
            },
        }
        for i in range(len(batch))
    ]
